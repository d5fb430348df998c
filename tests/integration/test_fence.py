"""A process that fences itself ends before its lease does, whatever happens to it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

_PROGRAM = """
import os, sys, time
from quiesce.mesh.store.fence import Fence

fence = Fence()
{before}
fence.kill_in(float(sys.argv[1]))
print("armed", flush=True)
{after}
print("went on", flush=True)
"""
_WITHIN = 60  # seconds, a guard
_LONG = 5.0  # long enough for one more step on a busy machine


def _start(
    seconds: float, before: str = "", after: str = "time.sleep(600)"
) -> subprocess.Popen[str]:
    program = _PROGRAM.format(before=before, after=after)
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(seconds)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "armed\n"
    return process


def test_a_process_is_killed_when_its_time_is_over() -> None:
    """Code that sleeps does not get another step."""
    process = _start(0.2)
    output, _ = process.communicate(timeout=_WITHIN)
    assert (process.returncode, output) == (-signal.SIGKILL, "")


def test_a_stopped_process_never_goes_on() -> None:
    """A process that was stopped for longer than its time is dead, also when it is continued."""
    process = _start(0.5, after="time.sleep(1.0)")
    os.kill(process.pid, signal.SIGSTOP)
    output, _ = process.communicate(timeout=_WITHIN)  # without SIGCONT
    assert (process.returncode, output) == (-signal.SIGKILL, "")


def test_a_time_that_is_over_kills_at_once() -> None:
    """A heartbeat whose answer came after the end of the lease does not let the process go on."""
    process = _start(600, after="fence.kill_in(-1.0); time.sleep(600)")
    output, _ = process.communicate(timeout=_WITHIN)
    assert (process.returncode, output) == (-signal.SIGKILL, "")


def test_a_process_that_sets_the_timer_again_goes_on() -> None:
    """A later time takes the place of an earlier one, and a fence that is closed kills nobody."""
    process = _start(
        _LONG, after=f"fence.kill_in(600); time.sleep({_LONG} + 0.2); fence.close(); fence.close()"
    )
    output, _ = process.communicate(timeout=_WITHIN)
    assert (process.returncode, output) == (0, "went on\n")


def test_a_forked_child_does_not_have_the_timer() -> None:
    """A child outlives the time of its parent: only the parent has promised to end."""
    child = "ours, theirs = os.pipe(); pid = os.fork(); pid and time.sleep(600); os.close(theirs); os.read(ours, 1)"
    process = _start(_LONG, after=child)  # the child reads until the parent is gone
    output, _ = process.communicate(timeout=_WITHIN)
    assert (process.returncode, output) == (-signal.SIGKILL, "went on\n")


@pytest.mark.skipif(sys.platform == "linux", reason="Linux has such timers")
def test_elsewhere_a_fence_is_refused(tmp_path: Path) -> None:
    """A system without such timers says so."""
    from quiesce.errors import UsageError  # noqa: PLC0415 - only there
    from quiesce.mesh import Node  # noqa: PLC0415 - only there

    with pytest.raises(UsageError, match="fence=True needs Linux"):
        Node("a", store=f"sqlite://{tmp_path / 'a.db'}", fence=True)
