"""What the programs of test_guard_packages.py have in common: they run under the guard, and tell.

`python -m tests.integration.guard_acp SCENARIO:FORM:BACKEND...` prints one line of JSON a scenario:
what the guard has found. In the form `outside` the guard is around the event loop, in the form
`inside` it is in a task of it, and in the form `patient` too, where it gives leftovers ten seconds to go.
"""

from __future__ import annotations

import gc
import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

import anyio

from quiesce.testing import LeakError, guard

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    Scenario = Callable[[], Awaitable[None]]


PATIENT_SECONDS = 10.0  # for what must happen in the guard, on any machine


async def guarded(scenario: Scenario) -> None:
    """Run a scenario with the guard in the same task."""
    async with guard():
        await scenario()


async def patiently_guarded(scenario: Scenario) -> None:
    """Run a scenario with the guard in the same task, which waits for what the scenario has left."""
    async with guard(settle=PATIENT_SECONDS):
        await scenario()


def run(scenario: Scenario, form: str, backend: str) -> None:
    """Run a scenario under the guard."""
    if form in {"inside", "patient"}:
        inside = guarded if form == "inside" else patiently_guarded
        anyio.run(inside, scenario, backend=backend)
        return
    with guard():
        anyio.run(scenario, backend=backend)


def outcome(scenario: Scenario, form: str, backend: str) -> dict[str, object]:
    """Return what the guard found; if the program failed by itself, that is in the notes."""
    try:
        run(scenario, form, backend)
    except LeakError as leak:
        return {"raised": "LeakError", "findings": [asdict(finding) for finding in leak.findings]}
    except BaseException as error:  # told, whatever it is
        return {"raised": type(error).__name__, "notes": getattr(error, "__notes__", [])}
    return {}


def freeze() -> None:
    """Take the package out of the collector's sight: it is large, and every look would go through it."""
    gc.collect()
    gc.freeze()


def main(scenarios: Mapping[str, Scenario]) -> None:
    """Run what the command line names, one after the other."""
    freeze()
    for name in sys.argv[1:]:
        scenario, form, backend = name.split(":")
        told = {"name": name, **outcome(scenarios[scenario], form, backend)}
        print(json.dumps(told), flush=True)  # noqa: T201 - that is how the test is told
