"""A node's knowledge of its edges: the tables, how entries age, and how they are written and restored.

The detector decides the state of each edge. This module stores the states, and makes records of them. Invariants:

1. The records of `snapshot` restore the same knowledge as all records that were written before.
2. An ended edge is forgotten at the second call of `age` after its end, but not before its `Stay` time.
"""

from __future__ import annotations

from itertools import chain
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
from quiesce.mesh.protocol.receipt import edge_key, pack, unpack
from quiesce.mesh.protocol.states import NOTHING, EdgeRecord, HopRecord, HopState

if TYPE_CHECKING:
    from collections.abc import Iterator

    from quiesce.mesh.protocol.facts import Record

__all__: list[str] = []


class Knowledge:
    """All hops of one node, and the edges that were sent from them."""

    def __init__(self, name: str) -> None:
        self.name: str = name
        self.hop_records: dict[bytes, HopRecord] = {}
        self.edge_records: dict[bytes, EdgeRecord] = {}
        self.over_receipts: dict[bytes, bytes | None] = {}  # receipts, packed
        self.long_over_receipts: dict[bytes, bytes | None] = {}
        self.frozen_receipts: dict[bytes, bytes | None] = {}  # a compaction reads these
        self.keep: float = 0.0  # how many seconds arrived edges are remembered, as promised
        self.born: Born | None = None  # the journal, if there is one
        self.aged_at: float | None = None  # when `age` was called the last time, since 1970
        self._stays: dict[bytes, int] = {}  # edges that are remembered longer, until this time
        self.writes: list[Record] = []  # the engine takes the records when it writes them

    def end_edge(self, edge: bytes, packed: bytes | None) -> None:
        self.over_receipts[edge] = packed
        self.writes.append(Over(edge, packed))

    def promise(self, keep: float) -> None:
        """Record how long arrived edges are remembered."""
        if keep != self.keep:
            self.keep = keep
            self.writes.append(Keep(keep))

    def bear(self, at: float, key: str, boot: str = "") -> None:
        """Record that the journal is complete from this time on, and has no earlier events."""
        self.born = Born(self.name, at, key, boot)
        self.writes.append(self.born)

    def stay(self, edge: bytes, by: int) -> None:
        """Remember an edge at least until the time `by`."""
        self._stays[edge] = by
        self.writes.append(Stay(edge, by))

    def age(self, at: float) -> None:
        """Forget the edges that had ended before the last call, except those to stay beyond `at`.

        The caller knows that no copies of their messages and no questions about them can come any more.
        """
        self._rotate(at)
        self.writes.append(Aged(at))
        for edge, hop in list(self.hop_records.items()):
            if hop.receipt is not None and not hop.is_root:  # its sender has ended, or asks in time
                hop.enter(HopState.OVER)
                del self.hop_records[edge]
                self.end_edge(edge, pack(hop.receipt))

    def _rotate(self, at: float) -> None:
        self.aged_at = at
        forgotten = self.long_over_receipts
        self.unfreeze()  # the draft of a compaction is dropped now
        self.long_over_receipts, self.over_receipts = self.over_receipts, {}
        if self._stays:
            self._stays = {edge: by for edge, by in self._stays.items() if by + DRIFT_SECONDS >= at}
            self.over_receipts |= {
                edge: forgotten[edge] for edge in self._stays if edge in forgotten
            }

    def freeze(self) -> None:
        """Leave the receipts of ended edges as they are, for a compaction that reads them."""
        self.frozen_receipts, self.over_receipts = self.over_receipts, {}

    def unfreeze(self) -> None:
        """End the freeze: the frozen receipts change and age like the others again."""
        if self.frozen_receipts:
            self.frozen_receipts.update(self.over_receipts)
            self.over_receipts, self.frozen_receipts = self.frozen_receipts, {}

    def tables_of_receipts(self) -> tuple[dict[bytes, bytes | None], ...]:
        """Return all tables with the receipts of ended edges."""
        return (self.over_receipts, self.long_over_receipts, self.frozen_receipts)

    def head(self) -> list[Record]:
        """Return the records that are not about one edge, for the beginning of a file."""
        made: list[Record] = [] if self.born is None else [self.born]
        if self.keep:
            made.append(Keep(self.keep))
        if self.aged_at is not None:
            made.append(Aged(self.aged_at, rotates=False))
        return [*made, *(Stay(edge, by) for edge, by in self._stays.items())]

    def snapshot(self) -> Iterator[Record]:
        """Yield records that restore the present knowledge, in place of all earlier records."""
        yield from self.head()
        for over in (self.long_over_receipts, self.frozen_receipts, self.over_receipts):
            for edge, packed in over.items():
                yield Over(edge, packed, over is self.long_over_receipts)
        for hop in self.hop_records.values():
            yield from self.records_of(hop.edge)
            for edge, sent in hop.edges.items():
                yield from self.records_of_sent(edge, sent)

    def records_of_sent(self, edge: bytes, sent: EdgeRecord) -> list[Record]:
        """Return the records that restore one open edge that this node has sent."""
        made: list[Record] = [Sent(sent.hop.edge, edge, sent.to, int(sent.by))]
        return [*made, Taken(edge)] if sent.is_taken else made

    def records_of(self, edge: bytes) -> list[Record]:
        """Return the records that restore one arrived edge, without the edges that were sent from it."""
        hop = self.hop_records.get(edge)
        if hop is None:
            return [Over(edge, over[edge]) for over in self.tables_of_receipts() if edge in over]
        begun = Begun(
            hop.edge,
            hop.cascade,
            hop.parent,
            hop.reply,
            is_root=hop.is_root,
            name=hop.name,
            at=hop.at,
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

    def withdraw(self, edge: bytes) -> None:
        """Forget a new hop that did not run, because its record could not be written."""
        self.hop_records.pop(edge, None)
        self._stays.pop(edge, None)

    def forget(self, edge: bytes) -> bool:
        """Forget an edge that has just ended, if no node was told of it; return whether it was forgotten."""
        if edge not in self.over_receipts:
            return False
        del self.over_receipts[edge]
        self._stays.pop(edge, None)
        self.writes.append(Gone(edge))
        return True

    def hop(self, edge: bytes) -> HopRecord:
        """Return the hop of an edge that runs here."""
        return self.hop_records[edge]

    def find(self, edge: bytes) -> HopRecord | None:
        """Return the hop of an edge, if the hop has not ended or its receipt was not delivered; else None."""
        hop = self.hop_records.get(edge)
        return None if hop is None or hop.receipt is not None else hop

    def find_root(self, edge: bytes) -> HopRecord | None:
        """Return the root of a cascade that began here, if its verdict was not delivered; else None."""
        return self.hop_records.get(edge)

    def roots(self) -> list[HopRecord]:
        """Return the cascades started by this node whose verdict has not been delivered yet."""
        return [hop for hop in self.hop_records.values() if hop.is_root]

    def is_open(self, edge: bytes) -> bool:
        """Return whether this node has sent an edge that is not closed yet."""
        return edge in self.edge_records

    def is_taken(self, edge: bytes) -> bool:
        """Return whether an edge is open, and its receiver has said that it has the message."""
        found = self.edge_records.get(edge)
        return found is not None and found.is_taken

    def open_edges(self) -> list[tuple[bytes, str]]:
        """Return the open edges that this node has sent, each with its receiver."""
        return [(edge, found.to) for edge, found in self.edge_records.items()]

    def count_handed_on(self) -> int:
        """Return the number of open edges that this node has sent for cascades of other nodes."""
        return sum(not found.hop.is_root for found in self.edge_records.values())

    def receiver(self, edge: bytes) -> str | None:
        """Return the receiver of an open edge that this node has sent; None if it is closed."""
        found = self.edge_records.get(edge)
        return None if found is None else found.to

    def follows(self, edge: bytes) -> Iterator[tuple[bytes, str]]:
        """Yield the known open edges that follow from an edge, each with its receiver."""
        hop, sent = self.hop_records.get(edge), self.edge_records.get(edge)
        if hop is not None:
            for one, found in hop.edges.items():
                yield one, found.to
                yield from found.below
        elif sent is not None:
            yield from sent.below

    def learn(self, edge: bytes, to: str, below: tuple[tuple[bytes, str], ...]) -> None:
        """Record the receiver's statement about the edges that follow from an edge."""
        found = self.edge_records.get(edge)
        if found is not None and found.to == to:
            found.below = below

    def begin_by(self, edge: bytes) -> float | None:
        """Return the time until which an edge of this node may begin; None if the edge is closed."""
        found = self.edge_records.get(edge)
        return None if found is None else found.by

    def ids_of(self, keys: set[bytes]) -> dict[bytes, bytes]:
        """Return the ids of the hops with some keys, by key. This looks at every edge that the node remembers."""
        edges = chain(self.hop_records, *self.tables_of_receipts())
        return {key: edge for edge in edges if (key := edge_key(edge)) in keys}

    # After a restart.

    def replay(self, record: Record) -> None:
        """Restore one record. Set its state directly: the step was checked before it was written."""
        match record:
            case Begun():
                begun = self.hop_records[record.edge] = HopRecord(record)
                begun.is_answered = True  # after a restart, no sender waits for the first answer
            case Sent() | Taken() | EdgeClosed():
                self._replay_sent(record)
            case Keep() | Born() | Aged() | Stay() | Counted():
                self._replay_times(record)
            case Over(edge, over_with, is_long):
                self.hop_records.pop(edge, None)
                (self.long_over_receipts if is_long else self.over_receipts)[edge] = over_with
            case Gone(edge):
                self.hop_records.pop(edge, None)
                self.over_receipts.pop(edge, None)
                self._stays.pop(edge, None)
            case Tallied(edge, receipt):
                self.hop_records[edge].add(receipt)
            case Ended(edge, status, seconds, why):
                ended = self.hop_records[edge]
                ended.status, ended.seconds, ended.why = status, seconds, why
                ended.state = HopState.WAITING
            case Cancelled(edge):
                self.hop_records[edge].is_cancelled = True
            case Closed(edge, packed):
                closed = self.hop_records[edge]
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
                sender = self.hop_records[hop]
                self.edge_records[edge] = sender.edges[edge] = EdgeRecord(sender, to, by)
            case Taken(edge):
                self.edge_records[edge].is_taken = True
            case EdgeClosed(edge, receipt):
                found = self.edge_records.pop(edge)
                del found.hop.edges[edge]
                found.hop.add(receipt)
