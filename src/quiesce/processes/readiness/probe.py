"""When is a child process ready? The contract of all probes, and those that need no socket.

A probe is used twice: `prepare(launch)` before the fork, in one synchronous step with it (it may
add variables, descriptors and work to be done in the end), and `await wait(child)` after it.

- `wait` returns when the child is ready, and never because it is not: it knows neither a deadline
  nor the child's exit. Who started the child races it against both, and cancels it. So there is
  one place that says why a start failed, and it has the exit code. What stands in the way is in
  `obstacle`, for that message.
- A probe that a user made is a description, and may be given to many starts at the same time:
  `ready_of` gives a fresh one for one launch. That is why `wait` can keep what `prepare` opened.
- What `prepare` opened is closed when `wait` ends, or, if it never ran, by the functions in
  `launch.cleanup`. They may be called at any time, more than once, also if there was no fork:
  they leave alone what a `wait` still uses.

The probes with sockets are in `connect` (`UnixSocket`, `Tcp`, `Http`); `listener` has the listener that is
handed down.
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
    """What is about to be started; a probe may change it before the fork."""

    argv: list[str]
    env: dict[str, str] = field(default_factory=dict)
    """What is added to the environment of the child."""
    pass_fds: list[int] = field(default_factory=list)
    """What the child inherits, under the same numbers."""
    cleanup: list[Callable[[], None]] = field(default_factory=list)
    """Called when the process is gone, or could not be started. They do not raise."""


class LineSource(Protocol):
    """The lines that a child writes."""

    async def line_matching(self, pattern: re.Pattern[str], /) -> str:
        """Return the first line in which the pattern is found, from the child's first line on."""


class ProbedChild(Protocol):
    """What a probe needs to know of a process."""

    @property
    def lines(self) -> LineSource:
        """What it writes."""


@runtime_checkable
class Ready(Protocol):
    """How to find out that a child is ready; the probes of this package are such, and yours may be."""

    def prepare(self, launch: Launch, /) -> None:
        """Get ready for the fork, without waiting for anything."""

    async def wait(self, process: Any, /) -> None:
        """Return when the child is ready; be cancelled if that takes too long, or it has ended."""


class Probe:
    """The base of the probes here."""

    obstacle: str | None = None
    """What the last attempt met: why the child is not ready yet, as far as we can see."""

    def prepare(self, launch: Launch) -> None:
        """Change nothing."""

    async def wait(self, process: ProbedChild) -> None:
        """Return when the child is ready."""
        raise NotImplementedError


def ready_of(given: object) -> Ready:
    """Make a probe for one launch of what a user gave: a probe, or an async function.

    *Raises*: `ArgumentError` if it is neither.
    """
    if isinstance(given, type):
        message = f"ready needs a probe: write {given.__name__}(…), not {given.__name__}"
        raise ArgumentError(message)
    if isinstance(given, Probe):
        return copy.copy(given)
    if isinstance(given, Ready):
        return given
    arguments.check_callable(given, "ready", "a probe, or an async function")
    function: Any = given
    return Asking(function)


class Asking(Probe):
    """Ready when an async function of the user's returns."""

    def __init__(self, fn: Callable[[Any], Awaitable[object]]) -> None:
        self._fn = fn

    async def wait(self, process: ProbedChild) -> None:
        """Call it. One that gives False asks to be called again: it looked, and it was too early.

        *Raises*: whatever the function raises.
        """
        name = arguments.name_of(self._fn)
        pause = PAUSE_SECONDS_MIN
        self.obstacle = f"{name} has not returned"
        while await arguments.coroutine(self._fn, self._fn(process)) is False:
            self.obstacle = f"{name} gives False"
            await anyio.sleep(pause)
            pause = min(2 * pause, PAUSE_SECONDS_MAX)
        self.obstacle = None


class Line(Probe):
    """Ready when the child writes a line in which the pattern is found, to stdout or stderr.

    Args:
        pattern: A regular expression, as text or compiled.
    """

    def __init__(self, pattern: str | re.Pattern[str]) -> None:
        if isinstance(pattern, re.Pattern):
            arguments.check_text("the pattern of Line", pattern.pattern)
            self.pattern: re.Pattern[str] = pattern
            return
        try:
            self.pattern = re.compile(arguments.check_text("the pattern of Line", pattern))
        except re.error as error:
            message = f"the pattern of Line, {pattern!r}, is no regular expression: {error}"
            raise ArgumentError(message) from None

    def __repr__(self) -> str:
        """Show the pattern."""
        return f"Line({self.pattern.pattern!r})"

    async def wait(self, process: ProbedChild) -> None:
        """Return when the line was written."""
        self.obstacle = f"it has written no line with {self.pattern.pattern!r}"
        await process.lines.line_matching(self.pattern)
        self.obstacle = None


class Fd(Probe):
    """Ready when the child writes a line to a pipe that it inherits, or a byte, and closes it.

    The child learns the number of the descriptor from an environment variable, or from its command
    line. The pipe is the child's and its descendants' alone, so nobody else can say "ready".

    Args:
        variable: The environment variable with the number.
        placeholder: Where this text occurs in an argument, the number takes its place; None:
            arguments are left alone.
    """

    def __init__(self, variable: str = "READY_FD", *, placeholder: str | None = None) -> None:
        if VARIABLE.fullmatch(arguments.check_text("the variable of Fd", variable)) is None:
            message = f"the variable of Fd cannot be called {variable!r}: use letters, digits and _"
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
        """Show the variable."""
        return f"Fd({self.variable!r})"

    def __copy__(self) -> Fd:
        """Return one with no pipe of its own yet."""
        return Fd(self.variable, placeholder=self.placeholder)

    def prepare(self, launch: Launch) -> None:
        """Open the pipe."""
        if self._prepared:
            raise UsageError("this Fd is another process's already: give each its own")
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
        """Return when the child has said it.

        One that closes the pipe without a word will never say it; its exit, or the deadline, tells
        the rest.
        """
        if not self._prepared:
            raise UsageError("Fd: prepare() goes before wait()")
        if not self._ends:  # the process was gone before we came here
            await anyio.sleep_forever()
        os.close(self._ends.pop())  # or the pipe would not end with the child
        self._waiting = True
        self.obstacle = f"it has written no line to descriptor {self.variable}"
        try:
            if not await self._told(self._ends[0]):
                self.obstacle = f"it has closed descriptor {self.variable} without a word"
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
