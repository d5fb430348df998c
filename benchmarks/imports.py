"""Measure how long an import takes: `python -m benchmarks.imports`.

Each import runs in an interpreter of its own, in turn. The figure is the interpreter's processor time, without the time
to start and to end; the bytecode exists already. The base is `import asyncio`, which every figure includes.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING

from benchmarks._command import Suite, run
from benchmarks._harness import Result, Samples, compare, interleave

if TYPE_CHECKING:
    from collections.abc import Sequence

_BASE = "import asyncio"
_NOTHING = "pass"
_LIMITS = {
    "import_quiesce": ("import asyncio, quiesce", 1.4),
    "import_mesh": ("import asyncio, quiesce.mesh", 1.8),
    "import_node": ("import asyncio; from quiesce.mesh import Node", None),
    "import_asgi": ("import asyncio, quiesce.integrations.asgi", None),
}


@dataclass(frozen=True)
class ImportSizes:
    """How often each import is measured."""

    rounds: int

    def with_rounds(self, rounds: int) -> ImportSizes:
        """Return the same sizes with another number of rounds."""
        return replace(self, rounds=rounds)


def _took(program: str, environment: dict[str, str]) -> float:
    """Run a program in an interpreter of its own; return its processor time in ms."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", program], env=environment, check=True)  # noqa: S603 - of this file
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return 1e3 * (after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)


@lru_cache(maxsize=1)  # the same for every event loop
def _measured(sizes: ImportSizes) -> list[Result]:
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": folder, "PYTHONDONTWRITEBYTECODE": ""}
        programs = [_NOTHING, _BASE, *(program for program, _ in _LIMITS.values())]
        pieces = {program: partial(_took, program, environment) for program in programs}
        for piece in pieces.values():
            piece()  # writes the bytecode
        found = interleave("imports", pieces, sizes.rounds)
    start = found.pop(_NOTHING).best
    net = {
        program: Samples(tuple(value - start for value in samples.values))
        for program, samples in found.items()
    }
    return [
        compare(
            name,
            f"`{program}`, without the start of the interpreter",
            {_BASE: net[_BASE], program: net[program]},
            unit="ms",
            limit=limit,
            ours=program,
            base=_BASE,
            notes=(f"an interpreter that imports nothing: {start:.1f} ms",),
        )
        for name, (program, limit) in _LIMITS.items()
    ]


def imports(_: str, sizes: ImportSizes) -> list[Result]:
    """Measure each of the imports."""
    return _measured(sizes)


def warm_up(_: str) -> None:
    """Do nothing: the measure itself writes the bytecode first."""


SUITE = Suite(
    name="imports",
    description=(
        "Measure how long an import of quiesce takes, against `import asyncio`. "
        "The full run takes about half a minute."
    ),
    rounds_note="",
    warm_up=warm_up,
    measures={"imports": imports},
    peers=(),
    full=ImportSizes(rounds=31),
    quick=ImportSizes(rounds=2),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the chosen measures and print their results; return the exit code."""
    return run([SUITE], argv)


if __name__ == "__main__":
    raise SystemExit(main())
