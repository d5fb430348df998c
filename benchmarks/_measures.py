"""The measures of the core; each is a function from a backend and sizes to results."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from benchmarks import _subjects as subjects
from benchmarks._flatness import flatness
from benchmarks._harness import (
    BARE,
    OURS,
    Result,
    Samples,
    compare,
    interleave,
    progress,
    row,
    run_fresh,
)
from benchmarks._peers import PEERS

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping
    from types import CodeType
    from typing import Any

    from benchmarks._sizes import Sizes

    Spawn = Callable[[int], Coroutine[Any, Any, float]]
    Live = Callable[[int, subjects.Marks], Coroutine[Any, Any, None]]

_PEER_NAMES = frozenset(peer.name for peer in PEERS)


def warm_up(backend: str) -> None:
    """Run some pieces once, so that imports, caches and the interpreter are warm."""
    for main in (subjects.spawn_bare, subjects.spawn_quiesce, subjects.spawn_adopted):
        run_fresh(backend, partial(main, 1_000))
    for live in (subjects.live_bare, subjects.live_quiesce):
        run_fresh(backend, partial(live, 1_000, subjects.Clock()))


def spawn(backend: str, sizes: Sizes) -> list[Result]:
    """Measure how long a no-op job takes to start and finish."""
    pieces: dict[str, Spawn] = {
        BARE: subjects.spawn_bare,
        OURS: subjects.spawn_quiesce,
        "quiesce, not the current scope": subjects.spawn_elsewhere,
    }
    found = _spawned("spawn", pieces, backend, sizes, peers=True)
    about = f"spawn and finish {sizes.spawn:,} no-ops, all alive at once"
    return [compare("spawn_ratio", about, found, unit="us a job", limit=1.15)]


def adopt(backend: str, sizes: Sizes) -> list[Result]:
    """Measure the same for plain tasks in an adopting scope."""
    pieces: dict[str, Spawn] = {
        BARE: subjects.spawn_bare,
        OURS: subjects.spawn_adopted,
        "quiesce, and a set kept": subjects.spawn_adopted_and_kept,
    }
    found = _spawned("adopt", pieces, backend, sizes)
    about = f"create_task inside an adopting scope, and finish, {sizes.spawn:,} no-ops"
    return [compare("adopt_ratio", about, found, unit="us a job", limit=1.2)]


def _spawned(
    label: str,
    pieces: Mapping[str, Spawn],
    backend: str,
    sizes: Sizes,
    *,
    peers: bool = False,
) -> dict[str, Samples]:
    everyone = dict(pieces)
    if peers:
        everyone |= {peer.name: peer.spawn for peer in PEERS if peer.found}

    def piece(main: Spawn) -> float:
        return run_fresh(backend, partial(main, sizes.spawn)) * 1e6

    return interleave(
        f"{backend}: {label}",
        {name: partial(piece, main) for name, main in everyone.items()},
        sizes.rounds,
        seldom=everyone.keys() - {BARE, OURS},
        rounds_seldom=sizes.rounds_peers,
    )


def memory(backend: str, sizes: Sizes) -> list[Result]:
    """Measure the memory of a live job, by tracemalloc."""
    everyone: dict[str, Live] = {BARE: subjects.live_bare, OURS: subjects.live_quiesce}
    everyone |= {peer.name: peer.live for peer in PEERS if peer.found}

    def piece(main: Live) -> float:
        each = []
        for count in sizes.memory:
            marks = subjects.Memory()
            run_fresh(backend, partial(main, count, marks))
            each.append(marks.bytes_live / count)
        return sum(each) / len(each)

    found = interleave(
        f"{backend}: memory",
        {name: partial(piece, main) for name, main in everyone.items()},
        min(sizes.rounds, 2),  # allocations hardly vary
        seldom=_PEER_NAMES,
        rounds_seldom=1,
    )
    counts = ", ".join(f"{count:,}" for count in sizes.memory)
    about = f"a live job that waits on a future of its own; mean over {counts} live jobs"
    return [compare("memory_ratio", about, found, unit="bytes a job", limit=1.15)]


def close(backend: str, sizes: Sizes) -> list[Result]:
    """Measure the close of a scope with many live jobs."""
    everyone: dict[str, Live] = {
        BARE: subjects.live_bare,
        OURS: subjects.live_quiesce,
        "quiesce, report read": subjects.live_quiesce_read,
    }
    everyone |= {peer.name: peer.live for peer in PEERS if peer.found}
    walls: dict[str, list[float]] = {name: [] for name in everyone}

    def piece(name: str) -> float:
        marks = subjects.Clock()
        run_fresh(backend, partial(everyone[name], sizes.close, marks))
        walls[name].append(marks.seconds_wall / sizes.close * 1e6)
        return marks.seconds / sizes.close * 1e6

    found = interleave(
        f"{backend}: close",
        {name: partial(piece, name) for name in everyone},
        sizes.rounds_short,
        seldom=_PEER_NAMES,
        rounds_seldom=min(sizes.rounds_short, 3),  # short, so peers may take part more often
    )
    about = f"close {sizes.close:,} live jobs, with report; bare: cancel all, gather"
    result = compare("close_ratio", about, found, unit="us a job", limit=0.8)
    more = {f"{name}, wall time": walls[name] for name in (BARE, OURS)}
    return [_with_rows(result, more, "us a job")]


def idle(backend: str, sizes: Sizes) -> list[Result]:
    """Measure a wake-up: from the release of the last hold to the step after `idle()`."""
    wakes = {BARE: subjects.wake_bare, OURS: subjects.wake_quiesce}
    rounds: dict[str, list[float]] = {name: [] for name in wakes}

    def piece(name: str) -> float:
        wake_seconds, round_seconds = run_fresh(backend, partial(wakes[name], sizes.wake))
        rounds[name].append(round_seconds * 1e6)
        return wake_seconds * 1e6

    pieces = {name: partial(piece, name) for name in wakes}
    found = interleave(f"{backend}: idle", pieces, sizes.rounds_short)
    about = f"a callback releases the last hold, the waiter runs; median of {sizes.wake:,}"
    note = "whole round: make the hold (or the future), call_soon, wait, wake"
    result = compare("idle_ratio", about, found, unit="us a wake-up", limit=1.5, notes=(note,))
    more = {f"{name}, whole round": taken for name, taken in rounds.items()}
    return [_with_rows(result, more, "us a round")]


def _with_rows(result: Result, more: Mapping[str, list[float]], unit: str) -> Result:
    """Add rows of another unit or clock, in ratio to the first of them."""
    samples = {label: Samples(tuple(values)) for label, values in more.items()}
    base = next(iter(samples.values()))
    extra = tuple(row(label, values, unit, base) for label, values in samples.items())
    return replace(result, rows=result.rows + extra)


def frontier(backend: str, sizes: Sizes) -> list[Result]:
    """Measure the cost of a frontier's entry, and of recording it at the spawn."""
    looked: dict[str, list[float]] = {}
    for turn in range(min(sizes.rounds, 3)):
        progress(f"{backend}: frontier, round {turn + 1}")
        taken = run_fresh(backend, partial(subjects.frontier, sizes.frontier))
        for label, seconds in taken.items():
            looked.setdefault(label, []).append(seconds / sizes.frontier * 1e6)
    recorded = interleave(
        f"{backend}: recording", {"recorded": partial(_record, sizes.wake)}, sizes.rounds_short
    )
    rows = [row(f"frontier {k}", Samples(tuple(v)), "us an entry") for k, v in looked.items()]
    rows.append(row("recording, at the spawn", recorded["recorded"], "us a job"))
    about = f"frontier() of {sizes.frontier:,} live jobs, and what a spawn pays for it"
    note = "recording: one clock reading, one frame, its code and offset stored in slots"
    return [Result(name="frontier", about=about, rows=tuple(rows), notes=(note,))]


class _Recorded:
    __slots__ = ("code", "offset", "since")

    code: CodeType
    offset: int
    since: float


def _record(count: int) -> float:
    """Return the time in which a spawn records what the frontier shows, less an empty call."""
    target = _Recorded()
    clock, frame_of = time.monotonic, sys._getframe  # noqa: SLF001 - as the core does it

    def step() -> None:
        target.since = clock()
        frame = frame_of(1)
        target.code = frame.f_code
        target.offset = frame.f_lasti

    def empty() -> None:
        pass

    begin = subjects.now()
    for _ in range(count):
        step()
    middle = subjects.now()
    for _ in range(count):
        empty()
    return ((middle - begin) - (subjects.now() - middle)) / count * 1e6


MEASURES: dict[str, Callable[[str, Sizes], list[Result]]] = {
    "spawn": spawn,
    "memory": memory,
    "close": close,
    "adopt": adopt,
    "idle": idle,
    "frontier": frontier,
    "flatness": flatness,
}
