"""The middleware around sse-starlette, which has one task for all event streams of the process."""

from __future__ import annotations

import time

import anyio
import anyio.lowlevel
import pytest

from quiesce.mesh.protocol import codec
from tests.adapters.asgi.kit import serve

pytestmark = [pytest.mark.backends("asyncio"), pytest.mark.real_time]

APP = "tests.adapters.asgi.sse_app:app"
NEVER = 1000  # a drain that takes its whole time ends by the test's limit


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", ["uvicorn", "uvicorn-uvloop"])
async def test_an_ended_event_stream_holds_up_no_drain(kind: str) -> None:
    """The task that sse-starlette leaves running is not the work of the request that started it."""
    async with serve(kind, "quiesce", app=APP, grace=NEVER) as server:
        response = await server.get("/short")
        assert (response.body, response.complete) == (b"data: only\r\n\r\n", True)
        server.terminate()
        assert await server.exit_code() == 0
        assert "nothing it owned was lost" in server.errors()


async def test_an_open_event_stream_gets_its_end() -> None:
    """After SIGTERM, a stream goes on to its last event, and the server stops after it."""
    async with (
        serve("uvicorn", "quiesce", app=APP, grace=NEVER) as server,
        server.connect() as client,
    ):
        await client.ask("/feed")
        status, headers = await client.head()
        work = await server.begun("feed")
        await server.draining()
        await work.go_on()
        body, complete = await client.rest(headers)
        assert (status, complete) == (200, True)
        assert body == b"data: first\r\n\r\ndata: last\r\n\r\n"
        assert await server.exit_code() == 0


async def test_an_event_stream_that_is_cut_is_told() -> None:
    """At the deadline the stream is ended, not broken off, and the exit code says that work was lost."""
    async with serve("uvicorn", "quiesce", app=APP, grace=0) as server, server.connect() as client:
        await client.ask("/feed")
        _, headers = await client.head()
        await server.begun("feed")
        server.terminate()
        body, complete = await client.rest(headers)
        assert (body, complete) == (b"data: first\r\n\r\n", True)
        assert await server.exit_code() == 1
        assert "WORK LOST" in server.errors()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", ["uvicorn", "uvicorn-uvloop"])
async def test_an_event_stream_outside_of_cascades_ends_with_the_server(kind: str) -> None:
    """sse-starlette finds uvicorn behind the handler of a node, sees that it stops, and ends its streams."""
    async with (
        serve(kind, "quiesce", app="tests.adapters.asgi.sse_app:in_mesh") as server,
        server.connect() as client,
    ):
        await client.ask("/feed")
        await client.head()
        await server.begun("feed")
        server.terminate()
        assert await server.exit_code() is not None


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", ["uvicorn", "uvicorn-uvloop"])
async def test_an_event_stream_of_a_hop_gets_its_end(kind: str) -> None:
    """The node is drained: the stream is cut neither by the server nor by sse-starlette."""
    handed = codec.Handed(bytes(16), bytes(12), "0" * 12, int(time.time() + 60), "http://sse")
    async with (
        serve(kind, "quiesce", app="tests.adapters.asgi.sse_app:in_mesh") as server,
        server.connect() as client,
    ):
        await client.ask("/feed", Cascade=codec.request_header(handed))
        _, headers = await client.head()
        work = await server.begun("feed")
        server.terminate()
        while "is draining" not in server.errors():
            await anyio.lowlevel.checkpoint()
        with anyio.move_on_after(0.7):  # sse-starlette looks every half second
            await client.until(b"the end, too soon")
        await work.go_on()
        body, complete = await client.rest(headers)
        assert (body, complete) == (b"data: first\r\n\r\ndata: last\r\n\r\n", True)
        assert await server.exit_code() is not None
