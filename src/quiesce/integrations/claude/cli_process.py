"""The CLI as a process of a scope, with the interface that the SDK expects.

The SDK opens its process by `anyio.open_process`, and then reads, writes, waits and signals. The
objects here do the same with a quiesce `Process`: it is forked and held in one step, has its own
process group, and its owner, which no caller can cancel, waits for its end.
"""

from __future__ import annotations

import signal
import subprocess
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import anyio

from quiesce.core.tree import logger
from quiesce.errors import ProcessStuck, SpawnFailed
from quiesce.processes.process import start_process

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from quiesce.core.scope import Scope
    from quiesce.processes.process import Process
    from quiesce.processes.raw_stdio import RawOutput

__all__: list[str] = []


class Errors:
    """The standard error of the process, as a stream of bytes."""

    def __init__(self, process: Process) -> None:
        self._lines = aiter(process.stderr)

    async def receive(self, max_bytes: int = 65536) -> bytes:  # noqa: ARG002 - a line is returned whole
        """Wait for a line.

        *Raises*: `anyio.EndOfStream`.
        """
        try:
            return (await anext(self._lines)).encode() + b"\n"
        except StopAsyncIteration:
            raise anyio.EndOfStream from None

    async def aclose(self) -> None:
        """Do nothing: the process keeps the last lines for errors about its exit."""


class Sender:
    """The standard input of the process, as a stream of bytes."""

    def __init__(self, process: Process) -> None:
        self._process = process

    async def send(self, data: bytes) -> None:
        """Write all data; raise `ProcessLost` if the process no longer reads."""
        await self._process.send(data)

    async def aclose(self) -> None:
        """Close the input. Idempotent."""
        self._process.close_stdin()


class CliProcess:
    """A process with the interface of `anyio.abc.Process`, for the SDK."""

    def __init__(self, process: Process, *, piped: bool) -> None:
        self._process = process
        self.stdin: Sender = Sender(process)
        self.stdout: RawOutput = process.raw
        self.stderr: Errors | None = Errors(process) if piped else None

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.returncode

    async def wait(self) -> int:
        """Wait until the whole process group is gone."""
        return await self._process.wait()

    def terminate(self) -> None:
        """Send SIGTERM to the process group, and SIGKILL a moment later."""
        self._process.terminate()

    def kill(self) -> None:
        self._process.kill()

    def send_signal(self, number: int) -> None:
        """Send a signal to the process alone."""
        self._process.send_signal(signal.Signals(number))

    async def shut(self, seconds: float) -> None:
        """Close the input, give the process `seconds` to finish, then stop its whole group."""
        self._process.close_stdin()
        await self.stdout.aclose()  # stderr is still read: it may say why the process fails
        with anyio.move_on_after(seconds):
            await self._process.wait()
        if self._process.state != "gone":
            logger.warning(
                "%s (%d) still runs %g s after the end of its input, and is stopped",
                self._process.name, self.pid, seconds,
            )  # fmt: skip
            with suppress(ProcessStuck):  # the scope still holds the process, and reports it
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

    *Cancel safety*: if cancelled before the fork, no process was started.

    *Raises*: the errors of `subprocess.Popen`; the SDK explains them to its user.
    """
    piped = stderr == subprocess.PIPE
    try:
        process = await start_process(
            list(command), scope=scope, name=name, grace=grace, env=env, cwd=cwd, user=user,
            stdin="pipe", stdout="bytes", logs="keep" if piped else "inherit",
        )  # fmt: skip
    except SpawnFailed as error:
        raise error.__cause__ or error from None
    return CliProcess(process, piped=piped)
