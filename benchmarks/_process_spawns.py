"""Starting programs, beside asyncio: the time of a start, and how long it blocks the event loop."""

from __future__ import annotations

import statistics
import time
from functools import partial
from typing import TYPE_CHECKING

import anyio

from benchmarks._harness import Result, Samples, compare, interleave
from benchmarks._process_starters import (
    ANYIO,
    ASYNCIO,
    ASYNCIO_SESSION,
    OUTPUTS,
    POPEN,
    TRIO,
    UVLOOP,
    Starter,
    run_on,
    starters,
    watcher_of_asyncio,
)
from benchmarks._subjects import wall

if TYPE_CHECKING:
    from benchmarks._process_starters import Wiring
    from benchmarks._sizes import ProcessSizes

TICK_SECONDS = 0.001
SELDOM = {ANYIO, TRIO, UVLOOP}  # for comparison only; on uvloop a start takes ten times as long


async def spawn_and_reap(
    starter: Starter, count: int, wiring: Wiring = "discard"
) -> tuple[float, float]:
    """Start programs one after the other, and wait for each.

    Return the median of the seconds for a program, and the seconds of CPU that this program spent
    on each, in all of its threads.
    """
    seconds = []
    async with starter.room():
        cpu_begin = time.process_time()
        for _ in range(count):
            begin = wall()
            code = await starter.start(wiring)
            seconds.append(wall() - begin)
            assert code == 0
        cpu_seconds = time.process_time() - cpu_begin
    return statistics.median(seconds), cpu_seconds / count


def spawn_reap(backend: str, sizes: ProcessSizes) -> list[Result]:
    """Compare the time to start a program and wait for its end."""
    everyone = starters(backend)
    cpu: dict[str, list[float]] = {name: [] for name in everyone}

    def piece(starter: Starter, wiring: Wiring) -> float:
        once = partial(spawn_and_reap, starter, sizes.starts, wiring)
        seconds, cpu_seconds = run_on(starter.loop, once)
        if wiring == "discard":
            cpu[starter.name].append(cpu_seconds * 1e3)
        return seconds * 1e3

    found = interleave(
        f"{backend}: spawn_reap",
        {
            (name, wiring): partial(piece, starter, wiring)
            for name, starter in everyone.items()
            for wiring in OUTPUTS
        },
        sizes.rounds,
        seldom={(name, wiring) for name in SELDOM for wiring in OUTPUTS},
        rounds_seldom=sizes.rounds_peers,
    )
    about = "a program that does nothing, from its start to its end"
    p50 = f"p50 of {sizes.starts} a round"
    others = tuple(name for name in (ASYNCIO_SESSION, POPEN, UVLOOP) if name in everyone)
    compared = partial(compare, unit="ms a program", base=ASYNCIO, against=others)
    return [
        compared(
            "spawn_reap_vs_asyncio",
            f"{about}, {p50}; no output (DEVNULL)",
            {name: found[name, "discard"] for name in everyone},
            limit=0.8,
            notes=(
                f"asyncio is in its own loop, and sees exits by its {watcher_of_asyncio()}",
                f"{POPEN}: nothing else can run meanwhile",
            ),
        ),
        compared(
            "spawn_reap_pipes",
            f"{about}, {p50}; a pipe for each output, read to its end",
            {name: found[name, "pipes"] for name in everyone},
            limit=None,
        ),
        compared(
            "spawn_reap_cpu",
            f"{about}; no output; CPU of the parent, all threads, without the child's",
            {name: Samples(tuple(values)) for name, values in cpu.items()},
            limit=None,
        ),
    ]


class Ticker:
    """A job that measures the longest time for which the event loop was blocked."""

    def __init__(self) -> None:
        self.lag_seconds = 0.0
        self._over = False

    async def tick(self) -> None:
        """Sleep repeatedly, and record by how much each sleep was too long."""
        while not self._over:
            begin = wall()
            await anyio.sleep(TICK_SECONDS)
            self.lag_seconds = max(self.lag_seconds, wall() - begin - TICK_SECONDS)

    def stop(self) -> None:
        """Stop after the next sleep."""
        self._over = True


async def start_at_once(starter: Starter, count: int) -> tuple[float, float]:
    """Start programs in as many tasks; return the worst lag of the event loop, and the seconds for all."""
    assert starter.at_once is not None
    ticker = Ticker()
    async with starter.room(), anyio.create_task_group() as group:
        group.start_soon(ticker.tick)
        await anyio.sleep(TICK_SECONDS)  # it ticks
        begin = wall()
        await starter.at_once(starter.start, count)
        seconds = wall() - begin
        ticker.stop()
    return ticker.lag_seconds, seconds


def spawn_lag(backend: str, sizes: ProcessSizes) -> list[Result]:
    """Compare how long the event loop is blocked while many programs are started at once."""
    everyone = {name: each for name, each in starters(backend).items() if each.at_once}
    seconds: dict[str, list[float]] = {name: [] for name in everyone}

    def piece(starter: Starter) -> float:
        lag, total = run_on(starter.loop, partial(start_at_once, starter, sizes.at_once))
        seconds[starter.name].append(total * 1e3)
        return lag * 1e3

    found = interleave(
        f"{backend}: spawn_lag",
        {name: partial(piece, starter) for name, starter in everyone.items()},
        sizes.rounds_at_once,
        seldom=SELDOM,
        rounds_seldom=sizes.rounds_peers,
    )
    about = f"{sizes.at_once} programs that do nothing, started at once"
    others = tuple(name for name in (UVLOOP,) if name in everyone)
    compared = partial(compare, base=ASYNCIO, against=others)
    return [
        compared(
            "spawn_lag_200",
            f"{about}: the event loop's worst lag, by a tick every {TICK_SECONDS * 1e3:g} ms",
            found,
            unit="ms",
            limit=0.25,
        ),
        compared(
            "spawn_200_total",
            f"{about}: until all have ended",
            {name: Samples(tuple(values)) for name, values in seconds.items()},
            unit="ms for all",
            limit=None,
        ),
    ]
