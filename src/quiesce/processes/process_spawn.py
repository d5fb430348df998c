"""Starts a program in one synchronous step; signals and reaps its process group.

Invariants:

- There is no await between the fork and the return, and the caller inserts the hold in the same
  step. So a cancellation cannot come between the fork and the hold.
- The child leads a new session and a new process group, so a signal to the group reaches exactly
  the child and the processes that it has started.
- There is no `preexec_fn`: it would prevent `vfork`, and a fork costs time with the parent's memory.
- The group is signalled only before its leader is reaped, so its number is not reused yet. `subprocess`
  never reaps the leader, because its object gets a return code right after the start.
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
_REAP_SECONDS = 0.05  # how long the event loop may block on a killed child, once
RETURNCODE_UNKNOWN = 255  # if other code has reaped the child; asyncio uses the same number


@dataclass
class SpawnedChild:
    """A child process that is not reaped yet, and our ends of its pipes."""

    pid: int
    exit_fd: int | None
    """A pidfd; None if the system has none."""
    stdin: int | None = None
    stdout: int | None = None
    stderr: int | None = None
    raw: int | None = None
    """Its standard output, if it is read as bytes."""


def words_of(argv: Sequence[Any]) -> list[str]:
    """Check a command line, and return it as strings."""
    if isinstance(argv, str | bytes) or not argv:
        message = f"argv must be a list that begins with the program, not {argv!r}"
        raise ArgumentError(message)
    try:
        words = [os.fspath(word) for word in argv]
    except TypeError as error:
        message = f"argv must contain only strings or paths, not {argv!r}"
        raise ArgumentError(message) from error
    _check_words("argv", words)
    return words


def environment(env: Mapping[Any, Any] | None) -> Mapping[Any, Any] | None:
    """Check an environment, and return it. None means this program's environment at the time of the start."""
    if env is None:
        return None
    try:
        given = dict(env)
    except (TypeError, ValueError) as error:
        message = f"env must be a mapping of strings, not {env!r}"
        raise ArgumentError(message) from error
    _check_words("env", [*given, *given.values()])
    if any(not key or "=" in key for key in given):
        message = "env: the name of an environment variable must not be empty or contain '='"
        raise ArgumentError(message)
    return given


def _check_words(what: str, words: Sequence[Any]) -> None:
    for word in words:
        if not isinstance(word, str) or "\0" in word:
            message = f"{what} must be strings without a NUL, not {word!r}"
            raise ArgumentError(message)


def folder_of(cwd: Any) -> str | None:
    """Check the working folder of a process, and return its path."""
    if cwd is None:
        return None
    name = os.fspath(cwd) if isinstance(cwd, os.PathLike) else cwd
    if not isinstance(name, str) or "\0" in name:
        message = f"cwd must be a path without a NUL, not {cwd!r}"
        raise ArgumentError(message)
    return name


def user_of(user: Any) -> str | int | None:
    """Check the user that a process runs as, and return the user's number."""
    if user is None or (isinstance(user, int) and not isinstance(user, bool) and user >= 0):
        return user
    if isinstance(user, str):
        import pwd  # noqa: PLC0415 - Windows lacks it, but can import this package

        with suppress(KeyError):
            return pwd.getpwnam(user).pw_uid
    message = f"user must be the name or the number of a user of this system, not {user!r}"
    raise ArgumentError(message)


def open_fds(what: str, fds: Any) -> list[int]:
    """Check that descriptors are open. Call this before any file is opened, which could get a closed number."""
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
    """Start the program, and return the child. *Raises*: `SpawnFailed` if the program cannot be started."""
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
    popen.returncode = 0  # so that `subprocess` does not reap it: only this module does
    pipes.close(*pipes.theirs)
    child = SpawnedChild(popen.pid, None)
    with suppress(OSError):  # at the limit of open files, a thread waits for the exit instead
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
    # Copy as bytes, the form that Python stores: decoding and encoding would make each start a tenth slower.
    whole = dict(os.environb)
    whole.update((os.fsencode(name), os.fsencode(value)) for name, value in added.items())
    return whole


class Pipes:
    """The pipes of one child during its start: our ends and the child's ends."""

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
    """Signal a process group. Its leader must not be reaped yet."""
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        pass
    except PermissionError as error:
        # All processes of the group belong to other users (set-user-id), or, on macOS, all are dead.
        logger.debug("no permission to signal process group %d: %s", pid, error)


def bury_group(pid: int) -> int:
    """Kill the rest of the group of an exited leader, then reap the leader and return its exit code."""
    if not _is_foreign(pid):
        signal_group(pid, signal.SIGKILL)
    try:
        _, status = os.waitpid(pid, 0)
    except ChildProcessError:
        logger.warning("other code has reaped process %d, so its exit code is unknown", pid)
        return RETURNCODE_UNKNOWN
    return os.waitstatus_to_exitcode(status)


def reap_killed(pid: int) -> None:
    """Reap a child that was killed. This usually takes about a millisecond.

    If the child does not die at once (it may wait for a disk that does not answer), a thread waits for it,
    so that the event loop does not block.
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
    """Return whether the pid belongs to another process now, because other code has reaped our child."""
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
    except ChildProcessError:
        with suppress(ProcessLookupError):
            os.kill(pid, 0)
            return True
    return False


def group_lives(pid: int) -> bool:
    """Return whether a process in the group of a reaped leader still runs.

    Killed processes that their new parent has not reaped yet do not run. While one of them exists,
    the system does not reuse the number of the group.
    """
    try:
        os.killpg(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return os.path.isdir("/proc/self")  # noqa: PTH112 - macOS also raises this if all are dead
    return _runs_in_group(pid)


def await_death(pid: int, seconds: float) -> None:
    """Block until a killed group has died, at most for `seconds`. Dying takes about a millisecond.

    It does not matter whether the leader is reaped.
    """
    until = time.monotonic() + seconds
    while _runs_in_group(pid) and time.monotonic() < until:
        time.sleep(_PAUSE_SECONDS)


def _runs_in_group(pid: int) -> bool:
    # `Path.glob("[0-9]*/stat")` would raise `ProcessLookupError` if a process ends meanwhile.
    try:
        names = [name for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208 - as above
    except OSError:
        return True  # no /proc to check, but the caller's signal has found a process
    for name in names:
        with suppress(OSError):
            text = Path(f"/proc/{name}/stat").read_text(errors="replace")
            state, _, group = text.rpartition(")")[2].split()[:3]
            if int(group) == pid and state not in "ZX":
                return True
    return False


def stdin_of(stdin: object) -> int | Literal["pipe"]:
    """Check the argument `stdin`, and return it in the form that `spawn` takes."""
    if stdin is None:
        return subprocess.DEVNULL
    if stdin == "pipe":
        return "pipe"
    if isinstance(stdin, bool) or not isinstance(stdin, int) or stdin < 0:
        message = f"stdin must be 'pipe', a file descriptor or None, not {stdin!r}"
        raise ArgumentError(message)
    return open_fds("stdin", [stdin])[0]


def exit_text(returncode: int | None) -> str:
    """Return in words how a process exited."""
    if returncode is None:
        return "exit code unknown"
    if returncode >= 0:
        return f"exit code {returncode}"
    try:
        return f"killed by {signal.Signals(-returncode).name}"
    except ValueError:  # a real-time signal
        return f"killed by signal {-returncode}"
