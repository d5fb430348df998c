"""Measure the core: `python -m benchmarks.core`.

It measures what owning tasks costs, as ratios to the least that correct asyncio code must do itself:
`create_task`, a set of strong references, and `add_done_callback(set.discard)`. All pieces
run interleaved in one process (see `_harness`), garbage collection stays
on, and each piece has its own event loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks._command import Suite, run
from benchmarks._measures import MEASURES, warm_up
from benchmarks._peers import PEERS
from benchmarks._sizes import FULL, QUICK

if TYPE_CHECKING:
    from collections.abc import Sequence

SUITE = Suite(
    name="core",
    description=(
        "Measure quiesce's core against bare asyncio.create_task with a set of strong "
        "references, in the same run. The full run takes about four minutes, and one gigabyte "
        "of memory for a million live jobs."
    ),
    rounds_note=" or more; fewer for peers and flatness",
    warm_up=warm_up,
    measures=MEASURES,
    peers=PEERS,
    full=FULL,
    quick=QUICK,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the chosen measures and print their results; return the exit code."""
    return run([SUITE], argv)


if __name__ == "__main__":
    raise SystemExit(main())
