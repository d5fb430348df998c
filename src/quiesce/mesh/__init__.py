"""The mesh: cascades of agents that hand work to each other, and how to know that one has settled."""

from quiesce.errors import (
    CascadeCancelled,
    EdgeRefused,
    JournalBroken,
    JournalInUse,
    LocalProtocolError,
    ProtocolError,
    RemoteProtocolError,
)
from quiesce.mesh.admission import Arrival
from quiesce.mesh.cascade import Cascade
from quiesce.mesh.clients.watch import Instrumentation
from quiesce.mesh.courier import Patience
from quiesce.mesh.front import CascadeFront
from quiesce.mesh.frontier import Busy, MeshFrontier
from quiesce.mesh.handing import Handing
from quiesce.mesh.hop import Hop, current_hop
from quiesce.mesh.keeping import Health
from quiesce.mesh.node import Node
from quiesce.mesh.receipt import Note, Receipt
from quiesce.mesh.settlement import Settled, SettledWithLosses, Settlement, Unknown
from quiesce.mesh.transport import Memory, Transport

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
