"""Measure channels and streams: `python -m benchmarks.resources`.

It measures how fast items get from one task to another, as ratios to asyncio.Queue. All pieces
run interleaved in one process (see `_harness`), garbage collection stays on, and each
piece has its own event loop.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from benchmarks._channels import CAPACITY, channel, channel_memory
from benchmarks._channels import WAYS as CHANNEL_WAYS
from benchmarks._command import Suite, run
from benchmarks._harness import run_fresh
from benchmarks._queues import QUEUE, QUEUE_PEERS
from benchmarks._sizes import RESOURCES_FULL, RESOURCES_QUICK
from benchmarks._streams import WAYS as STREAM_WAYS
from benchmarks._streams import stream

if TYPE_CHECKING:
    from collections.abc import Sequence


def warm_up(backend: str) -> None:
    """Run some pieces once, so that imports, caches and the interpreter are warm."""
    for through in CHANNEL_WAYS.values():
        run_fresh(backend, partial(through, CAPACITY, 1_000))
    for read in STREAM_WAYS.values():
        run_fresh(backend, partial(read, 1_000))


SUITE = Suite(
    name="resources",
    description=(
        "Measure quiesce's channels and streams against asyncio.Queue, in the same run. "
        "The full run takes about one minute."
    ),
    rounds_note="; fewer for peers and memory",
    warm_up=warm_up,
    measures={"channel": channel, "channel_memory": channel_memory, "stream": stream},
    peers=(QUEUE, *QUEUE_PEERS),
    full=RESOURCES_FULL,
    quick=RESOURCES_QUICK,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the chosen measures and print their results; return the exit code."""
    return run([SUITE], argv)


if __name__ == "__main__":
    raise SystemExit(main())
