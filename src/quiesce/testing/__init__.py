"""What makes a leak fail a test: `guard`, `sweep`, `plant`, `escapes`, and time that jumps."""

from __future__ import annotations

from quiesce.errors import EscapeError, GateFailed, LeakError, SweepFailed
from quiesce.testing.clock import VirtualLoop, run
from quiesce.testing.departures import Escape, Escapes
from quiesce.testing.escaping import escapes
from quiesce.testing.findings import Finding
from quiesce.testing.gate import Gate, GateRow, assert_gate
from quiesce.testing.guarding import guard
from quiesce.testing.planting import PLANTS, Planted, plant
from quiesce.testing.sweeps.record import Fault, Hit
from quiesce.testing.sweeps.result import Sweep, SweepFailure
from quiesce.testing.sweeps.sweeping import sweep

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
    "escapes",
    "guard",
    "plant",
    "run",
    "sweep",
]
