"""Starting: ready, or an error that says why not, and nothing left behind."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from quiesce import ArgumentError, Scope, ScopeClosed
from quiesce.errors import NotReady, ProcessLost, SpawnFailed
from quiesce.processes.process import Process, start_process
from tests.unit.processes import small_programs as processes
from tests.unit.processes.small_programs import GRACE, READY, counted, runs_in

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.unit.processes.small_programs import Census

pytestmark = pytest.mark.real_time


@pytest.fixture(autouse=True)
def census() -> Iterator[Census]:
    """Fail if a process is left."""
    with counted() as found:
        yield found


async def test_it_is_given_out_when_it_is_ready() -> None:
    """Until then its state is another."""
    states: list[str] = []

    async def probe(process: Process) -> None:
        states.append(process.state)
        await process.lines.line_matching("ready")

    async with Scope("a"):
        process = await start_process(processes.POLITE, ready=probe, service=True)
        states.append(process.state)
    assert states == ["starting", "ready"]


async def never(_: Process) -> None:
    """Wait for ever, as a probe that does not notice the exit."""
    await anyio.sleep_forever()


@pytest.mark.parametrize("probe", [READY, never])
async def test_an_exit_before_it_is_ready_is_told_at_once(probe: Any) -> None:
    """The error has the exit code and the last lines of output, and nothing is held."""
    async with Scope("a") as scope:
        with pytest.raises(ProcessLost, match=r"exit code 3\n    no luck") as caught:
            await start_process(processes.BARREN, ready=probe, ready_within=60)
        assert not scope.frontier()
    assert caught.value.returncode == 3
    assert caught.value.lines == ("no luck",)


async def test_an_exit_in_the_moment_of_readiness_is_an_exit() -> None:
    """A process that has exited is not given out as ready."""

    async def probe(process: Process) -> None:
        # A pipe ends a moment earlier than its process.
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # noqa: ASYNC222 - it exits at once

    async with Scope("a"):
        for _ in range(5):
            with pytest.raises(ProcessLost):
                await start_process(["sh", "-c", "exec true"], ready=probe)


async def test_a_signal_is_named() -> None:
    """What killed it is in the message."""
    async with Scope("a"):
        with pytest.raises(ProcessLost, match="killed by SIGUSR1") as caught:
            await start_process(["sh", "-c", "kill -USR1 $$"], ready=READY)
    assert caught.value.returncode == -signal.SIGUSR1


@pytest.mark.parametrize("argv", [processes.POLITE, processes.STUBBORN_PARENT])
async def test_the_deadline_of_readiness(argv: list[str], census: Census) -> None:
    """A probe that never answers ends in an error, and in the end of the process."""

    async def probe(process: Process) -> None:
        await process.lines.line_matching("ready")
        await anyio.sleep_forever()

    async with Scope("a") as scope:
        with pytest.raises(NotReady, match=r"not ready in 0.2 s") as caught:
            await start_process(argv, ready=probe, ready_within=0.2, grace=GRACE)
        assert [runs_in(pid) for pid in census.pids] == [[]]
        assert not scope.frontier()
    assert caught.value.lines == ("ready",)


async def test_the_obstacle_is_in_the_error() -> None:
    """What a probe says stands in the way is told."""
    async with Scope("a"):
        with pytest.raises(NotReady, match="has written no line"):
            await start_process(["sleep", "60"], ready=READY, ready_within=0.05)


async def test_a_probe_that_fails_ends_the_process(census: Census) -> None:
    """Its error comes out when nothing of the process is left."""

    async def probe(process: Process) -> None:
        message = "the probe has failed"
        raise LookupError(message)

    async with Scope("a"):
        with pytest.raises(LookupError, match="the probe has failed"):
            await start_process(processes.STUBBORN_PARENT, ready=probe, grace=GRACE)
        assert [runs_in(pid) for pid in census.pids] == [[]]


async def test_a_probe_that_fails_by_the_exit_tells_of_the_exit() -> None:
    """The exit is the error then, and the probe's is its cause."""

    async def probe(process: Process) -> None:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # noqa: ASYNC222 - the loop is not to see it
        raise ConnectionResetError

    async with Scope("a"):
        with pytest.raises(ProcessLost) as caught:
            await start_process(processes.BARREN, ready=probe)
    assert isinstance(caught.value.__cause__, ConnectionResetError)


