"""Sessions over stdio and HTTP: the same as the SDK's, and closed by anyone."""

from __future__ import annotations

import importlib
import os
import signal
from datetime import timedelta
from importlib import metadata
from typing import TYPE_CHECKING, Any

import anyio
import mcp.types
import pytest

import quiesce
from quiesce.errors import ArgumentError, NotReady, PeerLost, ScopeClosed, SdkMissing, SpawnFailed
from quiesce.integrations.mcp import ServerLost, connect_http, connect_stdio, versions
from tests.adapters.mcp.servers import (
    notes,
    plain_server,
    until,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from quiesce.integrations.mcp import Session

pytestmark = [
    pytest.mark.real_time,
    pytest.mark.filterwarnings("ignore::UserWarning"),  # 2.x deprecates what servers still use
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
QUICK: dict[str, Any] = {"exit_seconds": 1.0, "grace": 0.3}


# Used and closed by anyone.


async def test_many_tasks_use_one_session() -> None:
    """Each gets its own answer."""
    answers: dict[int, str] = {}
    async with quiesce.Scope("test") as scope:
        session = await connect_stdio(scope, plain_server(), **QUICK)

        async def call(number: int) -> None:
            found = await session.call_tool("echo", {"text": str(number)})
            answers[number] = found.content[0].text

        async with anyio.create_task_group() as group:
            for number in range(50):
                group.start_soon(call, number)
        report = await session.aclose()
    assert answers == {number: str(number) for number in range(50)}
    assert report.ok
    assert report.completed == 51  # and the start


async def test_a_session_is_closed_by_a_task_that_has_not_opened_it_with_calls_in_flight() -> None:
    """The calls end with an error that names them, and the report has them."""
    with notes() as seen:
        async with quiesce.Scope("test") as scope:
            opened = scope.spawn(connect_stdio, scope, plain_server(*seen.options))
            session: Session = await opened
            job = scope.spawn(_failure, session.call_tool, "hang")
            await seen.wait_for("called hang")
            report = await session.aclose()
            error = await job
        assert isinstance(error, ScopeClosed)
        assert "call_tool hang" in str(error)
        assert [ended.name for ended in report.cancelled] == ["call_tool hang"]
        assert seen.lines()[-1] == "end of input"  # nobody had to kill it
        with pytest.raises(ScopeClosed):
            await session.call_tool("echo")
        assert (await session.aclose()) is report


async def test_a_drain_waits_for_calls_and_refuses_new_ones() -> None:
    """What is in flight is answered, and nothing is lost."""
    async with quiesce.Scope("test") as scope:
        session = await connect_stdio(scope, plain_server(), **QUICK)
        call = scope.spawn(session.call_tool, "big", {"size": 2_000_000})
        await until(lambda: "call_tool big" in str(session.frontier()))
        draining = scope.spawn(session.drain, 5)
        await until(lambda: session.state != "open")
        with pytest.raises(ScopeClosed):
            await session.call_tool("echo")
        assert len((await call).content[0].text) == 2_000_000
        assert (await draining).ok


async def test_the_end_of_the_scope_closes_the_session() -> None:
    """Nobody has to."""
    async with quiesce.Scope("test") as scope:
        session = await connect_stdio(scope, plain_server(), **QUICK)
        assert session.process is not None
    assert session.state == "closed"
    assert scope.report is not None
    assert scope.report.ok


async def test_the_frontier_names_calls_and_the_server() -> None:
    """What is called, for how long, by whom; and the process."""
    with notes() as seen:
        async with quiesce.Scope("test") as scope:
            session = await connect_stdio(scope, plain_server(*seen.options), name="tools", **QUICK)
            job = scope.spawn(_failure, session.call_tool, "hang")
            await seen.wait_for("called hang")
            text = str(session.frontier())
            assert "call call_tool hang" in text
            assert "test_sessions.py" in text
            assert "process (service) tools" in text
            assert session.process is not None
            assert f"pid={session.process.pid}" in text
            await session.aclose()
            await job


async def test_an_idle_session_does_not_keep_its_scope_busy() -> None:
    """A server is a service."""
    async with quiesce.Scope("test") as scope:
        await connect_stdio(scope, plain_server(), **QUICK)
        with anyio.fail_after(5):
            await scope.idle()


async def test_a_callback_may_close_the_session() -> None:
    """Although it runs in a task that the close has to end."""
    sessions: list[Session] = []

    async def handler(message: Any) -> None:
        if isinstance(message, ValueError):
            await sessions[0].aclose()

    async with quiesce.Scope("test") as scope:
        sessions.append(
            await connect_stdio(scope, plain_server(), message_handler=handler, **QUICK)
        )
        with anyio.fail_after(4):
            assert isinstance(await _failure(sessions[0].call_tool, "noise"), ScopeClosed)
            await sessions[0].aclose()
    assert sessions[0].state == "closed"


# What servers do.


async def test_a_server_that_ignores_everything_is_killed_in_time() -> None:
    """EOF, SIGTERM, SIGKILL, each after its time."""
    async with quiesce.Scope("test") as scope:
        session = await connect_stdio(
            scope, plain_server("--stubborn"), exit_seconds=0.1, grace=0.1
        )
        process = session.process
        with anyio.fail_after(3):
            await session.aclose()
    assert process is not None
    assert process.returncode == -9


async def test_a_server_that_reads_nothing_does_not_hold_up_a_close() -> None:
    """Nor those who wait to send to it."""
    with notes() as seen:
        async with quiesce.Scope("test") as scope:
            session = await connect_stdio(
                scope, plain_server(*seen.options), exit_seconds=0.1, grace=0.1
            )
            jobs = [scope.spawn(_failure, session.call_tool, "deaf")]
            await seen.wait_for("called deaf")
            text = "x" * 700_000
            jobs += [
                scope.spawn(_failure, session.call_tool, "echo", {"text": text}) for _ in range(4)
            ]
            await until(lambda: str(session.frontier()).count("call_tool echo") == 4)
            with anyio.fail_after(3):
                await session.aclose()
            assert {type(await job) for job in jobs} == {ScopeClosed}


async def _failure(fn: Callable[..., Any], *args: Any) -> Exception | None:
    """Return what an async function raises."""
    try:
        await fn(*args)
    except Exception as error:
        return error
    return None


async def test_large_messages_pass_both_ways() -> None:
    """Also those that no pipe takes at once, many at a time."""
    async with quiesce.Scope("test") as scope:
        session = await connect_stdio(scope, plain_server(), **QUICK)
        text = "ü" * 400_000

        async def call() -> None:
            found = await session.call_tool("echo", {"text": text})
            assert found.content[0].text == text

        async with anyio.create_task_group() as group:
            for _ in range(6):
                group.start_soon(call)
        await session.aclose()


async def test_a_line_that_is_no_message_is_told_to_the_handler() -> None:
    """And harms nobody: as with the SDK's own transport."""
    seen: list[Any] = []

    async def handler(message: Any) -> None:
        seen.append(message)

    async with quiesce.Scope("test") as scope:
        session = await connect_stdio(scope, plain_server(), message_handler=handler, **QUICK)
        found = await session.call_tool("noise")
        assert found.content[0].text == "quiet"
        await session.aclose()
    assert any(isinstance(message, ValueError) for message in seen)


async def test_an_answer_before_the_end_is_not_lost() -> None:
    """The server answers, and exits at once."""
    async with quiesce.Scope("test") as scope:
        session = await connect_stdio(scope, plain_server(), **QUICK)
        await session.list_tools()  # else the SDK asks for them after the first answer
        found = await session.call_tool("last", {"noise": 500})  # which takes the session a while
        assert found.content[0].text == "the last word"
        await session.aclose()


@pytest.mark.parametrize("tool", ["fail", "refuse"])
async def test_errors_of_a_server_are_those_of_the_sdk(tool: str) -> None:
    """An answer is an answer, also with the code that the SDK uses for a lost connection."""
    async with quiesce.Scope("test") as scope:
        session = await connect_stdio(scope, plain_server(), **QUICK)
        if tool == "fail":
            result = (await session.call_tool("fail")).model_dump(by_alias=True)
            assert result["isError"]
        else:
            with pytest.raises(versions.Error, match="refused"):
                await session.call_tool("refuse")
        assert session.connected
        await session.aclose()


async def test_calls_in_flight_at_a_crash_say_how_the_server_ended() -> None:
    """Its name, its exit code, and what it wrote last."""
    with notes() as seen:
        async with quiesce.Scope("test") as scope:
            session = await connect_stdio(scope, plain_server(*seen.options), name="tools", **QUICK)
            job = scope.spawn(_failure, session.call_tool, "hang")
            await seen.wait_for("called hang")
            with pytest.raises(PeerLost) as caught:
                await session.call_tool("crash", {"code": 5})
            for error in (caught.value, await job):
                assert isinstance(error, ServerLost)
                assert (error.server, error.returncode) == ("tools", 5)
                assert error.lines == ("something is very wrong",)
                assert "'tools' is gone (exit code 5)" in str(error)
            await session.aclose()


@pytest.mark.backends("asyncio", "trio")
@pytest.mark.parametrize("tool", ["close", "shut"])
async def test_a_server_that_closes_its_output_or_its_input_is_lost(tool: str) -> None:
    """It is ended, and the next call has a new one."""
    async with quiesce.Scope("test") as scope:
        session = await connect_stdio(scope, plain_server(), exit_seconds=0.1, grace=0.1)
        await session.list_tools()
        old = session.process
        error = await _failure(session.call_tool, tool)
        if tool == "shut":  # before it has answered
            error = await _failure(session.call_tool, "echo")
        assert isinstance(error, ServerLost)
        await session.call_tool("echo")
        assert old is not None
        assert old.returncode is not None
        assert session.process is not old
        await session.aclose()


# Arguments.


@pytest.mark.backends("asyncio")
@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"params": "npx server"}, "StdioServerParameters"),
        ({"params": mcp.StdioServerParameters(command="")}, "empty"),
        ({"sampling_calback": None}, "sampling_callback"),
        ({"logs": "inherit"}, "standard output"),
        ({"grace": -1}, "grace"),
        ({"connect_within": "1"}, "connect_within"),
        ({"restarts_max": -1}, "restarts_max"),
        ({"backoff": 1}, "backoff"),
        ({"name": 1}, "name"),
    ],
)
async def test_wrong_arguments_are_named_and_nothing_is_started(
    change: dict[str, Any], text: str
) -> None:
    """Before anything runs."""
    async with quiesce.Scope("test") as scope:
        params = change.pop("params", plain_server())
        with pytest.raises(ArgumentError, match=text):
            await connect_stdio(scope, params, **change)
        assert not scope.frontier().entries


