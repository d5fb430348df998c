"""The middleware under hypercorn."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

import pytest

from quiesce.mesh import Memory, Node, current_hop
from tests.adapters.asgi.every_server import *  # noqa: F403 - the tests are the same for every server
from tests.adapters.asgi.kit import Client, serve


@pytest.mark.backends("asyncio")
@pytest.mark.real_time
async def test_in_a_worker_process_background_work_is_drained() -> None:
    """With `-w 1` only the parent hears of SIGTERM; the app drains when its lifespan ends."""
    async with serve("hypercorn-worker", "quiesce", grace=5) as server:
        await server.get("/background")
        work = await server.begun("background")
        server.terminate()
        await server.noted("drain begins")
        await work.go_on()
        await server.exit_code()
        assert server.notes[-2:] == ["background done", "shutdown"]


@pytest.mark.skipif(
    sys.version_info >= (3, 12),
    reason="from there on asyncio's Server.wait_closed() waits for clients, so hypercorn cuts none",
)
@pytest.mark.backends("asyncio")
@pytest.mark.real_time
async def test_in_a_worker_process_the_loss_is_reported() -> None:
    """What hypercorn cuts, before it tells its app of the shutdown, is in the report."""
    arguments = ("--graceful-timeout", "1")
    async with (
        serve("hypercorn-worker", "quiesce", *arguments, grace=5) as server,
        server.connect() as client,
    ):
        await client.ask("/endless")
        _, headers = await client.head()
        await server.noted("endless began")
        server.terminate()
        assert not (await client.rest(headers))[1]
        await server.exit_code()
        assert "undelivered: response GET /endless" in server.errors()


@pytest.mark.backends("asyncio")
@pytest.mark.real_time
async def test_in_a_worker_process_a_background_task_that_is_cut_is_reported() -> None:
    """The request has its response, and hypercorn cancels what it does after that."""
    arguments = ("--graceful-timeout", "1")
    async with serve("hypercorn-worker", "quiesce", *arguments, grace=5) as server:
        assert (await server.get("/after")).status == 202
        await server.begun("after")
        server.terminate()
        await server.exit_code()
        assert "after cut" in server.notes
        assert "WORK LOST: 0 jobs completed, 1 cancelled" in server.errors()
        assert "cancelled: job GET /after" in server.errors()


@pytest.mark.backends("asyncio")
@pytest.mark.real_time
async def test_a_background_task_of_a_hop_that_hypercorn_cuts_is_a_loss_of_the_node_alone() -> None:
    """Its time for open requests is shorter than the node's: what it cuts is in the report, and the exit code is 1."""
    options = {"app": "tests.adapters.asgi.node_app:app", "logs": False, "grace": 600}
    arguments = ("--graceful-timeout", "1")
    async with serve("hypercorn", "quiesce", *arguments, **options) as server:
        async with (
            Node("me", url="http://me", transport=Memory()) as node,
            node.cascade("c"),
        ):
            hop = current_hop()
            assert hop is not None
            with hop.delegate("http://hotel") as handing:
                async with server.connect() as client:
                    await client.ask("/after", cascade=handing.header)
                    status, headers = await client.head()
                    handing.answered(headers["cascade-receipt"])
        assert status == 202
        await server.begun("after")
        server.terminate()
        assert await server.exit_code() == 1
        assert "after cut" in server.notes
        assert "cancelled: handler GET /after" in server.errors()


# Not where mypy looks, as all test subjects.
_connection: Any = import_module("h2.connection")
_config: Any = import_module("h2.config")
_events: Any = import_module("h2.events")


class Http2:
    """Requests over one connection of HTTP/2, without TLS."""

    def __init__(self, client: Client) -> None:
        self._stream = client.stream
        self._h2 = _connection.H2Connection(_config.H2Configuration(header_encoding="utf-8"))
        self._h2.initiate_connection()
        self._heads: dict[int, dict[str, str]] = {}
        self._bodies: dict[int, bytes] = {}
        self._over: set[int] = set()

    async def ask(self, path: str) -> int:
        """Send a request; gives its number."""
        number: int = self._h2.get_next_available_stream_id()
        head = {":method": "GET", ":scheme": "http", ":authority": "x", ":path": path}
        self._h2.send_headers(number, list(head.items()), end_stream=True)
        await self._stream.send(self._h2.data_to_send())
        return number

    async def answer(self, number: int) -> tuple[dict[str, str], bytes]:
        """Wait for the end of a response."""
        while number not in self._over:
            for event in self._h2.receive_data(await self._stream.receive()):
                stream = getattr(event, "stream_id", 0)
                if isinstance(event, _events.ResponseReceived):
                    self._heads[stream] = dict(event.headers)
                elif isinstance(event, _events.DataReceived):
                    self._bodies[stream] = self._bodies.get(stream, b"") + event.data
                elif isinstance(event, _events.StreamEnded):
                    self._over.add(stream)
                assert not isinstance(event, _events.StreamReset), "cut"
            await self._stream.send(self._h2.data_to_send())
        return self._heads[number], self._bodies.get(number, b"")


@pytest.mark.backends("asyncio")
@pytest.mark.real_time
async def test_requests_of_one_connection_of_http2_are_each_ended() -> None:
    """One goes on, a new one is refused without closing the connection, and a stream is ended."""
    async with serve("hypercorn", "quiesce", grace=600) as server, server.connect() as client:
        http2 = Http2(client)
        slow, endless = await http2.ask("/slow"), await http2.ask("/polite")
        work = await server.begun("slow")
        await server.noted("polite began")
        await server.draining()
        head, body = await http2.answer(endless)
        assert (head[":status"], body[-11:]) == ("200", b"data: bye\n\n")
        head, _ = await http2.answer(await http2.ask("/pid"))
        assert (head[":status"], head["retry-after"]) == ("503", "1")
        assert "connection" not in head
        await work.go_on()
        head, body = await http2.answer(slow)
        assert (head[":status"], body) == ("200", b"slow")
        await client.stream.aclose()
        assert await server.exit_code() == 0
