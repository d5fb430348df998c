"""The contract of all probes, which wait until a child process is ready; and the probes without sockets.

`start_process` calls a probe twice: `prepare(launch)` in the same synchronous step as the fork, just
before it, and `await wait(child)` after the fork. `prepare` may add environment variables,
descriptors and cleanup functions to the launch.

- `wait` returns only when the child is ready. It ignores the deadline and the child's exit, because
  `start_process` watches both and cancels `wait`. So the error of a failed start is made in one
  place, which has the exit code. The probe's `obstacle` tells that place why the child is not ready.
- A user's probe is a description, and several starts may use it at the same time. `ready_of` copies
  it for each launch, so `wait` may use files that `prepare` opened.
- Files that `prepare` opened are closed when `wait` ends, or, if `wait` never ran, by the functions
  in `launch.cleanup`. These may be called at any time, more than once, also if no fork happened. They
  must not close files that a running `wait` uses.

The probes with sockets are in `connect` (`UnixSocket`, `Tcp`, `Http`).
"""

from __future__ import annotations

import contextlib
import copy
import os
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import anyio

from quiesce.core import arguments
from quiesce.errors import ArgumentError, UsageError
from quiesce.processes.descriptors import beyond_standard, readable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

__all__ = ["Fd", "Launch", "Line", "LineSource", "Probe", "ProbedChild", "Ready", "ready_of"]

PAUSE_SECONDS_MIN = 0.001
PAUSE_SECONDS_MAX = 0.05
BYTES_MAX = 4096
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(slots=True)
class Launch:
    """A process that will be started; a probe may change this before the fork."""

    argv: list[str]
    env: dict[str, str] = field(default_factory=dict)
    """Variables to add to the environment of the child."""
    pass_fds: list[int] = field(default_factory=list)
    """Descriptors that the child inherits, under the same numbers."""
    cleanup: list[Callable[[], None]] = field(default_factory=list)
    """Functions to call when the process has ended or could not be started. They do not raise."""


class LineSource(Protocol):
    """The lines that a child writes."""

    async def line_matching(self, pattern: re.Pattern[str], /) -> str:
        """Wait for the first line of the child that contains the pattern, and return it."""


class ProbedChild(Protocol):
    """The part of a process that a probe may use."""

    @property
    def lines(self) -> LineSource:
        """The lines that the process writes."""


@runtime_checkable
class Ready(Protocol):
    """The interface of probes. You can write your own."""

    def prepare(self, launch: Launch, /) -> None:
        """Prepare the fork, without waiting."""

    async def wait(self, process: Any, /) -> None:
        """Wait until the child is ready. The caller cancels this at the deadline or at the child's exit."""


class Probe:
    """The base of the probes in this package."""

    obstacle: str | None = None
    """Why the child is not ready yet, according to the last attempt."""

    def prepare(self, launch: Launch) -> None:
        """Do nothing; subclasses may change the launch."""

    async def wait(self, process: ProbedChild) -> None:
        """Wait until the child is ready."""
        raise NotImplementedError


def ready_of(given: object) -> Ready:
    """Return a probe for one launch, made from the user's probe or async function.

    *Raises*: `ArgumentError` if it is neither.
    """
    if isinstance(given, type):
        message = f"ready needs a probe, not its class: write {given.__name__}(…)"
        raise ArgumentError(message)
    if isinstance(given, Probe):
        return copy.copy(given)
    if isinstance(given, Ready):
        return given
    arguments.check_callable(given, "ready", "a probe, or an async function")
    function: Any = given
    return Asking(function)


class Asking(Probe):
    """Ready when the user's async function returns."""

    def __init__(self, fn: Callable[[Any], Awaitable[object]]) -> None:
        self._fn = fn

    async def wait(self, process: ProbedChild) -> None:
        """Call the function until it returns something other than False, which means not ready yet.

        *Raises*: the function's exception.
        """
        name = arguments.name_of(self._fn)
        pause = PAUSE_SECONDS_MIN
        self.obstacle = f"{name} has not returned"
        while await arguments.coroutine(self._fn, self._fn(process)) is False:
            self.obstacle = f"{name} returned False"
            await anyio.sleep(pause)
            pause = min(2 * pause, PAUSE_SECONDS_MAX)
        self.obstacle = None


