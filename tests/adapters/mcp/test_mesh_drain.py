"""A server over HTTP that is drained by `Quiesce`: the client is told how its calls have ended."""

from __future__ import annotations

import importlib
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import pytest

import quiesce
from quiesce.integrations.mcp import connect_http, versions
from quiesce.mesh import Node, Settled
from tests.adapters.mcp import mesh_server
from tests.adapters.mcp.mesh_kit import drained, gate, running
from tests.unit.integrations.asgi_driver import Call, living, lost, wrapped

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = [
    pytest.mark.real_time,
    pytest.mark.backends("asyncio"),
    pytest.mark.quiesce(allow=["generator:*"]),  # the SDK reads no stream to its end
    pytest.mark.filterwarnings("ignore::UserWarning"),  # 2.x deprecates what servers still use
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


@pytest.mark.parametrize("has_address", [False, True])
async def test_a_drain_answers_questions_and_says_what_it_refuses(
    tmp_path: Path, *, has_address: bool
) -> None:
    """Work that ends in the grace is done for its sender, and a call that came too late is refused: nothing is unknown."""
    with gate() as tool, running(str(tmp_path / "tools"), "--grace", "100") as (url, process):
        async with Node("host", store=tmp_path / "host") as node, quiesce.Scope("test") as scope:
            address = url if has_address else None
            session = await connect_http(scope, f"{url}/mcp", node=node, address=address)
            async with node.cascade("work") as cascade:
                await session.call_tool("hold", {"port": tool.port})
                await tool.reached()
                await drained(url, process)
                with pytest.raises(versions.Error, match="shutting down"):
                    await session.call_tool("where")
            tool.open()
            settled = await cascade.settled(within=60)
            assert isinstance(settled, Settled), settled
            assert "refused" in str(settled)
            assert await anyio.to_thread.run_sync(process.wait) == 0
            await session.aclose()


async def test_a_tool_that_ends_within_the_grace_is_answered(tmp_path: Path) -> None:
    """Also for the SDK's client that lists the tools first, to validate the result: the list is not refused."""
    results: list[Any] = []
    with gate() as tool, running(str(tmp_path / "tools"), "--grace", "100") as (url, process):
        async with Node("host", store=tmp_path / "host") as node, quiesce.Scope("test") as scope:
            session = await connect_http(scope, f"{url}/mcp", node=node, address=url)

            async def call() -> None:
                results.append(await session.call_tool("wait", {"port": tool.port}))

            async with node.cascade("work") as cascade:
                called = scope.spawn(call)
                await tool.reached()
                await drained(url, process)
                await session.list_prompts()  # a question, which begins nothing
                tool.open()
                await called
            assert results[0].content[0].text == "waited"
            settled = await cascade.settled(within=60)
            assert isinstance(settled, Settled), settled
            assert await anyio.to_thread.run_sync(process.wait) == 0
            await session.aclose()


async def test_a_request_that_a_drain_cuts_is_named_without_the_tasks_that_answer_it(
    tmp_path: Path,
) -> None:
    """A tool that is called outside of all cascades: the tasks of sse-starlette are parts of the response."""
    with gate() as tool, running(str(tmp_path / "tools"), "--grace", "0") as (url, process):
        async with quiesce.Scope("test") as scope:
            session = await connect_http(scope, f"{url}/mcp")

            async def call() -> None:
                with suppress(Exception):
                    await session.call_tool("wait", {"port": tool.port})

            called = scope.spawn(call)
            await tool.reached()
            process.terminate()
            assert await anyio.to_thread.run_sync(process.wait) == 1
            called.cancel()
            await session.aclose()
    told = await anyio.Path(tmp_path / "tools.errors").read_text(encoding="utf-8")
    found = [line for line in told.splitlines() if "cancelled: " in line]
    assert [line for line in found if "POST /mcp" in line], told
    assert "sse" not in str([line.split(" · started ")[0] for line in found]), told


async def test_a_tool_that_a_drain_cuts_is_named_once_and_its_caller_is_told(
    tmp_path: Path,
) -> None:
    """Not the tasks by which the SDK sends the answer: the request that waits for it gets one."""
    with gate() as tool, running(str(tmp_path / "tools"), "--grace", "0") as (url, process):
        async with Node("host", store=tmp_path / "host") as node, quiesce.Scope("test") as scope:
            session = await connect_http(scope, f"{url}/mcp", node=node)
            async with node.cascade("work") as cascade:

                async def call() -> None:
                    with pytest.raises(versions.Error, match="shut down in the middle"):
                        await session.call_tool("wait", {"port": tool.port})

                called = scope.spawn(call)
                await tool.reached()
                process.terminate()
                await called
            settled = await cascade.settled(within=60)
            assert isinstance(settled, Settled), settled
            assert settled.receipt.cancelled == 1
            assert await anyio.to_thread.run_sync(process.wait) == 1
            await session.aclose()
    told = await anyio.Path(tmp_path / "tools.errors").read_text(encoding="utf-8")
    found = [line for line in told.splitlines() if "cancelled: " in line]
    assert len(found) == 1, told
    line = mesh_server.wait.__code__.co_firstlineno
    assert "tools/call wait ·" in found[0]
    assert f"started {mesh_server.__file__}:{line}" in found[0]


async def test_a_streaming_response_that_is_cut_is_one_entry() -> None:
    """Starlette sends it by a task of its own, if the server does not say that a send fails when the client is gone."""
    responses: Any = importlib.import_module("starlette.responses")

    async def body() -> AsyncIterator[bytes]:
        yield b"first"
        await anyio.sleep_forever()

    async def handler(scope: Any, receive: Any, send: Any) -> None:
        await responses.StreamingResponse(body())(scope, receive, send)

    app = wrapped(handler, grace=0)
    call = Call(app, "/stream")
    async with anyio.create_task_group() as group, living(app):
        group.start_soon(call.run)
        await call.answering.wait()
    assert lost(app) == {"cancelled": ["GET /stream"]}
