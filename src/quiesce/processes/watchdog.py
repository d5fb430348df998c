"""What ends the child processes if this program is killed and cannot do so itself.

One watcher for each program that starts processes: a small child of its own, in a session of its
own, that reads a pipe whose other end only this program has. When the pipe breaks, however this
program ended, the watcher kills the process groups that stand in a table, and goes. The table is a
file in memory: to enter a group wakes nobody, so it costs a start next to nothing. `ps` shows the watcher as
`quiesce-watcher`.

On Linux the watcher then also looks for processes whose environment has this program's mark: those
that left their group (`setsid`), and one that was forked in the moment in which its owner was
killed. The mark ends with a number for each process that is started, so that its owner can look for
what it has left, too (`Strays`). What changes its environment at the start and leaves its group escapes,
as does what runs as another user.

`PR_SET_PDEATHSIG` is no help: it needs code between fork and exec, it fires when the *thread*
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
_GROUP_BYTES = 4  # in the table
_NUMBERS_MAX = 1024  # the watcher closes inherited files up to here; by default there are no more
_STEP_PROCESSES = 64  # that are looked at in one step: about a millisecond
_REST_SECONDS = 0.001  # between two steps
_numbers = itertools.count(1)  # of the processes that are started
_NUMBERS_MIN = 10  # of the files handed to it, so that none is in the way of its first four

# Run by an interpreter of its own, without site-packages. 0 is the pipe, 3 the table. It goes when two
# looks in a row have found nothing: while a process is in its exec, it has no environment to be seen.
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
    """The process groups that are to end with this program, where the watcher can read them."""

    def __init__(self) -> None:
        """Make a file without a name; `OSError` if there can be none."""
        with _nameless_file() as fd:
            self.fd: int = _high(fd)
        self._places: dict[int, int] = {}
        self._free: list[int] = []

    def __contains__(self, group: int) -> bool:
        """Return whether a group is in it."""
        return group in self._places

    def add(self, group: int) -> bool:
        """Enter a group; False if there is no room on the disk."""
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
        """Strike a group out. Idempotent."""
        place = self._places.pop(group, None)
        if place is not None:
            self._write(place, 0)
            self._free.append(place)

    def _write(self, place: int, group: int) -> None:
        os.pwrite(self.fd, group.to_bytes(_GROUP_BYTES, sys.byteorder), place * _GROUP_BYTES)


class Watcher:
    """This program's end of the lifeline."""

    def __init__(self) -> None:
        self.token: str = secrets.token_hex(16)
        self.table: Table | None = None
        self._pipe: int | None = None
        self._pid: int | None = None
        self._failed = False

    def prepare(self) -> None:
        """Start it before a fork: the mark is enough for it if this program is killed then."""
        try:
            if self.table is None:
                self.table = Table()
            if not self._runs():
                self._restart(self.table)
        except OSError as error:
            if not self._failed:
                logger.warning("no watcher for child processes: %s", error)
            self._failed = True

    def add(self, group: int) -> str:
        """Watch a group, to end it with this program; return by which means."""
        if self.table is None or self._pid is None:
            return "none"
        entered = self.table.add(group)
        means = (["watcher"] if entered else []) + (["mark"] if sys.platform == "linux" else [])
        return " and ".join(means) or "none"

    def remove(self, group: int) -> None:
        """Forget a group, before its number may be another's."""
        if self.table is not None:
            self.table.remove(group)

    def forget_everything(self) -> None:
        """Drop the parent's watcher: in a fork of this program."""
        if self._pipe is not None:
            os.close(self._pipe)
        if self.table is not None:
            os.close(self.table.fd)
        self.__init__()  # type: ignore[misc]  # as if it were new

    def _runs(self) -> bool:
        if self._pid is None:
            return False
        try:
            return os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None
        except ChildProcessError:  # somebody else has reaped it
            self._pid = None
            return False

    def _restart(self, table: Table) -> None:
        """Start a watcher; the one before it has gone."""
        self._end()
        theirs, ours = os.pipe()
        try:
            self._pid = _spawn(theirs, table.fd, f"{MARK}={self.token}.")
        except BaseException:
            os.close(ours)
            raise
        finally:
            os.close(theirs)
        self._pipe = ours

    def _end(self) -> None:
        """End and bury the watcher. It is killed before its pipe breaks, or it would do its work."""
        if self._pid is not None:
            with suppress(OSError):
                os.kill(self._pid, 9)  # ours, and not reaped: the number is not another's
                os.waitpid(self._pid, 0)
            self._pid = None
        if self._pipe is not None:
            os.close(self._pipe)
            self._pipe = None


@contextmanager
def _nameless_file() -> Iterator[int]:
    """Open a file in memory, or else one that has lost its name, until the end of the block."""
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
    import fcntl  # noqa: PLC0415 - Windows has none, and the package can be imported there

    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _NUMBERS_MIN)


def _spawn(stdin: int, table: int, mark: str) -> int:
    """Start the watcher; it has no environment, so no mark, and no files of ours but these."""
    if not sys.executable:
        message = "sys.executable is not known"
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
    """Finds, by its mark, what has left the group of a process that this program has started.

    A look goes through all of /proc, some 20 microseconds for each process of the system. It is made in
    small steps, so that it does not hold up the event loop, and shared by all owners in a thread that ask
    for one. While a process is in its exec, it has no environment: a look that has met such a process
    for the first time is not sure.
    """

    def __init__(self) -> None:
        self._began = -math.inf  # the last look that has ended,
        self._found: dict[bytes, list[int]] = {}  # what it saw, by mark,
        self._blank: set[int] = set()  # and who had no environment
        self._sure = False
        self._steps: Iterator[None] | None = None  # the look that is being made
        self._rest_until = -math.inf

    def look(self, mark: bytes, after: float) -> tuple[list[int], bool] | None:
        """Return who has a mark, and whether that is sure; None: not known yet, ask again.

        It is the answer of a look that has begun after a moment of `time.monotonic()`.
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
        return []  # no such file system: there is no mark either


def mark_of(pid: int) -> bytes | None:
    """Return the mark that a process has of this program; empty: none; None: it has no environment."""
    prefix = f"{MARK}={watcher.token}.".encode()
    try:
        with open(f"/proc/{pid}/environ", "rb", buffering=0) as file:  # noqa: PTH123 - quick
            words = file.read()
    except OSError:
        return b""  # it has gone, or is another user's
    if not words:
        return None
    at = words.find(prefix)
    if at < 0 or (at > 0 and words[at - 1] != 0):
        return b""
    return words[at:].partition(b"\0")[0]


watcher: Watcher = Watcher()
strays: Strays = Strays()


if hasattr(os, "register_at_fork"):  # not on Windows
    # On import, not at the first start: workers that are forked after the import need a token each.
    os.register_at_fork(after_in_child=watcher.forget_everything)


def mark_environment(environment: dict[str, str]) -> None:
    """Mark a process to be, and all that it starts, as this program's, which is watched from now."""
    watcher.prepare()
    environment[MARK] = f"{watcher.token}.{next(_numbers)}"


def guard_group(pid: int) -> str:
    """Watch the group of a process, to end it if this program ends; return by which means."""
    return watcher.add(pid)


def forget(pid: int) -> None:
    """Record that a group has ended, before its leader is reaped."""
    watcher.remove(pid)
