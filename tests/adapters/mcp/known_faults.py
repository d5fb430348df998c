"""What goes wrong with the MCP SDK's client, each a program: alone, and with the adapter."""

from __future__ import annotations

import asyncio
import os
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import anyio

import quiesce
from quiesce.integrations.mcp import connect_http, connect_stdio, versions
from tests.adapters.known_faults import KnownFaults
from tests.adapters.mcp.servers import bare_http, bare_stdio, listening, notes, plain_server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from tests.adapters.known_faults import Way

known_fault = KnownFaults()
BOTH = ("asyncio", "trio")
ALL = ("asyncio", "uvloop", "trio")
QUICK: dict[str, Any] = {
    "exit_seconds": 0.3,
    "grace": 0.3,
}  # of the adapter; those of the SDK are its own


class Subject:
    """Sessions of either way: opened here, and closed when and where a fault wants it."""

    def __init__(self, way: Way, scope: quiesce.Scope | None, errlog: Any) -> None:
        """Start without sessions."""
        self._way = way
        self._scope = scope
        self._errlog = errlog

    async def open(self, params: Any, **options: Any) -> tuple[Any, Callable[[], Awaitable[Any]]]:
        """Return a session, and what closes it."""
        if self._scope is not None:
            session = await connect_stdio(self._scope, params, **QUICK, **options)
            return session, session.aclose
        stack = AsyncExitStack()
        manager = bare_stdio(params, self._errlog, **options)
        return await stack.enter_async_context(manager), stack.aclose

    async def open_http(self, url: str) -> tuple[Any, Callable[[], Awaitable[Any]]]:
        """Return a session over HTTP, and what closes it."""
        if self._scope is not None:
            session = await connect_http(self._scope, url, exit_seconds=0.3)
            return session, session.aclose
        stack = AsyncExitStack()
        return await stack.enter_async_context(bare_http(url)), stack.aclose


@asynccontextmanager
async def subject(way: Way) -> AsyncIterator[Subject]:
    """Return what a fault works with."""
    with open(os.devnull, "w", encoding="utf-8") as errlog:  # noqa: ASYNC230, PTH123 - no file
        if way == "bare":
            yield Subject(way, None, errlog)
        else:
            async with quiesce.Scope("fault") as scope:
                yield Subject(way, scope, errlog)


async def in_another_task(fn: Callable[[], Awaitable[Any]]) -> Any:
    """Call an async function in a task of its own."""
    found: list[Any] = []

    async def call() -> None:
        found.append(await fn())

    async with anyio.create_task_group() as group:
        group.start_soon(call)
    return found[0]


@known_fault("two sessions closed in the order of opening", backends=ALL)
async def out_of_order(way: Way) -> None:
    """The first opened is closed first, by the same task."""
    async with subject(way) as sessions:
        _, close_first = await sessions.open(plain_server())
        _, close_second = await sessions.open(plain_server())
        await close_first()
        await close_second()


@known_fault("opened in one task, closed in another", backends=ALL)
async def another_task(way: Way) -> None:
    """A web framework's startup and shutdown do so."""
    async with subject(way) as sessions:
        _, close = await in_another_task(lambda: sessions.open(plain_server()))
        await close()


@known_fault("opened in one task, closed in another, over HTTP", backends=BOTH)
async def another_task_http(way: Way) -> None:
    """Likewise, with a server that somebody else runs."""
    with listening() as url:
        async with subject(way) as sessions:
            _, close = await in_another_task(lambda: sessions.open_http(url))
            await close()


async def _cancel_twice(task: asyncio.Future[None]) -> None:
    """Cancel a task, and once more while it cleans up."""
    for _ in range(2):
        task.cancel()
        for _turn in range(30):
            await asyncio.sleep(0)


@known_fault(
    "task.cancel() twice, the server ignores EOF and SIGTERM",
    backends=("asyncio", "uvloop"),
    seconds=5,
)
async def cancelled_twice(way: Way) -> None:
    """The second cancellation comes while the first one is being cleaned up after."""
    ready = anyio.Event()

    async def use() -> None:
        async with subject(way) as sessions:
            _, close = await sessions.open(plain_server("--stubborn"))
            try:
                ready.set()
                await anyio.sleep_forever()
            finally:
                await close()

    task = asyncio.ensure_future(use())
    await ready.wait()
    await _cancel_twice(task)
    with suppress(asyncio.CancelledError):
        await task


