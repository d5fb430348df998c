"""Run one seed under the guard, or sweep it: `python -m tests.seeds.watch guard 000-asyncio`.

Prints what was found in the fixed and in the buggy version, as JSON. Each seed is for a process of
its own: what a bug leaves is not for the next one to stumble over.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import sys
import warnings
from typing import TYPE_CHECKING

import anyio

from quiesce.errors import LeakError
from quiesce.testing import sweep
from quiesce.testing.leaks.guard import guard
from tests.seeds import seed_004
from tests.seeds.cases import BY_NAME

if TYPE_CHECKING:
    from tests.seeds.cases import Case, Program

Found = list[dict[str, object]]


def under_guard(case: Case, version: str) -> Found:
    """Run a test, and list what the guard finds; what the test itself raises is one of these."""
    program = case.program(version)
    found: Found = []
    try:
        with guard():
            found += run(case, program)
    except LeakError as leak:
        found += [
            {"kind": each.kind, "where": each.where, "late": each.late, "text": str(each)}
            for each in leak.findings
        ]
    return found


def run(case: Case, program: Program) -> Found:
    """Run a test on its event loop."""
    try:
        anyio.run(program, backend=case.backend)
    except (Exception, asyncio.CancelledError) as error:
        return [{"kind": "raised", "where": None, "late": False, "text": repr(error)}]
    return []


def swept(case: Case, version: str) -> Found:
    """Sweep a scenario, and list the faults of the runs that failed, with what they name."""
    program = case.program(f"swept_{version}")
    result = sweep(program, backend=case.backend, hang_seconds=1.0)  # type: ignore[arg-type]  # a name of one
    return [
        {
            "kind": fault.kind,
            "where": fault.finding.where if fault.finding is not None else None,
            "await": failure.where,
            "text": fault.text,
        }
        for failure in result.failures
        for fault in failure.faults
    ]


def main() -> None:
    """Print what is found."""
    parser = argparse.ArgumentParser(prog="python -m tests.seeds.watch", description=__doc__)
    parser.add_argument("how", choices=["guard", "sweep"])
    parser.add_argument("case", choices=BY_NAME)
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # of what a bug leaves; the guard names it
    logging.disable()
    look = under_guard if options.how == "guard" else swept
    case = BY_NAME[options.case]
    try:
        found = {version: look(case, version) for version in ("fixed", "buggy")}
    finally:
        seed_004.end_all()
    json.dump(found, sys.stdout, indent=1)


if __name__ == "__main__":
    main()
