"""The life of a process: held, seen to exit, stopped, killed, buried."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import signal
import time
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import pytest
import trio
import uvloop

from quiesce import Scope, ScopeClosed, UsageError
from quiesce.core.graveyard import graveyards
from quiesce.errors import ProcessStuck
from quiesce.processes import exit_watch, process_owner, process_spawn
from quiesce.processes.process import start_process
from tests.loops import what_is_left
from tests.stress import turns
from tests.unit.processes import small_programs as processes
from tests.unit.processes.small_programs import GRACE, READY, counted, open_files, runs_in

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from tests.unit.processes.small_programs import Census

pytestmark = pytest.mark.real_time


@pytest.fixture(autouse=True)
def census() -> Iterator[Census]:
    """Fail if a process is left."""
    with counted() as found:
        yield found


async def test_the_scope_holds_it_until_it_has_exited() -> None:
    """It is in the frontier with its pid and its command, and its scope is busy meanwhile."""
    async with Scope("a") as scope:
        process = await start_process(["sh", "-c", "read line; exit 5"], stdin="pipe", name="x")
        (entry,) = scope.frontier().in_flight
        assert (entry.kind, entry.name) == ("process", "x")
        assert entry.where is not None
        assert __file__ in entry.where
        assert entry.details["pid"] == process.pid
        assert entry.details["state"] == "ready"
        assert entry.details.get("returncode") is None
        process.close_stdin()
        await scope.idle()
        assert process.returncode == 5
    assert scope.report is not None
    assert scope.report.completed == 1


async def test_it_is_held_in_the_step_of_the_fork(census: Census) -> None:
    """There is no step of the event loop between the fork and the hold."""
    async with Scope("a") as scope:
        start = start_process(processes.POLITE, ready=READY, grace=GRACE)
        coroutine: Any = start
        coroutine.send(None)  # to its first suspension
        assert [entry.details["pid"] for entry in scope.frontier().in_flight] == census.pids
        coroutine.close()  # nobody will ever wait for it
        await scope.aclose(cleanup=1)


async def test_it_leads_a_session_and_a_group() -> None:
    """What is meant for this program's group does not reach it, and the other way round."""
    async with Scope("a"):
        process = await start_process(processes.POLITE, service=True, grace=GRACE)
        assert os.getsid(process.pid) == os.getpgid(process.pid) == process.pid


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        (processes.POLITE, -signal.SIGTERM),
        (processes.STUBBORN, -signal.SIGKILL),
        (processes.PARENT, -signal.SIGTERM),
        (processes.STUBBORN_PARENT, -signal.SIGKILL),
        (["sh", "-c", "trap 'exit 4' TERM; echo ready; while :; do sleep 0.01; done"], 4),
    ],
)
async def test_stop_gives_the_exit_code_of_what_is_gone(argv: list[str], code: int) -> None:
    """SIGTERM, and SIGKILL after the grace; when it returns, nothing of the group runs."""
    async with Scope("a") as scope:
        process = await start_process(argv, ready=READY)
        assert await process.stop(grace=1.0 if code == 4 else GRACE) == code
        assert runs_in(process.pid) == []
        assert not scope.frontier()
        assert process.returncode == await process.wait() == await process.stop() == code
    assert scope.report is not None
    assert scope.report.withdrawn == 1


async def test_a_stop_may_be_made_shorter() -> None:
    """A kill during the grace ends it."""
    async with Scope("a") as scope:
        process = await start_process(processes.STUBBORN, ready=READY)
        job = scope.spawn(process.stop, 60.0)
        while process.state == "ready":
            await anyio.lowlevel.checkpoint()
        process.kill()
        assert await job == -signal.SIGKILL


async def test_signals_reach_the_process() -> None:
    """A signal of the caller's choice is sent to the process alone."""
    async with Scope("a"):
        argv = ["sh", "-c", "trap 'exit 6' USR1; echo ready; while :; do sleep 0.01; done"]
        process = await start_process(argv, ready=READY)
        process.send_signal(signal.SIGUSR1)
        assert await process.wait() == 6
        process.send_signal(signal.SIGUSR1)
        process.terminate()
        process.kill()
        assert process.returncode == 6


async def test_the_exit_does_not_wait_for_the_pipes() -> None:
    """A grandchild in the group holds them: it is killed before the exit is told."""
    async with Scope("a"):
        process = await start_process(processes.DYING_PARENT)
        assert await process.wait() == 7
        assert runs_in(process.pid) == []


