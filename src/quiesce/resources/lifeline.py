"""What ends the child processes if this program is killed and cannot do so itself.

One watcher for each program that starts processes: a small child of its own, in a session of its
own, that reads a pipe whose other end only this program has. It is told of each process group.
When the pipe breaks, however this program ended, the watcher kills the groups that it knows of,
and goes.

On Linux it then also looks for processes whose environment has this program's mark: those that
left their group (`setsid`), and one that was forked in the moment in which its owner was killed.
What changes its environment at the start and leaves its group escapes, as does what runs as
another user.

`PR_SET_PDEATHSIG` is no help: it needs code between fork and exec, it fires when the *thread*
that forked ends, and it does not reach grandchildren.
"""

from __future__ import annotations

import os
import secrets
import sys
from contextlib import suppress

from quiesce.core.node import logger

MARK = "QUIESCE_LIFELINE"
_NUMBERS_MAX = 1024  # the watcher closes inherited files up to here; by default there are no more

# Run by an interpreter of its own, without site-packages. A line is "+group" or "-group".
WATCHER = """
import os, signal, sys
mark = sys.argv[1].encode()
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
    signal.signal(number, signal.SIG_IGN)
os.closerange(3, int(sys.argv[2]))
groups = {}
with open(0, "rb", buffering=0) as pipe:
    rest = b""
    while data := pipe.read(65536):
        *lines, rest = (rest + data).split(b"\\n")
        for line in lines:
            group = int(line[1:])
            if line[:1] == b"+":
                groups[group] = None
            else:
                groups.pop(group, None)
for group in groups:
    try:
        os.killpg(group, signal.SIGKILL)
    except OSError:
        pass
def marked(pid):
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return mark in file.read().split(b"\\0")
    except OSError:
        return False
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
    if not found:
        break
"""


class Watcher:
    """This program's end of the lifeline."""

    def __init__(self) -> None:
        self.token: str = secrets.token_hex(16)
        self._groups: dict[int, None] = {}
        self._pipe: int | None = None
        self._pid: int | None = None
        self._failed = False

    def add(self, group: int) -> str:
        """Have it end a group; tells by which means."""
        self._groups[group] = None
        if self._pipe is None or not self._write(f"+{group}\n"):
            self._restart()
        if self._pipe is None:
            return "none"
        return "watcher and mark" if sys.platform == "linux" else "watcher"

    def remove(self, group: int) -> None:
        """Have it forget a group, before its number may be another's."""
        known = self._groups.pop(group, self) is None
        if known and self._pipe is not None and not self._write(f"-{group}\n"):
            self._restart()

    def forget_everything(self) -> None:
        """Have nothing to do with the parent's watcher: in a fork of this program."""
        if self._pipe is not None:
            os.close(self._pipe)
        self.__init__()  # type: ignore[misc]  # as if it were new

    def _write(self, text: str) -> bool:
        assert self._pipe is not None  # noqa: S101 - checked by the callers
        try:
            os.write(self._pipe, text.encode())
        except BlockingIOError:  # it has not read for thousands of processes
            return False
        except BrokenPipeError:
            return False
        return True

    def _restart(self) -> None:
        """Start a watcher, and tell it of all groups; the one before it has gone, or is stuck."""
        self._end()
        if not self._groups:
            return  # with the next process
        try:
            theirs, ours = os.pipe()
            try:
                self._pid = _spawn(theirs, f"{MARK}={self.token}")
            finally:
                os.close(theirs)
        except OSError as error:
            if not self._failed:
                logger.warning("no watcher for child processes: %s", error)
            self._failed = True
            return
        os.set_blocking(ours, False)
        self._pipe = ours
        for group in self._groups:
            self._write(f"+{group}\n")

    def _end(self) -> None:
        """Bury the watcher before; it is killed first, or it would end the groups."""
        if self._pid is not None:
            with suppress(OSError):
                os.kill(self._pid, 9)  # ours, and not reaped: the number is not another's
                os.waitpid(self._pid, 0)
            self._pid = None
        if self._pipe is not None:
            os.close(self._pipe)
            self._pipe = None


def _spawn(stdin: int, mark: str) -> int:
    """Start the watcher; it has no environment, so no mark, and no files of ours."""
    if not sys.executable:
        message = "sys.executable is not known"
        raise OSError(message)
    argv = [sys.executable, "-I", "-S", "-c", WATCHER, mark, str(_NUMBERS_MAX)]
    actions = [
        (os.POSIX_SPAWN_DUP2, stdin, 0),
        (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
        (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
    ]
    return os.posix_spawn(sys.executable, argv, {}, file_actions=actions, setsid=True)


watcher: Watcher = Watcher()
os.register_at_fork(after_in_child=watcher.forget_everything)


def mark(environment: dict[str, str]) -> None:
    """Mark a process to be, and all that it starts, as this program's."""
    environment[MARK] = watcher.token


def guard(pid: int) -> str:
    """Have the group of a process ended if this program ends; tells by which means."""
    return watcher.add(pid)


def forget(pid: int) -> None:
    """Know that a group has ended, before its leader is reaped."""
    watcher.remove(pid)
