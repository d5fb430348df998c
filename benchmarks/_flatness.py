"""Whether a job costs the same among a thousand as among a million."""

from __future__ import annotations

import gc
from functools import partial
from statistics import fmean
from typing import TYPE_CHECKING

from benchmarks import _subjects as subjects
from benchmarks._harness import BARE, OURS, Result, Samples, interleave, row, run_fresh

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
    from typing import Any

    from benchmarks._sizes import Sizes

    Spawn = Callable[[int], Coroutine[Any, Any, float]]
    Sized = Mapping[str, Mapping[int, Samples]]

_ALIVE: dict[str, Spawn] = {BARE: subjects.spawn_bare, OURS: subjects.spawn_quiesce}
_WAVES: dict[str, Spawn] = {BARE: subjects.waves_bare, OURS: subjects.waves_quiesce}


def flatness(backend: str, sizes: Sizes) -> list[Result]:
    """Compare the cost of a job at all sizes, from few jobs to many.

    With all jobs alive at once, bare asyncio is not flat: the collector visits all live objects
    again and again, and caches overflow (see `flatness_no_gc`). So that figure has no limit. Two
    others show the scope's own share, and have limits: how much less flat a scope is than bare
    asyncio, and the same number of jobs as waves through one scope.
    """
    label = f"{backend}: flatness"
    alive = _sized(label, _ALIVE, backend, sizes, sizes.flat)
    waves = _sized(f"{label}, waves", _WAVES, backend, sizes, sizes.flat)
    gc.disable()
    try:
        no_gc = _sized(f"{label}, no gc", _ALIVE, backend, sizes, (sizes.flat[0], sizes.flat[-1]))
    finally:
        gc.enable()
    about = "cost of a job, dearest size to cheapest"
    return [
        _flat("flatness", f"{about}; all jobs alive at once", alive, limit=None),
        _flat_to_bare(alive),
        _flat(
            "flatness_waves",
            f"{about}; waves of {subjects.WAVE:,}, lower quartile of the waves",
            waves,
            limit=1.3,
        ),
        _flat("flatness_no_gc", f"{about}; all alive at once, collector off", no_gc, limit=None),
    ]


def _sized(
    label: str, mains: Mapping[str, Spawn], backend: str, sizes: Sizes, counts: Sequence[int]
) -> dict[str, dict[int, Samples]]:
    # Garbage collections are part of the cost, so this takes a mean. In waves hardly any object is
    # alive to collect, so there it takes the least disturbed waves, as within one long run.
    combine = subjects.least_disturbed if mains is _WAVES else fmean

    async def repeated(main: Spawn, count: int, times: int) -> float:
        return combine([await main(count) for _ in range(times)])

    def piece(main: Spawn, count: int) -> float:
        times = max(1, sizes.flat_total // count)
        return run_fresh(backend, partial(repeated, main, count, times)) * 1e6

    pieces = {
        (name, count): partial(piece, main, count)
        for count in counts
        for name, main in mains.items()
    }
    largest = [key for key in pieces if key[1] == counts[-1]]
    rounds_largest = sizes.rounds_largest if counts is sizes.flat and mains is _ALIVE else 1
    found = interleave(
        label, pieces, sizes.rounds_flat, seldom=largest, rounds_seldom=rounds_largest
    )
    return {name: {count: found[name, count] for count in counts} for name in mains}


def _flat(name: str, about: str, found: Sized, *, limit: float | None) -> Result:
    return Result(
        name=name,
        about=about,
        rows=tuple(
            row(f"{subject}, {count:,} jobs", samples, "us a job", found[BARE][count])
            for subject, sized in found.items()
            for count, samples in sized.items()
        ),
        value=_spread(sample.best for sample in found[OURS].values()),
        bare=_spread(sample.best for sample in found[BARE].values()),
        limit=limit,
    )


def _flat_to_bare(found: Sized) -> Result:
    ours, bare = (_spread(s.best for s in found[name].values()) for name in (OURS, BARE))
    return Result(
        name="flatness_to_bare",
        about="the same, divided by what it is for bare",
        rows=(),
        value=ours / bare,
        limit=1.3,
    )


def _spread(costs: Iterable[float]) -> float:
    listed = list(costs)
    return max(listed) / min(listed)
