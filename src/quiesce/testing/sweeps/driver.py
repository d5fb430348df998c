"""Run a coroutine inside another one, and notice each of its suspensions.

The driver stands between the event loop and the coroutine, so it sees each time that the
coroutine gives up control, on any event loop, at little cost.
"""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

from quiesce.core import callsites

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator, Sequence

__all__: list[str] = []


class Points:
    """A counter of a run's suspensions that cancels at the chosen ones."""

    __slots__ = ("_at", "_strike", "count", "due", "others", "resumed")

    def __init__(self, at: Sequence[int], strike: Callable[[object, Any], None]) -> None:
        self._at = iter(at)
        self._strike = strike
        self.count: int = 0
        self.due: int = next(self._at, 0)
        self.others: list[int] = []
        """The suspensions of tasks other than the scenario's own."""
        self.resumed: Callable[[object, BaseException | None], None] | None = None
        """Called with the value or error that wakes the scenario, once it is set."""

    def hit(self, coroutine: object, task: object = None) -> None:
        """Cancel here, and prepare the next chosen suspension."""
        self.due = next(self._at, 0)
        self._strike(coroutine, task)

    def hit_other(self, coroutine: object, task: object) -> None:
        """Record a suspension of a task other than the scenario's own."""
        self.count += 1
        self.others.append(self.count)
        if self.count == self.due:
            self.hit(coroutine, task)


@types.coroutine
def drive(subject: Coroutine[Any, Any, Any], points: Points) -> Generator[Any, Any, Any]:
    """Run a coroutine to its end; return its result or raise its error."""
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
        except BaseException as thrown:  # noqa: BLE001 - every exception belongs to the coroutine
            value, error = None, thrown
        if points.resumed is not None:
            points.resumed(value, error)


def stack_of(coroutine: object) -> tuple[callsites.Frame, ...]:
    """List the awaits of a suspended coroutine, outermost first, without the driver's own."""
    return tuple(frame for frame in callsites.await_chain(coroutine) if frame.file != __file__)


def await_place(stack: Sequence[callsites.Frame]) -> str:
    """Return the file and line of the innermost await outside event loops' libraries."""
    for frame in reversed(stack):
        if callsites.plumbing_of(frame.file) is None:
            return f"{frame.file}:{frame.line}"
    return f"{stack[-1].file}:{stack[-1].line}" if stack else "?"


def described(name: str, coroutine: object) -> str:
    """Return one line that says where a task is suspended."""
    return f"{name} at {await_place(stack_of(coroutine))}"


def bury_coroutine(coroutine: object) -> None:
    """Keep a coroutine that does not end from being collected, even at Python's exit.

    Python would throw GeneratorExit into it outside its event loop. A coroutine that swallows it would
    cause a complaint, or never return.
    """
    try:
        from ctypes import py_object, pythonapi  # noqa: PLC0415 - rarely needed
    except ImportError:
        _buried.append(coroutine)
    else:
        pythonapi.Py_IncRef(py_object(coroutine))


_buried: list[object] = []
