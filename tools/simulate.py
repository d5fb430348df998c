#!/usr/bin/env python3
"""Simulate many worlds of nodes that hand work to each other, and look for a wrong verdict.

`python tools/simulate.py --runs 100000` is the size for a night; CI runs 5,000. A world that goes wrong
is named by its kind and its seed: `--kind torn --seed 763 --runs 1` runs it again.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from tests.simulation.agent import Agent  # noqa: E402 - the same
from tests.simulation.mutants import MUTANTS  # noqa: E402 - the paths first
from tests.simulation.runs import KINDS, simulate  # noqa: E402 - the same

PROGRESS_SECONDS = 5.0


def verdict_of(kind: str, seed: int, agent: type[Agent]) -> tuple[str, list[str]]:
    """Run one world; gives the verdict in a word, and what is wrong with it."""
    world = simulate(kind, seed, agent)
    wrong = world.judge()
    if world.verdict is None:
        return "none", wrong
    receipt = world.verdict.receipt
    if receipt.unknown:
        return "unknown", wrong
    return "settled with losses" if receipt.lost else "settled", wrong


def main() -> int:
    """Run what the command line asks for; 1 if a verdict was wrong."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=5000, help="how many worlds (default: 5000)")
    parser.add_argument("--seed", type=int, default=0, help="the seed of the first (default: 0)")
    parser.add_argument("--kind", choices=KINDS, help="one kind of misfortune; all, if not given")
    parser.add_argument("--mutant", choices=MUTANTS, help="break the protocol on purpose")
    parser.add_argument("--json", action="store_true", help="the tally as JSON")
    arguments = parser.parse_args()
    kinds = [arguments.kind] if arguments.kind else list(KINDS)
    agent = MUTANTS[arguments.mutant] if arguments.mutant else Agent
    tally: dict[str, Counter[str]] = {kind: Counter() for kind in kinds}
    wrong: list[dict[str, object]] = []
    begin = told = time.monotonic()
    for seed in range(arguments.seed, arguments.seed + arguments.runs):
        kind = kinds[seed % len(kinds)]
        verdict, found = verdict_of(kind, seed, agent)
        tally[kind][verdict] += 1
        if found:
            wrong.append({"kind": kind, "seed": seed, "wrong": found})
            sys.stderr.write(f"--kind {kind!r} --seed {seed} --runs 1: {'; '.join(found)}\n")
        if time.monotonic() - told > PROGRESS_SECONDS:
            told = time.monotonic()
            sys.stderr.write(f"{seed - arguments.seed + 1} of {arguments.runs} ...\n")
    seconds = time.monotonic() - begin
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