async def test_the_exit_does_not_wait_for_pipes_in_other_hands() -> None:
    """A grandchild that left the group holds them: the end of what was written is told."""
    async with Scope("a"):
        process = await start_process(["sh", "-c", "setsid sleep 60 & echo $!; exit 7"])
        try:
            assert await process.wait() == 7
        finally:
            (escaped,) = [line async for line in process.stdout]
            processes.end(int(escaped))


async def test_many_are_stopped_at_the_same_time() -> None:
    """Five that ignore SIGTERM take one grace, not five."""
    scope = await Scope.open("a")
    for _ in range(5):
        await start_process(processes.STUBBORN, scope=scope, ready=READY, grace=1)
    began = time.monotonic()
    report = await scope.aclose(cleanup=30)
    assert 1 <= time.monotonic() - began < 4
    assert len(report.cancelled) == 5
    assert not report.stuck


@pytest.mark.parametrize("within", [1.5, 0.0])
async def test_a_close_that_is_shorter_than_the_grace_kills_in_time(within: float) -> None:
    """Nothing is stuck, and nothing runs when the close returns."""
    scope = await Scope.open("a")
    process = await start_process(processes.STUBBORN_PARENT, scope=scope, ready=READY, grace=60)
    report = await scope.aclose(cleanup=within)
    assert runs_in(process.pid) == []
    assert not report.stuck
    assert report.seconds < (within or 10)
    assert process.returncode == -signal.SIGKILL


async def test_a_close_that_is_made_shorter_is_noticed() -> None:
    """A second closer's deadline counts for a process that is being stopped."""
    scope = await Scope.open("a")
    process = await start_process(processes.STUBBORN, scope=scope, ready=READY, grace=60)
    async with anyio.create_task_group() as group:
        group.start_soon(scope.aclose, 60)
        while process.state == "ready":
            await anyio.lowlevel.checkpoint()
        await turns(5)  # the owner knows of the first deadline
        began = time.monotonic()
        report = await scope.aclose(cleanup=1.5)
        assert time.monotonic() - began < 1.5
    assert not report.stuck
    assert process.returncode == -signal.SIGKILL


async def test_what_outlives_sigkill_is_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever stops it is told, in bounded time, and the report names it."""
    signalled: list[int] = []

    def in_vain(pid: int, number: int) -> None:
        signalled.append(number)

    scope = await Scope.open("a")
    process = await start_process(processes.STUBBORN, scope=scope, ready=READY, name="x")
    with monkeypatch.context() as patch:
        patch.setattr(process_spawn, "signal_group", in_vain)
        patch.setattr(process_owner, "_KILLED_SECONDS", 0.05)
        with pytest.raises(ProcessStuck, match="x"):
            await process.stop(grace=GRACE)
        assert signalled == [signal.SIGTERM, signal.SIGKILL]
        assert scope.frontier().in_flight[0].details["state"] == "stuck"
        report = await scope.aclose(cleanup=0.1)
    assert [item.name for item in report.stuck] == ["x"]
    assert "lifeline=watcher" in str(report)
    os.killpg(process.pid, signal.SIGKILL)
    assert await process.wait() == -signal.SIGKILL
    assert not graveyards


async def test_a_service_does_not_keep_the_scope_busy() -> None:
    """The drain waits for the work alone, then stops the server."""
    async with Scope("a") as scope:
        process = await start_process(processes.POLITE, ready=READY, service=True)
        assert not scope.frontier()
    assert process.returncode == -signal.SIGTERM
    assert scope.report is not None
    assert scope.report.ok
    assert scope.report.services == 1


async def test_leftovers_are_handed_to_the_parent() -> None:
    """A process may outlive its scope in the one around it."""
    async with Scope("outer") as outer:
        async with Scope("inner", leftovers="parent", grace=0):
            process = await start_process(processes.POLITE, ready=READY)
        assert [entry.details["pid"] for entry in outer.frontier()] == [process.pid]
        await process.stop()
        assert not outer.frontier()


async def test_a_closed_scope_starts_nothing(census: Census) -> None:
    """It is refused before the fork."""
    scope = await Scope.open("a")
    await scope.aclose()
    with pytest.raises(ScopeClosed):
        await start_process(["true"], scope=scope)
    assert census.pids == []


async def test_it_needs_a_scope(census: Census) -> None:
    """Nothing is started that nobody would own."""
    with pytest.raises(UsageError, match="scope"):
        await start_process(["true"])
    assert census.pids == []


async def test_other_threads_are_refused() -> None:
    """The handle is for the event loop's thread."""
    async with Scope("a"):
        process = await start_process(processes.POLITE, service=True, grace=GRACE)
        for act in (process.kill, process.terminate, process.close_stdin):
            with pytest.raises(UsageError, match="from_thread"):
                await anyio.to_thread.run_sync(act)


