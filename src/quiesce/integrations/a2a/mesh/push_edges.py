"""Pushes as messages of the hop whose work they tell of.

1. The edge of a push is taken before the push is in the outbox, and its header is kept there with it.
2. Every attempt is made with the same edge, until its receiver has said that it took that one, or never
   will. If the push has to be sent again after that, it is with an edge of its own.
3. A push that waits keeps its hop from ending, so that there can be another edge. What is left for the next
   start does not: its edge is in doubt then, and asked for; the next start sends it with that edge, unless
   its receiver has said meanwhile that it never will take it.
4. An edge is closed as one that was not sent only if no attempt has reached a server.
5. Where pushes go is for clients to say, and what has an edge is asked for receipts, by other means than
   pushes are sent. So only configured peers, and the node's own origin, are sent edges and asked; others
   are opaque, and so is all that a sender of the user's own sends.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import httpcore

from quiesce.core.hold import NOTHING, Hold
from quiesce.errors import QuiesceError, RemoteProtocolError
from quiesce.integrations.a2a.push.push_post import Refused, receiver
from quiesce.mesh.protocol import codec
from quiesce.mesh.runtime.delegation import Handing

if TYPE_CHECKING:
    from quiesce.integrations.a2a.mesh.message_hops import MeshTracker
    from quiesce.integrations.a2a.push.push_outbox import Push
    from quiesce.mesh.runtime.hop import Hop
    from quiesce.mesh.runtime.node import Node

__all__: list[str] = []

_log = logging.getLogger("quiesce.a2a")
_CONFLICT = 409
_ELSEWHERE = "webhook "
_NOT_CONNECTED = (httpcore.ConnectError, httpcore.ConnectTimeout)


class PushEdges:
    """The edges of the pushes of one server."""

    def __init__(self, node: Node, tracker: MeshTracker) -> None:
        self._node = node
        self._tracker = tracker
        self._held: set[PushEdge] = set()

    def take(self, push: Push) -> None:
        """Take the edge of a push that is about to be written (1), if it tells of the work of a hop."""
        hop = self._tracker.hop_of(push.task_id)
        if hop is None:
            return
        try:
            to = self._node._policy.node_of(push.url)
            if not push.url:
                to = f"{_ELSEWHERE}of a sender of the agent's own"
            elif not self._node._policy.allows(to):
                to = f"{_ELSEWHERE}{receiver(push.url)}"  # not an address
            edge = PushEdge(self, hop, hop.delegate(to))
        except (
            QuiesceError,
            ValueError,
        ):  # it cannot be written, or is not a URL: the post fails by itself
            _log.warning("a push of task %s is sent outside of its cascade", push.task_id)
            return
        push.edge, push.cascade = edge, edge.header

    def restore(self, push: Push) -> None:
        """Go on with the edge of a push that a process before this one has written."""
        try:
            handed = codec.parse_request_header(push.cascade)
            self._node._check()
            known = self._node._engine.detector._edges.get(handed.edge)
        except QuiesceError:
            known = None
        if known is None:  # it is closed: what is sent now is not part of that cascade any more
            push.cascade = ""
            return
        handing = Handing.__new__(Handing)
        handing._node, handing._edge, handing._resolved = self._node, handed.edge, False
        handing.to, handing._header, handing._uses = known.to, push.cascade, 1
        push.edge = PushEdge(self, None, handing)

    def close(self) -> None:
        """Keep no hop from ending any more (3)."""
        for edge in tuple(self._held):
            edge.let_go()


class PushEdge:
    """The edge of one push."""

    def __init__(self, edges: PushEdges, hop: Hop | None, handing: Handing) -> None:
        self._edges = edges
        self._hop = hop
        self._handing: Handing | None = handing
        self._is_unsent = True
        self._hold: Hold | None = None
        self._answer: tuple[int, str | None] | None = None
        self._tried = False
        self._to = handing.to
        self._is_peer = not handing.to.startswith(_ELSEWHERE)  # (5)
        if hop is not None:
            # Also in one that is told to end, which admits nothing else: it tells of that very end (3).
            self._hold = Hold(hop, "push", handing.to, NOTHING, hop._code, 0)
            hop._insert(self._hold, self._hold)
            edges._held.add(self)

    @property
    def header(self) -> str:
        """What the next attempt is sent with; empty: nothing, as its receiver is not to know (5)."""
        return "" if self._handing is None or not self._is_peer else self._handing._header

    # An attempt.

    def begin(self) -> None:
        """Record that an attempt is about to be made."""
        self._answer = None
        self._tried = True
        if self._handing is not None:
            self._handing._uses += 1

    def heard(self, status: int, header: str | None) -> None:
        """Record the head of the answer."""
        self._answer = (status, header)

    def taken(self) -> None:
        """Record that the push was taken."""
        if self._handing is not None:
            _, header = self._answer or (0, None)
            self._handing.answered(header if self._is_peer else None)

    def failed(self, error: BaseException) -> bool:
        """Record that an attempt has failed; True if the push was taken all the same, before."""
        handing, tried = self._handing, self._tried
        self._tried = False
        if handing is None or not tried:
            return False
        status, header = self._answer or (0, None)
        if header is None or not self._is_peer:
            self._count(status, error)
            return False
        try:
            told = codec.parse_response_header(header, handing._edge)
        except RemoteProtocolError:
            self._is_unsent = False
            return False
        handing.told(told.answer, must_ask=told.must_ask)
        receipt = told.answer.receipt
        ran = told.answer.kind == "working" or (receipt is not None and receipt.status == "done")
        if ran and status == _CONFLICT:  # the answer to an attempt before was lost
            return True
        self._renew()
        return False

    def _count(self, status: int, error: BaseException) -> None:
        """Record whether the attempt has reached a server (4)."""
        unconnected = isinstance(error, Refused) or isinstance(error.__cause__, _NOT_CONNECTED)
        self._is_unsent = self._is_unsent and not status and unconnected

    def _renew(self) -> None:
        """Take another edge (2), if there is still a hop that it would be one of."""
        self._handing, self._is_unsent = None, True
        if self._hop is not None and not self._hop._ended:
            try:
                self._handing = self._hop.delegate(self._to)
            except QuiesceError:
                _log.warning("a push is sent outside of its cascade")

    def relayed(self) -> None:
        """Record that a sender of the user's own has it, which does not say where it sends it (5)."""
        if self._handing is not None:
            self._handing.answered(None)

    # Its end.

    def over(self) -> None:
        """Record that the push will not be sent any more."""
        handing = self._handing
        if handing is not None:
            if self._is_unsent:
                handing.not_sent()
            elif self._is_peer:
                handing.in_doubt()
            else:
                handing.answered(None)
        self.let_go()

    def let_go(self) -> None:
        """Keep the hop from ending no more (3)."""
        self._edges._held.discard(self)
        if self._hold is not None:
            self._hold.release()
