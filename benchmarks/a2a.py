"""Measure the A2A adapter: `python -m benchmarks.a2a`.

It compares a server with the adapter with a server of the bare SDK, in turn, each in its own process and
over real HTTP, with the oldest and the newest supported version. The SDKs are the tests'
subjects: `make test` installs them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks._command import Suite, run
from benchmarks.adapters import AdapterSizes, measure, warm_up

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from benchmarks._harness import Result


def _measure(figure: str) -> Callable[[str, AdapterSizes], list[Result]]:
    return lambda backend, sizes: measure("a2a", backend, sizes, module=f"_a2a_requests:{figure}")


SUITE = Suite(
    name="a2a",
    description=(
        "Measure an A2A server with the adapter, beside one with the bare SDK. "
        "The full run takes about ten minutes."
    ),
    rounds_note="",
    warm_up=warm_up,
    measures={figure: _measure(figure) for figure in ("requests", "streams", "push_storage_delay")},
    peers=(),
    full=AdapterSizes(rounds=9, messages=800),
    quick=AdapterSizes(rounds=1, messages=40),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the chosen measures and print their results; return the exit code."""
    return run([SUITE], argv)


if __name__ == "__main__":
    raise SystemExit(main())
