"""The names of edges in a node: their ids or, if the node shares its store, their keys.

The id of an edge is a secret that lets its holder end the edge, and close it. It is not in a shared store, so a replica
that takes over work knows only the key, which follows from the id. So a node with a shared store names all edges by
their keys, and knows the ids of the edges that it has seen itself. With a key in place of an id, a caller may ask for an
edge and end it; only the id lets it report a receipt.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from quiesce.mesh.protocol.facts import UNKNOWN
from quiesce.mesh.protocol.receipt import KEY_BYTES, edge_key

if TYPE_CHECKING:
    from collections.abc import Callable

    from quiesce.mesh.protocol.knowledge import Knowledge
    from quiesce.mesh.protocol.scheduler import NodeCall, NodeReply

__all__: list[str] = []


class EdgeNames:
    """The ids of the edges that a node with a shared store has seen."""

    def __init__(self) -> None:
        self._ids: dict[bytes, bytes] = {}

    def keep(self, edge: bytes) -> bytes:
        """Remember the id of an edge; return its name."""
        name = edge_key(edge)
        self._ids[name] = edge
        return name

    def drop(self, name: bytes) -> None:
        """Forget the id of an edge that is over."""
        self._ids.pop(name, None)

    def id_of(self, name: bytes) -> bytes:
        """Return the id of an edge if it is known, else its name."""
        return self._ids.get(name, name)

    def is_known(self, name: bytes) -> bool:
        """Return whether the id of an edge is known."""
        return name in self._ids

    def outgoing(self, call: NodeCall) -> NodeCall:
        """Return a call to another node with ids in place of names, where they are known."""
        ids = self._ids
        receipts = tuple((ids[name], one) for name, one in call.receipts if name in ids)
        asks = tuple((ids.get(name, name), cancel) for name, cancel in call.asks)
        return replace(call, receipts=receipts, asks=asks)

    def incoming(self, call: NodeCall) -> NodeCall:
        """Return a call of another node with names in place of ids."""
        receipts = tuple(
            (edge_key(edge), one) for edge, one in call.receipts if len(edge) != KEY_BYTES
        )
        asks = tuple((edge_key(edge), cancel) for edge, cancel in call.asks)
        return replace(call, receipts=receipts, asks=asks)

    @staticmethod
    def named(reply: NodeReply) -> NodeReply:
        """Return the answer to a call with names in place of the ids that this node has asked with."""
        taken = tuple(map(edge_key, reply.taken))
        answers = tuple((edge_key(edge), one) for edge, one in reply.answers)
        below = tuple((edge_key(edge), edge_key(one), to) for edge, one, to in reply.below)
        return replace(reply, taken=taken, answers=answers, below=below)


def answer_as_asked(call: NodeCall, reply: NodeReply) -> NodeReply:
    """Return an answer with each edge as the caller has named it."""
    asked = {edge_key(edge): edge for edge, _ in call.asks}
    asked |= {edge_key(edge): edge for edge, _ in call.receipts}
    taken = tuple(asked.get(edge, edge) for edge in reply.taken)
    answers = tuple((asked.get(edge, edge), one) for edge, one in reply.answers)
    below = tuple((asked.get(edge, edge), one, to) for edge, one, to in reply.below)
    return replace(reply, taken=taken, answers=answers, below=below)


def answer_keys(
    call: NodeCall, known: Knowledge, answer: Callable[[NodeCall], NodeReply]
) -> NodeReply:
    """Answer a call to a node that names edges by ids, if the call may have keys in place of ids.

    A key comes from a replica that has taken over from the edge's sender. The node cannot tell whether an edge with an
    unknown key will come, because a message has its id alone.
    """
    keys = {edge for edge, _ in call.asks if len(edge) == KEY_BYTES}
    receipts = tuple(pair for pair in call.receipts if len(pair[0]) != KEY_BYTES)
    if not keys and len(receipts) == len(call.receipts):
        return answer(call)
    ids = known.ids_of(keys)
    asks = tuple(
        (ids.get(edge, edge), cancel)
        for edge, cancel in call.asks
        if edge not in keys or edge in ids
    )
    reply = answer(replace(call, receipts=receipts, asks=asks))
    answers = dict(reply.answers)
    told = [(edge, answers.pop(ids[edge]) if edge in ids else UNKNOWN) for edge in keys]
    return replace(reply, answers=(*answers.items(), *told))
