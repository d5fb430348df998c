"""The result of a sweep, to print and to use in programs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from quiesce.errors import SweepFailed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from quiesce.testing.clock import Backend
    from quiesce.testing.sweeps.plan import Where
    from quiesce.testing.sweeps.record import Fault, Hit

__all__ = ["Sweep", "SweepFailure"]

_SHOWN_MAX = 12  # kinds of failure to print; each lists its runs
_IDS_MAX = 8


@dataclass(frozen=True, slots=True)
class SweepFailure:
    """One run that failed."""

    id: str
    """The id that `replay=` takes to repeat this run alone."""
    hits: tuple[Hit, ...]
    """The points at which the run was cancelled, with the awaits that lead there; may be empty."""
    faults: tuple[Fault, ...]
    """The faults of the run."""
    error: BaseException | None = None
    """The exception that the scenario raised without being cancelled."""

    @property
    def where(self) -> str | None:
        """The file and line of the await that was cancelled last."""
        return self.hits[-1].place if self.hits else None

    @property
    def kinds(self) -> frozenset[str]:
        """The kinds of the run's faults: leak, late, hang, swallowed, …."""
        return frozenset(fault.kind for fault in self.faults)

    def __str__(self) -> str:
        """Return the points of cancellation, and the faults."""
        return "\n".join([*self._where_lines(), *(f"  {fault.text}" for fault in self.faults)])

    def _where_lines(self) -> Iterator[str]:
        yield self.id
        if not self.hits:
            yield "  the scenario was not cancelled"
        for hit in self.hits:
            task = None if hit.task is None else f"task {hit.task!r}"
            if task is not None and ":child:" in self.id:
                yield f"  {task}, alone, was cancelled at point {hit.point}: {hit.place}"
            else:
                stood = "" if task is None else f", where {task} was suspended"
                yield f"  the scenario was cancelled at point {hit.point}{stood}: {hit.place}"
            for frame in hit.stack[: _readable(hit)]:
                yield f"      {frame}"


def _readable(hit: Hit) -> int:
    """Return the number of frames down to the await itself, and one more: the function it called."""
    places = [f"{frame.file}:{frame.line}" for frame in hit.stack]
    return len(places) - places[::-1].index(hit.place) + 1 if hit.place in places else len(places)


@dataclass(frozen=True, slots=True, repr=False)
class Sweep:
    """The result of a sweep; true if no run failed.

    Print it to read it, or call `raise_if_failed()`, whose error contains the same text.
    """

    backend: Backend
    where: Where
    depth: int
    points: int
    """The number of suspensions in the run that is not cancelled."""
    runs: int
    failures: tuple[SweepFailure, ...]
    not_covered: tuple[str, ...]
    """What the sweep should have run but did not, and why; empty if it ran everything."""
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether no run failed."""
        return not self.failures

    def raise_if_failed(self) -> None:
        """Raise `SweepFailed` with the full text if a run failed."""
        __tracebackhide__ = True
        if self.failures:
            raise SweepFailed(self) from self.failures[0].error

    def __bool__(self) -> bool:
        """Return whether no run failed."""
        return self.ok

    def __repr__(self) -> str:
        """Return the summary line, and the ids of some failed runs."""
        ids = ", ".join(failure.id for failure in self.failures[:_IDS_MAX])
        return f"<{self._head()}{ids and f': {ids}'}>"

    def __str__(self) -> str:
        """Return a summary line, each kind of failure once, and what was not covered."""
        return "\n".join(
            [
                self._head(),
                *self._failure_lines(),
                *(f"not covered: {line}" for line in self.not_covered),
            ]
        )

    def _head(self) -> str:
        failed = f"{len(self.failures)} failed" if self.failures else "none failed"
        return (
            f"sweep on {self.backend}, where={self.where!r}, depth {self.depth}: "
            f"{self.points} points, {self.runs} runs, {failed}, {self.seconds:.2f} s"
        )

    def _failure_lines(self) -> Iterator[str]:
        groups = _alike(self.failures)
        for group in groups[:_SHOWN_MAX]:
            yield ""
            yield str(group[0])
            yield f"  again: sweep(…, replay={group[0].id!r}), or pytest --quiesce-replay {group[0].id}"
            if len(group) > 1:
                ids = [_short(failure) for failure in group[1 : _IDS_MAX + 1]]
                more = f" and {len(group) - 1 - len(ids)} more" if len(group) > len(ids) + 1 else ""
                yield f"  the same at {', '.join(ids)}{more}"
        if len(groups) > _SHOWN_MAX:
            yield f"\n…and {len(groups) - _SHOWN_MAX} more kinds of failure: see .failures"


def _short(failure: SweepFailure) -> str:
    return failure.id.split(":", 2)[-1]


def _alike(failures: Sequence[SweepFailure]) -> list[list[SweepFailure]]:
    """Group failures with the same faults: one leak often shows at many points."""
    groups: dict[frozenset[tuple[str, str | None]], list[SweepFailure]] = {}
    for failure in failures:
        said = frozenset(
            (fault.label, fault.finding.where if fault.finding is not None else None)
            for fault in failure.faults
        )
        groups.setdefault(said, []).append(failure)
    return list(groups.values())
