"""A message that a worker sends for several hops at once, while it has items of all of them.

It is an edge of one hop. The others are held until that edge is closed. If it is not known then that all of it has ended,
that is recorded in them, because their own receipts do not count it. A failure is only in the hop whose edge it is.
"""

from __future__ import annotations

from sys import _getframe
from typing import TYPE_CHECKING

from quiesce.core.libraries import starting_frame
from quiesce.mesh.protocol.facts import EdgeClosed
from quiesce.mesh.routes.following import Followed
from quiesce.mesh.routes.takers import companions

if TYPE_CHECKING:
    from collections.abc import Iterable

    from quiesce.mesh.protocol.facts import Record
    from quiesce.mesh.runtime.delegation import Handing
    from quiesce.mesh.runtime.hop import Hop

    Shared = dict[bytes, list[Followed]]

__all__: list[str] = []


def share(hop: Hop, handing: Handing) -> None:
    """Hold the other hops that a message is sent for, until its edge is closed."""
    others = companions(hop)
    if others:
        frame = starting_frame(_getframe(1))
        name = f"to {handing.to}, sent for several messages at once"
        held = [Followed(other, "message", name, frame) for other in others]
        hop._mesh._shared[handing._edge] = held


def edges_closed(shared: Shared, records: Iterable[Record]) -> None:
    """Release the hops that wait for edges that these records close."""
    for record in records:
        if isinstance(record, EdgeClosed) and record.edge in shared:
            receipt = record.receipt
            for hold in shared.pop(record.edge):
                if not receipt.is_whole:
                    what = "opaque" if receipt.opaque else receipt.status
                    hold.hop.untracked("message", f"{hold.name}: {what}")
                hold.release()
