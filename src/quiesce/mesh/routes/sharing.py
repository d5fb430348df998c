"""A message that a worker sends for several hops at once, while it has items of all of them.

It is an edge of one hop. The others are held until that edge is closed. If it ends in any other way than well, that is
recorded in them, because their own receipts do not count it.
"""

from __future__ import annotations

from sys import _getframe
from typing import TYPE_CHECKING

from quiesce.core.known import starter
from quiesce.mesh.facts import EdgeClosed
from quiesce.mesh.routes.following import Followed
from quiesce.mesh.routes.takers import companions

if TYPE_CHECKING:
    from collections.abc import Iterable

    from quiesce.mesh.facts import Record
    from quiesce.mesh.handing import Handing
    from quiesce.mesh.hop import Hop

    Shared = dict[bytes, list[Followed]]

__all__: list[str] = []


def share(hop: Hop, handing: Handing) -> None:
    """Hold the other hops that a message is sent for, until its edge is closed."""
    others = companions(hop)
    if others:
        frame = starter(_getframe(1))
        name = f"to {handing.to}, sent for several messages at once"
        held = [Followed(other, "message", name, frame) for other in others]
        hop._mesh._shared[handing._edge] = held


def closed(shared: Shared, records: Iterable[Record]) -> None:
    """Release the hops that wait for edges that these records close."""
    for record in records:
        if isinstance(record, EdgeClosed) and record.edge in shared:
            receipt = record.receipt
            is_well = receipt.is_whole and not (
                receipt.failed or receipt.cancelled or receipt.undelivered
            )
            for hold in shared.pop(record.edge):
                if not is_well:
                    hold.hop.untracked("message", f"{hold.name}: {receipt.status}")
                hold.release()
