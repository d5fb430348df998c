"""Pushes as messages of the hop whose work they report.

1. The edge of a push is opened before the push is written to the outbox. The outbox keeps the edge's header
   with the push.
2. Every attempt uses the same edge, until the receiver has accepted the edge or refused it for good. If the
   push has to be sent again after that, it gets a new edge.
3. A waiting push keeps its hop open, so that the push can get a new edge. A push that is left for the next
   start does not: its edge is in doubt, and the node queries the receiver about it. The next start sends
   the push with the same edge, unless the receiver has refused that edge for good.
4. A push leaves only after the record of its edge has lasted. An edge is resolved as `not sent` only if no attempt has reached a server.
5. Clients choose the URLs of pushes, and the node queries the receiver of an edge over another connection
   than the push's. So the node gives edges only to configured peers and to its own origin. All other
   receivers are opaque, and so is every push that the user's own sender sends.
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
_OPAQUE_PREFIX = "webhook "
_NOT_CONNECTED = (httpcore.ConnectError, httpcore.ConnectTimeout)


class PushEdges:
    """The edges of the pushes of one server."""

    def __init__(self, node: Node, tracker: MeshTracker) -> None:
        self._node = node
        self._tracker = tracker
        self.held_edges: set[PushEdge] = set()

    def take(self, push: Push) -> None:
        """Open the edge of a push that is about to be written (1), if the push reports work of a hop."""
        hop = self._tracker.hop_of(push.task_id)
        if hop is None:
            return
        try:
            to = self._node.policy.node_of(push.url)
            if not push.url:
                to = f"{_OPAQUE_PREFIX}of a sender of the agent's own"
            elif not self._node.policy.allows(to):
                to = f"{_OPAQUE_PREFIX}{receiver(push.url)}"  # a name, not an address
            edge = PushEdge(self, hop, hop.delegate(to))
        except (QuiesceError, ValueError) as error:  # the journal failed, or the URL is not valid
            _log.warning(
                "a push of task %s is sent outside of its cascade, because its edge cannot be opened: %r",
                push.task_id, error,
            )  # fmt: skip
            return
        push.edge, push.cascade = edge, edge.header

    def restore(self, push: Push) -> None:
        """Restore the edge of a push that an earlier process has written."""
        try:
            handed = codec.parse_request_header(push.cascade)
            self._node.opened.check_accepts()
            edge = self._node.opened.name_of(handed.edge)
            known = self._node.opened.engine.known.edge_records.get(edge)
        except QuiesceError:
            known = None
        if known is None:  # the edge is resolved: the push is sent outside of the cascade
            push.cascade = ""
            return
        if self._node.opened.shared is not None:
            self._node.opened.shared.names.keep(handed.edge)
        handing = Handing(self._node.opened, edge, known.to, push.cascade, uses=1)
        push.edge = PushEdge(self, None, handing)

    def close(self) -> None:
        """Release the hops of all waiting pushes (3)."""
        for edge in tuple(self.held_edges):
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
        self._is_withheld = False  # because the record of its edge has not lasted
        self._to = handing.to
        self._is_peer = not handing.to.startswith(_OPAQUE_PREFIX)  # (5)
        if hop is not None:
            # A hop that is being cancelled admits this hold, though no other: the push reports its end (3).
            self._hold = Hold(hop, "push", handing.to, NOTHING, hop.place_code, 0)
            hop.insert_hold(self._hold, self._hold)
            edges.held_edges.add(self)

    @property
    def header(self) -> str:
        """The header for the next attempt; empty if the receiver is opaque, and so gets no edge (5)."""
        return "" if self._handing is None or not self._is_peer else self._handing.header_text

    # An attempt.

    async def written(self) -> None:
        """Wait until the push may leave: until the record of its edge has lasted.

        *Cancel safety*: if cancelled, the push is not sent.

        *Raises*: `StoreLost` if a shared store does not write in time. The next attempt has a new edge.
        """
        handing = self._handing
        if handing is None and self._is_withheld:
            self._renew()
            handing = self._handing
        self._is_withheld = False
        if handing is None or handing.is_written:
            return
        try:
            await handing.written()
        except BaseException:
            self._handing, self._is_withheld = None, True
            raise

    def begin(self) -> None:
        """Record that an attempt is about to be made."""
        self._answer = None
        self._tried = True
        if self._handing is not None:
            self._handing.use_count += 1

    def heard(self, status: int, header: str | None) -> None:
        """Record the head of the answer."""
        self._answer = (status, header)

    def taken(self) -> None:
        """Record that the receiver has accepted the push."""
        if self._handing is not None:
            _, header = self._answer or (0, None)
            self._handing.answered(header if self._is_peer else None)

    def failed(self, error: BaseException) -> bool:
        """Record that an attempt has failed; return True if the receiver had accepted an earlier attempt."""
        handing, tried = self._handing, self._tried
        self._tried = False
        if handing is None or not tried:
            return False
        status, header = self._answer or (0, None)
        if header is None or not self._is_peer:
            self._note_unsent(status, error)
            return False
        try:
            told = codec.parse_response_header(header, handing.edge_id)
        except RemoteProtocolError:
            self._is_unsent = False
            return False
        handing.told(told.answer, must_ask=told.must_ask)
        receipt = told.answer.receipt
        ran = told.answer.kind == "working" or (receipt is not None and receipt.status == "done")
        if ran and status == _CONFLICT:  # the answer to an earlier attempt was lost
            return True
        self._renew()
        return False

    def _note_unsent(self, status: int, error: BaseException) -> None:
        """Record whether a failed attempt may have reached a server (4)."""
        unconnected = isinstance(error, Refused) or isinstance(error.__cause__, _NOT_CONNECTED)
        self._is_unsent = self._is_unsent and not status and unconnected

    def _renew(self) -> None:
        """Open a new edge for the push (2), if its hop is still open."""
        self._handing, self._is_unsent = None, True
        if self._hop is not None and not self._hop.has_ended:
            try:
                self._handing = self._hop.delegate(self._to)
            except QuiesceError as error:
                _log.warning(
                    "a push to %s is sent outside of its cascade, because its new edge cannot be"
                    " opened: %s", self._to, error,
                )  # fmt: skip

    async def relayed(self) -> None:
        """Record that the user's own sender gets the push; where it sends the push is not known (5)."""
        try:
            await self.written()
        except (
            QuiesceError
        ) as error:  # the sender is called once, and so gets the push all the same
            _log.warning("a push is sent outside of its cascade: %s", error)
            if self._hop is not None:
                self._hop.untracked("push", self._to)
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
        """Release the hop (3)."""
        self._edges.held_edges.discard(self)
        if self._hold is not None:
            self._hold.release()