@known_fault("task.cancel() twice in the handshake, the server ignores EOF and SIGTERM", seconds=5)
async def cancelled_twice_early(way: Way) -> None:
    """The same, before there is a session."""
    with notes() as seen:

        async def use() -> None:
            async with subject(way) as sessions:
                await sessions.open(plain_server("--mute", "--stubborn", *seen.options))

        task = asyncio.ensure_future(use())
        await seen.wait_for("initialize")
        await _cancel_twice(task)
        with suppress(asyncio.CancelledError):
            await task


@known_fault("the server has started a process, and exits at EOF", backends=BOTH)
async def grandchild(way: Way) -> None:
    """What a server has started ends with it."""
    async with subject(way) as sessions:
        _, close = await sessions.open(plain_server("--grandchild"))
        await close()


@known_fault("the server crashes in a call, the next call", backends=BOTH)
async def crash(way: Way) -> str | None:
    """The call in flight fails, with the reason; the next one works."""
    async with subject(way) as sessions:
        session, close = await sessions.open(plain_server())
        wrong = None
        try:
            await session.call_tool("crash")
        except Exception as error:
            wrong = None if "exit code 3" in str(error) else "reason not told"
        try:
            await session.call_tool("echo", {"text": "here"})
        except Exception:
            wrong = "session is dead"
        await close()
    return wrong


@known_fault("the server exits in the handshake: the error says why", backends=BOTH)
async def exits_at_once(way: Way) -> str | None:
    """It has said so, on its standard error."""
    async with subject(way) as sessions:
        try:
            await sessions.open(plain_server("--exit", "7"))
        except Exception as error:
            return None if "no configuration found" in str(error) else "reason not told"
    return "no error"


async def _abandoned(way: Way, how: str) -> str | None:
    with notes() as seen:
        async with subject(way) as sessions:
            session, close = await sessions.open(plain_server(*seen.options))
            if how == "cancelled":
                async with anyio.create_task_group() as group:
                    group.start_soon(session.call_tool, "hang")
                    await seen.wait_for("called hang")
                    group.cancel_scope.cancel()
            else:
                limit: Any = 0.2 if versions.SECOND else timedelta(seconds=0.2)
                with suppress(versions.Error):
                    await session.call_tool("hang", read_timeout_seconds=limit)
            told = await seen.wait_for("cancelled", 0.5)
            await close()
    return None if told else "server not told"


@known_fault("a call is cancelled: the server is told", backends=BOTH)
async def cancelled_call(way: Way) -> str | None:
    """The work at the server goes on otherwise, for nobody."""
    return await _abandoned(way, "cancelled")


@known_fault("a call times out: the server is told", backends=BOTH)
async def timed_out_call(way: Way) -> str | None:
    """Likewise."""
    return await _abandoned(way, "timed out")


@known_fault("closed while another task's call is in flight", backends=BOTH, seconds=4)
async def closed_in_flight(way: Way) -> str | None:
    """The call ends, with an error."""
    ended: list[str] = []
    with notes() as seen:

        async def call(session: Any) -> None:
            try:
                await session.call_tool("hang")
            except Exception as error:
                ended.append(type(error).__name__)

        async with anyio.create_task_group() as group, subject(way) as sessions:
            session, close = await sessions.open(plain_server(*seen.options))
            group.start_soon(call, session)
            await seen.wait_for("called hang")
            await close()
    return None if ended else "no error"


@known_fault("HTTP: the server never answers the DELETE of a close", backends=BOTH, seconds=5)
async def hanging_delete(way: Way) -> None:
    """The close is bounded."""
    with listening("--hang-delete") as url:
        async with subject(way) as sessions:
            session, close = await sessions.open_http(url)
            await session.call_tool("echo", {"text": "here"})
            await close()


@known_fault("HTTP: a call is cancelled: the server is told", backends=BOTH)
async def cancelled_call_http(way: Way) -> str | None:
    """As over stdio."""
    with notes() as seen, listening(*seen.options) as url:
        async with subject(way) as sessions:
            session, close = await sessions.open_http(url)
            async with anyio.create_task_group() as group:
                group.start_soon(session.call_tool, "hang")
                await seen.wait_for("called hang")
                group.cancel_scope.cancel()
            told = await seen.wait_for("cancelled", 0.5)
            await close()
    return None if told else "server not told"
