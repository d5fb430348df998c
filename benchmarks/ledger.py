"""Measure nodes that share a store: `python -m benchmarks.ledger`.

It measures what each store adds to its engine, what a message costs, the time to a commit and to a verdict, and whether
both stay flat. Servers are started on the loopback and stopped at the end.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from benchmarks import _ledger_memory, _ledger_places, _ledger_rows, _ledger_town
from benchmarks._command import Suite, run
from benchmarks._ledger_sizes import FULL, QUICK, STORES

if TYPE_CHECKING:
    from collections.abc import Sequence

SUITE = Suite(
    name="ledger",
    description=(
        "Measure nodes that share a store. --store sqlite, postgres or nats: that one alone; may be repeated. --rows N: also"
        " with N rows in the store."
    ),
    rounds_note="; fewer for messages, commits and verdicts",
    warm_up=lambda _: None,  # each piece warms up by itself
    measures={
        "ratio": _ledger_rows.ratio_to_engine,
        "edges": _ledger_town.edges,
        "commits": _ledger_rows.commit_latency,
        "verdicts": _ledger_rows.verdict_round_trips,
        "flatness": _ledger_town.flatness,
        "memory": _ledger_memory.memory,
    },
    peers=(),
    full=FULL,
    quick=QUICK,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the chosen measures and print their results; return the exit code."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--store", action="append", choices=STORES)
    parser.add_argument("--rows", action="append", type=int, default=[])
    own, others = parser.parse_known_args(argv)
    stores = []
    for store in own.store or STORES:
        if why := _ledger_places.missing(store):
            print(why, file=sys.stderr)
        else:
            stores.append(store)
    if not stores:
        return 1
    full, quick = (
        replace(sizes, stores=tuple(stores), filled=(*sizes.filled, *own.rows))
        for sizes in (FULL, QUICK)
    )
    with _ledger_places.running():
        return run([replace(SUITE, full=full, quick=quick)], others)


if __name__ == "__main__":
    raise SystemExit(main())
