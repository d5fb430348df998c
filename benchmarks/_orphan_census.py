"""Finds and ends the processes that a run has started, by a mark in their environment, never by name.

Descendants inherit the mark. So the census finds grandchildren too, and processes
that have left their process group or lost their parent. It needs /proc.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

MARK = "QUIESCE_ORPHANS_RUN"
_PAUSE_SECONDS = 0.002


def available() -> bool:
    """Return whether the processes of this machine can be listed."""
    return Path("/proc/self/environ").exists()


def alive(mark: str) -> list[int]:
    """Return the running processes whose mark begins with this text; dead processes have no environment."""
    wanted = f"{MARK}={mark}".encode()
    folders = Path("/proc").glob("[0-9]*")
    return [pid for pid in (int(folder.name) for folder in folders) if _has(pid, wanted)]


def _has(pid: int, wanted: bytes) -> bool:
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
    return any(word.startswith(wanted) for word in environment.split(b"\0"))


def dead() -> int | None:
    """Return a child of this program that has exited and is not reaped; None if there is none."""
    try:
        found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT | os.WNOHANG)
    except ChildProcessError:
        return None
    return None if found is None else found.si_pid


def settle(mark: str, seconds: float) -> tuple[int, bool]:
    """Wait a moment for processes to end; return how many still run, and whether one is not reaped."""
    until = time.monotonic() + seconds
    while (left := len(alive(mark))) or dead() is not None:
        if time.monotonic() >= until:
            break
        time.sleep(_PAUSE_SECONDS)
    return left, dead() is not None


def kill(mark: str) -> int:
    """Kill all processes with the mark; return their number."""
    found = alive(mark)
    wanted = f"{MARK}={mark}".encode()
    for pid in found:
        with suppress(OSError):
            _kill_marked(pid, wanted)
    return len(found)


def _kill_marked(pid: int, wanted: bytes) -> None:
    """Kill a process, unless another process has got its id by now."""
    if not hasattr(os, "pidfd_open"):
        os.kill(pid, signal.SIGKILL)
        return
    fd = os.pidfd_open(pid)
    try:
        if _has(pid, wanted):
            signal.pidfd_send_signal(fd, signal.SIGKILL)
    finally:
        os.close(fd)


def clear(mark: str, seconds: float) -> None:
    """Kill and reap all processes that are left, so that the next run starts without them."""
    until = time.monotonic() + seconds
    while (kill(mark) or dead() is not None) and time.monotonic() < until:
        pid = dead()
        if pid is None:
            time.sleep(_PAUSE_SECONDS)
        else:
            with suppress(ChildProcessError):  # a thread of asyncio has reaped the child before
                os.waitpid(pid, os.WNOHANG)
