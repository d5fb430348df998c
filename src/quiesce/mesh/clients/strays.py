"""Strays: requests that a node's own client sends outside of any hop, in a process that serves hops.

quiesce cannot know to which cascade such a request belongs. A worker that takes jobs from a queue may send it, and the
hop of the job may be over. So every open hop and every later hop records the place as untracked, until the user declares
the send by `with quiesce.detached():`.

A request that arrives without the `Cascade` header does not belong to a cascade. While it is served, its sends are not
strays. Later sends of its tasks are strays, because such a task may be a worker that serves other requests, too.
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
"""A list that is not empty while a request without the `Cascade` header is served."""


def notice_stray(node: Node) -> None:
    """Record that a node's client sends outside of any hop, unless that is declared or the node has not served a hop."""
    if not (node.was_opened and node.opened.is_serving):
        return
    if is_detached.get() or plain_request.get():
        return
    _, place = where()
    strays = node.stray_sendings
    if (ROUTE, place) in strays or len(strays) >= _STRAYS_MAX:
        return
    strays[ROUTE, place] = (ROUTE, place, "is untracked")
    for hop in list(node.opened.running_hops.values()):
        hop.untracked(ROUTE, place)
    logger.warning(
        "a client of node %r sends outside of any hop, at %s. No cascade waits for that message, so the verdicts of all "
        "cascades through this node are `unknown` from now on. Send the message inside `async with hop.working(...)` of "
        "its hop or, if it does not belong to a hop, inside `with quiesce.detached():`", node.name, place,
    )  # fmt: skip