async def test_a_close_while_it_starts_is_told() -> None:
    """Whoever starts it in a scope that is closed meanwhile gets ScopeClosed."""
    scope = await Scope.open("a")
    caught: list[BaseException] = []

    async def start() -> None:
        with pytest.raises(ScopeClosed) as found:
            await start_process(["sleep", "60"], scope=scope, ready=READY, grace=GRACE)
        caught.append(found.value)

    async with anyio.create_task_group() as group:
        group.start_soon(start)
        while not scope.frontier():
            await anyio.lowlevel.checkpoint()
        await scope.aclose()
    assert "was closed while sleep was starting" in str(caught[0])


class Preparing:
    """A probe of a user's own, which prepares the launch."""

    def __init__(self, calls: list[str]) -> None:
        self.calls = calls

    def prepare(self, launch: Any) -> None:
        """Add a variable, and something to do in the end."""
        self.calls.append("prepared")
        launch.env["WORD"] = "ready"
        launch.cleanup += [self.fail, lambda: self.calls.append("cleaned")]

    def fail(self) -> None:
        """Raise an error, as a cleanup that fails."""
        raise OSError

    async def wait(self, process: Process) -> None:
        """Wait for the word."""
        await process.lines.line_matching("ready")
        self.calls.append("ready")


async def test_a_probe_prepares_and_is_cleaned_up() -> None:
    """What it has made for a process goes with the process."""
    calls: list[str] = []
    async with Scope("a"):
        argv = ["sh", "-c", "echo $WORD; exec sleep 60"]
        process = await start_process(argv, ready=Preparing(calls))
        assert calls == ["prepared", "ready"]
        await process.stop()
        assert calls == ["prepared", "ready", "cleaned"]


async def test_a_start_that_fails_is_cleaned_up() -> None:
    """What a probe has made goes also if there is no process."""
    calls: list[str] = []
    async with Scope("a"):
        with pytest.raises(SpawnFailed):
            await start_process(["./no such program"], ready=Preparing(calls))
    assert calls == ["prepared", "cleaned"]


BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"argv": []}, ArgumentError, "argv"),
    ({"argv": "true"}, ArgumentError, "argv must be a list"),
    ({"argv": [7]}, ArgumentError, "argv"),
    ({"argv": [b"true"]}, ArgumentError, "argv"),
    ({"argv": ["tr\0ue"]}, ArgumentError, "NUL"),
    ({"argv": ["./no such program"]}, SpawnFailed, "no such program"),
    ({"argv": ["."]}, SpawnFailed, "'.'"),
    ({"cwd": "./no such folder"}, SpawnFailed, "no such folder"),
    ({"env": {"A": 1}}, ArgumentError, "env"),
    ({"env": {"A=B": "1"}}, ArgumentError, "environment"),
    ({"grace": -1}, ArgumentError, "grace"),
    ({"ready": READY, "ready_within": "soon"}, ArgumentError, "ready_within"),
    ({"ready": 7}, ArgumentError, "7"),
    ({"stdin": "wire"}, ArgumentError, "stdin"),
    ({"logs": "everywhere"}, ArgumentError, "logs"),
    ({"logs": 7}, ArgumentError, "logs"),
    ({"name": 7}, ArgumentError, "name"),
]


@pytest.mark.parametrize(("options", "error", "word"), BAD)
async def test_bad_input_is_named(
    options: dict[str, Any], error: type[Exception], word: str, census: Census
) -> None:
    """The error names what is wrong, and nothing was started."""
    async with Scope("a") as scope:
        with pytest.raises(error, match=word):
            await start_process(**{"argv": ["true"], **options})
        assert not scope.frontier()
        assert census.pids == []


async def test_a_log_file_that_cannot_be_written_is_named(tmp_path: Path, census: Census) -> None:
    """It is tried before the fork."""
    async with Scope("a"):
        with pytest.raises(SpawnFailed, match="nowhere"):
            await start_process(["true"], logs=tmp_path / "nowhere" / "log")
        assert census.pids == []
