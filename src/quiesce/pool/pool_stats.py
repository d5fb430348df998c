"""What a pool of runners tells of itself."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["PoolStats"]


@dataclass(frozen=True, slots=True)
class PoolStats:
    """How a pool stands, and what it has done so far."""

    ready: int
    """Runners that run, leased or idle."""
    idle: int
    """Those of them that nobody has leased."""
    starting: int
    """Runners that are being started."""
    queued: int
    """Keys whose runner waits for room, for the end of the last one, or for its back-off."""
    stopping: int
    """Runners that are being stopped, or whose start is being cancelled."""
    leases: int
    """Leases held."""
    waiting: int
    """Leases that wait for a runner."""
    started: int
    """Runners that became ready."""
    failed: int
    """Starts that failed."""
    crashed: int
    """Runners that ended although nobody had asked for it."""
    reaped: int
    """Runners that were ended because they were idle for too long, or their room was wanted."""
