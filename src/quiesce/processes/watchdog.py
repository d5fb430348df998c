"""Ends the child processes if this program is killed and cannot end them itself.

Each program that starts processes has one watcher: a small child process in a separate session. The
watcher reads a pipe whose other end only this program has. When this program ends, for whatever
reason, the pipe breaks. Then the watcher kills the process groups that are listed in a table, and
exits. The table is a file in memory, and adding a group to it does not wake the watcher, so it costs
almost no time. `ps` shows the watcher as `quiesce-watcher`.

On Linux the watcher then also kills processes whose environment has this program's mark. This finds
processes that left their group (`setsid`), and a process that was forked at the moment when this
program was killed. The mark ends with a number for each started process, so the owner of that process
can also find the processes that left its group (`Strays`). Two kinds of processes escape: a process
that leaves its group and also changes its environment at its start, and a process of another user.

`PR_SET_PDEATHSIG` does not help: it needs code between fork and exec, it fires when the *thread*
that forked ends, and it does not reach grandchildren.
"""

from __future__ import annotations

import itertools
import math
import os
import secrets
import sys
import tempfile
import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from quiesce.core.tree import logger

if TYPE_CHECKING:
    from collections.abc import Iterator

MARK = "QUIESCE_LIFELINE"
_GROUP_BYTES = 4  # size of an entry in the table
_NUMBERS_MAX = 1024  # the watcher closes inherited descriptors below this, the usual limit
_STEP_PROCESSES = 64  # processes that one step reads: about a millisecond
_REST_SECONDS = 0.001  # between two steps
_numbers = itertools.count(1)  # the numbers of started processes, for their marks
_NUMBERS_MIN = 10  # the watcher's descriptors are opened above this, so that 0 to 3 are free

# A separate interpreter without site-packages runs this. Descriptor 0 is the pipe, 3 the table. It exits
# when two looks in a row have found no process: during its exec a process has no environment to read.
WATCHER = """
import array, os, signal, sys, time
mark = sys.argv[1].encode()
try:
    with open("/proc/self/comm", "w") as file:
        file.write("quiesce-watcher")
except OSError:
    pass
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
    signal.signal(number, signal.SIG_IGN)
os.closerange(4, int(sys.argv[2]))
while os.read(0, 1):
    pass
table = array.array("i")
table.frombytes(os.pread(3, os.fstat(3).st_size, 0))
for group in filter(None, table):
    try:
        os.killpg(group, signal.SIGKILL)
    except OSError:
        pass
def marked(pid):
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return any(word.startswith(mark) for word in file.read().split(b"\\0"))
    except OSError:
        return False
looks = 0
for _ in range(100):  # what is being forked while we look is found the next time
    try:
        found = [int(pid) for pid in os.listdir("/proc") if pid.isdigit() and marked(pid)]
    except OSError:
        break
    for pid in found:
        try:
            os.kill(pid, signal.SIGKILL)
        except OSError:
            pass
    looks = 0 if found else looks + 1
    if looks == 2:
        break
    if looks:
        time.sleep(0.05)
"""


class Table:
    """The process groups that the watcher kills when this program ends, in a file that it can read."""

    def __init__(self) -> None:
        """Open a file without a name. *Raises*: `OSError` if that is not possible."""
        with _nameless_file() as fd:
            self.fd: int = _high(fd)
        self._places: dict[int, int] = {}
        self._free: list[int] = []

    def __contains__(self, group: int) -> bool:
        return group in self._places

    def add(self, group: int) -> bool:
        """Add a group; return False if the disk is full."""
        place = self._free[-1] if self._free else len(self._places)
        try:
            self._write(place, group)
        except OSError:
            return False
        if self._free:
            self._free.pop()
        self._places[group] = place
        return True

    def remove(self, group: int) -> None:
        place = self._places.pop(group, None)
        if place is not None:
            self._write(place, 0)
            self._free.append(place)

    def _write(self, place: int, group: int) -> None:
        os.pwrite(self.fd, group.to_bytes(_GROUP_BYTES, sys.byteorder), place * _GROUP_BYTES)


class Watcher:
    """The watcher process, as this program manages it: its pid, its pipe and its table."""

    def __init__(self) -> None:
        self.token: str = secrets.token_hex(16)
        self.table: Table | None = None
        self.pipe: int | None = None
        self.pid: int | None = None
        self._failed = False

    def prepare(self) -> None:
        """Start the watcher unless it runs. Called before a fork, so that a killed program's new child has a watcher."""
        try:
            if self.table is None:
                self.table = Table()
            if not self._runs():
                self._restart(self.table)
        except OSError as error:
            if not self._failed:
                logger.warning(
                    "cannot start the watcher, so child processes go on if this program is killed: %s",
                    error,
                )
            self._failed = True

    def add(self, group: int) -> str:
        """Make the watcher kill a group when this program ends; return the means in words."""
        if self.table is None or self.pid is None:
            return "none"
        entered = self.table.add(group)
        means = (["watcher"] if entered else []) + (["mark"] if sys.platform == "linux" else [])
        return " and ".join(means) or "none"

    def remove(self, group: int) -> None:
        """Remove a group from the table, before the system can reuse its number."""
        if self.table is not None:
            self.table.remove(group)

    def forget_everything(self) -> None:
        """Drop the parent's watcher. Runs in each fork of this program."""
        if self.pipe is not None:
            os.close(self.pipe)
        if self.table is not None:
            os.close(self.table.fd)
        self.__init__()  # type: ignore[misc]  # as if it were new

    def _runs(self) -> bool:
        if self.pid is None:
            return False
        try:
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None
        except ChildProcessError:  # other code has reaped the watcher
            self.pid = None
            return False

    def _restart(self, table: Table) -> None:
        """Start a watcher in place of one that has ended."""
        self._end()
        theirs, ours = os.pipe()
        try:
            self.pid = _spawn(theirs, table.fd, f"{MARK}={self.token}.")
        except BaseException:
            os.close(ours)
            raise
        finally:
            os.close(theirs)
        self.pipe = ours

    def _end(self) -> None:
        """Kill and reap the watcher. If its pipe broke first, it would kill the children."""
        if self.pid is not None:
            with suppress(OSError):
                os.kill(self.pid, 9)  # safe: the watcher is not reaped, so its pid is not reused
                os.waitpid(self.pid, 0)
            self.pid = None
        if self.pipe is not None:
            os.close(self.pipe)
            self.pipe = None


