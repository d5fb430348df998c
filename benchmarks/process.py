"""Measure child processes: `python -m benchmarks.process`.

It measures the time to start a program and wait for its end, how long that blocks the event loop, and how
long it takes to end programs that ignore SIGTERM, beside the standard library and other libraries.
All pieces run interleaved in one process (see `_harness`), and each piece has
its own event loop.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from benchmarks._command import Suite, run
from benchmarks._process_drains import drain_stubborn
from benchmarks._process_memory import spawn_rss
from benchmarks._process_spawns import spawn_and_reap, spawn_lag, spawn_reap
from benchmarks._process_starters import OUTPUTS, PACKAGES, run_on, starters
from benchmarks._sizes import PROCESS_FULL, PROCESS_QUICK

if TYPE_CHECKING:
    from collections.abc import Sequence


def warm_up(backend: str) -> None:
    """Run some pieces once, so that caches are warm and the lifeline's watcher runs."""
    for starter in starters(backend).values():
        for wiring in OUTPUTS:
            run_on(starter.loop, partial(spawn_and_reap, starter, 3, wiring))


SUITE = Suite(
    name="process",
    description=(
        "Measure quiesce's child processes against asyncio's and others', in the same run. "
        "The full run takes about two minutes."
    ),
    rounds_note="; fewer for peers, memory, drains and many at once",
    warm_up=warm_up,
    measures={
        "spawn_reap": spawn_reap,
        "spawn_lag": spawn_lag,
        "spawn_rss": spawn_rss,
        "drain_stubborn": drain_stubborn,
    },
    peers=PACKAGES,
    full=PROCESS_FULL,
    quick=PROCESS_QUICK,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the chosen measures and print their results; return the exit code."""
    return run([SUITE], argv)


if __name__ == "__main__":
    raise SystemExit(main())
