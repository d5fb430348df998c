"""How a channel stands."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ChannelStats"]


@dataclass(frozen=True, slots=True)
class ChannelStats:
    """How a channel, or a tap, stands."""

    depth: int
    """Items in it."""
    maxsize: int | None
    """Items that it has room for; None: any number."""
    sent: int
    """Items that were put into it so far."""
    received: int
    """Items that were taken out of it by readers so far."""
    undelivered: int
    """Items that were taken out of it because no task would read them."""
    dropped: int
    """Items that a tap has let go: its reader was too slow, or has closed it."""
    senders_waiting: int
    """Tasks that wait for room."""
    readers_waiting: int
    """Tasks that wait for an item."""
    taps: int
    """Open taps."""
