"""A message that a worker sends for several hops at once, while it has items of all of them.

The message is an edge of one hop. The other hops are held until that edge is closed. If the edge's receipt does not
prove that all its work has ended, the other hops record that, because their own receipts do not count the edge. A failure
is recorded only in the hop that owns the edge.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce.core.libraries import starting_frame
from quiesce.core.python_private import get_frame
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
    """Hold the other hops for which a message is sent, until the message's edge is closed."""
    others = companions(hop)
    if others:
        frame = starting_frame(get_frame(1))
        name = f"to {handing.to}, sent for several messages at once"
        held = [Followed(other, "message", name, frame) for other in others]
        hop.opened.shared_sendings[handing.edge_id] = held


def edges_closed(shared: Shared, records: Iterable[Record]) -> None:
    """Release the hops that wait for an edge which one of these records closes."""
    for record in records:
        if isinstance(record, EdgeClosed) and record.edge in shared:
            receipt = record.receipt
            for hold in shared.pop(record.edge):
                if not receipt.is_whole:
                    what = "opaque" if receipt.opaque else receipt.status
                    hold.hop.untracked("message", f"{hold.name}: {what}")
                hold.release()
