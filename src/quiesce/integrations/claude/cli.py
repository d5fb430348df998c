"""The CLI as a process of a scope, in the shape in which the SDK expects one.

The SDK opens its process by `anyio.open_process`, and from then on reads, writes, waits and signals.
What it is given here does the same with a quiesce `Process`: forked and held in one step, in a
process group of its own, seen to its end by an owner that nobody can cancel.

`start_process` itself is not used: it gives lines of text, of 64 KiB at most, where one message of
the CLI may be a megabyte; and it knows no `user=`, nor an inherited stderr beside a piped stdout.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import anyio

from quiesce.core import sites
from quiesce.core.node import logger
from quiesce.errors import ProcessStuck
from quiesce.resources import lifeline, reaping, spawning
from quiesce.resources.owning import clean_up
from quiesce.resources.process import Process
from quiesce.resources.ready import Launch
from quiesce.resources.turns import turns

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from quiesce.core.backends import Backend, Waiter
    from quiesce.core.scope import Scope

__all__: list[str] = []

_BUFFERED_BYTES_MAX = 256 * 1024
_CHUNK_BYTES = 64 * 1024
_LAST_BYTES = 4 * 1024 * 1024  # read after the exit: somebody elsewhere may write for ever


class Receiver:
    """One output of the process, as bytes; the process waits while nobody reads, and much is there."""

    def __init__(self, backend: Backend, fd: int) -> None:
        self._backend = backend
        self._fd: int | None = fd
        self._buffer = bytearray()
        self._wanted = True
        self._waiters: list[Waiter] = []
        self._unwatch: Callable[[], None] | None = None
        self._watch()

    async def receive(self, max_bytes: int = _CHUNK_BYTES) -> bytes:
        """Wait for bytes.

        *Cancel safety*: they are taken in the step that returns them.

        *Raises*: `anyio.EndOfStream`.
        """
        while not self._buffer:
            if self._fd is None:
                raise anyio.EndOfStream
            await self._more()
        data = bytes(self._buffer[:max_bytes])
        del self._buffer[:max_bytes]
        self._watch()
        return data

    async def aclose(self) -> None:
        """Want no more: what comes is thrown away, so that the process can go on, and end."""
        self._wanted = False
        self._buffer.clear()
        self._watch()
        self._wake()

    async def _more(self) -> None:
        waiter = self._backend.waiter()
        self._waiters.append(waiter)
        try:
            await waiter
        finally:
            with suppress(ValueError):  # woken, and taken out by who woke it
                self._waiters.remove(waiter)

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _watch(self) -> None:
        if self._fd is not None and self._unwatch is None:
            self._unwatch = reaping.watch_readable(self._backend, self._fd, self._on_readable)

    def _pause(self) -> None:
        if self._unwatch is not None:
            self._unwatch()
            self._unwatch = None

    def _on_readable(self) -> None:
        if self._read() and len(self._buffer) >= _BUFFERED_BYTES_MAX:
            self._pause()  # the reader is behind

    def _read(self) -> bool:
        """Take in what is there; False if there was nothing, or it has ended."""
        if self._fd is None:
            return False
        try:
            data = os.read(self._fd, _CHUNK_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self.close()
            return False
        if self._wanted:
            self._buffer += data
            self._wake()
        return True

    def finish(self) -> None:
        """Take what is in the pipe, and no more: the process is gone. Idempotent."""
        rest = _LAST_BYTES
        while rest > 0 and self._read():
            rest -= _CHUNK_BYTES
        self.close()

    def close(self) -> None:
        """End: the reader gets what was taken in. Idempotent."""
        self._pause()
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
        self._wake()


class Sender:
    """The input of the process."""

    def __init__(self, process: Process) -> None:
        self._process = process

    async def send(self, data: bytes) -> None:
        """Write all of it; raises `ProcessLost` if nobody reads it any more."""
        await self._process.send(data)

    async def aclose(self) -> None:
        """End the input. Idempotent."""
        self._process.close_stdin()


class CliProcess:
    """What the SDK takes for an `anyio.abc.Process`."""

    def __init__(self, process: Process, stdout: Receiver, stderr: Receiver | None) -> None:
        self._process = process
        self.stdin: Sender = Sender(process)
        self.stdout: Receiver = stdout
        self.stderr: Receiver | None = stderr

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """How it exited; None while it runs."""
        return self._process.returncode

    async def wait(self) -> int:
        """Wait until nothing of its group is left."""
        return await self._process.wait()

    def terminate(self) -> None:
        """Send SIGTERM to its group, SIGKILL after a moment."""
        self._process.terminate()

    def kill(self) -> None:
        """Kill its group."""
        self._process.kill()

    def send_signal(self, number: int) -> None:
        """Send a signal to the process alone."""
        self._process.send_signal(signal.Signals(number))

    async def shut(self, seconds: float) -> None:
        """End its input, let it finish for so long, then stop it and all of its group."""
        self._process.close_stdin()
        await self.stdout.aclose()  # its stderr is read on: there it says what went wrong
        with anyio.move_on_after(seconds):
            await self._process.wait()
        if self._process.state != "gone":
            logger.warning(
                "%s (%d) has not ended %g s after its input: it is stopped",
                self._process.name, self.pid, seconds,
            )  # fmt: skip
            with suppress(ProcessStuck):  # the scope still holds it, and its report says so
                await self._process.stop()


async def open_process(
    scope: Scope,
    command: Sequence[str],
    *,
    name: str,
    grace: float,
    stderr: int | None,
    cwd: str | None,
    env: Mapping[str, str] | None,
    user: Any,
) -> CliProcess:
    """Start a program in a scope; the fork and the hold are one step.

    *Cancel safety*: cancelled before its turn to fork, nothing was started.

    *Raises*: what `subprocess.Popen` raises, for the SDK tells its user what that means.
    """
    place = sites.starter(sys._getframe(1), scope._backend.current())
    await turns.take(scope._backend)
    scope._check_here("start something in")
    launch = Launch(spawning.words_of(list(command)))
    lifeline.mark(launch.env)
    child, out, err = _spawn(launch, cwd, env, user, piped=stderr == subprocess.PIPE)
    process = Process(scope, child, launch, name, grace, place)
    try:
        process._begin(None)
    except BaseException:
        process._abort()
        for fd in (out, err):
            if fd is not None:
                os.close(fd)
        raise
    scope._insert(process, process)
    receivers = [Receiver(scope._backend, fd) for fd in (out, err) if fd is not None]
    launch.cleanup += [receiver.finish for receiver in receivers]
    return CliProcess(process, receivers[0], receivers[1] if len(receivers) > 1 else None)


def _spawn(
    launch: Launch, cwd: str | None, env: Mapping[str, str] | None, user: Any, *, piped: bool
) -> tuple[spawning.Child, int, int | None]:
    """Start the program; gives it, and our ends of its outputs."""
    pipes = spawning.Pipes()
    try:
        popen = subprocess.Popen(  # noqa: S603 - what to run is the SDK's choice
            launch.argv,
            env=spawning._with(launch.env, env),
            cwd=cwd,
            stdin=pipes.into_child(),
            stdout=pipes.out_of_child(),
            stderr=pipes.out_of_child() if piped else None,
            close_fds=True,
            start_new_session=True,
            user=user,
        )
    except BaseException:
        pipes.close(*pipes.ours, *pipes.theirs)
        clean_up(launch)
        raise
    popen.returncode = 0  # as if reaped: quiesce alone does that
    pipes.close(*pipes.theirs)
    stdin, out, *rest = pipes.ours
    child = spawning.Child(popen.pid, None, stdin)
    try:
        child.exit_fd = reaping.open_exit_fd(child.pid)
    except BaseException:
        spawning.abort(child)
        pipes.close(out, *rest)
        raise
    return child, out, rest[0] if rest else None
