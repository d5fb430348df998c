"""The figures that `Channel.stats` and `Tap.stats` return."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ChannelStats"]


@dataclass(frozen=True, slots=True)
class ChannelStats:
    """The figures of a channel or a tap at one moment."""

    depth: int
    """Queued items."""
    maxsize: int | None
    """The number of items that fit; None: no limit."""
    sent: int
    """Items queued so far."""
    received: int
    """Items that readers have taken so far."""
    undelivered: int
    """Items that were removed because no task would read them."""
    dropped: int
    """Items that a tap has dropped because its reader was too slow or had closed the tap."""
    senders_waiting: int
    """Tasks that wait for room."""
    readers_waiting: int
    """Tasks that wait for an item."""
    taps: int
    """Open taps."""
