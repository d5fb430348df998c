"""Running a coroutine inside another one, and knowing each of its suspensions.

The driver sends into the coroutine what the event loop sends to it, so that it sees each time the
coroutine gives up control, on any event loop, at next to no cost.
"""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

from quiesce.core import callsites

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator, Sequence

__all__: list[str] = []


class Points:
    """Counts the suspensions of a run, and strikes at the chosen ones."""

    __slots__ = ("_at", "_strike", "count", "due", "others", "resumed")

    def __init__(self, at: Sequence[int], strike: Callable[[object, Any], None]) -> None:
        self._at = iter(at)
        self._strike = strike
        self.count: int = 0
        self.due: int = next(self._at, 0)
        self.others: list[int] = []
        """Those of tasks that are not the scenario's own."""
        self.resumed: Callable[[object, BaseException | None], None] | None = None
        """Told with what the scenario is woken, from when somebody wants to know."""

    def hit(self, coroutine: object, task: object = None) -> None:
        """Strike here, and get ready for the next."""
        self.due = next(self._at, 0)
        self._strike(coroutine, task)

    def other(self, coroutine: object, task: object) -> None:
        """See a suspension of a task that is not the scenario's own."""
        self.count += 1
        self.others.append(self.count)
        if self.count == self.due:
            self.hit(coroutine, task)


@types.coroutine
def drive(subject: Coroutine[Any, Any, Any], points: Points) -> Generator[Any, Any, Any]:
    """Run a coroutine to its end; return what it returns, and raises what it raises."""
    send = subject.send
    value: Any = None
    error: BaseException | None = None
    while True:
        try:
            wanted = send(value) if error is None else subject.throw(error)
        except StopIteration as end:
            return end.value
        points.count += 1
        if points.count == points.due:
            points.hit(subject)
        error = None
        try:
            value = yield wanted
        except BaseException as thrown:  # noqa: BLE001 - it is the coroutine's, whatever it is
            value, error = None, thrown
        if points.resumed is not None:
            points.resumed(value, error)


def stack_of(coroutine: object) -> tuple[callsites.Frame, ...]:
    """List the awaits that a suspended coroutine stands in, outermost first, without ours."""
    return tuple(frame for frame in callsites.await_chain(coroutine) if frame.file != __file__)


def await_place(stack: Sequence[callsites.Frame]) -> str:
    """Return the file and line of the innermost await that is not inside an event loop's library."""
    for frame in reversed(stack):
        if callsites._plumbing_of(frame.file) is None:
            return f"{frame.file}:{frame.line}"
    return f"{stack[-1].file}:{stack[-1].line}" if stack else "?"


def described(name: str, coroutine: object) -> str:
    """Return in one line where a task stands."""
    return f"{name} at {await_place(stack_of(coroutine))}"


def bury_coroutine(coroutine: object) -> None:
    """Keep a coroutine that does not want to end from ever being collected, not even at exit.

    Python would throw into it what it swallows, outside of its event loop: it would complain,
    or never come back.
    """
    try:
        from ctypes import py_object, pythonapi  # noqa: PLC0415 - needed in a case of emergency alone
    except ImportError:
        _buried.append(coroutine)
    else:
        pythonapi.Py_IncRef(py_object(coroutine))


_buried: list[object] = []
