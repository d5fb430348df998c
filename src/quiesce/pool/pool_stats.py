"""The figures that `RunnerPool.stats` returns."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["PoolStats"]


@dataclass(frozen=True, slots=True)
class PoolStats:
    """The figures of a pool: its state now, and counts since it was opened."""

    ready: int
    """Running runners, leased or idle."""
    idle: int
    """Running runners without a lease."""
    starting: int
    """Runners that are being started."""
    queued: int
    """Keys whose runner waits for room, for the end of the previous runner, or for its back-off."""
    stopping: int
    """Runners that are being stopped, or whose start is being cancelled."""
    leases: int
    """Current leases."""
    waiting: int
    """Leases that wait for a runner."""
    started: int
    """Runners that became ready."""
    failed: int
    """Starts that failed."""
    crashed: int
    """Runners that ended without being stopped."""
    reaped: int
    """Runners that were ended because they were idle for too long, or because room was needed."""