@pytest.mark.backends("asyncio")
@pytest.mark.parametrize("url", ["localhost:80", "ftp://host/", "http://", ""])
async def test_a_wrong_url_is_named(url: str) -> None:
    """Before anything is connected."""
    async with quiesce.Scope("test") as scope:
        with pytest.raises(ArgumentError, match="url must be"):
            await connect_http(scope, url)


@pytest.mark.backends("asyncio")
async def test_the_scope_comes_first() -> None:
    """The mistake of leaving it out is named."""
    async with quiesce.Scope("test"):
        with pytest.raises(ArgumentError, match="scope must be a Scope"):
            await connect_stdio(plain_server(), plain_server())


def test_an_old_sdk_is_refused_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the import of the adapter, before anything of the SDK is used."""
    monkeypatch.setattr(metadata, "version", lambda _: "1.2.3")
    with pytest.raises(SdkMissing, match=r"needs mcp 1\.30\.0 or newer, but 1\.2\.3 is installed"):
        importlib.reload(versions)


async def test_a_missing_program_is_named() -> None:
    """With what the system says."""
    params = mcp.StdioServerParameters(command="no-such-mcp-server")
    async with quiesce.Scope("test") as scope:
        with pytest.raises(SpawnFailed, match="no-such-mcp-server"):
            await connect_stdio(scope, params)


async def test_a_server_that_does_not_answer_is_given_up() -> None:
    """In the time that it was given; nothing of it is left."""
    async with quiesce.Scope("test") as scope:
        with pytest.raises(NotReady, match=r"has not answered the handshake in 0\.3 s"):
            await connect_stdio(scope, plain_server("--mute"), connect_within=0.3, **QUICK)


async def test_a_cancelled_start_leaves_nothing_in_its_scope() -> None:
    """The server is gone when the cancellation has come through, although the scope goes on."""
    with notes() as seen:
        async with quiesce.Scope("test") as scope:
            async with anyio.create_task_group() as group:
                group.start_soon(connect_stdio, scope, plain_server("--mute", *seen.options))
                await seen.wait_for("initialize")
                group.cancel_scope.cancel()
            assert not scope.frontier().entries
            await _gives_up(scope)
            assert not scope.frontier().entries


async def _gives_up(scope: quiesce.Scope) -> None:
    with pytest.raises(ServerLost):
        await connect_stdio(scope, plain_server("--exit", "1"), **QUICK)


async def test_the_handshake_may_be_another() -> None:
    """It is given the SDK's session; what it gives is what `initialize()` gives later."""
    shaken: list[Any] = []

    async def handshake(session: Any) -> None:
        shaken.append(await session.initialize())

    with notes() as seen:
        async with quiesce.Scope("test") as scope:
            session = await connect_stdio(
                scope, plain_server(*seen.options), handshake=handshake, **QUICK
            )
            assert len(shaken) == 1
            assert await session.initialize() is None
            await session.aclose()
        assert seen.lines()[-1] == "end of input"


