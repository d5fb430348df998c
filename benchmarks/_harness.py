"""Interleaved measuring: short pieces in turn, each in a fresh event loop.

One figure alone means little on a shared machine. So every figure is a ratio of two things
measured in the same run, turn by turn: ``A B C``, then ``C B A``, and so on. Noise only adds
time, so the best turn is the estimate; median and worst are kept to show the noise.
"""

from __future__ import annotations

import asyncio
import gc
import statistics
import sys
import time
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Mapping

K = TypeVar("K")
T = TypeVar("T")

BARE = "bare"
OURS = "quiesce"
BACKENDS = ("asyncio", "uvloop")

_began_seconds = time.monotonic()


def progress(text: str) -> None:
    """Write to stderr how far a long run is."""
    print(f"[{time.monotonic() - _began_seconds:4.0f} s] {text}", file=sys.stderr, flush=True)


def has_backend(backend: str) -> bool:
    """Return whether the event loop of that name is installed."""
    return find_spec(backend) is not None


def run_fresh(backend: str, main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run one piece in its own event loop, after a garbage collection."""
    factory = None
    if backend == "uvloop":
        import uvloop  # noqa: PLC0415 - optional, and only needed for this backend

        factory = uvloop.new_event_loop
    with asyncio.Runner(debug=False, loop_factory=factory) as runner:
        gc.collect()
        return runner.run(main())


@dataclass(frozen=True)
class Samples:
    """The times of one piece, in the order of the rounds."""

    values: tuple[float, ...]

    @property
    def best(self) -> float:
        """The best time, which is the estimate, because noise only adds time."""
        return min(self.values)

    @property
    def median(self) -> float:
        """The median time."""
        return statistics.median(self.values)

    @property
    def worst(self) -> float:
        """The worst time, of the noisiest turn."""
        return max(self.values)


@dataclass(frozen=True)
class Row:
    """One line below a figure: a subject or a size, and its time."""

    label: str
    best: float
    median: float
    worst: float
    unit: str
    ratio: float | None = None  # to the base, best to best; of speeds, where the figure is one


@dataclass(frozen=True)
class Result:
    """One figure, its limit, and the rows that it comes from.

    A figure is the time of quiesce divided by the time of the base: small is good, and the limit is the
    largest figure allowed. With `at_least` the figure is a ratio of speeds: large is good, and the limit is the
    smallest figure allowed.
    """

    name: str
    about: str
    rows: tuple[Row, ...]
    value: float | None = None
    low: float | None = None  # the same figure from each round alone: least, middle, most
    median: float | None = None
    high: float | None = None
    bare: float | None = None  # the same figure of bare asyncio, where that is not 1
    limit: float | None = None
    at_least: bool = False
    base: str = BARE  # the piece that quiesce is compared with
    against: Mapping[str, float] = field(default_factory=dict)  # the figure, with another base
    notes: tuple[str, ...] = ()

    @property
    def verdict(self) -> str:
        """Return `pass`, `over` or `under`, or an empty text without a limit."""
        if self.limit is None or self.value is None:
            return ""
        if self.at_least:
            return "pass" if self.value >= self.limit else "under"
        return "pass" if self.value <= self.limit else "over"

    @property
    def missed(self) -> bool:
        """Return whether the figure misses its limit."""
        return self.verdict in {"over", "under"}


def interleave(
    label: str,
    pieces: Mapping[K, Callable[[], float]],
    rounds: int,
    *,
    seldom: Collection[K] = (),
    rounds_seldom: int = 1,
) -> dict[K, Samples]:
    """Run the pieces in turn for some rounds, every other round backwards.

    Pieces in `seldom` take part in the first `rounds_seldom` rounds only: other libraries are shown
    for comparison, and some of them are slow.
    """
    found: dict[K, list[float]] = {name: [] for name in pieces}
    for turn in range(rounds):
        progress(f"{label}: round {turn + 1} of {rounds}")
        names = [n for n in pieces if n not in seldom or turn < rounds_seldom]
        for name in names if turn % 2 == 0 else reversed(names):
            found[name].append(pieces[name]())
    return {name: Samples(tuple(values)) for name, values in found.items()}


def row(
    label: str,
    samples: Samples,
    unit: str,
    base: Samples | None = None,
    *,
    at_least: bool = False,
) -> Row:
    """Return the row of one piece."""
    ratio = None if base is None else _ratio(samples.best, base.best, at_least=at_least)
    return Row(label, samples.best, samples.median, samples.worst, unit, ratio)


def compare(
    name: str,
    about: str,
    found: Mapping[str, Samples],
    *,
    unit: str,
    limit: float | None,
    ours: str = OURS,
    base: str = BARE,
    against: Collection[str] = (),
    at_least: bool = False,
    notes: tuple[str, ...] = (),
) -> Result:
    """Return the figure of quiesce to the base, from the best times, with the spread over the rounds."""
    bare = found[base]
    paired = [
        _ratio(a, b, at_least=at_least)
        for a, b in zip(found[ours].values, bare.values, strict=True)
    ]
    return Result(
        name=name,
        about=about,
        rows=tuple(
            row(label, samples, unit, bare, at_least=at_least) for label, samples in found.items()
        ),
        value=_ratio(found[ours].best, bare.best, at_least=at_least),
        low=min(paired),
        median=statistics.median(paired),
        high=max(paired),
        limit=limit,
        at_least=at_least,
        base=base,
        against={
            label: _ratio(found[ours].best, found[label].best, at_least=at_least)
            for label in against
        },
        notes=notes,
    )


def _ratio(ours: float, base: float, *, at_least: bool) -> float:
    """Return the ratio of two times; with `at_least`, of the speeds."""
    return base / ours if at_least else ours / base
