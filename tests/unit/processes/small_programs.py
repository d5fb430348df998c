"""Small programs for the tests of processes, and a check that nothing of them is left."""

from __future__ import annotations

import os
import select
import signal
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quiesce.processes import process_spawn
from quiesce.processes.readiness.probe import Line

if TYPE_CHECKING:
    from collections.abc import Iterator

READY = Line("^ready$")

POLITE = ["sh", "-c", "echo ready; exec sleep 60"]
STUBBORN = ["sh", "-c", "trap '' TERM; echo ready; exec sleep 60"]
PARENT = ["sh", "-c", "sleep 60 & echo ready; exec sleep 60"]
"""It has a child, which holds its pipes."""
STUBBORN_PARENT = ["sh", "-c", "trap '' TERM; sleep 60 & echo ready; exec sleep 60"]
DYING_PARENT = ["sh", "-c", "sleep 60 & echo ready; exit 7"]
"""It exits, and leaves a child that holds its pipes."""
BARREN = ["sh", "-c", "echo no luck >&2; exit 3"]
"""It exits before it is ready."""

GRACE = 0.03


def runs_in(group: int) -> list[str]:
    """List what runs in a process group, by a way of its own: not that of the library."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return []  # that is so at most looks, and to read of every process takes long
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            state, parent, of, *_ = (folder / "stat").read_text().rpartition(")")[2].split()
            ours = int(parent) == os.getpid()
            if int(of) == group and (state not in "ZX" or ours):
                found.append(f"{folder.name} ({state}) of group {group}")
    return found


def end(pid: int) -> None:
    """End a process that is nobody's child here, and wait until it has ended."""
    ended = os.pidfd_open(pid)
    try:
        signal.pidfd_send_signal(ended, signal.SIGKILL)
        assert select.select([ended], [], [], 20)[0]
    finally:
        os.close(ended)


def open_files() -> int:
    """Count the open files of this program."""
    return len(list(Path("/proc/self/fd").iterdir()))


class Census:
    """What was forked, and what is left of it."""

    def __init__(self) -> None:
        self.pids: list[int] = []

    def left(self) -> list[str]:
        """List what runs or is not buried; and forget it, ended, for the next look."""
        found = [line for pid in self.pids for line in runs_in(pid)]
        for pid in self.pids if found else ():
            with suppress(OSError):
                os.killpg(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
        self.pids.clear()
        return found


@contextmanager
def counted() -> Iterator[Census]:
    """Note each child that the library forks, and fail if anything of one is left in the end."""
    census = Census()
    spawn = process_spawn.spawn

    def noting(*args: Any, **options: Any) -> process_spawn.SpawnedChild:
        child = spawn(*args, **options)
        census.pids.append(child.pid)
        return child

    process_spawn.spawn = noting
    try:
        yield census
    finally:
        process_spawn.spawn = spawn
        left = census.left()
    assert not left, f"the test left: {left}"
