"""Pools of MCP sessions; crashes, restarts and back-off; cancellation at every step."""

from __future__ import annotations

import os
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
import pytest

import quiesce
from quiesce.errors import ArgumentError, ScopeClosed, SpawnFailed
from quiesce.integrations.mcp import ServerLost, SessionPool, connect_stdio
from quiesce.integrations.mcp.connection import ServerConnection
from quiesce.integrations.mcp.servers import Server
from quiesce.integrations.mcp.session import Session
from quiesce.testing import sweep
from tests.adapters.mcp.servers import listening, notes, plain_server, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

QUICK: dict[str, Any] = {"exit_seconds": 1.0, "grace": 0.3}


async def _failure(fn: Callable[..., Any], *args: Any) -> Exception | None:
    """Return what an async function raises."""
    try:
        await fn(*args)
    except Exception as error:
        return error
    return None


# Pools.


@pytest.mark.real_time
async def test_a_server_is_started_once_for_all_who_ask() -> None:
    """They get the same session."""
    with notes() as seen:
        async with quiesce.Scope("test") as scope:
            pool = SessionPool(scope, {"a": plain_server(*seen.options)}, **QUICK)
            assert seen.lines() == []  # lazily
            asked = [scope.spawn(pool.session, "a") for _ in range(5)]
            sessions = {id(await one) for one in asked}
            assert len(sessions) == 1
            assert len([line for line in seen.lines() if "started" in line]) == 1
            assert (pool.stats.sessions, pool.stats.connected, pool.stats.started) == (1, 1, 1)
            assert (await pool.aclose()).ok


@pytest.mark.real_time
async def test_a_cancelled_first_caller_costs_the_others_nothing() -> None:
    """The start is the pool's."""
    with notes() as seen:
        async with quiesce.Scope("test") as scope:
            pool = SessionPool(scope, {"a": plain_server(*seen.options)}, **QUICK)
            first = scope.spawn(pool.session, "a")
            await until(lambda: pool.stats.connecting == 1)
            second = scope.spawn(pool.session, "a")
            first.cancel()
            session = await second
            await session.call_tool("echo")
            assert len([line for line in seen.lines() if "started" in line]) == 1
            await pool.aclose()


@pytest.mark.real_time
async def test_a_failed_start_is_told_to_all_and_not_kept() -> None:
    """The next who asks has it tried again."""
    command = "no-such-mcp-server"
    async with quiesce.Scope("test") as scope:
        params = plain_server()
        missing = params.model_copy(update={"command": command})
        pool = SessionPool(scope, {"a": missing}, backoff=quiesce.Backoff(first_seconds=0))
        asked = [scope.spawn(_failure, pool.session, "a") for _ in range(3)]
        assert {type(await one) for one in asked} == {SpawnFailed}
        pool._servers["a"] = pool._describe("a", params)
        pool._sessions["a"]._server = pool._servers["a"]
        await (await pool.session("a")).call_tool("echo")
        assert pool.stats.failed >= 1
        await pool.aclose()


@pytest.mark.real_time
async def test_a_crash_ends_the_calls_and_the_next_one_has_a_new_server() -> None:
    """Also for those who have the session already; the other server has nothing to do with it."""
    async with quiesce.Scope("test") as scope:
        pool = SessionPool(scope, {"a": plain_server(), "b": plain_server()}, **QUICK)
        a, b = await pool.session("a"), await pool.session("b")
        first = (await a.call_tool("pid")).content[0].text
        other = (await b.call_tool("pid")).content[0].text
        with pytest.raises(ServerLost, match="'a' is gone"):
            await a.call_tool("crash")
        assert await pool.session("a") is a
        assert (await a.call_tool("pid")).content[0].text != first
        assert (await b.call_tool("pid")).content[0].text == other
        assert (pool.stats.crashed, pool.stats.started) == (1, 3)
        await pool.aclose()


@pytest.mark.real_time
async def test_a_server_that_dies_while_nobody_calls_is_replaced() -> None:
    """Nobody is given a dead session, and nothing of the old one is left."""
    async with quiesce.Scope("test") as scope:
        pool = SessionPool(scope, {"a": plain_server()}, **QUICK)
        session = await pool.session("a")
        old = session.process
        assert old is not None
        old.kill()
        await old.wait()
        await session.call_tool("echo")
        assert session.starts == 2
        assert session.process is not old
        await pool.aclose()


@pytest.mark.real_time
async def test_a_released_session_is_closed_and_the_next_is_another() -> None:
    """Calls in flight end; what the server did stays counted."""
    with notes() as seen:
        async with quiesce.Scope("test") as scope:
            pool = SessionPool(scope, {"a": plain_server(*seen.options)}, **QUICK)
            session = await pool.session("a")
            call = scope.spawn(_failure, session.call_tool, "hang")
            await seen.wait_for("called hang")
            assert pool.stats.calls == 1
            report = await pool.release("a")
            assert isinstance(await call, ScopeClosed)
            assert report is not None
            assert [ended.name for ended in report.cancelled] == ["call_tool hang"]
            assert session.state == "closed"
            assert await pool.release("a") is None
            again = await pool.session("a")
            assert again is not session
            assert (pool.stats.started, pool.stats.sessions) == (2, 1)
            await again.aclose()  # by hand
            assert await pool.session("a") is not again
            await pool.aclose()