@contextmanager
def _nameless_file() -> Iterator[int]:
    """Open a file in memory, or else an unlinked temporary file, until the end of the block."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("quiesce", os.MFD_CLOEXEC)
        try:
            yield fd
        finally:
            os.close(fd)
    else:
        with tempfile.TemporaryFile() as file:
            yield file.fileno()


def _high(fd: int) -> int:
    import fcntl  # noqa: PLC0415 - Windows lacks it, but can import this package

    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _NUMBERS_MIN)


def _spawn(stdin: int, table: int, mark: str) -> int:
    """Start the watcher, without an environment (and so without a mark), and only with these two descriptors."""
    if not sys.executable:
        message = "sys.executable is empty, so the path of the Python interpreter is unknown"
        raise OSError(message)
    argv = [sys.executable, "-I", "-S", "-c", WATCHER, mark, str(_NUMBERS_MAX)]
    pipe = _high(stdin)
    try:
        actions = [
            (os.POSIX_SPAWN_DUP2, pipe, 0),
            (os.POSIX_SPAWN_DUP2, table, 3),
            (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
            (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
        ]
        return os.posix_spawn(sys.executable, argv, {}, file_actions=actions, setsid=True)
    finally:
        os.close(pipe)


class Strays(threading.local):
    """Finds strays by their mark: processes that left the group of a process that this program started.

    A look reads all of /proc, which takes about 20 microseconds for each process of the system. It runs in
    small steps, so that it does not block the event loop, and all owners in a thread share it. During its
    exec a process has no environment to read, so a look that meets such a process for the first time is
    not sure.
    """

    def __init__(self) -> None:
        self._began = -math.inf  # when the last complete look began
        self._found: dict[bytes, list[int]] = {}  # the pids that this look found, by mark
        self._blank: set[int] = set()  # the pids that had no environment to read
        self._sure = False
        self._steps: Iterator[None] | None = None  # the look in progress
        self._rest_until = -math.inf

    def look(self, mark: bytes, after: float) -> tuple[list[int], bool] | None:
        """Advance a look. Return the pids with the mark, and whether the list is sure; None if not complete yet.

        The answer is from a look that began after `after`, a time of `time.monotonic()`.
        """
        if self._began <= after and time.monotonic() >= self._rest_until:
            if self._steps is None:
                self._steps = self._go_through()
            if next(self._steps, self) is self:
                self._steps = None
            self._rest_until = time.monotonic() + _REST_SECONDS
        if self._began <= after:
            return None
        return self._found.get(mark, []), self._sure

    def _go_through(self) -> Iterator[None]:
        began = time.monotonic()
        found: dict[bytes, list[int]] = {}
        blank: set[int] = set()
        for place, pid in enumerate(_pids()):
            mark = mark_of(pid)
            if mark is None:
                blank.add(pid)
            elif mark:
                found.setdefault(mark, []).append(pid)
            if place % _STEP_PROCESSES == _STEP_PROCESSES - 1:
                yield
        self._sure = blank <= self._blank
        self._began, self._found, self._blank = began, found, blank


def _pids() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208 - quick
    except OSError:
        return []  # without /proc there are no marks to read


def mark_of(pid: int) -> bytes | None:
    """Return this program's mark on a process: b"" if it has none, None if its environment is unreadable for now."""
    prefix = f"{MARK}={watcher.token}.".encode()
    try:
        with open(f"/proc/{pid}/environ", "rb", buffering=0) as file:  # noqa: PTH123 - quick
            words = file.read()
    except OSError:
        return b""  # the process has ended, or belongs to another user
    if not words:
        return None
    at = words.find(prefix)
    if at < 0 or (at > 0 and words[at - 1] != 0):
        return b""
    return words[at:].partition(b"\0")[0]


watcher: Watcher = Watcher()
strays: Strays = Strays()


if hasattr(os, "register_at_fork"):  # not on Windows
    # Register at the import, because each worker that is forked after the import needs a separate token.
    os.register_at_fork(after_in_child=watcher.forget_everything)


def mark_environment(environment: dict[str, str]) -> None:
    """Add this program's mark to the environment of a process to start, and start the watcher if needed."""
    watcher.prepare()
    environment[MARK] = f"{watcher.token}.{next(_numbers)}"


def guard_group(pid: int) -> str:
    """Make the watcher kill the group of a process when this program ends; return the means in words."""
    return watcher.add(pid)


def forget(pid: int) -> None:
    """Remove a group from the watcher's table, before its leader is reaped."""
    watcher.remove(pid)
