"""Tools that make a leak fail a test: `guard`, `sweep`, `plant`, `escapes`, and virtual time.

The modules, in reading order:

- `clock`: virtual time, and a task order that a seed decides.
- `loop_steps`: finds the task that a callback of an event loop steps.
- `trio_private`: the private names of trio that the test tools need, and why.
- `leaks`: `guard`: fails if a block leaves tasks, files, processes or the like behind.
- `sweeps`: `sweep`: cancels a scenario at each of its suspensions.
- `plants`: `plant`: puts work in flight that a shutdown has to drain or to name.
- `escaping`: `escapes`: shows where work leaves a hop.
- `store_rules`: `database_rules`: what each database of a shared store must do.
"""

from __future__ import annotations

from quiesce.errors import EscapeError, GateFailed, LeakError, SweepFailed
from quiesce.testing.clock import VirtualLoop, run
from quiesce.testing.escaping.escape_report import Escape, Escapes
from quiesce.testing.escaping.escapes import escapes
from quiesce.testing.leaks.findings import Finding
from quiesce.testing.leaks.guard import guard
from quiesce.testing.plants.planting import PLANTS, Planted, plant
from quiesce.testing.plants.shutdown_gate import Gate, GateRow, assert_gate
from quiesce.testing.store_rules import database_rules
from quiesce.testing.sweeps.record import Fault, Hit
from quiesce.testing.sweeps.result import Sweep, SweepFailure
from quiesce.testing.sweeps.sweep_runs import sweep

__all__ = [
    "PLANTS",
    "Escape",
    "EscapeError",
    "Escapes",
    "Fault",
    "Finding",
    "Gate",
    "GateFailed",
    "GateRow",
    "Hit",
    "LeakError",
    "Planted",
    "Sweep",
    "SweepFailed",
    "SweepFailure",
    "VirtualLoop",
    "assert_gate",
    "database_rules",
    "escapes",
    "guard",
    "plant",
    "run",
    "sweep",
]
