"""The plan of a sweep: where it cancels, how, and in which order; and the id of each run.

A *point* is one suspension: the n-th time since the start of the run that the scenario (or, with
`where="all"`, any of its tasks) gives up control. A *cut* is a way to cancel, and the point or
points at which it happens. `asyncio:all:native:12+17` is the id of a cut: it cancels the
scenario's task at the 12th point and once more at the 17th.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from quiesce.errors import ArgumentError
from quiesce.testing.clock import BACKENDS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from quiesce.testing.clock import Backend

__all__ = ["Cancel", "SweepCut", "Where"]

Where = Literal["task", "all"]
Cancel = Literal[
    "native",  # the scenario's task is cancelled, as by `Task.cancel()`
    "scope",  # a cancel scope of anyio or trio around the scenario is cancelled
    "child",  # the task suspended at the point is cancelled; it is not the scenario's own
]
DEPTH_MAX = 2
UNDISTURBED = "undisturbed"


@dataclass(frozen=True, slots=True)
class SweepCut:
    """One run: how it is cancelled, and at which points."""

    backend: Backend
    where: Where
    cancel: Cancel = "native"
    at: tuple[int, ...] = ()

    @property
    def id(self) -> str:
        """The id that `replay=` takes."""
        way = f"{self.cancel}:{'+'.join(map(str, self.at))}" if self.at else UNDISTURBED
        return f"{self.backend}:{self.where}:{way}"

    @property
    def second(self) -> bool:
        """Whether the run is cancelled twice."""
        return len(self.at) > 1


def parse(text: str) -> SweepCut:
    """Return the cut of an id."""
    backend, _, rest = text.partition(":")
    where, _, way = rest.partition(":")
    cancel, _, points = way.partition(":")
    at = points.split("+") if points else []
    known = backend in BACKENDS and where in get_args(Where)
    if known and way == UNDISTURBED:
        return SweepCut(backend, where)  # type: ignore[arg-type]  # checked above
    if known and cancel in get_args(Cancel) and at and all(point.isdecimal() for point in at):
        return SweepCut(backend, where, cancel, tuple(map(int, at)))  # type: ignore[arg-type]  # likewise
    message = f"{text!r} is not the id of a run, like 'asyncio:task:native:12+17'"
    raise ArgumentError(message)


def check_plan(depth: int, where: Where, runs_max: int) -> None:
    """Raise `ArgumentError` for options that cannot work, before anything runs."""
    if depth not in range(1, DEPTH_MAX + 1):
        message = f"depth must be 1 or {DEPTH_MAX}, not {depth!r}"
        raise ArgumentError(message)
    if where not in get_args(Where):
        message = f"where must be 'task' or 'all', not {where!r}"
        raise ArgumentError(message)
    if runs_max < 1:
        message = f"runs_max must be at least 1, not {runs_max!r}"
        raise ArgumentError(message)


def ways(
    backend: Backend, where: Where, cancel: Cancel | Sequence[Cancel] | None
) -> tuple[Cancel, ...]:
    """Return the ways of cancelling that were asked for, in order."""
    there: tuple[Cancel, ...] = ("scope",) if backend == "trio" else ("native", "scope")
    if where == "all" and backend != "trio":
        there += ("child",)
    if cancel is None:
        return there
    asked = (cancel,) if isinstance(cancel, str) else tuple(cancel)
    for way in asked:
        if way not in there:
            message = (
                f"cancel={way!r} does not work with backend={backend!r} and where={where!r}: "
                f"choose from {', '.join(there)}"
            )
            raise ArgumentError(message)
    if not asked:
        message = f"cancel is empty, so no run would be cancelled: choose from {', '.join(there)}"
        raise ArgumentError(message)
    return tuple(way for way in there if way in asked)


def first_cuts(
    base: SweepCut, ways: Sequence[Cancel], points: int, others: set[int]
) -> Iterator[SweepCut]:
    """Yield one cut for each point and way. `child` applies only to points of other tasks."""
    for way in ways:
        for point in range(1, points + 1):
            if way != "child" or point in others:
                yield SweepCut(base.backend, base.where, way, (point,))


def second_cuts(cut: SweepCut, points: int) -> Iterator[SweepCut]:
    """Yield cuts that cancel once more, at each point after the first cancellation.

    There are none on trio: a cancelled scope stays cancelled there, so a second time changes nothing.
    """
    if cut.backend != "trio" and len(cut.at) == 1:
        for point in range(cut.at[0] + 1, points + 1):
            yield SweepCut(cut.backend, cut.where, cut.cancel, (*cut.at, point))
