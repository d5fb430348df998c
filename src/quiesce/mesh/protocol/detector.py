"""Decides when a cascade has settled: states and transitions, without clock, socket or event loop.

The node passes events to its detector, and the detector returns effects. The node must make all `Write` effects
durable before it carries out any other effect. Invariants:

1. The sender writes the id of an edge before it sends the message. The receiver writes the id before the
   handler runs. A receiver runs an id only once.
2. A hop is closed when its own work has ended and every edge that was sent from it is closed. Only
   then does it have a receipt. A closed hop sends no messages.
3. An edge is closed by one of these: the receiver's receipt; the receiver's statement, written first, that the
   edge never will run; the sender's knowledge that no byte was sent; or, without a green verdict, as opaque or
   unknown. Neither message counts nor times decide this.
4. A repeated, late or reordered statement changes nothing the second time.
5. After a restart, work that was running is lost: its process is dead, and the journal has the edges that
   were sent from it. A node without a journal answers that it cannot know.
6. After a restart, a node without a journal would also run a late copy of a message. So its receipts say
   that they are volatile.
7. A receiver that has accepted an edge does not answer `never` afterwards, even when its receipt was delivered.
   If an address answers so, it is another node, or it has lost its journal: then the edge is unknown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce.errors import UsageError
from quiesce.mesh.protocol.facts import (
    NEVER,
    NOT_NOW,
    RAN,
    RUN,
    UNKNOWN,
    WORKING,
    Answer,
    Begun,
    Cancelled,
    Closed,
    EdgeClosed,
    Ended,
    Over,
    Post,
    Sent,
    Settle,
    Stop,
    Taken,
    Tallied,
    Unwatch,
    Watch,
    Write,
)
from quiesce.mesh.protocol.knowledge import Knowledge
from quiesce.mesh.protocol.receipt import (
    ENDS,
    Alone,
    Receipt,
    edge_mark,
    edge_note,
    not_run,
    pack,
    unpack,
)
from quiesce.mesh.protocol.states import (
    HOP_LIFE,
    NOTHING,
    EdgeRecord,
    EdgeState,
    HopRecord,
    HopState,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from quiesce.mesh.protocol.facts import Act, Effect, Record
    from quiesce.mesh.protocol.receipt import Status
    from quiesce.mesh.protocol.states import Sending

__all__: list[str] = []

_RUNNING, _OVER = HopState.RUNNING, HopState.OVER
# Checked here once, because every request takes this step.
_OVER_AT_ONCE = HOP_LIFE.step(_RUNNING, _OVER)


class Detector:
    """The states of all hops of one node, and of the edges that were sent from them."""

    def __init__(self, name: str, *, lasting: bool) -> None:
        """Start with nothing known.

        Args:
            name: the node's name, for people.
            lasting: whether written records survive a restart.
        """
        self.known: Knowledge = Knowledge(name)
        self._alone = Alone(name)
        self._lasting = lasting
        self.is_volatile: bool = False  # whether its journal cannot be written now
        self.is_shared: bool = (
            False  # whether receipts reach senders in its store, which need no address
        )
        self.boot: str = ""  # the id of the machine's present boot
        self.acts: list[Act] = []

    def take(self) -> list[Effect]:
        """Return the effects to carry out, in this order."""
        effects = [*map(Write, self.known.writes), *self.acts]
        self.known.writes.clear()
        self.acts.clear()
        return effects

    # The receiving side.

    def begin(
        self, edge: bytes, cascade: bytes, name: str = "", at: float | None = None
    ) -> HopRecord:
        """Begin a cascade, at a time of day; the edge is the root's, and is never sent."""
        begun = Begun(edge, cascade, "", None, is_root=True, name=name, at=at)
        self.known.writes.append(begun)
        hop = self.known.hop_records[edge] = HopRecord(begun)
        return hop

    def arrive(self, edge: bytes, cascade: bytes, parent: str, reply: str | None) -> Answer:
        """Record an edge that has arrived. The caller runs it if, and only if, the answer is `run` (1).

        This makes no effects.
        """
        known = self.known
        hops = known.hop_records
        is_new = edge not in hops and edge not in known.over_receipts
        if is_new and edge not in known.long_over_receipts and edge not in known.frozen_receipts:
            begun = Begun(edge, cascade, parent, reply)
            known.writes.append(begun)
            hops[edge] = HopRecord(begun)
            return RUN
        answer = self._answer_about(edge)
        assert answer is not None  # noqa: S101 - it is in one of them
        if answer is WORKING:
            hops[edge].is_answered = True  # the first copy's sender may have left
        return answer

    def refuse(self, edge: bytes) -> Answer:
        """Refuse an edge that has arrived, now and later, unless it already runs here."""
        known = self._answer_about(edge)
        if known is None:
            self.known.end_edge(edge, None)
        return known or self._never()

    def _is_lasting(self) -> bool:
        return self._lasting and not self.is_volatile

    def _never(self) -> Answer:
        return NEVER if self._is_lasting() else NOT_NOW

    def _answer_about(self, edge: bytes) -> Answer | None:
        hop = self.known.hop_records.get(edge)
        if hop is not None:
            return WORKING if hop.receipt is None else Answer("closed", hop.receipt)
        for over in self.known.tables_of_receipts():
            if edge in over:
                packed = over[edge]
                if packed == RAN:
                    return UNKNOWN  # the sender has the receipt and would not ask: another node asks (7)
                return self._never() if packed is None else Answer("closed", unpack(packed))
        return None

    def ask(self, edge: bytes, *, cancel: bool = False) -> Answer:
        """Answer a sender's query about an edge. If the edge never arrived, refuse it for good (3)."""
        known = self._answer_about(edge)
        if known is None:
            if not self._is_lasting():
                return UNKNOWN
            self.known.end_edge(edge, None)
            return NEVER
        if known is WORKING:
            self.known.hop_records[edge].is_answered = True  # the sender will not ask again soon
            if cancel:
                self.cancel(self.known.hop_records[edge])
        return known

    def knows(self, edge: bytes) -> bool:
        """Return whether an edge has ever arrived or a sender has asked for it."""
        return self._answer_about(edge) is not None

    def end(
        self, hop: HopRecord, status: Status, *, seconds: float | None = None, why: str = ""
    ) -> None:
        """Record that a hop's own work has ended. It runs no code and sends no messages after this (2)."""
        if status not in ENDS:
            message = f"the status of an ended hop must be one of {', '.join(ENDS)}, not {status!r}"
            raise UsageError(message)
        hop.status, hop.seconds, hop.why = status, seconds, why
        if hop.edges:
            hop.enter(HopState.WAITING)
            self.known.writes.append(Ended(hop.edge, status, seconds, why))
        else:
            self._close(hop)

    def _close(self, hop: HopRecord) -> None:
        hop.enter(HopState.CLOSED)
        volatile = not self._is_lasting() and not hop.is_root  # a root never arrives again (6)
        own = edge_note(hop.edge, hop.parent, self.known.name, hop.status, hop.seconds, hop.why)
        receipt = hop.receipt = hop.tally.close(hop.status, own, volatile=volatile)
        self.known.writes.append(Closed(hop.edge, pack(receipt)))
        self._tell(hop, receipt)

    def _tell(self, hop: HopRecord, receipt: Receipt) -> None:
        if hop.is_root:
            self.acts.append(Settle(hop.edge, hop.cascade, receipt))
        elif hop.is_answered and (hop.reply is not None or self.is_shared):
            self.acts.append(Post(hop.edge, hop.reply or "", receipt))

    def taken(self, edge: bytes) -> None:
        """Record that the receipt of an edge was delivered, or that no node waits for it.

        For a root: record that the verdict of the cascade was delivered.
        """
        hop = self.known.hop_records.get(edge)
        if hop is not None and hop.state is HopState.CLOSED:
            hop.enter(_OVER)
            del self.known.hop_records[edge]
            # In a shared store the receipt is on its way to its replica, which may ask before it has read it.
            packed = pack(hop.receipt) if self.is_shared and hop.receipt is not None else RAN
            self.known.end_edge(edge, packed)

    def ride(self, edge: bytes) -> Answer:
        """Return the content of the answer to a message. A receipt that is made later will be posted.

        Call this for every edge that runs, even if the sender has left. If the hop already has its receipt, the
        answer carries the receipt and it is not posted. If the answer is lost, the sender asks for the receipt.
        """
        hop = self.known.hop_records.get(edge)
        if hop is not None:
            hop.is_answered = True
            if hop.receipt is not None:
                hop.enter(_OVER)
                del self.known.hop_records[edge]
                packed = pack(hop.receipt)
                if self.is_shared:
                    self.known.end_edge(edge, packed)  # else its row would stay for ever
                else:
                    self.known.over_receipts[edge] = packed
                return Answer("closed", hop.receipt)
        return self._answer_about(edge) or self._never()

    def finish(self, hop: HopRecord, microseconds: int, why: str = "") -> bytes | None:
        """Record that a hop is done whose answer will be sent now: the same as `end()` and then `ride()`.

        Return the packed receipt. Most hops have sent no message, and for them this takes a third of the time
        of the two calls. For any other hop, do nothing and return None.

        The receipt is not posted after a restart either. The sender has no other answer, so it has this one, or is
        in doubt and asks.
        """
        is_alone = hop.state is _RUNNING and hop.tally is NOTHING and not hop.edges
        if (
            not is_alone
            or hop.is_answered
            or hop.is_cancelled
            or hop.is_root
            or not self._is_lasting()
        ):
            return None
        edge, hop.state = hop.edge, _OVER_AT_ONCE
        known, packed = self.known, self._alone.packed(edge, hop.parent, microseconds, why)
        known.over_receipts[edge] = packed
        del known.hop_records[edge]
        known.writes.append(Over(edge, packed))
        return packed

    def _add_unknown(self, hop: HopRecord) -> None:
        """Add an unknown message to the receipt, because the journal may lack messages that the hop has sent."""
        why = "its agent may have sent messages that its journal does not have"
        made = edge_note(hop.edge, hop.parent, self.known.name, "unknown", None, why)
        receipt = not_run("unknown", made, volatile=False)
        hop.add(receipt)
        self.known.writes.append(Tallied(hop.edge, receipt))

    # The sending side.

    def send(self, hop: HopRecord, edge: bytes, to: str, by: float = 0) -> None:
        """Record that a hop will send an edge now (1).

        Raises:
            UsageError: the hop has ended.
        """
        if hop.state is not HopState.RUNNING:
            message = "the hop has ended, so no verdict would wait for what it sends now: send before its work has ended"
            raise UsageError(message)
        self.known.writes.append(Sent(hop.edge, edge, to, int(by)))
        self.known.edge_records[edge] = hop.edges[edge] = EdgeRecord(hop, to, by)

    def sent(self, edge: bytes, how: Sending, why: str = "") -> None:
        """Record the outcome of a sending. No more bytes of the message are sent after this."""
        found = self.known.edge_records.get(edge)
        if found is None or found.state is not EdgeState.SENDING:
            return  # the receipt came before the answer
        if how in {"is taken", "is in doubt"}:
            found.enter(EdgeState.OPEN)
            if how == "is taken":
                self._is_taken(edge, found)
            self.acts.append(
                Watch(edge, found.to, in_doubt=how == "is in doubt", cancel=found.hop.is_cancelled)
            )
        elif how == "is opaque":
            why = why or "it takes no part in the mesh, or a proxy drops the Cascade headers"
            self._close_edge(edge, found, "opaque", why)
        elif how == "is untracked":
            self._close_edge(edge, found, "untracked", why)
        else:
            status: Status = "unsent" if how == "is not sent" else "refused"
            self._close_edge(edge, found, status, "", volatile=how == "is refused, for now")

    def receive(self, edge: bytes, receipt: Receipt) -> None:
        """Record a receipt; ignore one for an edge that is not open here (4)."""
        found = self.known.edge_records.get(edge)
        if found is not None:
            self._closed(edge, found, receipt)

    def told(self, edge: bytes, answer: Answer) -> None:
        """Record the receiver's answer to a question about an edge."""
        found = self.known.edge_records.get(edge)
        if found is None:
            return
        if answer.receipt is not None:
            self._closed(edge, found, answer.receipt)
        elif answer.kind == "working":
            self._is_taken(edge, found)
        elif answer.kind == "never" and found.is_taken:  # the same receiver would not (7)
            why = (
                "its agent took it, and does not know it now: another node has the address, the journal is gone,"
                " or a proxy drops the Cascade headers"
            )
            self._close_edge(edge, found, "unknown", why)
        elif answer.kind == "never":
            status: Status = "cancelled" if found.hop.is_cancelled else "undelivered"
            self._close_edge(edge, found, status, "it never arrived")
        elif answer.kind in {"not now", "unknown"}:  # may change at a restart (6)
            why = (
                "its agent does not know it: the agent has no journal, or a journal that is younger than the message, or"
                " remembers messages for less time than they may take; or another node took its receipt, or has the"
                " same address"
            )
            self._close_edge(edge, found, "unknown", why)

    def _is_taken(self, edge: bytes, found: EdgeRecord) -> None:
        if not found.is_taken:
            found.is_taken = True
            self.known.writes.append(Taken(edge))  # the next process must not believe `never` (7)

    def give_up(self, edge: bytes, why: str) -> None:
        """Record that the receiver of an edge has not answered for too long."""
        found = self.known.edge_records.get(edge)
        if found is not None:
            end = "; it may not have been told to end" if found.hop.is_cancelled else ""
            self._close_edge(edge, found, "unknown", why + end)

    def _close_edge(
        self,
        edge: bytes,
        found: EdgeRecord,
        status: Status,
        why: str,
        *,
        volatile: bool = False,
    ) -> None:
        made = edge_note(edge, edge_mark(found.hop.edge), found.to, status, None, why)
        self._closed(edge, found, not_run(status, made, volatile=volatile))

    def _closed(self, edge: bytes, found: EdgeRecord, receipt: Receipt) -> None:
        hop, watched = found.hop, found.state is EdgeState.OPEN
        found.enter(EdgeState.CLOSED)
        del self.known.edge_records[edge], hop.edges[edge]
        self.known.writes.append(EdgeClosed(edge, receipt))
        if watched:
            self.acts.append(Unwatch(edge))
        hop.add(receipt)
        if not hop.edges and hop.state is HopState.WAITING:
            self._close(hop)

    # Cancelling.

    def cancel(self, hop: HopRecord) -> None:
        """Cancel a hop and all work that was handed on from it. The hop still ends in the usual way."""
        if hop.is_cancelled or hop.receipt is not None:
            return
        hop.is_cancelled = True
        self.known.writes.append(Cancelled(hop.edge))  # the next process goes on with it
        if hop.state is HopState.RUNNING:
            self.acts.append(Stop(hop.edge))
        for edge, found in hop.edges.items():
            if found.state is EdgeState.OPEN:
                self.acts.append(Watch(edge, found.to, cancel=True))

    # After a restart.

    @property
    def has_all(self) -> bool:
        """Whether the journal has everything that the earlier process has done."""
        return self.known.born is None or self.known.born.boot in {"", self.boot}

    def restore(self, records: Iterable[Record]) -> None:
        """Restore the records of an earlier process, which is known to be dead (5)."""
        before = set(
            self.known.hop_records
        )  # empty, unless a replica takes over the work of another
        for record in records:
            self.known.replay(record)
        hops = [hop for edge, hop in self.known.hop_records.items() if edge not in before]
        for hop in hops:
            if hop.state is HopState.RUNNING:
                if not self.has_all:
                    self._add_unknown(hop)
                self.end(hop, "lost", why="its process stopped before it was done")
            elif hop.state is HopState.WAITING and not hop.edges:
                self._close(hop)
            elif hop.receipt is not None:
                self._tell(hop, hop.receipt)
        for edge, found in (item for hop in hops for item in hop.edges.items()):
            if found.state is EdgeState.SENDING:
                found.enter(EdgeState.OPEN)
            self.acts.append(Watch(edge, found.to, in_doubt=True, cancel=found.hop.is_cancelled))
