"""The command: `python -m examples.demo`."""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from .cases import CASES, Case
from .judge import Row, run
from .words import Page

_HERE = Path(__file__).parent
_LIMIT_SECONDS = 10.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the pairs; return 0 only if each shows what it is meant to show."""
    options = _parser().parse_args(arguments)
    cases = [case for case in CASES if options.only in (None, case.name)]
    if options.json:
        rows = [run(case, options.programs, options.limit) for case in cases]
        document = {"ok": _all_ok(rows), "rows": [row.to_dict() for row in rows]}
        print(json.dumps(document, indent=2))
    else:
        rows = _tell(cases, options)
    return 0 if _all_ok(rows) else 1


def _tell(cases: Sequence[Case], options: argparse.Namespace) -> list[Row]:
    page = Page(color=_wants_color(options))
    print("Small programs that lose work, each run twice: as written today, and with quiesce.")
    rows = []
    for number, case in enumerate(cases, start=1):
        page.introduce(number, case)
        if options.show:
            page.source(case, options.programs)
        sys.stdout.flush()
        rows.append(run(case, options.programs, options.limit))
        page.row(rows[-1])
    page.summary(rows)
    return rows


def _all_ok(rows: Sequence[Row]) -> bool:
    return all(row.ok for row in rows)


def _wants_color(options: argparse.Namespace) -> bool:
    return sys.stdout.isatty() and not options.no_color and not os.environ.get("NO_COLOR")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m examples.demo",
        description="Run small programs that lose work, and the same ones with quiesce.",
        epilog="The exit code is 0 only if every program lost today and was saved with quiesce.",
    )
    names = [case.name for case in CASES]
    parser.add_argument("--only", choices=names, help="run one pair")
    parser.add_argument("--show", action="store_true", help="print the programs too")
    parser.add_argument("--json", action="store_true", help="print what was observed as JSON")
    parser.add_argument("--no-color", action="store_true", help="no colour, even on a terminal")
    parser.add_argument(
        "--programs", type=Path, default=_HERE, help="a directory with losing/ and saved/"
    )
    parser.add_argument(
        "--limit",
        type=float,
        default=_LIMIT_SECONDS,
        metavar="SECONDS",
        help="end a program that takes longer (%(default)s)",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
