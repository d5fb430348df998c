#!/usr/bin/env python3
"""Run the adapters' rows with every version of their SDKs, and write the table of the documentation.

    python tools/compatibility.py [--only ADAPTER] [--page]

Writes tests/adapters/outcomes.json, with which the tests compare their next run, and from it
docs/reference/compatibility.md. With --page it writes only the page. Takes some minutes.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.adapters import catalogue  # noqa: E402 - the path first
from tests.adapters.known_faults import ABSENT, CLEAN  # noqa: E402 - the same

PAGE = ROOT / "docs" / "reference" / "compatibility.md"
_HEAD = """\
# What the adapters mend, in which version

<!-- Written by tools/compatibility.py from a run of the tests' rows: do not edit. -->

Each row is a program that the tests run with the SDK alone and with the adapter, in every version of the table. The
versions are the oldest and the newest that are supported, and between them the last before and the first after a change in
the SDK. The last column is with quiesce; the others are what the SDK does alone.
[The causes](../explanation/sdks.md) are on another page. `tests/adapters` has the programs, and
`python tools/compatibility.py` writes this page from what they did.

| in a cell | means |
| --- | --- |
| *clean* | the program ended in time, with the right outcome, and nothing is left |
| *hangs* | the program was ended by force |
| *tasks left*, *process left*, *files left* | they are still there after the program has returned |
| *returns early* | they are gone moments after the program has returned |
| *n/a* | this version does not have the function |
| `(trio)`, `(uvloop)` behind a row | the event loop; the other rows are on asyncio |
"""


def record(only: str | None) -> catalogue.Record:
    """Run all rows, or one adapter's, and return the outcomes; the other adapters keep their recorded outcomes."""
    found = catalogue.recorded() if catalogue.RECORD.exists() else {}
    for adapter in catalogue.ADAPTERS.values():
        if only not in {None, adapter.name}:
            continue
        rows: dict[str, dict[str, dict[str, str]]] = {}
        for version in adapter.versions:
            for way in catalogue.WAYS:
                say(f"{adapter.package} {version}, {way}")
                for row, outcome in catalogue.outcomes(adapter.name, version, way).items():
                    rows.setdefault(row, {}).setdefault(version, {})[way] = outcome["outcome"]
        found[adapter.name] = dict(sorted(rows.items()))
    return found


def page(found: catalogue.Record) -> str:
    """Return the page with a table for each adapter."""
    parts = [_HEAD]
    for name, rows in found.items():
        adapter = catalogue.ADAPTERS[name]
        head = ["", *adapter.versions, "with quiesce"]
        lines = [head, ["---"] * len(head)]
        for row, versions in rows.items():
            alone = [_cell(versions[version]["bare"]) for version in adapter.versions]
            kept = {versions[version]["quiesce"] for version in adapter.versions} - {ABSENT}
            lines.append([row, *alone, ", ".join(sorted(kept))])
        table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        parts.append(f"## {adapter.package}: `quiesce.integrations.{adapter.module}`\n\n{table}\n")
    return "\n".join(parts)


def _cell(outcome: str) -> str:
    return outcome if outcome in {CLEAN, ABSENT} else f"**{outcome}**"


def say(text: str) -> None:
    """Print a line."""
    print(text, flush=True)  # noqa: T201 - it is a program, and this is its output


def main() -> int:
    """Record the outcomes, write the page, and list the rows that are not clean with their adapter."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--only", choices=list(catalogue.ADAPTERS), help="run this adapter's rows alone"
    )
    parser.add_argument("--page", action="store_true", help="only write the page again")
    options = parser.parse_args()
    found = catalogue.recorded() if options.page else record(options.only)
    if not options.page:
        catalogue.RECORD.write_text(
            json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
        )
    PAGE.write_text(page(found), encoding="utf-8")
    wrong = [
        f"{adapter} {version}: {row}: {ways['quiesce']}"
        for adapter, rows in found.items()
        for row, versions in rows.items()
        for version, ways in versions.items()
        if ways["quiesce"] not in {CLEAN, ABSENT}
    ]
    for line in wrong:
        say(f"not clean with the adapter: {line}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
