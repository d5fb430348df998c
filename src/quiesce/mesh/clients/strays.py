"""Requests of a node's own client outside of any hop, in a process that serves hops: whose work they are is unknown.

A worker that takes its work from a queue sends so. The hop that its work came from may be over. So every hop that is
open, and every later one, records the place as untracked, until the send is declared: `with quiesce.detached():`.

A request that came without the header is not of any cascade. What it sends while it is served is not noticed; what its
tasks send later is, as one of them may be a worker that it was the first to need.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

from quiesce.core.current import is_detached
from quiesce.core.tree import logger
from quiesce.mesh.clients.sending import where

if TYPE_CHECKING:
    from quiesce.mesh.runtime.node import Node

__all__: list[str] = []

_STRAYS_MAX = 64
ROUTE = "sent outside of any hop"

plain_request: ContextVar[list[bool]] = ContextVar("quiesce_plain_request", default=[])  # noqa: B039 - never changed
"""Of a request that came without the header: not empty while it is served."""


def notice_stray(node: Node) -> None:
    """Record that a client of a node sends outside of any hop, unless that is declared, or no hop was served."""
    if not node._serves or is_detached.get() or plain_request.get():
        return
    _, place = where()
    strays = node._strays
    if (ROUTE, place) in strays or len(strays) >= _STRAYS_MAX:
        return
    strays[ROUTE, place] = (ROUTE, place, "is untracked")
    for hop in list(node._hops.values()):
        hop.untracked(ROUTE, place)
    logger.warning(
        "a client of node %r sends outside of any hop, at %s. No cascade waits for that, so from now on no verdict "
        "that this node has a part in is green. Send it inside of `async with hop.working(...)` of the hop that it "
        "belongs to; or, if it belongs to none, inside of `with quiesce.detached():`", node.name, place,
    )  # fmt: skip