class Line(Probe):
    """Ready when the child writes a line that contains the pattern, to stdout or stderr.

    Args:
        pattern: A regular expression, as a string or compiled.
    """

    def __init__(self, pattern: str | re.Pattern[str]) -> None:
        if isinstance(pattern, re.Pattern):
            arguments.check_text("the pattern of Line", pattern.pattern)
            self.pattern: re.Pattern[str] = pattern
            return
        try:
            self.pattern = re.compile(arguments.check_text("the pattern of Line", pattern))
        except re.error as error:
            message = f"the pattern of Line, {pattern!r}, is not a regular expression: {error}"
            raise ArgumentError(message) from None

    def __repr__(self) -> str:
        return f"Line({self.pattern.pattern!r})"

    async def wait(self, process: ProbedChild) -> None:
        """Wait until the child has written the line."""
        self.obstacle = f"it has written no line with {self.pattern.pattern!r}"
        await process.lines.line_matching(self.pattern)
        self.obstacle = None


class Fd(Probe):
    """Ready when the child writes a line to a pipe that it inherits, or writes a byte and closes the pipe.

    The child gets the number of the descriptor from an environment variable or its command line. Only
    the child and its descendants have the pipe, so no other process can report readiness.

    Args:
        variable: The environment variable with the number.
        placeholder: A text to replace by the number in all arguments; None leaves the arguments
            unchanged.
    """

    def __init__(self, variable: str = "READY_FD", *, placeholder: str | None = None) -> None:
        if VARIABLE.fullmatch(arguments.check_text("the variable of Fd", variable)) is None:
            message = f"the variable of Fd must have only letters, digits and _, not {variable!r}"
            raise ArgumentError(message)
        if placeholder is not None and not arguments.check_text(
            "the placeholder of Fd", placeholder
        ):
            message = "the placeholder of Fd must not be empty: it would be found everywhere"
            raise ArgumentError(message)
        self.variable = variable
        self.placeholder = placeholder
        self._prepared = self._waiting = False
        self._ends: list[int] = []

    def __repr__(self) -> str:
        return f"Fd({self.variable!r})"

    def __copy__(self) -> Fd:
        """Return a probe with the same options, without a pipe."""
        return Fd(self.variable, placeholder=self.placeholder)

    def prepare(self, launch: Launch) -> None:
        """Open the pipe."""
        if self._prepared:
            raise UsageError("this Fd already belongs to another process: make one for each")
        self._prepared = True
        launch.cleanup.append(self._clean)
        self._ends[:] = os.pipe()  # neither is inherited, unless a launch names it
        for number, end in enumerate(self._ends):
            self._ends[number] = beyond_standard(end)
        os.set_blocking(self._ends[0], False)
        told = str(self._ends[1])
        launch.pass_fds.append(self._ends[1])
        launch.env[self.variable] = told
        if self.placeholder is not None:
            launch.argv[:] = [item.replace(self.placeholder, told) for item in launch.argv]

    async def wait(self, process: ProbedChild) -> None:  # noqa: ARG002 - the contract of all probes
        """Wait until the child has reported that it is ready.

        If the child closes the pipe without writing, wait for the cancellation at its exit or at the deadline.
        """
        if not self._prepared:
            raise UsageError("Fd: call prepare() before wait()")
        if not self._ends:  # the process has ended, and its cleanup has closed the pipe
            await anyio.sleep_forever()
        os.close(self._ends.pop())  # otherwise the pipe would not end with the child
        self._waiting = True
        self.obstacle = f"it has written no line to descriptor {self.variable}"
        try:
            if not await self._told(self._ends[0]):
                self.obstacle = f"it has closed descriptor {self.variable} without writing to it"
                await anyio.sleep_forever()
            self.obstacle = None
        finally:
            self._waiting = False
            self._clean()

    async def _told(self, end: int) -> bool:
        heard = False
        while True:
            await readable(end)
            try:
                data = os.read(end, BYTES_MAX)
            except BlockingIOError:
                continue
            if not data or b"\n" in data:
                return heard or bool(data)
            heard = True

    def _clean(self) -> None:
        while self._ends and not self._waiting:
            with contextlib.suppress(OSError):
                os.close(self._ends.pop())