async def test_it_works_without_a_pidfd(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread sees the exit where the system has no such file."""
    monkeypatch.setattr(exit_watch, "open_exit_fd", lambda _: None)
    async with Scope("a"):
        process = await start_process(processes.STUBBORN_PARENT, ready=READY, grace=GRACE)
        assert await process.stop() == -signal.SIGKILL
        process = await start_process(["sh", "-c", "exit 8"])
        assert await process.wait() == 8


async def test_a_process_that_cannot_be_watched_is_not_left(
    monkeypatch: pytest.MonkeyPatch, census: Census
) -> None:
    """What fails between the fork and the hold is undone."""

    def fail(*_: object) -> None:
        raise RuntimeError

    async with Scope("a") as scope:
        await (await start_process(["true"])).wait()  # there is a watcher from here on
        before = open_files()
        monkeypatch.setattr(exit_watch, "watch_exit", fail)
        with pytest.raises(RuntimeError):
            await start_process(processes.STUBBORN_PARENT, stdin="pipe")
        assert not scope.frontier()
        assert len(census.pids) == 2
        assert census.left() == []
        assert open_files() == before


async def test_a_process_that_somebody_else_reaped_is_let_go() -> None:
    """Its exit code is unknown then, and nobody waits for it for ever."""
    async with Scope("a"):
        process = await start_process(["true"])
        os.waitpid(process.pid, 0)  # noqa: ASYNC222 - somebody does just that
        assert await process.wait() == process_spawn.RETURNCODE_UNKNOWN


async def test_no_files_are_left() -> None:
    """Many processes later as many files are open as before."""
    counts = []
    async with Scope("a"):
        for _ in range(8):
            process = await start_process(processes.PARENT, ready=READY, stdin="pipe")
            await process.stop()
            counts.append(open_files())
    assert len(set(counts[1:])) == 1  # the first may have started the watcher


LEAVING: list[Callable[[Callable[[], Coroutine[Any, Any, None]]], Any]] = [
    lambda main: asyncio.run(main()),
    lambda main: uvloop.run(main()),
    trio.run,
]


@pytest.mark.parametrize("argv", [processes.POLITE, processes.STUBBORN_PARENT])
@pytest.mark.parametrize("run", LEAVING)
def test_leaving_the_loop_ends_it(
    run: Callable[[Callable[[], Coroutine[Any, Any, None]]], Any], argv: list[str]
) -> None:
    """A scope that nobody has closed when the event loop ends leaves no process behind."""
    pids: list[int] = []

    async def main() -> None:
        scope = await Scope.open("a")
        process = await start_process(argv, scope=scope, ready=READY, grace=GRACE)
        pids.append(process.pid)

    run(main)
    assert runs_in(pids[0]) == []
    with pytest.warns(ResourceWarning, match="never closed"):
        forget_scopes()


def forget_scopes() -> None:
    """Let go of what nobody has closed."""
    assert what_is_left() == ["scope 'a' is still open"]
    gc.collect()


async def test_its_environment_is_ours_or_the_given_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """By default it is what this program has at the start, in whatever bytes."""
    monkeypatch.setenv("QUIESCE_TEST", "caf\udce9")
    argv = ["sh", "-c", 'printf "%s\\n" "$QUIESCE_TEST" "$OTHER"']
    async with Scope("a"):
        ours = await start_process(argv)
        assert [line async for line in ours.stdout] == ["caf\ufffd", ""]
        given = await start_process(argv, env={"PATH": os.environ["PATH"], "OTHER": "x"})
        assert [line async for line in given.stdout] == ["", "x"]


async def test_the_arguments_of_a_process_are_not_shown() -> None:
    """A token on a command line is in no frontier and in no report: there is the program's name."""
    scope = await Scope.open("a")
    await start_process(["sleep", "60.0001"], scope=scope)
    (entry,) = scope.frontier().in_flight
    assert (entry.details["program"], entry.details["arguments"]) == ("sleep", 1)
    report = await scope.aclose()
    assert "60.0001" not in f"{entry} {report} {report.to_json()}"


def test_other_processes_may_end_while_the_group_is_looked_for() -> None:
    """Linux then says `No such process` of a file below /proc that was listed a moment before."""

    def gone(path: Any, *args: Any, **options: Any) -> Any:
        if str(path).startswith("/proc/"):
            raise ProcessLookupError(errno.ESRCH, "No such process", str(path))
        return stat(path, *args, **options)

    stat = os.stat
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "stat", gone)
        assert process_spawn.group_lives(os.getpgrp())
