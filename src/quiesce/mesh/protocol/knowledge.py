"""What a node knows of its edges: the tables, how they age, and how they are written and restored.

The detector decides what becomes of an edge; this keeps it, and makes records of it. What holds:

1. What `snapshot` gives restores the same knowledge as all records that were written until then.
2. An edge that is over is forgotten when `age` was called twice since then, and not before the time until which it
   is to stay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce.mesh.protocol.facts import (
    Aged,
    Begun,
    Born,
    Cancelled,
    Closed,
    Counted,
    EdgeClosed,
    Ended,
    Gone,
    Keep,
    Over,
    Sent,
    Stay,
    Taken,
    Tallied,
)
from quiesce.mesh.protocol.horizon import DRIFT_SECONDS
from quiesce.mesh.protocol.receipt import pack, unpack
from quiesce.mesh.protocol.states import NOTHING, EdgeRecord, HopRecord, HopState

if TYPE_CHECKING:
    from collections.abc import Iterator

    from quiesce.mesh.protocol.facts import Record

__all__: list[str] = []


class Knowledge:
    """All hops of one node, and the edges that were sent from them."""

    def __init__(self, name: str) -> None:
        """Start with nothing known."""
        self.name: str = name
        self._hops: dict[bytes, HopRecord] = {}
        self._edges: dict[bytes, EdgeRecord] = {}
        self._over: dict[bytes, bytes | None] = {}  # receipts, packed
        self._long_over: dict[bytes, bytes | None] = {}
        self._frozen: dict[bytes, bytes | None] = {}  # those of `_over` that a compaction reads
        self.keep: float = 0.0  # how long it was promised to remember what came
        self.born: Born | None = None  # the journal, if there is one
        self.aged_at: float | None = None  # when `age` was called the last time, since 1970
        self._stays: dict[bytes, int] = {}  # edges that are remembered until a time of their own
        self.writes: list[Record] = []  # the engine empties it when it writes them

    def _end(self, edge: bytes, packed: bytes | None) -> None:
        self._over[edge] = packed
        self.writes.append(Over(edge, packed))

    def promise(self, keep: float) -> None:
        """Write for how long what came is remembered."""
        if keep != self.keep:
            self.keep = keep
            self.writes.append(Keep(keep))

    def bear(self, at: float, key: str, boot: str = "") -> None:
        """Write that the journal knows all that happens from this time on, and not what was before."""
        self.born = Born(self.name, at, key, boot)
        self.writes.append(self.born)

    def stay(self, edge: bytes, by: int) -> None:
        """Remember an edge until a time of its own, and not forget it before."""
        self._stays[edge] = by
        self.writes.append(Stay(edge, by))

    def age(self, at: float) -> None:
        """Forget the edges that were over when this was called the last time.

        The caller knows that no copy of their messages comes any more, and no question; except for those
        that are to stay until a time which is not over at `at`.
        """
        self._rotate(at)
        self.writes.append(Aged(at))
        for edge, hop in list(self._hops.items()):
            if hop.receipt is not None and not hop.is_root:  # its sender asks, or is gone for good
                hop.move("nobody takes its receipt")
                del self._hops[edge]
                self._end(edge, pack(hop.receipt))

    def _rotate(self, at: float) -> None:
        self.aged_at = at
        forgotten = self._long_over
        if self._frozen:  # of a compaction, whose draft is dropped now
            self._frozen.update(self._over)
            self._over, self._frozen = self._frozen, {}
        self._long_over, self._over = self._over, {}
        if self._stays:
            self._stays = {edge: by for edge, by in self._stays.items() if by + DRIFT_SECONDS >= at}
            self._over |= {edge: forgotten[edge] for edge in self._stays if edge in forgotten}

    def head(self) -> list[Record]:
        """Return records of what is known of no single edge, for the beginning of a file."""
        made: list[Record] = [] if self.born is None else [self.born]
        if self.keep:
            made.append(Keep(self.keep))
        if self.aged_at is not None:
            made.append(Aged(self.aged_at, rotates=False))
        return [*made, *(Stay(edge, by) for edge, by in self._stays.items())]

    def snapshot(self) -> Iterator[Record]:
        """Return records from which all that is known now can be restored, in place of those before."""
        yield from self.head()
        for over in (self._long_over, self._frozen, self._over):
            for edge, packed in over.items():
                yield Over(edge, packed, over is self._long_over)
        for hop in self._hops.values():
            yield from self.records_of(hop.edge)
            for edge, sent in hop.edges.items():
                yield from self.records_of_sent(edge, sent)

    def records_of_sent(self, edge: bytes, sent: EdgeRecord) -> list[Record]:
        """Return the same of one edge that was sent, and is open."""
        made: list[Record] = [Sent(sent.hop.edge, edge, sent.to, int(sent.by))]
        return [*made, Taken(edge)] if sent.is_taken else made

    def records_of(self, edge: bytes) -> list[Record]:
        """Return the same of one edge that came, except for the edges that were sent from it."""
        hop = self._hops.get(edge)
        if hop is None:
            tables = (self._over, self._long_over, self._frozen)
            return [Over(edge, over[edge]) for over in tables if edge in over]
        begun = Begun(
            hop.edge, hop.cascade, hop.parent, hop.reply, is_root=hop.is_root, name=hop.name
        )
        records: list[Record] = [begun]
        if hop.tally is not NOTHING:
            records.append(Tallied(hop.edge, hop.tally.sum()))
        if hop.is_cancelled:
            records.append(Cancelled(hop.edge))
        if hop.receipt is not None:
            records.append(Closed(hop.edge, pack(hop.receipt)))
        elif hop.state is HopState.WAITING:
            records.append(Ended(hop.edge, hop.status, hop.seconds, hop.why))
        return records

    # After a restart.

    def _replay(self, record: Record) -> None:
        match record:
            case Begun():
                begun = self._hops[record.edge] = HopRecord(record)
                begun.is_answered = True  # or nobody is there to be answered
            case Sent() | Taken() | EdgeClosed():
                self._replay_sent(record)
            case Keep() | Born() | Aged() | Stay() | Counted():
                self._replay_times(record)
            case Over(edge, over_with, is_long):
                self._hops.pop(edge, None)
                (self._long_over if is_long else self._over)[edge] = over_with
            case Gone(edge):
                self._hops.pop(edge, None)
                self._over.pop(edge, None)
                self._stays.pop(edge, None)
            case Tallied(edge, receipt):
                self._hops[edge].add(receipt)
            case Ended(edge, status, seconds, why):
                ended = self._hops[edge]
                ended.status, ended.seconds, ended.why = status, seconds, why
                ended.state = HopState.WAITING
            case Cancelled(edge):
                self._hops[edge].is_cancelled = True
            case Closed(edge, packed):
                closed = self._hops[edge]
                closed.receipt, closed.state = unpack(packed), HopState.CLOSED

    def _replay_times(self, record: Keep | Born | Aged | Stay | Counted) -> None:
        match record:
            case Keep(seconds):
                self.keep = seconds
            case Born():
                self.born = record
            case Aged(at, rotates):
                if rotates:
                    self._rotate(at)
                self.aged_at = at
            case Stay(edge, by):
                self._stays[edge] = by

    def _replay_sent(self, record: Sent | Taken | EdgeClosed) -> None:
        match record:
            case Sent(hop, edge, to, by):
                sender = self._hops[hop]
                self._edges[edge] = sender.edges[edge] = EdgeRecord(sender, to, by)
            case Taken(edge):
                self._edges[edge].is_taken = True
            case EdgeClosed(edge, receipt):
                found = self._edges.pop(edge)
                del found.hop.edges[edge]
                found.hop.add(receipt)
