"""The mesh: cascades of agents that hand work to each other, and how to know that one has settled.

The modules, in reading order:

- `protocol`: what a node knows and decides; pure.
- `store`: the journal.
- `runtime`: nodes, hops and cascades in a running program.
- `transport`: how messages and calls travel.
- `routes`: the ways by which work leaves a hop.
- `clients`: HTTP clients of other libraries inside of hops.
- `ledger`: what any process can learn from a shared store.
- `__main__`: commands for the operator of a shared store.
- `http`: the public names that need httpx.
"""

from typing import TYPE_CHECKING

from quiesce.core.later_names import import_name as _import_name
from quiesce.errors import (
    CascadeCancelled,
    EdgeRefused,
    JournalBroken,
    JournalInUse,
    LocalProtocolError,
    ProtocolError,
    RemoteProtocolError,
    ReplicaBuried,
    StoreLost,
)

if TYPE_CHECKING:
    from quiesce.mesh.clients.instrumentation import Instrumentation
    from quiesce.mesh.ledger import Ledger, RecordedCascade
    from quiesce.mesh.protocol.receipt import Note, Receipt
    from quiesce.mesh.protocol.scheduler import Patience
    from quiesce.mesh.runtime.admission import Arrival
    from quiesce.mesh.runtime.cascade import Cascade
    from quiesce.mesh.runtime.delegation import Handing
    from quiesce.mesh.runtime.hop import Hop, current_hop
    from quiesce.mesh.runtime.node import Node
    from quiesce.mesh.runtime.node_events import (
        CascadeBegun,
        CascadeEnded,
        EdgeEnded,
        EdgeSent,
        EdgeTaken,
        HopBegun,
        HopEnded,
        NodeEvent,
        ReplicaGone,
        ReplicaJoined,
    )
    from quiesce.mesh.runtime.progress import Busy, MeshFrontier
    from quiesce.mesh.runtime.settlement import (
        Settled,
        SettledWithLosses,
        Settlement,
        Unknown,
    )
    from quiesce.mesh.store.journal_keeper import Health
    from quiesce.mesh.transport.asgi_front import CascadeFront
    from quiesce.mesh.transport.node_transport import Memory, Transport

# Imported when first used: a program that needs only receipts does not wait for nodes.
_LATER = {
    "Arrival": "quiesce.mesh.runtime.admission",
    "Busy": "quiesce.mesh.runtime.progress",
    "Cascade": "quiesce.mesh.runtime.cascade",
    "CascadeBegun": "quiesce.mesh.runtime.node_events",
    "CascadeEnded": "quiesce.mesh.runtime.node_events",
    "CascadeFront": "quiesce.mesh.transport.asgi_front",
    "EdgeEnded": "quiesce.mesh.runtime.node_events",
    "EdgeSent": "quiesce.mesh.runtime.node_events",
    "EdgeTaken": "quiesce.mesh.runtime.node_events",
    "Handing": "quiesce.mesh.runtime.delegation",
    "Health": "quiesce.mesh.store.journal_keeper",
    "Hop": "quiesce.mesh.runtime.hop",
    "HopBegun": "quiesce.mesh.runtime.node_events",
    "HopEnded": "quiesce.mesh.runtime.node_events",
    "Instrumentation": "quiesce.mesh.clients.instrumentation",
    "Ledger": "quiesce.mesh.ledger",
    "Memory": "quiesce.mesh.transport.node_transport",
    "MeshFrontier": "quiesce.mesh.runtime.progress",
    "Node": "quiesce.mesh.runtime.node",
    "NodeEvent": "quiesce.mesh.runtime.node_events",
    "Note": "quiesce.mesh.protocol.receipt",
    "Patience": "quiesce.mesh.protocol.scheduler",
    "Receipt": "quiesce.mesh.protocol.receipt",
    "RecordedCascade": "quiesce.mesh.ledger",
    "ReplicaGone": "quiesce.mesh.runtime.node_events",
    "ReplicaJoined": "quiesce.mesh.runtime.node_events",
    "Settled": "quiesce.mesh.runtime.settlement",
    "SettledWithLosses": "quiesce.mesh.runtime.settlement",
    "Settlement": "quiesce.mesh.runtime.settlement",
    "Transport": "quiesce.mesh.transport.node_transport",
    "Unknown": "quiesce.mesh.runtime.settlement",
    "current_hop": "quiesce.mesh.runtime.hop",
}

__all__ = [
    "Arrival",
    "Busy",
    "Cascade",
    "CascadeBegun",
    "CascadeCancelled",
    "CascadeEnded",
    "CascadeFront",
    "EdgeEnded",
    "EdgeRefused",
    "EdgeSent",
    "EdgeTaken",
    "Handing",
    "Health",
    "Hop",
    "HopBegun",
    "HopEnded",
    "Instrumentation",
    "JournalBroken",
    "JournalInUse",
    "Ledger",
    "LocalProtocolError",
    "Memory",
    "MeshFrontier",
    "Node",
    "NodeEvent",
    "Note",
    "Patience",
    "ProtocolError",
    "Receipt",
    "RecordedCascade",
    "RemoteProtocolError",
    "ReplicaBuried",
    "ReplicaGone",
    "ReplicaJoined",
    "Settled",
    "SettledWithLosses",
    "Settlement",
    "StoreLost",
    "Transport",
    "Unknown",
    "current_hop",
]


if not TYPE_CHECKING:  # else type checkers would accept a misspelled name

    def __getattr__(name: str) -> object:
        """Import a public name when it is first used."""
        return _import_name(globals(), _LATER, name)


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted({*globals(), *__all__})
