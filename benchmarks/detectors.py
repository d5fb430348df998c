"""Run detectors of leaks on the five seeds: `python -m benchmarks.detectors`.

Each seed is a program with a bug, and the same program without it (tests/seeds). A detector *finds* a bug if
it fails the first and passes the second. Detectors that are not installed are shown as missing.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import TYPE_CHECKING

from benchmarks._detectors import DETECTORS
from benchmarks._harness import progress
from tests.seeds.cases import CASES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks._detectors import Answer, Detector
    from tests.seeds.cases import Case

    Table = dict[Case, dict[str, Answer]]

AT_ONCE = 2


def look(detectors: Sequence[Detector], cases: Sequence[Case]) -> Table:
    """Run each detector on each seed, and return the table."""
    table: Table = {}
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for case in cases:
            progress(f"{case.seed} on {case.backend}: {case.about}")
            answers = pool.map(lambda detector, case=case: detector.ask(case), detectors)
            table[case] = {
                detector.name: answer for detector, answer in zip(detectors, answers, strict=True)
            }
    return table


def as_text(table: Table, detectors: Sequence[Detector], *, why: bool) -> str:
    """Return the table in aligned Markdown; with `why`, followed by the detectors' reports."""
    heads = ["seed", "on", *(detector.name for detector in detectors)]
    rows = [
        [f"{case.seed} {case.about}", case.backend, *(answer.word for answer in answers.values())]
        for case, answers in table.items()
    ]
    widths = [max(len(row[column]) for row in [heads, *rows]) for column in range(len(heads))]
    rule = ["-" * width for width in widths]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in [heads, rule, *rows]
    ]
    if why:
        lines += [
            f"\n{case.seed} on {case.backend}, {name}: {answer.why}"
            for case, answers in table.items()
            for name, answer in answers.items()
            if answer.why
        ]
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the installed detectors, and print the table; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.detectors", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print data instead of a table")
    parser.add_argument("--why", action="store_true", help="print also what each one said")
    parser.add_argument("--only", action="append", metavar="SEED", help="this seed alone")
    options = parser.parse_args(argv)
    cases = [case for case in CASES if not options.only or case.seed in options.only]
    detectors = [detector for detector in DETECTORS if detector.found]
    versions = {each.package.name: each.package.version for each in DETECTORS}
    table = look(detectors, cases)
    if options.json:
        data = [
            {"seed": case.seed, "about": case.about, "backend": case.backend}
            | {"answers": {name: asdict(answer) for name, answer in answers.items()}}
            for case, answers in table.items()
        ]
        json.dump({"versions": versions, "cases": data}, sys.stdout, indent=2)
        print()
    else:
        print(as_text(table, detectors, why=options.why))
        said = ", ".join(f"{name} {version}" for name, version in versions.items())
        print(f"\n{platform.python_implementation()} {platform.python_version()}; {said}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