async def test_a_server_that_exits_at_once_says_why(caplog: pytest.LogCaptureFixture) -> None:
    """On its standard error, which is in the error; that is enough, and no warning says it again."""
    async with quiesce.Scope("test") as scope:
        with pytest.raises(ServerLost, match="no configuration found") as caught:
            await connect_stdio(scope, plain_server("--exit", "7"), **QUICK)
        assert caught.value.returncode == 7
    assert "has ended by itself" not in caplog.text


async def test_a_server_that_exits_later_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    """Nobody has asked it anything, so no error tells of it."""
    async with quiesce.Scope("test") as scope:
        session = await connect_stdio(scope, plain_server(), name="it", **QUICK)
        assert session.process is not None
        os.kill(session.process.pid, signal.SIGKILL)
        await until(lambda: "process it" in caplog.text)
        await session.aclose()
    assert "has ended by itself" in caplog.text


async def test_a_timeout_of_the_sdk_is_that_of_the_sdk() -> None:
    """And the server is told."""
    limit: Any = 0.1 if versions.SECOND else timedelta(seconds=0.1)
    with notes() as seen:
        async with quiesce.Scope("test") as scope:
            session = await connect_stdio(scope, plain_server(*seen.options), **QUICK)
            with pytest.raises(versions.Error):
                await session.call_tool("hang", read_timeout_seconds=limit)
            assert await seen.wait_for("cancelled")
            assert len([line for line in seen.lines() if "cancelled" in line]) == 1
            await session.aclose()
