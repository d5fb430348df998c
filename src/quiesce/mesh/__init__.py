"""The mesh: cascades of agents that hand work to each other, and how to know that one has settled.

The modules, in reading order:

- `protocol`: what a node knows and decides; pure.
- `store`: the journal.
- `runtime`: nodes, hops and cascades in a running program.
- `transport`: how messages and calls travel.
- `routes`: the ways by which work leaves a hop.
- `clients`: HTTP clients of other libraries inside of hops.
- `http`: the public names that need httpx.
"""

from quiesce.errors import (
    CascadeCancelled,
    EdgeRefused,
    JournalBroken,
    JournalInUse,
    LocalProtocolError,
    ProtocolError,
    RemoteProtocolError,
)
from quiesce.mesh.clients.instrumentation import Instrumentation
from quiesce.mesh.protocol.receipt import Note, Receipt
from quiesce.mesh.protocol.scheduler import Patience
from quiesce.mesh.runtime.admission import Arrival
from quiesce.mesh.runtime.cascade import Cascade
from quiesce.mesh.runtime.delegation import Handing
from quiesce.mesh.runtime.hop import Hop, current_hop
from quiesce.mesh.runtime.node import Node
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

__all__ = [
    "Arrival",
    "Busy",
    "Cascade",
    "CascadeCancelled",
    "CascadeFront",
    "EdgeRefused",
    "Handing",
    "Health",
    "Hop",
    "Instrumentation",
    "JournalBroken",
    "JournalInUse",
    "LocalProtocolError",
    "Memory",
    "MeshFrontier",
    "Node",
    "Note",
    "Patience",
    "ProtocolError",
    "Receipt",
    "RemoteProtocolError",
    "Settled",
    "SettledWithLosses",
    "Settlement",
    "Transport",
    "Unknown",
    "current_hop",
]