@pytest.mark.real_time
@pytest.mark.backends("asyncio", "trio")
async def test_a_drain_closes_all_side_by_side() -> None:
    """Five servers that have to be killed take as long as one."""
    async with quiesce.Scope("test") as scope:
        servers = {str(number): plain_server("--stubborn") for number in range(5)}
        pool = SessionPool(scope, servers, exit_seconds=0.4, grace=0.4)
        async with anyio.create_task_group() as group:
            for key in servers:
                group.start_soon(pool.session, key)
        began = anyio.current_time()
        report = await pool.drain(grace=5)
        assert anyio.current_time() - began < 3  # 0.8, and not 4
        assert report.ok, report
        with pytest.raises(ScopeClosed):
            await pool.session("0")


@pytest.mark.real_time
@pytest.mark.backends("asyncio", "trio")
async def test_a_pool_has_servers_over_http_too() -> None:
    """Each name is a program or a URL; a function may say which."""
    with listening() as url:
        async with quiesce.Scope("test") as scope:
            pool = SessionPool(scope, lambda key: url if key == "web" else plain_server(), **QUICK)
            for key in ("web", "here"):
                session = await pool.session(key)
                found = await session.call_tool("echo", {"text": key})
                assert found.content[0].text == key
            assert "mcp web" in str(pool.frontier())
            await pool.aclose()


@pytest.mark.backends("asyncio")
@pytest.mark.parametrize("wrong", [{"backoff": 1}, {"restarts_max": -1}, {"exit_seconds": "1"}])
async def test_wrong_arguments_are_named_before_a_session_is_asked_for(wrong: Any) -> None:
    """A pool is checked when it is made."""
    async with quiesce.Scope("test") as scope:
        with pytest.raises(ArgumentError, match=next(iter(wrong))):
            SessionPool(scope, {"a": plain_server()}, **wrong)


@pytest.mark.backends("asyncio")
async def test_wrong_servers_are_named() -> None:
    """Before anything is started; an unknown name tells the known ones."""
    async with quiesce.Scope("test") as scope:
        with pytest.raises(ArgumentError, match="StdioServerParameters"):
            SessionPool(scope, {"a": ["npx", "server"]})
        with pytest.raises(ArgumentError, match="url must be"):
            SessionPool(scope, {"a": "npx server"})
        pool = SessionPool(scope, {"a": plain_server()})
        with pytest.raises(ArgumentError, match="no server 'b'; it has: 'a'"):
            await pool.session("b")


# Restarts, in controlled time.


class Pretended(Server):
    """A server that is only pretended: it crashes when it is told to."""

    def __init__(self, name: str, **common: Any) -> None:
        super().__init__(name, **common)
        self.starts: list[float] = []
        self.made: list[ServerConnection] = []
        self.broken = [False]
        self.dies = [False]

    @asynccontextmanager
    async def connect(
        self, on_lost: Callable[[ServerConnection], None]
    ) -> AsyncIterator[ServerConnection]:
        """Connect to nothing."""
        self.starts.append(anyio.current_time())
        if self.broken[0]:
            message = "it does not start"
            raise OSError(message)
        connection = ServerConnection(self.name, on_lost)
        connection.session = self
        self.made.append(connection)
        if self.dies[0]:
            connection.end()
        yield connection
        connection.leaving = True
        connection.leave()

    async def send_ping(self) -> str:
        """Answer a call."""
        return "pong"


async def _passes(seconds: float) -> None:
    """Let time pass, which is not real."""
    with anyio.move_on_after(seconds):
        await anyio.sleep_forever()


def _pretended(scope: quiesce.Scope, most: int | None = None) -> tuple[Pretended, Session]:
    async def handshake(_: Any) -> None:
        """Do nothing."""

    server = Pretended("it", handshake=handshake, connect_within=1, exit_seconds=1, options={})
    backoff = quiesce.Backoff(first_seconds=1, factor=2, longest_seconds=4, healthy_seconds=60)
    frame = sys._getframe()
    return server, Session(scope, server, frame, backoff=backoff, restarts_max=most)


@pytest.mark.backends("asyncio", "trio")
async def test_the_pauses_grow_while_a_server_crashes() -> None:
    """None after the first crash, then 1, 2, 4, 4 seconds; a minute without one begins anew."""
    async with quiesce.Scope("test") as scope:
        server, session = _pretended(scope)
        for _ in range(6):
            await session.send_ping()
            server.made[-1].end()
        gaps = [b - a for a, b in zip(server.starts, server.starts[1:], strict=False)]
        assert gaps == pytest.approx([0, 1, 2, 4, 4], abs=0.01)
        await session.send_ping()
        await _passes(61)
        server.made[-1].end()
        began = anyio.current_time()
        await session.send_ping()
        assert anyio.current_time() - began == pytest.approx(0, abs=0.01)
        await session.aclose()


