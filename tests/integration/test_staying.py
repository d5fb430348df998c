"""Threads that keep a process from its exit after a drain: they are named."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration import staying

_ROOT = Path(__file__).parents[2]
_WAYS = ["run", "node", "Quiesce"]
_LINE = staying.linger.__code__.co_firstlineno
_RUN = staying.Flusher.run.__code__.co_firstlineno
_SAID = {
    "thread": f"thread 'flusher' (linger, {staying.__file__}:{_LINE})",
    "kind": f"thread 'flusher' (Flusher.run, {staying.__file__}:{_RUN})",
    "busy worker": f"thread 'ThreadPoolExecutor-0_0' (linger, {staying.__file__}:{_LINE})",
    "busy worker of anyio": f"(linger, {staying.__file__}:{_LINE})",
}
_ADVICE = "Have this function end when the program shuts down"
_THREAD = ". Start a thread with daemon=True only if what it does is not work: the exit cuts such a thread"
_POOL = ". A pool drops calls that it has not begun by `pool.shutdown(cancel_futures=True)`"
_FITS = {"thread": _THREAD, "kind": _THREAD, "busy worker": _POOL, "busy worker of anyio": ""}


def start(way: str, left: str) -> subprocess.Popen[str]:
    """Start a program; it has a pipe for what it is told."""
    return subprocess.Popen(
        [sys.executable, "-m", staying.__name__, way, left], cwd=_ROOT, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip


@pytest.mark.timeout(60)
@pytest.mark.sampled(1, "left")
@pytest.mark.parametrize("left", _SAID)
@pytest.mark.parametrize("way", _WAYS)
def test_a_thread_that_keeps_the_process_is_named(way: str, left: str) -> None:
    """While the process waits for it, with its function, where it is, and what to do."""
    with start(way, left) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        try:
            said = next(line for line in process.stderr if "does not exit" in line)
            assert process.poll() is None
            assert _SAID[left] in said
            assert f"is at {staying.__file__}:{_LINE + 3} in linger" in said
            assert said.endswith(f"{_ADVICE}{_FITS[left]}\n")
        finally:
            process.stdin.close()
        assert process.wait() == 0
        assert "does not exit" not in process.stderr.read()


@pytest.mark.timeout(60)
@pytest.mark.sampled(1, "left")
@pytest.mark.parametrize("left", ["idle worker", "daemon", "nothing"])
@pytest.mark.parametrize("way", _WAYS)
def test_no_other_thread_is_named(way: str, left: str) -> None:
    """It does not keep the process, or ends by itself at the exit."""
    with start(way, left) as process:
        _, said = process.communicate()
    assert process.returncode == 0
    assert "does not exit" not in said


@pytest.mark.timeout(60)
def test_a_process_without_a_drain_is_left_alone() -> None:
    """Its threads are its own business."""
    with start("plain", "thread") as process:
        _, said = process.communicate()
    assert process.returncode == 0
    assert said == ""
