"""The seeds, as cases: which program shows which bug, on which event loop, and where.

Each case is a module with `buggy` and `fixed`: tests as one would write them, which pass, or hang,
if nobody looks for what they leave; and `swept_buggy` and `swept_fixed`: scenarios in which nothing
is cancelled, for a sweep. In the source, `# LEFT` stands on the line that starts what is left, and
`# HANGS` on the await that never ends.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    Program = Callable[[], Coroutine[Any, Any, None]]


@dataclass(frozen=True)
class Case:
    """One bug on one event loop."""

    seed: str
    about: str
    module: str
    backend: str
    variant: str = ""
    """The ending of the functions' names, if the module shows more than one bug."""
    left: str | None = "task"
    """The kind of thing that a test of it leaves; None: there is no such test on this loop."""
    swept: tuple[str, ...] = ()
    """The kinds of faults that a sweep finds; none: there is no scenario for a sweep."""

    @property
    def name(self) -> str:
        """How the case is called on a command line."""
        return f"{self.module}{self.variant}-{self.backend}".removeprefix("seed_")

    @property
    def path(self) -> Path:
        """The source."""
        return Path(__file__).with_name(f"{self.module}.py")

    def program(self, version: str) -> Program:
        """Return the function: `buggy`, `fixed`, `swept_buggy` or `swept_fixed`."""
        module = importlib.import_module(f"tests.seeds.{self.module}")
        variant = "" if version == "fixed" and self.variant == "_collected" else self.variant
        program: Program = getattr(module, version + variant)
        return program

    def line(self, mark: str) -> int:
        """Return the number of the line that has the mark."""
        lines = self.path.read_text(encoding="utf-8").splitlines()
        (number,) = [i for i, line in enumerate(lines, 1) if line.endswith(f"# {mark}")]
        return number


LISTENER = "a cancelled listener leaves its loops"
CONSUMER = "nobody keeps the background consumer"
COLLECTED = "the background consumer is collected"
BREAK = "break out of a task group in a generator"
DEADLOCK = "cancel and gather under the tasks' lock"
LATE = "a late start revives a closed registry"
SPAWN = "a spawn is cancelled before it is registered"

CASES = [
    Case("000", LISTENER, "seed_000", "asyncio", swept=("leak",)),
    Case("001", CONSUMER, "seed_001", "asyncio", swept=("late",)),
    Case("001", COLLECTED, "seed_001", "asyncio", variant="_collected"),
    Case("002", BREAK, "seed_002", "asyncio", left="generator", swept=("late",)),
    # It breaks trio itself, with a TrioInternalError.
    Case("002", BREAK, "seed_002", "trio", left="generator", swept=("failed", "late")),
    Case("003", DEADLOCK, "seed_003", "asyncio", swept=("hang",)),
    Case("003", DEADLOCK, "seed_003_trio", "trio", left=None, swept=("hang",)),
    Case("003", LATE, "seed_003", "asyncio", variant="_late"),
    Case("004", SPAWN, "seed_004", "asyncio", left="process", swept=("leak",)),
    Case("004", SPAWN, "seed_004_trio", "trio", left="process", swept=("leak",)),
]
BY_NAME = {case.name: case for case in CASES}
