"""Measure the testing kit: `python -m benchmarks.testing`.

It measures what the guard adds to a test and to a suite of tests, which pytest runs with and without it, and
what it costs to count each suspension of a scenario.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks import _guarding, _sweeping
from benchmarks._command import Suite, run
from benchmarks._sizes import GUARD_FULL, GUARD_QUICK

if TYPE_CHECKING:
    from collections.abc import Sequence


def warm_up(_: str) -> None:
    """Do nothing: every run of pytest is a process of its own, and the best of several runs counts."""


SUITE = Suite(
    name="testing",
    description=(
        "Measure what the guard costs, and the driver of a sweep. "
        "The full run takes about eight minutes."
    ),
    rounds_note="; each is two runs of pytest",
    warm_up=warm_up,
    measures={"guard": _guarding.guard, "sweep_driver": _sweeping.sweep_driver},
    peers=(),
    full=GUARD_FULL,
    quick=GUARD_QUICK,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the chosen measures and print their results; return the exit code."""
    return run([SUITE], argv)


if __name__ == "__main__":
    raise SystemExit(main())
