"""Handing a message to another agent: its edge, from before its bytes leave until its end is known."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from quiesce.core.tree import logger
from quiesce.errors import RemoteProtocolError
from quiesce.mesh.protocol import codec
from quiesce.mesh.protocol.facts import WORKING
from quiesce.mesh.protocol.receipt import edge_mark
from quiesce.mesh.runtime.peers import peers_of

if TYPE_CHECKING:
    from types import TracebackType

    from quiesce.mesh.protocol.facts import Answer
    from quiesce.mesh.protocol.states import HopRecord, Sending
    from quiesce.mesh.runtime.node import Node

__all__ = ["Handing"]

RESULTS: dict[str, Sending] = {
    "run": "is taken",
    "working": "is taken",
    "closed": "is taken",
    "never": "is refused",
    "not now": "is refused, for now",
    "unknown": "is in doubt",
}


class Handing:
    """One message that is being handed to another agent; made by `HopRecord.delegate()`.

    Unless it was told how the receiver has answered, or that nothing was sent, the message is in doubt
    at the end of the block, and the receiver is asked.
    """

    __slots__ = ("_edge", "_header", "_hop", "_node", "_resolved", "_uses", "to")

    def __init__(self, node: Node, hop: HopRecord, to: str) -> None:
        """Write it down: nothing has left before that."""
        self._node = node
        self._hop = hop
        self._resolved = False
        self.to: str = to
        """The agent that it is handed to."""
        self._uses = 0
        self._edge, self._header = node._send(hop, to)

    @property
    def header(self) -> str:
        """What goes along with the message, to be sent as the header `Cascade`. A secret of the two."""
        self._uses += 1
        return self._header

    @property
    def mark(self) -> str:
        """What the message is called in settlements and logs."""
        return edge_mark(self._edge)

    @property
    def headers(self) -> dict[str, str]:
        """The header, to be sent with the message."""
        return {codec.REQUEST_HEADER: self.header}

    def answered(
        self, header: str | bytes | None, *, is_error: bool = False, status: int = 0
    ) -> None:
        """Record how the receiver has answered.

        Args:
            header: the value of `Cascade-Receipt`. None: there was none. Then an agent that is none of the node's
                peers takes no part, and a peer is asked.
            is_error: whether it was an error. One without a header may be that of something else, like a proxy, and
                the message may be worked on: the receiver is asked, unless it is known to take no part. Anything
                else is of the agent, which has the message: if it does not know of it, what came along was lost on
                the way.
            status: the HTTP status of the error, for verdicts.
        """
        if header is None:
            if is_error:
                self._answered_with(status)
                self._resolve("is in doubt")
            elif not self._node._policy.allows(self.to):
                self._resolve("is opaque")
            else:
                self.told(WORKING, must_ask=True)
            return
        try:
            told = codec.parse_response_header(header, self._edge)
        except RemoteProtocolError as error:
            logger.warning("the answer of %s to %s: %s", self.to, self.mark, error)
            self._resolve("is in doubt")
        else:
            peers_of(self._node).learn(self.to)
            self.told(told.answer, must_ask=told.must_ask)

    def told(self, answer: Answer, *, must_ask: bool = False) -> None:
        """Record how the receiver has answered, if the answer came by other means than a header."""
        if not self._resolved:
            self._resolved = True
            how, uses = RESULTS[answer.kind], self._uses
            if answer.kind == "not now" and must_ask:
                how = "is in doubt"  # a copy may be taken, or may not: its receiver can tell
            self._node._answered(self._edge, self.to, answer, how, must_ask=must_ask, uses=uses)

    def not_sent(self) -> None:
        """Record that not a byte of it has left: it could not be connected, for instance."""
        self._resolve("is not sent")

    def in_doubt(self) -> None:
        """Record that it is not known whether it has arrived; the receiver is asked."""
        self._resolve("is in doubt")

    def _answered_with(self, status: int) -> None:
        """Record the status of an error that does not say whether the message was taken."""
        sent = self._hop.edges.get(self._edge)
        if sent is not None and status:
            sent.error_status = status

    def _resolve(self, how: Sending) -> None:
        if not self._resolved:
            self._resolved = True
            if how == "is in doubt" and self._node._policy.is_opaque(self.to):
                how = "is opaque"  # nobody there could be asked
            self._node._resolve(self._edge, self.to, how)

    def __enter__(self) -> Self:
        """Return the handing itself."""
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Leave it in doubt, if nothing is known of it."""
        self.in_doubt()

    def __repr__(self) -> str:
        """Name it without its id, which is a secret."""
        return f"<Handing {self.mark} to {self.to}>"
