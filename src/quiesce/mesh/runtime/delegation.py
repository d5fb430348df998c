"""One message to another agent: its edge, from before the message is sent until its fate is known."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from quiesce.core.tree import logger
from quiesce.errors import RemoteProtocolError, UsageError
from quiesce.mesh.protocol import codec
from quiesce.mesh.protocol.facts import WORKING
from quiesce.mesh.protocol.receipt import edge_mark
from quiesce.mesh.runtime.peers import peers_of

if TYPE_CHECKING:
    from types import TracebackType

    from quiesce.mesh.protocol.facts import Answer
    from quiesce.mesh.protocol.states import Sending
    from quiesce.mesh.runtime.open_node import OpenNode

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
    """One message that is handed to another agent; made by `Hop.delegate()`.

    `opened` is the node that sends the message, and `edge` the message's id, whose record is written.

    Inside the block, call `answered()` or `not_sent()`. If neither was called, the message is in doubt at the
    end of the block, and the node asks the receiver about it.
    """

    __slots__ = (
        "edge_id", "header_text", "is_resolved", "is_written", "opened", "to", "use_count",
    )  # fmt: skip

    def __init__(self, opened: OpenNode, edge: bytes, to: str, header: str, uses: int = 0) -> None:
        """Describe a message that may be sent now."""
        self.opened: OpenNode = opened
        self.edge_id: bytes = edge
        self.header_text: str = header
        self.is_resolved: bool = False
        self.is_written: bool = opened.shared is None
        """Whether the record of the message has lasted, so that the message may leave."""
        self.to: str = to
        """The agent that receives the message."""
        self.use_count: int = uses
        """How often code has read the header, and so may have sent the message."""

    @property
    def header(self) -> str:
        """The value of the header `Cascade` to send with the message. A secret of sender and receiver.

        *Raises*: `UsageError` if the node shares its store with others, and the record of the message has not lasted.
        """
        if not self.is_written:
            message = (
                f"the message to {self.to} may not leave yet: its record is on its way to the shared store of node"
                f" {self.opened.name!r}. Use `async with hop.delegate(...)`, or `await handing.written()` first"
            )
            raise UsageError(message)
        self.use_count += 1
        return self.header_text

    async def written(self) -> None:
        """Wait until the message may leave: until its record has lasted. With a file that is so at once.

        *Cancel safety*: if cancelled, the message is not sent.

        *Raises*: `StoreLost` if the shared store does not write in time; the message must not be sent then.
        """
        if not self.is_written:
            try:
                await self.opened.written()
            except BaseException:
                self.not_sent()
                raise
            self.is_written = True

    @property
    def mark(self) -> str:
        """The name of the message in settlements and logs."""
        return edge_mark(self.edge_id)

    @property
    def headers(self) -> dict[str, str]:
        """The header, to be sent with the message."""
        return {codec.REQUEST_HEADER: self.header}

    def answered(
        self, header: str | bytes | None, *, is_error: bool = False, status: int = 0
    ) -> None:
        """Record the receiver's answer.

        Args:
            header: the value of `Cascade-Receipt`. None: the answer has no such header. Then the node asks the
                receiver if it is a peer; any other receiver counts as an agent that takes no part.
            is_error: whether the answer is an error. An error without a header may come from a proxy, and the
                receiver may have the message; so the node asks the receiver, unless it is known to take no part.
                Any other answer proves that the receiver has the message. If the receiver then does not know the
                edge, the header `Cascade` was lost on the way.
            status: the HTTP status of the error, for verdicts.
        """
        if header is None:
            if is_error:
                self.note_error_status(status)
                self.resolve_sending("is in doubt")
            elif not self.opened.node.policy.allows(self.to):
                self.resolve_sending("is opaque")
            else:
                self.told(WORKING, must_ask=True)
            return
        try:
            told = codec.parse_response_header(header, self.edge_id)
        except RemoteProtocolError as error:
            logger.warning("the answer of %s to %s: %s", self.to, self.mark, error)
            self.resolve_sending("is in doubt")
        else:
            peers_of(self.opened.node).learn(self.to)
            self.told(told.answer, must_ask=told.must_ask)

    def told(self, answer: Answer, *, must_ask: bool = False) -> None:
        """Record the receiver's answer, if it did not come as a header."""
        if not self.is_resolved:
            self.is_resolved = True
            how, uses = RESULTS[answer.kind], self.use_count
            if answer.kind == "not now" and must_ask:
                how = "is in doubt"  # the receiver may have accepted a copy: ask it
            self.opened.note_answer(
                self.edge_id, self.to, answer, how, must_ask=must_ask, uses=uses
            )

    def not_sent(self) -> None:
        """Record that no byte of the message was sent, for example because the connection failed."""
        self.resolve_sending("is not sent")

    def in_doubt(self) -> None:
        """Record that the message may or may not have arrived, so that the node asks the receiver."""
        self.resolve_sending("is in doubt")

    def note_error_status(self, status: int) -> None:
        """Record the status of an error that does not say whether the message was taken."""
        sent = self.opened.engine.known.edge_records.get(self.edge_id)
        if sent is not None and status:
            sent.error_status = status

    def resolve_sending(self, how: Sending, why: str = "") -> None:
        if not self.is_resolved:
            self.is_resolved = True
            if how == "is in doubt" and self.opened.node.policy.is_opaque(self.to):
                how = "is opaque"  # the receiver has no node that could be asked
            self.opened.resolve_edge(self.edge_id, self.to, how, why)

    async def __aenter__(self) -> Self:
        """Wait until the message may leave, as `written()` does; return this object."""
        await self.written()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Mark the message as in doubt if no answer was recorded."""
        self.in_doubt()

    def __enter__(self) -> Self:
        """Return this object."""
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Mark the message as in doubt if no answer was recorded."""
        self.in_doubt()

    def __repr__(self) -> str:
        """Return the mark and the receiver, without the message's id, which is a secret."""
        return f"<Handing {self.mark} to {self.to}>"
