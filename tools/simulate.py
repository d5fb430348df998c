#!/usr/bin/env python3
"""Simulate many worlds of nodes that hand work to each other, and check every verdict.

`python tools/simulate.py --runs 100000` runs for a night; CI runs 5,000. If a verdict is wrong, the tool prints
the command that runs its world again, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from tests.simulation.agent import Agent  # noqa: E402 - the same
from tests.simulation.mutants import MUTANTS  # noqa: E402 - the paths first
from tests.simulation.runs import KINDS, examine  # noqa: E402 - the same

PROGRESS_SECONDS = 5.0


def replay(kind: str, seed: int, mutant: str | None) -> str:
    """Return the command that runs one world again."""
    command = ["python", "tools/simulate.py", "--kind", kind, "--seed", str(seed), "--runs", "1"]
    return shlex.join([*command, "--mutant", mutant] if mutant else command)


class Progress:
    """A progress report on stderr, written from time to time."""

    def __init__(self, total: int) -> None:
        """Start the clock."""
        self.total = total
        self.begin = self.told = time.monotonic()

    def tell(self, done: int, wrong: int) -> None:
        """Write the progress, unless it was written a moment ago."""
        now = time.monotonic()
        if now - self.told < PROGRESS_SECONDS:
            return
        self.told = now
        rate = done / (now - self.begin)
        left = (self.total - done) / rate
        told = f"{done:,} of {self.total:,} worlds, {wrong} wrong, {rate:.0f} a second, {left:.0f} s left"
        sys.stderr.write(told + "\n")


def main() -> int:
    """Run what the command line asks for; return 1 if a verdict was wrong."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=5000, help="how many worlds (default: 5000)")
    parser.add_argument("--seed", type=int, default=0, help="the seed of the first (default: 0)")
    parser.add_argument("--kind", choices=KINDS, help="one kind of faults; by default all")
    parser.add_argument("--mutant", choices=MUTANTS, help="break the protocol on purpose")
    parser.add_argument("--json", action="store_true", help="the tally as JSON")
    arguments = parser.parse_args()
    kinds = [arguments.kind] if arguments.kind else list(KINDS)
    agent = MUTANTS[arguments.mutant] if arguments.mutant else Agent
    tally: dict[str, Counter[str]] = {kind: Counter() for kind in kinds}
    wrong: list[dict[str, object]] = []
    progress = Progress(arguments.runs)
    for done, seed in enumerate(range(arguments.seed, arguments.seed + arguments.runs), start=1):
        kind = kinds[seed % len(kinds)]
        verdict, found = examine(kind, seed, agent)
        tally[kind][verdict] += 1
        if found:
            again = replay(kind, seed, arguments.mutant)
            wrong.append({"kind": kind, "seed": seed, "wrong": found, "replay": again})
            sys.stderr.write(f"WRONG: {'; '.join(found)}\n    {again}\n")
        progress.tell(done, len(wrong))
    seconds = time.monotonic() - progress.begin
    if arguments.json:
        report = {"runs": arguments.runs, "seconds": seconds, "tally": tally, "wrong": wrong}
        sys.stdout.write(json.dumps(report) + "\n")
        return 1 if wrong else 0
    for kind, counts in tally.items():
        words = ", ".join(f"{word} {count}" for word, count in counts.most_common())
        sys.stdout.write(f"{kind:24} {words}\n")
    sys.stdout.write(f"{arguments.runs} worlds, {len(wrong)} wrong verdicts, {seconds:.0f} s\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
