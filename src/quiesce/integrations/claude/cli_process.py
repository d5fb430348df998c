"""The CLI as a process of a scope, in the shape in which the SDK expects one.

The SDK opens its process by `anyio.open_process`, and from then on reads, writes, waits and signals.
What it is given here does the same with a quiesce `Process`: forked and held in one step, in a
process group of its own, seen to its end by an owner that nobody can cancel.
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
    """What the process writes to its standard error, as bytes again."""

    def __init__(self, process: Process) -> None:
        self._lines = aiter(process.stderr)

    async def receive(self, max_bytes: int = 65536) -> bytes:  # noqa: ARG002 - a line is given whole
        """Wait for a line.

        *Raises*: `anyio.EndOfStream`.
        """
        try:
            return (await anext(self._lines)).encode() + b"\n"
        except StopAsyncIteration:
            raise anyio.EndOfStream from None

    async def aclose(self) -> None:
        """Do nothing: the process keeps the last of it, for whoever asks why it has ended."""


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

    def __init__(self, process: Process, *, piped: bool) -> None:
        self._process = process
        self.stdin: Sender = Sender(process)
        self.stdout: RawOutput = process.raw
        self.stderr: Errors | None = Errors(process) if piped else None

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
    piped = stderr == subprocess.PIPE
    try:
        process = await start_process(
            list(command), scope=scope, name=name, grace=grace, env=env, cwd=cwd, user=user,
            stdin="pipe", stdout="bytes", logs="keep" if piped else "inherit",
        )  # fmt: skip
    except SpawnFailed as error:
        raise error.__cause__ or error from None
    return CliProcess(process, piped=piped)
