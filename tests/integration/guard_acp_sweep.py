"""A program for test_guard_packages.py: sweeps the use of an agent in a process of its own.

`python -m tests.integration.guard_acp_sweep` prints one line of JSON for each of the two ways to use
it, the SDK's and quiesce's: what `sweep` finds, and, if a double cancellation leaves the process,
what comes of it when it is run again by its id, and when the first of the two is run alone.
"""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from quiesce import Scope
from quiesce.testing import sweep
from tests.integration import guard_acp, guard_programs
from tests.integration.guard_acp import Stubborn

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from quiesce.testing import Sweep, SweepFailure

    Scenario = Callable[[], Coroutine[None, None, None]]

SHUTDOWN_SECONDS = 0.02  # each of some 40 runs waits for the agent as long as that, twice
PROCESS = f"leak:process:{Path(sys.executable).name}"


async def bare() -> None:
    """Use an agent, and be done."""
    agent = Stubborn(SHUTDOWN_SECONDS)
    async with agent.spawned() as (_, process):
        await agent.wait_for(process)


async def owned() -> None:
    """Use an agent that a task of the scope's starts and ends."""
    agent = Stubborn(SHUTDOWN_SECONDS)
    async with Scope("user") as scope:
        _, process = await scope.enter(agent.spawned())
        await agent.wait_for(process)


def swept(scenario: Scenario, replay: str | None = None) -> Sweep:
    """Sweep, or run one point alone."""
    return sweep(
        scenario,
        depth=2,
        cancel="native",
        settle_seconds=SHUTDOWN_SECONDS,
        replay=replay,
    )


def is_wanted(failure: SweepFailure) -> bool:
    """Return whether two cancellations, the first of them in our own code, have left the process."""
    first, *more = failure.hits
    labels = {fault.label for fault in failure.faults}
    return bool(more) and first.place.startswith(guard_acp.__file__) and PROCESS in labels


def faults(result: Sweep) -> list[list[str | None]]:
    """List what went wrong, and by which line it was started."""
    return [
        [fault.label, fault.finding.where if fault.finding is not None else None]
        for failure in result.failures
        for fault in failure.faults
    ]


def tell(scenario: Scenario) -> None:
    """Sweep, and replay what was found."""
    result = swept(scenario)
    told: dict[str, object] = {
        "name": scenario.__name__,
        "failed": len(result.failures),
        "not_covered": result.not_covered,
    }
    failure = next(filter(is_wanted, result.failures), None)
    if failure is not None:
        told |= {
            "places": [hit.place for hit in failure.hits],
            "again": faults(swept(scenario, failure.id)),
            "once": faults(swept(scenario, failure.id.partition("+")[0])),
        }
    print(json.dumps(told), flush=True)  # noqa: T201 - that is how the test is told


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # inherited: the agent is stubborn from its start
    guard_programs.freeze()
    tell(bare)
    tell(owned)
