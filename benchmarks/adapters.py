"""Measure the adapters: `python -m benchmarks.adapters`.

It compares each adapter with its SDK alone, in turn, with the oldest and the newest supported version. The
SDKs are the tests' subjects: `make test` installs them.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from benchmarks._command import Suite, run
from benchmarks._harness import Result, Row, progress
from tests.adapters.catalogue import ADAPTERS, ROOT
from tests.integration import subjects

if TYPE_CHECKING:
    from collections.abc import Sequence

_SECONDS_MAX = 900.0
_MODULES = {"acp": "_acp_throughput", "claude": "_claude_messages", "mcp": "_mcp_calls"}


@dataclass(frozen=True)
class AdapterSizes:
    """How much is measured of the adapters."""

    rounds: int
    messages: int

    def with_rounds(self, rounds: int) -> AdapterSizes:
        """Return the same sizes with another number of rounds."""
        return replace(self, rounds=rounds)


def warm_up(_: str) -> None:
    """Do nothing: every version is measured in a process of its own, which warms up there."""


def measure(
    name: str, backend: str, sizes: AdapterSizes, *, module: str | None = None
) -> list[Result]:
    """Measure one adapter with the oldest and the newest supported version."""
    found = []
    worker = module or _MODULES[name]
    for version in ADAPTERS[name].ends:
        subject = ADAPTERS[name].subject(version)
        progress(f"{backend}: {subject}")
        command = [sys.executable, "-m", "benchmarks._adapter_worker", worker, backend]
        done = subprocess.run(  # noqa: S603 - our own
            [*command, str(sizes.messages), str(sizes.rounds)],
            cwd=ROOT,
            env=subjects.environment(subject),
            check=True,
            stdout=subprocess.PIPE,
            text=True,
            timeout=_SECONDS_MAX,
        )
        for data in json.loads(done.stdout):
            rows = tuple(Row(**row) for row in data["rows"])
            result = Result(**{**data, "rows": rows, "notes": tuple(data["notes"])})
            found.append(replace(result, name=f"{result.name}, {version}"))
    return found


SUITE = Suite(
    name="adapters",
    description=(
        "Measure what goes through the adapters, beside their SDKs alone. "
        "The full run takes about ten minutes."
    ),
    rounds_note="",
    warm_up=warm_up,
    measures={name: partial(measure, name) for name in _MODULES},
    peers=(),
    full=AdapterSizes(rounds=9, messages=3_000),
    quick=AdapterSizes(rounds=1, messages=200),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the chosen measures and print their results; return the exit code."""
    return run([SUITE], argv)


if __name__ == "__main__":
    raise SystemExit(main())
