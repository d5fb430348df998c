"""Starting a program in one synchronous step, and signalling and burying what came of it.

What holds:

- Between the fork and the return there is no await: whoever calls inserts the hold in the same
  step, so no cancellation can come in between.
- The child leads a session and a process group of its own, so a signal to the group reaches
  what it has started, and nobody else.
- There is no `preexec_fn`: it would rule out `vfork`, and cost time with the parent's memory.
- The group is signalled only while its number cannot be somebody else's: before the leader is
  reaped. `subprocess` never reaps it: its own object is told that the child has ended.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from quiesce.core.tree import logger
from quiesce.errors import ArgumentError, SpawnFailed
from quiesce.processes import exit_watch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from quiesce.processes.readiness.probe import Launch

    Wiring = Literal["pipe", "inherit", "discard"]

_PAUSE_SECONDS = 0.0005
_REAP_SECONDS = 0.05  # that the event loop may wait for a killed child, once
RETURNCODE_UNKNOWN = 255  # somebody else has reaped it; asyncio says the same


@dataclass
class SpawnedChild:
    """A child process that was not reaped so far, and our ends of its pipes."""

    pid: int
    exit_fd: int | None
    """A pidfd; None where there is none."""
    stdin: int | None = None
    stdout: int | None = None
    stderr: int | None = None
    raw: int | None = None
    """Its standard output, if that is no text."""


def words_of(argv: Sequence[Any]) -> list[str]:
    """Check a command line."""
    if isinstance(argv, str | bytes) or not argv:
        message = f"argv must be a list, the program first, not {argv!r}"
        raise ArgumentError(message)
    try:
        words = [os.fspath(word) for word in argv]
    except TypeError as error:
        message = f"argv must be strings or paths: {argv!r}"
        raise ArgumentError(message) from error
    _check_words("argv", words)
    return words


def environment(env: Mapping[Any, Any] | None) -> Mapping[Any, Any] | None:
    """Check an environment; None: that of this program, whatever it is at the start."""
    if env is None:
        return None
    try:
        given = dict(env)
    except (TypeError, ValueError) as error:
        message = f"env must be a mapping of strings, not {env!r}"
        raise ArgumentError(message) from error
    _check_words("env", [*given, *given.values()])
    if any(not key or "=" in key for key in given):
        message = "the names of environment variables must not be empty, nor have a '=' in them"
        raise ArgumentError(message)
    return given


def _check_words(what: str, words: Sequence[Any]) -> None:
    for word in words:
        if not isinstance(word, str) or "\0" in word:
            message = f"{what} must be strings without a NUL, not {word!r}"
            raise ArgumentError(message)


def folder_of(cwd: Any) -> str | None:
    """Check where a process is to run."""
    if cwd is None:
        return None
    name = os.fspath(cwd) if isinstance(cwd, os.PathLike) else cwd
    if not isinstance(name, str) or "\0" in name:
        message = f"cwd must be a path without a NUL, not {cwd!r}"
        raise ArgumentError(message)
    return name


def user_of(user: Any) -> str | int | None:
    """Check as whom a process is to run."""
    if user is None or (isinstance(user, int) and not isinstance(user, bool) and user >= 0):
        return user
    if isinstance(user, str):
        import pwd  # noqa: PLC0415 - Windows has none, and the package can be imported there

        with suppress(KeyError):
            return pwd.getpwnam(user).pw_uid
    message = f"user must be the name or the number of a user of this system, not {user!r}"
    raise ArgumentError(message)


def open_fds(what: str, fds: Any) -> list[int]:
    """Check descriptors before anything else is opened, which could get the number of a closed one."""
    if not isinstance(fds, Iterable):
        message = f"{what} must be a list of file descriptors, not {fds!r}"
        raise ArgumentError(message)
    found = list(fds)
    for fd in found:
        try:
            os.fstat(fd)
        except (OSError, TypeError, OverflowError) as error:
            message = f"{what}: {fd!r} is not an open file descriptor"
            raise ArgumentError(message) from error
    return found


def spawn(
    launch: Launch,
    env: Mapping[Any, Any] | None,
    cwd: str | None,
    stdin: int | Literal["pipe"],
    out: Wiring,
    *,
    raw: bool = False,
    user: str | int | None = None,
) -> SpawnedChild:
    """Start the program; when it returns, the program runs, or `SpawnFailed` was raised."""
    pipes = Pipes()
    try:
        popen = subprocess.Popen(  # noqa: S603 - what to run is the caller's choice
            launch.argv,
            env=_with(launch.env, env),
            cwd=cwd,
            stdin=pipes.into_child() if stdin == "pipe" else stdin,
            stdout=_wire(pipes, "pipe" if raw else out),
            stderr=_wire(pipes, out),
            user=user,
            pass_fds=tuple(launch.pass_fds),
            close_fds=True,
            start_new_session=True,
        )
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        pipes.close(*pipes.ours, *pipes.theirs)
        message = f"cannot start {launch.argv[0]!r}: {error}"
        raise SpawnFailed(message) from error
    except BaseException:
        pipes.close(*pipes.ours, *pipes.theirs)
        raise
    popen.returncode = 0  # as if reaped: this module alone does that
    pipes.close(*pipes.theirs)
    child = SpawnedChild(popen.pid, None)
    with suppress(OSError):  # the limit of open files: then a thread waits for the exit
        child.exit_fd = exit_watch.open_exit_fd(child.pid)
    ours = iter(pipes.ours)
    child.stdin = next(ours) if stdin == "pipe" else None
    child.raw = next(ours) if raw else None
    child.stdout = next(ours) if out == "pipe" and not raw else None
    child.stderr = next(ours) if out == "pipe" else None
    return child


def _with(added: Mapping[str, str], env: Mapping[Any, Any] | None) -> Mapping[Any, Any]:
    if env is not None:
        return {**env, **added}
    # As bytes, which is how it is kept: to decode and encode it all would cost each start a tenth.
    whole = dict(os.environb)
    whole.update((os.fsencode(name), os.fsencode(value)) for name, value in added.items())
    return whole


class Pipes:
    """The pipes of one child, until each end is where it belongs."""

    def __init__(self) -> None:
        self.ours: list[int] = []
        self.theirs: list[int] = []

    def into_child(self) -> int:
        theirs, ours = os.pipe()
        return self._keep(ours, theirs)

    def out_of_child(self) -> int:
        ours, theirs = os.pipe()
        return self._keep(ours, theirs)

    def _keep(self, ours: int, theirs: int) -> int:
        os.set_blocking(ours, False)
        self.ours.append(ours)
        self.theirs.append(theirs)
        return theirs

    @staticmethod
    def close(*fds: int) -> None:
        for fd in fds:
            os.close(fd)


def _wire(pipes: Pipes, out: Wiring) -> int | None:
    if out == "pipe":
        return pipes.out_of_child()
    return subprocess.DEVNULL if out == "discard" else None


def signal_group(pid: int, number: int) -> None:
    """Signal the group of a leader that was not reaped so far."""
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        pass
    except PermissionError as error:
        # All of the group belong to others: a program with set-user-id. On macOS: all are dead.
        logger.debug("no permission to signal process group %d: %s", pid, error)


def bury_group(pid: int) -> int:
    """Kill what is left in the group of a leader that has exited, then take its exit status."""
    if not _is_foreign(pid):
        signal_group(pid, signal.SIGKILL)
    try:
        _, status = os.waitpid(pid, 0)
    except ChildProcessError:
        logger.warning("process %d was reaped by somebody else: its exit code is unknown", pid)
        return RETURNCODE_UNKNOWN
    return os.waitstatus_to_exitcode(status)


def reap_killed(pid: int) -> None:
    """Reap a child that was killed, which takes about a millisecond.

    A child that does not die at once (it waits for a disk that does not answer) is left to a
    thread: the event loop must not wait for it.
    """
    until = time.monotonic() + _REAP_SECONDS
    with suppress(ChildProcessError):
        while os.waitpid(pid, os.WNOHANG)[0] == 0:
            if time.monotonic() >= until:
                name = f"quiesce exit of {pid}"
                threading.Thread(target=_reap, args=(pid,), name=name, daemon=True).start()
                return
            time.sleep(_PAUSE_SECONDS)


def _reap(pid: int) -> None:
    with suppress(ChildProcessError):
        os.waitpid(pid, 0)


def _is_foreign(pid: int) -> bool:
    """Return whether the pid belongs to another process now: other code has reaped ours."""
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
    except ChildProcessError:
        with suppress(ProcessLookupError):
            os.kill(pid, 0)
            return True
    return False


def group_lives(pid: int) -> bool:
    """Return whether anything in the group of a reaped leader still runs.

    Killed processes that their new parent has not reaped so far do not run. While one is left,
    the number of the group is not given to another.
    """
    try:
        os.killpg(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return os.path.isdir("/proc/self")  # noqa: PTH112 - macOS says so of the dead, too
    return _runs_in_group(pid)


def await_death(pid: int, seconds: float) -> None:
    """Block for a moment, for a group that was killed: dying takes about a millisecond.

    Its leader need not have been reaped.
    """
    until = time.monotonic() + seconds
    while _runs_in_group(pid) and time.monotonic() < until:
        time.sleep(_PAUSE_SECONDS)


def _runs_in_group(pid: int) -> bool:
    # Not by `Path.glob("[0-9]*/stat")`: it raises `ProcessLookupError` if a process ends meanwhile.
    try:
        names = [name for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208 - as above
    except OSError:
        return True  # no such file system: the signal has found a process
    for name in names:
        with suppress(OSError):
            text = Path(f"/proc/{name}/stat").read_text(errors="replace")
            state, _, group = text.rpartition(")")[2].split()[:3]
            if int(group) == pid and state not in "ZX":
                return True
    return False


def stdin_of(stdin: object) -> int | Literal["pipe"]:
    """Check what a process is to read."""
    if stdin is None:
        return subprocess.DEVNULL
    if stdin == "pipe":
        return "pipe"
    if isinstance(stdin, bool) or not isinstance(stdin, int) or stdin < 0:
        message = f"stdin must be 'pipe', a file descriptor or None, not {stdin!r}"
        raise ArgumentError(message)
    return open_fds("stdin", [stdin])[0]


def exit_text(returncode: int | None) -> str:
    """Say how a process exited."""
    if returncode is None:
        return "exit code unknown"
    if returncode >= 0:
        return f"exit code {returncode}"
    try:
        return f"killed by {signal.Signals(-returncode).name}"
    except ValueError:  # a real-time signal
        return f"killed by signal {-returncode}"
