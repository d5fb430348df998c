"""How a channel stands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quiesce.channels.item_queue import Lane

__all__ = ["ChannelStatistics"]


@dataclass(frozen=True, slots=True)
class ChannelStatistics:
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
    """Items that were taken out of it because nobody would read them."""
    dropped: int
    """Items that a tap has let go: its reader was too slow, or has closed it."""
    senders_waiting: int
    """Tasks that wait for room."""
    readers_waiting: int
    """Tasks that wait for an item."""
    readers: int
    """Readers that are known, waiting or not."""
    taps: int
    """Open taps."""


def statistics(
    lane: Lane[Any], *, dropped: int, passed: int = 0, senders_waiting: int = 0, taps: int = 0
) -> ChannelStatistics:
    """Count what is in a lane, and who waits at it."""
    return ChannelStatistics(
        depth=len(lane._items),
        maxsize=lane._maxsize,
        sent=len(lane._items) + lane._received + len(lane._undelivered) + dropped + passed,
        received=lane._received,
        undelivered=len(lane._undelivered),
        dropped=dropped,
        senders_waiting=senders_waiting,
        readers_waiting=len(lane._waiting),
        readers=len(lane._readers),
        taps=taps,
    )
