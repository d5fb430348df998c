"""A2A servers that drain without losing tasks or push notifications.

- `QuiescentRequestHandler(...)` replaces the SDK's `DefaultRequestHandler`. The handler lists what is in
  flight, waits until the server is idle, drains, and ends the tasks that a crash has left open.
- `DurablePushSender(outbox)` sends push notifications in order, and sends them again after a crash.
- `quiesce_app(agent, card=card)` builds a whole Starlette app from these.
- `quiesce_client(node, agent)` makes a client whose messages belong to a cascade. Handler and app take
  part in cascades if you pass `node=`. If you build the app yourself, add the extension to its card with
  `declare_cascades`.

Works with a2a-sdk 0.3.22 and newer, and 1.x, on asyncio and uvloop.

The modules, in reading order:

- `server`: a server that drains.
- `push`: pushes that survive a crash.
- `mesh`: messages as edges of a cascade.
- `versions`: what differs between a2a-sdk 0.3 and 1.x.
- `outlasting`: waiting until a future is done, although the waiting task is cancelled.
- `tracing`: removes the SDK's tracing calls while no tracer is configured.
"""

from quiesce.integrations.a2a import versions as _versions  # noqa: F401 - imported first: its error says what to install
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
