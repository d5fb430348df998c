"""What a sweep will do: where it cancels, how, and in which order; and the id of each run.

A *point* is one suspension: the n-th time, from the beginning of the run, that the scenario (or,
with `where="all"`, any of its tasks) gives up control. A *cut* is a way to cancel, and the point
or points at which it happens. `asyncio:all:native:12+17` is the id of a cut: run again what was
cancelled natively at the 12th point and once more at the 17th.
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
    "scope",  # a cancel scope around the scenario is cancelled: anyio's, or trio's
    "child",  # the task that stands at the point is cancelled, though it is not the scenario's own
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
        """What `replay=` takes."""
        way = f"{self.cancel}:{'+'.join(map(str, self.at))}" if self.at else UNDISTURBED
        return f"{self.backend}:{self.where}:{way}"

    @property
    def second(self) -> bool:
        """Whether it is cancelled a second time."""
        return len(self.at) > 1


def parse(text: str) -> SweepCut:
    """Read the id of a run."""
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
    """Refuse what cannot be, before anything runs."""
    if depth not in range(1, DEPTH_MAX + 1):
        message = f"depth is 1 or {DEPTH_MAX}, not {depth!r}"
        raise ArgumentError(message)
    if where not in get_args(Where):
        message = f"where is 'task' or 'all', not {where!r}"
        raise ArgumentError(message)
    if runs_max < 1:
        message = f"runs_max is 1 at least, not {runs_max!r}"
        raise ArgumentError(message)


def ways(
    backend: Backend, where: Where, cancel: Cancel | Sequence[Cancel] | None
) -> tuple[Cancel, ...]:
    """List the ways of cancelling that were asked for, in order."""
    there: tuple[Cancel, ...] = ("scope",) if backend == "trio" else ("native", "scope")
    if where == "all" and backend != "trio":
        there += ("child",)
    if cancel is None:
        return there
    asked = (cancel,) if isinstance(cancel, str) else tuple(cancel)
    for way in asked:
        if way not in there:
            message = (
                f"cancel={way!r} cannot be with backend={backend!r} and where={where!r}: "
                f"there is {', '.join(there)}"
            )
            raise ArgumentError(message)
    if not asked:
        message = f"cancel is empty: nothing would be cancelled; there is {', '.join(there)}"
        raise ArgumentError(message)
    return tuple(way for way in there if way in asked)


def first_cuts(
    base: SweepCut, ways: Sequence[Cancel], points: int, others: set[int]
) -> Iterator[SweepCut]:
    """Cancel at each point, once a way. A `child` has to be one: the rest is `native` already."""
    for way in ways:
        for point in range(1, points + 1):
            if way != "child" or point in others:
                yield SweepCut(base.backend, base.where, way, (point,))


def second_cuts(cut: SweepCut, points: int) -> Iterator[SweepCut]:
    """Cancel once more, at each point that came after the first cancellation.

    Not on trio: there a cancelled scope stays cancelled, so a second time changes nothing.
    """
    if cut.backend != "trio" and len(cut.at) == 1:
        for point in range(cut.at[0] + 1, points + 1):
            yield SweepCut(cut.backend, cut.where, cut.cancel, (*cut.at, point))
