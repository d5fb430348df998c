"""Whether a hop costs the same among a million as among ten thousand."""

from __future__ import annotations

import gc
import time
from dataclasses import replace
from functools import partial
from statistics import fmean
from typing import TYPE_CHECKING

from benchmarks import _mesh_wiring as wiring
from benchmarks._harness import Result, Samples, interleave, row

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks._mesh_sizes import MeshSizes

_MOST = 1.3


class _Kept:
    __slots__ = ("hop", "state", "to")

    def __init__(self, to: str) -> None:
        self.hop: object = None
        self.state = 0
        self.to = to


def bare(count: int) -> float:
    """Keep an object for each edge at its sender and at its receiver, then remove them; nothing else."""
    gc.collect()
    begin = time.process_time()
    sender: dict[bytes, _Kept] = {}
    receiver: dict[bytes, _Kept] = {}
    for number in range(count):
        edge = number.to_bytes(12, "big")
        sender[edge] = _Kept("there")
        receiver[edge] = _Kept("here")
    for edge in list(receiver):
        del receiver[edge], sender[edge]
    return (time.process_time() - begin) / count


def _sized(
    label: str, measure: Callable[[int], float], counts: tuple[int, int], rounds: int
) -> dict[int, Samples]:
    """Measure the mean cost at both sizes, with the same amount of work, in turn."""

    def piece(count: int) -> float:
        times = min(counts[1] // count, 30)
        return fmean(measure(count) for _ in range(times)) * 1e6

    return interleave(label, {count: partial(piece, count) for count in counts}, rounds)


def _flat(
    name: str, about: str, found: dict[int, Samples], unit: str, *, limit: float | None
) -> Result:
    few, many = found
    return Result(
        name=name,
        about=about,
        rows=tuple(
            row(f"{count:,}", samples, unit, found[few]) for count, samples in found.items()
        ),
        value=found[many].best / found[few].best,
        limit=limit,
        base=f"{few:,}",
    )


def hops(_: str, sizes: MeshSizes) -> list[Result]:
    """Compare the cost of a hop in one cascade of many hops with that in one of few.

    With all edges open at once nothing in Python is flat: the collector visits all objects again and
    again, and caches overflow. So that figure has no limit. A row shows the cost of two dictionaries of
    small objects for comparison.
    """

    def sized(work: Callable[[wiring.Mesh, int], None]) -> dict[int, Samples]:
        measure = partial(wiring.timed, work)
        return _sized(f"hops, {work.__name__}", measure, sizes.hops, sizes.rounds_large)

    found = {work: sized(work) for work in (wiring.tree, wiring.star, wiring.chain)}
    alone = _sized("hops, bare", bare, sizes.hops, sizes.rounds_large)
    few, many = sizes.hops
    star = _flat(
        "hop_flatness_open",
        "one hop hands out all the others, which are open all at once",
        found[wiring.star],
        "us a hop",
        limit=None,
    )
    chain = _flat(
        "hop_flatness_chain",
        "every hop hands on to one, and waits for the last",
        found[wiring.chain],
        "us a hop",
        limit=None,
    )
    alone_ratio = alone[many].best / alone[few].best
    note = f"two dictionaries of small objects, which are filled and emptied: {alone_ratio:.2f}"
    return [
        _flat(
            "hop_flatness",
            f"cost of a hop in one cascade of {many:,}, over that in one of {few:,}; a tree of tens",
            found[wiring.tree],
            "us a hop",
            limit=_MOST,
        ),
        replace(star, notes=(note,)),
        chain,
    ]


def concurrent(_: str, sizes: MeshSizes) -> list[Result]:
    """Compare the cost of a cascade among many that are open with that among few."""

    def measure(count: int) -> float:
        hops = count * wiring.HOPS_A_CASCADE
        return wiring.timed(wiring.cascades, hops) * wiring.HOPS_A_CASCADE

    found = _sized("concurrent cascades", measure, sizes.cascades, sizes.rounds)
    about = f"cost of a cascade of three hops among {sizes.cascades[1]:,} that are open at once"
    return [_flat("concurrent_cascades", about, found, "us a cascade", limit=None)]
