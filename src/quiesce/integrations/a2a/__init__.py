"""A2A servers that drain, and lose neither tasks nor pushes.

- `QuiescentRequestHandler(...)`: in the place of the SDK's `DefaultRequestHandler`; it can say when
  it is idle and what is in flight, drain, and end what a crash has left.
- `DurablePushSender(outbox)`: push notifications that arrive, in order, after a crash too.
- `quiesce_app(agent, card)`: a whole Starlette app of these.
- `quiesce_client(node, agent)`: a client whose messages belong to a cascade. With `node=`, handler and
  app take part in cascades as well; `declare_cascades` is for apps of your own.

For a2a-sdk 0.3.22 and newer, and 1.x, on asyncio and uvloop.

The modules, in reading order:

- `server`: a server that drains.
- `push`: pushes that survive a crash.
- `mesh`: messages as edges of a cascade.
- `versions`: what differs between a2a-sdk 0.3 and 1.x.
- `outlasting`: waiting for something to its end, although the one that waits is cancelled.
- `tracing`: the SDK's tracing, left out while no tracer is configured.
"""

from quiesce.integrations.a2a import versions as _versions  # noqa: F401 - the first: its error says what to install
from quiesce.integrations.a2a.mesh.extension import CASCADE_EXTENSION, declare_cascades
from quiesce.integrations.a2a.mesh.message_edges import CascadeClient, quiesce_client
from quiesce.integrations.a2a.push.push_outbox import DeadLetter, MemoryOutbox, Outbox
from quiesce.integrations.a2a.push.push_sender import DurablePushSender
from quiesce.integrations.a2a.push.push_signing import HmacSigner, PushRequest
from quiesce.integrations.a2a.push.sqlite_outbox import SqliteOutbox
from quiesce.integrations.a2a.server.app import quiesce_app
from quiesce.integrations.a2a.server.recovery import Recovery
from quiesce.integrations.a2a.server.request_handler import QuiescentRequestHandler

__all__ = [
    "CASCADE_EXTENSION",
    "CascadeClient",
    "DeadLetter",
    "DurablePushSender",
    "HmacSigner",
    "MemoryOutbox",
    "Outbox",
    "PushRequest",
    "QuiescentRequestHandler",
    "Recovery",
    "SqliteOutbox",
    "declare_cascades",
    "quiesce_app",
    "quiesce_client",
]
