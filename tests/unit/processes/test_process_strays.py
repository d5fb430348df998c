"""What a process leaves outside of its group: found by its mark when it is stopped, and ended."""

from __future__ import annotations

import logging
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from quiesce import Scope
from quiesce.errors import ProcessStuck
from quiesce.processes import process_owner, watchdog
from quiesce.processes.process import start_process
from quiesce.processes.readiness.probe import Line
from quiesce.processes.watchdog import Strays
from tests.unit.processes.small_programs import end, runs_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from quiesce import Process

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere there is no mark")

SECONDS_MAX = 30
TELL = "setsid sh -c 'echo $$; exec sleep 60'"
STRAY = f"{TELL} & sleep 60"
DAEMON = f"({TELL} &) ; sleep 60"  # its parent is gone, as a daemon's is


@pytest.fixture
def left() -> Iterator[list[int]]:
    """Return a list of process ids, which are ended after the test."""
    pids: list[int] = []
    yield pids
    for pid in pids:
        with suppress(ProcessLookupError):
            end(pid)


async def started(script: str, left: list[int], **options: Any) -> Process:
    """Start a shell whose stray has told its process id, which is also the number of its group."""
    process = await start_process(
        ["sh", "-c", script], ready=Line(r"^\d+$"), ready_within=SECONDS_MAX, **options
    )
    left.append(int(process.stdout.tail()[0]))
    return process


async def stop(process: Process) -> None:
    """Stop a process."""
    await process.stop()


async def kill(process: Process) -> None:
    """Kill a process."""
    process.kill()
    await process.wait()


async def dismiss(process: Process) -> None:
    """Close the input of a process, which then ends by itself."""
    process.close_stdin()
    await process.wait()


@on_linux
@pytest.mark.real_time
@pytest.mark.parametrize("way", [stop, kill])
@pytest.mark.parametrize("script", [STRAY, DAEMON])
async def test_what_left_the_group_is_gone_when_the_process_was_stopped(
    way: Callable[[Process], Any],
    script: str,
    left: list[int],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It has a session of its own, and may be nobody's child; the log names it."""
    caplog.set_level(logging.INFO, "quiesce")
    async with Scope("a") as scope:
        process = await started(script, left)
        assert runs_in(left[0])
        await way(process)
        assert not runs_in(left[0])
    assert str(left[0]) in caplog.text
    assert scope.report is not None
    assert scope.report.ok


@on_linux
@pytest.mark.real_time
async def test_what_left_the_group_is_gone_at_the_end_of_the_scope(left: list[int]) -> None:
    """The close stops the process."""
    async with Scope("a") as scope:
        await started(DAEMON, left, service=True)
        await scope.drain()
        assert not runs_in(left[0])


@on_linux
@pytest.mark.real_time
async def test_what_left_the_group_is_gone_when_the_process_was_dismissed(left: list[int]) -> None:
    """Agents and servers end by themselves when their input is closed: they were asked to."""
    async with Scope("a"):
        process = await started(f"{TELL} & read line", left, stdin="pipe")
        await dismiss(process)
        assert process.returncode is not None
        assert not runs_in(left[0])


@on_linux
@pytest.mark.real_time
async def test_a_daemon_of_a_process_that_ended_by_itself_goes_on(left: list[int]) -> None:
    """To start it was its purpose; the watcher ends it with the program."""
    async with Scope("a"):
        process = await started(f"({TELL} &) ; read line", left, stdin="pipe")
        await process.send(b"go\n")
        assert await process.wait() == 0
        assert runs_in(left[0])


@on_linux
@pytest.mark.real_time
async def test_strays_of_others_are_left_alone(left: list[int]) -> None:
    """Each process has a mark of its own."""
    async with Scope("a"):
        first = await started(STRAY, left)
        second = await started(STRAY, left)
        await first.stop()
        assert not runs_in(left[0])
        assert runs_in(left[1])
        await second.stop()


class Immortal:
    """Somebody who is always seen."""

    def look(self, _mark: bytes, _after: float) -> tuple[list[int], bool]:
        """See it."""
        return ([1] if self.lives else []), True

    lives = True


@pytest.mark.real_time
async def test_a_stray_that_outlives_sigkill_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process is stuck, and its details have the number."""
    immortal = Immortal()
    monkeypatch.setattr(watchdog, "strays", immortal)
    monkeypatch.setattr(process_owner, "_KILLED_SECONDS", 0.05)
    async with Scope("a") as scope:
        process = await start_process(["sleep", "60"])
        with pytest.raises(ProcessStuck):
            await process.stop()
        (entry,) = scope.frontier().in_flight
        assert entry.details["strays"] == [1]
        immortal.lives = False
        await process.wait()


class System:
    """Processes and their marks, as each look in turn sees them; None: no environment."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *looks: dict[int, bytes | None]) -> None:
        """Stand in for /proc."""
        self.looks = list(looks)
        self.now = 0.0
        monkeypatch.setattr(watchdog, "_pids", self.pids)
        monkeypatch.setattr(watchdog, "mark_of", lambda pid: self.seen[pid])
        monkeypatch.setattr(time, "monotonic", self.clock)

    def clock(self) -> float:
        """Let time pass."""
        self.now += 1.0
        return self.now

    def pids(self) -> list[int]:
        """Begin a look."""
        self.seen = self.looks.pop(0)
        return list(self.seen)


def test_a_process_in_its_exec_makes_a_look_unsure(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no environment for a moment; what never has one is known from the look before."""
    System(monkeypatch, {7: None}, {7: None, 8: None}, {7: None, 8: b"a"}, {7: None})
    strays = Strays()
    answers = [strays.look(b"a", time.monotonic()) for _ in range(4)]
    assert answers == [([], False), ([], False), ([8], True), ([], True)]


def test_a_look_is_made_in_steps_and_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds up the event loop for one step at a time, and serves all that have asked before it began."""
    monkeypatch.setattr(watchdog, "_STEP_PROCESSES", 2)
    System(monkeypatch, {1: b"a", 2: b"", 3: b"b", 4: b"", 5: b"b"}, {})
    strays = Strays()
    assert strays.look(b"a", 0.0) is None
    assert strays.look(b"b", 0.5) is None
    assert strays.look(b"a", 0.0) == ([1], True)
    assert strays.look(b"b", 0.5) == ([3, 5], True)
    assert strays.look(b"b", time.monotonic()) == ([], True)  # a look of its own


def test_steps_lie_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many owners that ask at once do not make the steps of one look follow each other at once."""
    monkeypatch.setattr(watchdog, "_STEP_PROCESSES", 1)
    monkeypatch.setattr(watchdog, "_REST_SECONDS", 10.0)
    system = System(monkeypatch, {1: b"a", 2: b"a"})
    strays = Strays()
    asked = 0
    while strays.look(b"a", 0.0) is None:
        asked += 1
    assert asked >= 2 * 10 / 2
    assert not system.looks
