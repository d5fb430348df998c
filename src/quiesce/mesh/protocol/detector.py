"""When has a cascade settled? States and transitions; no clock, no socket, no event loop.

A node's detector is told what happens, and answers with effects. What is to be written comes before what
it allows: whoever carries the effects out makes every `Write` last before the first effect that is none.
What holds:

1. The id of an edge is written before its bytes leave, by the sender; and before its handler runs, by
   the receiver. A receiver runs an id once, ever.
2. A hop is closed when its own work has ended and every edge that was sent from it is closed. Only
   then is there a receipt. A closed hop sends nothing.
3. An edge is closed by its receiver's receipt; by its receiver's word, written before it was given,
   that it never will run; by the sender's knowledge that not a byte left; or, never green, as opaque or
   unknown. There are no counts of messages and no times in this.
4. Whatever is said twice, late, or out of order changes nothing the second time.
5. After a restart, what was running is lost: its process is dead, and it is on record what was sent
   from it. Who keeps no journal says that it cannot know.
6. Who keeps no journal would also run, after a restart, a copy of a message that comes late. So its
   receipts say that they are volatile.
7. Who has taken an edge does not say afterwards that it never will run, also not when its receipt was taken.
   Whoever says so is another, at the same address, or has lost what it wrote: then it is unknown.
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
    Gone,
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
    EDGE_MOVES,
    NOTHING,
    EdgeRecord,
    EdgeState,
    HopRecord,
    HopState,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from quiesce.mesh.protocol.facts import Act, Effect, Record
    from quiesce.mesh.protocol.receipt import Status
    from quiesce.mesh.protocol.states import Sending

__all__: list[str] = []

_RUNNING, _OVER = HopState.RUNNING, HopState.OVER


class Detector(Knowledge):
    """All hops of one node, and the edges that were sent from them."""

    def __init__(self, name: str, *, lasting: bool) -> None:
        """Start with nothing known.

        Args:
            name: the node's, for people.
            lasting: whether what is written is there after a restart.
        """
        super().__init__(name)
        self._alone = Alone(name)
        self._lasting = lasting
        self.is_volatile: bool = False  # whether its journal cannot be written now
        self.boot: str = ""  # the run of the machine that it is in
        self.acts: list[Act] = []

    def take(self) -> list[Effect]:
        """Return what is to be done, in this order."""
        effects = [*map(Write, self.writes), *self.acts]
        self.writes.clear()
        self.acts.clear()
        return effects

    # The receiving side.

    def begin(self, edge: bytes, cascade: bytes, name: str = "") -> HopRecord:
        """Begin a cascade; the edge is the root's, and is never sent."""
        begun = Begun(edge, cascade, "", None, is_root=True, name=name)
        self.writes.append(begun)
        hop = self._hops[edge] = HopRecord(begun)
        return hop

    def arrive(self, edge: bytes, cascade: bytes, parent: str, reply: str | None) -> Answer:
        """Take an edge that has arrived; to be run if the answer is `run`, and only then (1).

        Nothing else is to be done for it.
        """
        hops = self._hops
        is_new = edge not in hops and edge not in self._over
        if is_new and edge not in self._long_over and edge not in self._frozen:
            begun = Begun(edge, cascade, parent, reply)
            self.writes.append(begun)
            hops[edge] = HopRecord(begun)
            return RUN
        known = self._known(edge)
        assert known is not None  # noqa: S101 - it is in one of them
        if known is WORKING:
            hops[edge].is_answered = True  # the first answer may be for one who has left
        return known

    def refuse(self, edge: bytes) -> Answer:
        """Take no edge that has arrived, now or later; unless it runs here already."""
        known = self._known(edge)
        if known is None:
            self._end(edge, None)
        return known or self._never()

    def withdraw(self, edge: bytes) -> None:
        """Forget a hop that was to begin: its record could not be written, and it was not run."""
        self._hops.pop(edge, None)
        self._stays.pop(edge, None)

    def forget(self, edge: bytes) -> bool:
        """Forget an edge that has just come to be over, and of which nobody was told; returns whether it was."""
        if edge not in self._over:
            return False
        del self._over[edge]
        self._stays.pop(edge, None)
        self.writes.append(Gone(edge))
        return True

    def _is_lasting(self) -> bool:
        return self._lasting and not self.is_volatile

    def _never(self) -> Answer:
        return NEVER if self._is_lasting() else NOT_NOW

    def _known(self, edge: bytes) -> Answer | None:
        hop = self._hops.get(edge)
        if hop is not None:
            return WORKING if hop.receipt is None else Answer("closed", hop.receipt)
        for over in (self._over, self._long_over, self._frozen):
            if edge in over:
                packed = over[edge]
                if packed == RAN:
                    return UNKNOWN  # who has taken its receipt does not ask: this is another (7)
                return self._never() if packed is None else Answer("closed", unpack(packed))
        return None

    def ask(self, edge: bytes, *, cancel: bool = False) -> Answer:
        """Return how an edge stands, for its sender; an edge that never came never will run (3)."""
        known = self._known(edge)
        if known is None:
            if not self._is_lasting():
                return UNKNOWN
            self._end(edge, None)
            return NEVER
        if known is WORKING:
            self._hops[edge].is_answered = True  # who was told does not ask again soon
            if cancel:
                self.cancel(self._hops[edge])
        return known

    def hop(self, edge: bytes) -> HopRecord:
        """Return the hop of an edge that runs here."""
        return self._hops[edge]

    def find(self, edge: bytes) -> HopRecord | None:
        """Return the hop of an edge, if it has not ended, or its receipt was not taken."""
        hop = self._hops.get(edge)
        return None if hop is None or hop.receipt is not None else hop

    def find_root(self, edge: bytes) -> HopRecord | None:
        """Return the root of a cascade that began here, if nobody was told of its end."""
        return self._hops.get(edge)

    def roots(self) -> list[HopRecord]:
        """Return the cascades that began here, and that nobody was told the end of."""
        return [hop for hop in self._hops.values() if hop.is_root]

    def knows(self, edge: bytes) -> bool:
        """Return whether an edge ever came, or was asked for."""
        return self._known(edge) is not None

    def is_open(self, edge: bytes) -> bool:
        """Return whether an edge that was sent from here is not closed."""
        return edge in self._edges

    def open_edges(self) -> list[tuple[bytes, str]]:
        """Return the edges that were sent from here, and are not closed, and whom they were sent to."""
        return [(edge, found.to) for edge, found in self._edges.items()]

    def receiver(self, edge: bytes) -> str | None:
        """Return whom an edge was sent to, if it is not closed."""
        found = self._edges.get(edge)
        return None if found is None else found.to

    def end(
        self, hop: HopRecord, status: Status, *, seconds: float | None = None, why: str = ""
    ) -> None:
        """Record that the work of a hop has ended: nothing of it runs, and it sends nothing more (2)."""
        if status not in ENDS:
            message = f"a hop ends as one of {', '.join(ENDS)}, not {status!r}"
            raise UsageError(message)
        hop.status, hop.seconds, hop.why = status, seconds, why
        if hop.edges:
            hop.move("ends, with edges open")
            self.writes.append(Ended(hop.edge, status, seconds, why))
        else:
            hop.move("ends")
            self._close(hop)

    def _close(self, hop: HopRecord) -> None:
        volatile = not self._is_lasting() and not hop.is_root  # a root never arrives again (6)
        own = edge_note(hop.edge, hop.parent, self.name, hop.status, hop.seconds, hop.why)
        receipt = hop.receipt = hop.tally.close(hop.status, own, volatile=volatile)
        self.writes.append(Closed(hop.edge, pack(receipt)))
        self._tell(hop, receipt)

    def _tell(self, hop: HopRecord, receipt: Receipt) -> None:
        if hop.is_root:
            self.acts.append(Settle(hop.edge, hop.cascade, receipt))
        elif hop.reply is not None and hop.is_answered:
            self.acts.append(Post(hop.edge, hop.reply, receipt))

    def taken(self, edge: bytes) -> None:
        """Record that the receipt of an edge was taken, for good; or that nobody waits for it.

        Of a root: that whoever waits for its cascade was told.
        """
        hop = self._hops.get(edge)
        if hop is not None and hop.state is HopState.CLOSED:
            hop.move("receipt is taken")
            del self._hops[edge]
            self._end(edge, RAN)

    def ride(self, edge: bytes) -> Answer:
        """Return what the answer to an edge's message says; from then on, a receipt is posted.

        To be asked for every edge that runs, also if nobody is there to be answered. One that has its
        receipt by then is not posted: if the answer is lost, the receipt is there for whoever asks.
        """
        hop = self._hops.get(edge)
        if hop is not None:
            hop.is_answered = True
            if hop.receipt is not None:
                hop.move("receipt is on the answer")
                del self._hops[edge]
                self._over[edge] = pack(hop.receipt)
                return Answer("closed", hop.receipt)
        return self._known(edge) or self._never()

    def finish(self, hop: HopRecord, microseconds: int, why: str = "") -> bytes | None:
        """Record that a hop is done whose answer is about to be sent: `end`, and `ride` on that answer.

        Return its receipt, packed. Most hops have handed nothing on, and then this takes a third of the time
        of both; of any other hop nothing is known after this that was not before, and it gives None.

        After a restart it is not posted either: whoever has sent the message was told nothing else, so he has
        its answer, or is in doubt, and asks.
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
        edge, hop.state = hop.edge, _OVER  # by way of being closed
        packed = self._over[edge] = self._alone.packed(edge, hop.parent, microseconds, why)
        del self._hops[edge]
        self.writes.append(Over(edge, packed))
        return packed

    def _add_unknown(self, hop: HopRecord) -> None:
        """Count a message that nobody may have written down."""
        why = "its agent may have sent messages that its journal does not have"
        made = edge_note(hop.edge, hop.parent, self.name, "unknown", None, why)
        receipt = not_run("unknown", made, volatile=False)
        hop.add(receipt)
        self.writes.append(Tallied(hop.edge, receipt))

    # The sending side.

    def send(self, hop: HopRecord, edge: bytes, to: str, by: float = 0) -> None:
        """Record that an edge is about to be sent from a hop (1).

        Raises:
            UsageError: the hop has ended.
        """
        if hop.state is not HopState.RUNNING:
            message = "the hop has ended, so no verdict would wait for what it sends now: send before its work has ended"
            raise UsageError(message)
        self.writes.append(Sent(hop.edge, edge, to, int(by)))
        self._edges[edge] = hop.edges[edge] = EdgeRecord(hop, to, by)

    def sent(self, edge: bytes, how: Sending, why: str = "") -> None:
        """Record what became of the sending; no byte of it leaves any more."""
        found = self._edges.get(edge)
        if found is None or found.state is not EdgeState.SENDING:
            return  # its receipt was faster than its answer
        if EDGE_MOVES[found.state, how] is EdgeState.OPEN:
            found.state = EdgeState.OPEN
            if how == "is taken":
                self._is_taken(edge, found)
            self.acts.append(
                Watch(edge, found.to, in_doubt=how == "is in doubt", cancel=found.hop.is_cancelled)
            )
        elif how == "is opaque":
            why = why or "it takes no part in the mesh, or a proxy drops the Cascade headers"
            self._close_edge(edge, found, how, "opaque", why)
        elif how == "is untracked":
            self._close_edge(edge, found, how, "untracked", why)
        else:
            status: Status = "unsent" if how == "is not sent" else "refused"
            self._close_edge(edge, found, how, status, "", volatile=how == "is refused, for now")

    def receive(self, edge: bytes, receipt: Receipt) -> None:
        """Take a receipt; one for an edge that is not open here changes nothing (4)."""
        found = self._edges.get(edge)
        if found is not None:
            self._closed(edge, found, "has a receipt", receipt)

    def told(self, edge: bytes, answer: Answer) -> None:
        """Take the answer of an edge's receiver to the question how it stands."""
        found = self._edges.get(edge)
        if found is None:
            return
        if answer.receipt is not None:
            self._closed(edge, found, "has a receipt", answer.receipt)
        elif answer.kind == "working":
            self._is_taken(edge, found)
        elif answer.kind == "never" and found.is_taken:  # nobody says so who has taken it (7)
            why = (
                "its agent took it, and does not know it now: another node has the address, the journal is gone,"
                " or a proxy drops the Cascade headers"
            )
            self._close_edge(edge, found, "is not known there", "unknown", why)
        elif answer.kind == "never":
            status: Status = "cancelled" if found.hop.is_cancelled else "undelivered"
            self._close_edge(edge, found, "never will run", status, "it never arrived")
        elif answer.kind in {"not now", "unknown"}:  # said of this life of its process alone (6)
            why = (
                "its agent does not know it: the agent has no journal, or a journal that is younger than the message, or"
                " remembers messages for less time than they may take; or another node took its receipt, or has the"
                " same address"
            )
            self._close_edge(edge, found, "is not known there", "unknown", why)

    def follows(self, edge: bytes) -> Iterator[tuple[bytes, str]]:
        """Return the open edges that follow from one that came or was sent, as far as they are known, and where to."""
        hop, sent = self._hops.get(edge), self._edges.get(edge)
        if hop is not None:
            for one, found in hop.edges.items():
                yield one, found.to
                yield from found.below
        elif sent is not None:
            yield from sent.below

    def learn(self, edge: bytes, to: str, below: tuple[tuple[bytes, str], ...]) -> None:
        """Take the word of an edge's receiver on what follows from it."""
        found = self._edges.get(edge)
        if found is not None and found.to == to:
            found.below = below

    def _is_taken(self, edge: bytes, found: EdgeRecord) -> None:
        if not found.is_taken:
            found.is_taken = True
            self.writes.append(Taken(edge))  # also the next process is not to believe `never` (7)

    def begin_by(self, edge: bytes) -> float | None:
        """Return until when an edge that was sent from here may begin; None if it is closed."""
        found = self._edges.get(edge)
        return None if found is None else found.by

    def give_up(self, edge: bytes, why: str) -> None:
        """Record that the receiver of an edge was not heard of for too long."""
        found = self._edges.get(edge)
        if found is not None:
            end = "; it may not have been told to end" if found.hop.is_cancelled else ""
            self._close_edge(edge, found, "is given up", "unknown", why + end)

    def _close_edge(
        self,
        edge: bytes,
        found: EdgeRecord,
        event: str,
        status: Status,
        why: str,
        *,
        volatile: bool = False,
    ) -> None:
        made = edge_note(edge, edge_mark(found.hop.edge), found.to, status, None, why)
        self._closed(edge, found, event, not_run(status, made, volatile=volatile))

    def _closed(self, edge: bytes, found: EdgeRecord, event: str, receipt: Receipt) -> None:
        hop, watched = found.hop, found.state is EdgeState.OPEN
        found.state = EDGE_MOVES[found.state, event]
        del self._edges[edge], hop.edges[edge]
        self.writes.append(EdgeClosed(edge, receipt))
        if watched:
            self.acts.append(Unwatch(edge))
        hop.add(receipt)
        if not hop.edges and hop.state is HopState.WAITING:
            hop.move("last edge is closed")
            self._close(hop)

    # Cancelling.

    def cancel(self, hop: HopRecord) -> None:
        """Cancel a hop, and all that was handed on from it; it settles as it would anyway."""
        if hop.is_cancelled or hop.receipt is not None:
            return
        hop.is_cancelled = True
        self.writes.append(Cancelled(hop.edge))  # the next process is to go on with it
        if hop.state is HopState.RUNNING:
            self.acts.append(Stop(hop.edge))
        for edge, found in hop.edges.items():
            if found.state is EdgeState.OPEN:
                self.acts.append(Watch(edge, found.to, cancel=True))

    # After a restart.

    @property
    def has_all(self) -> bool:
        """Whether its journal has all that the process before has done."""
        return self.born is None or self.born.boot in {"", self.boot}

    def restore(self, records: Iterable[Record]) -> None:
        """Take up what a process before this one has written; it is known to be dead (5)."""
        for record in records:
            self._replay(record)
        for hop in list(self._hops.values()):
            if hop.state is HopState.RUNNING:
                if not self.has_all:
                    self._add_unknown(hop)
                self.end(hop, "lost", why="its process stopped before it was done")
            elif hop.state is HopState.WAITING and not hop.edges:
                hop.move("last edge is closed")
                self._close(hop)
            elif hop.receipt is not None:
                self._tell(hop, hop.receipt)
        for edge, found in self._edges.items():
            if found.state is EdgeState.SENDING:
                found.state = EDGE_MOVES[found.state, "is in doubt"]
            self.acts.append(Watch(edge, found.to, in_doubt=True, cancel=found.hop.is_cancelled))
