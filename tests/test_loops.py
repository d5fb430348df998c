"""How async tests are run: one that leaves a child process fails."""

from __future__ import annotations

import os
import signal
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from quiesce import Scope, start_process
from tests import loops
from tests.sweeping import Plan, run_once

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    Leaving = Callable[[], Coroutine[Any, Any, None]]

pytestmark = pytest.mark.skipif(not loops.PROC, reason="children can be listed in /proc only")


@pytest.fixture
def child() -> Iterator[list[int]]:
    """End what a bad test has left."""
    pids: list[int] = []
    yield pids
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def leaving(pids: list[int], *, dead: bool) -> Leaving:
    """Make a test that leaves a child process, running or not reaped."""

    async def test() -> None:
        program = subprocess.Popen(["/bin/sleep", "60"])  # noqa: ASYNC220 - a bad test
        program.returncode = 0  # nobody but the fixture sees to it
        pids.append(program.pid)
        if dead:
            program_pid = program.pid
            os.kill(program_pid, signal.SIGKILL)
            os.waitid(os.P_PID, program_pid, os.WEXITED | os.WNOWAIT)  # noqa: ASYNC222 - killed

    return test


@pytest.mark.parametrize("state", ["[SRD]", "Z"])
@pytest.mark.parametrize("backend", loops.BACKENDS)
def test_a_child_that_is_left_fails_the_test(child: list[int], backend: str, state: str) -> None:
    """It is told by its number and state, and the next test is not to blame."""
    with pytest.raises(AssertionError, match=rf"left: child process \d+ \({state}\)"):
        loops.run(backend, leaving(child, dead=state == "Z"), real_time=True)

    async def harmless() -> None:
        pass

    loops.run(backend, harmless, real_time=True)


def test_a_child_that_is_left_fails_the_sweep(child: list[int]) -> None:
    """A run of a sweep has the same end."""
    plan = Plan("native", "suspensions", "once")
    run = run_once("asyncio", leaving(child, dead=False), plan, (), real_time=True)
    assert len(run.left) == 1
    assert run.left[0].startswith(f"child process {child[0]}")


@pytest.mark.parametrize("backend", loops.BACKENDS)
def test_a_process_that_was_seen_to_its_end_is_none(backend: str) -> None:
    """Neither is the watcher, which stays."""

    async def test() -> None:
        async with Scope("a"):
            process = await start_process(["true"])
            await process.wait()

    loops.run(backend, test, real_time=True)