@pytest.mark.backends("asyncio", "trio")
async def test_a_server_that_fails_too_often_is_given_up_until_it_has_had_a_rest() -> None:
    """The error says how often, and what the last one was."""
    async with quiesce.Scope("test") as scope:
        server, session = _pretended(scope, most=2)
        server.broken[0] = True
        for _ in range(3):
            with pytest.raises(OSError, match="does not start"):
                await session.send_ping()
        with pytest.raises(ServerLost, match=r"failed 3 times in a row.*does not start"):
            await session.send_ping()
        assert len(server.starts) == 3
        server.broken[0] = False
        await _passes(63)  # from the end of the last pause
        assert await session.send_ping() == "pong"
        await session.aclose()


@pytest.mark.backends("asyncio", "trio")
async def test_a_server_that_dies_after_each_handshake_is_no_hot_loop() -> None:
    """That counts as a crash, with its pauses, and its limit."""
    async with quiesce.Scope("test") as scope:
        server, session = _pretended(scope, most=3)
        server.dies[0] = True
        with pytest.raises(ServerLost, match="failed 4 times in a row"):
            await session.send_ping()
        gaps = [b - a for a, b in zip(server.starts, server.starts[1:], strict=False)]
        assert gaps == pytest.approx([0, 1, 2], abs=0.01)
        await session.aclose()


@pytest.mark.backends("asyncio", "trio")
async def test_no_restarts_if_none_are_wanted() -> None:
    """With `restarts_max=0` a session ends with its server."""
    async with quiesce.Scope("test") as scope:
        server, session = _pretended(scope, most=0)
        await session.send_ping()
        server.made[-1].end()
        with pytest.raises(ServerLost, match="failed once, and is not started again"):
            await session.send_ping()
        await session.aclose()


@pytest.mark.backends("asyncio", "trio")
async def test_a_close_interrupts_a_pause() -> None:
    """Those who wait for it are told."""
    async with quiesce.Scope("test") as scope:
        server, session = _pretended(scope)
        for _ in range(3):
            await session.send_ping()
            server.made[-1].end()
        call = scope.spawn(_failure, session.send_ping)
        await until(lambda: "back-off" in str(session.frontier()), 0.5)
        await session.aclose()
        assert isinstance(await call, ScopeClosed)


# Cycles, and cancellation at every step.


@pytest.mark.real_time
@pytest.mark.backends("asyncio", "trio")
async def test_many_cycles_leave_nothing() -> None:
    """Files and tasks are as many after fifteen sessions as after three."""
    async with quiesce.Scope("test") as scope:

        async def cycle() -> None:
            session = await connect_stdio(scope, plain_server(), **QUICK)
            await session.call_tool("echo")
            await session.aclose()

        for _ in range(3):
            await cycle()
        files = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - only their number
        for _ in range(12):
            await cycle()
        assert len(os.listdir("/proc/self/fd")) <= files  # noqa: PTH208 - likewise
        assert not scope.frontier().entries


async def _use() -> None:
    async with quiesce.Scope("sweep") as scope:
        session = await connect_stdio(scope, plain_server(), **QUICK)
        await session.call_tool("echo", {"text": "x"})
        await session.aclose()


async def _crash() -> None:
    async with quiesce.Scope("sweep") as scope:
        session = await connect_stdio(scope, plain_server(), **QUICK)
        await _failure(session.call_tool, "crash")
        await session.call_tool("echo")
        await session.aclose()


async def _pool() -> None:
    async with quiesce.Scope("sweep") as scope:
        pool = SessionPool(scope, {"a": plain_server(), "b": plain_server()}, **QUICK)
        async with anyio.create_task_group() as group:
            for key in ("a", "b"):
                group.start_soon(pool.session, key)
        await pool.release("a")
        await pool.drain()


@pytest.mark.parametrize(
    ("scenario", "backend"),
    [
        *((_use, backend) for backend in ("asyncio", "uvloop", "trio")),
        *((_crash, backend) for backend in ("asyncio", "trio")),
        *((_pool, backend) for backend in ("asyncio", "trio")),
    ],
)
def test_cancelled_at_every_step(scenario: Callable[[], Any], backend: Any) -> None:
    """Nothing is left, nothing is late, and the cancellation comes through."""
    result = sweep(scenario, backend=backend, raises=ServerLost)
    assert result.ok, result
    assert result.points > 2


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_cancelled_at_every_step_of_every_task(backend: Any) -> None:
    """Also while others go on: the owner of the connection, the close."""
    result = sweep(_use, backend=backend, where="all", runs_max=80)
    assert result.ok, result


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_cancelled_twice_at_every_step(backend: Any) -> None:
    """Once more in the middle of the cleanup."""
    result = sweep(_use, backend=backend, depth=2, runs_max=80)
    assert result.ok, result
