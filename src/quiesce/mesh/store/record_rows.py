"""Turns the records of a node into rows of a shared store, and rows back into records.

A row's body has the lines of the records about its edge, in their order. So a row restores one side of one edge, each
record changes one row, and rows need no compaction. Rules:

1. A row of a sent edge stays, with its receipt, until the hop that has sent the edge is closed: the receipt of the hop
   includes those of its edges. Rows that are left behind by a hop that is closed are not restored.
2. The row of a hop that is over has only its last record, with the receipt: for a copy of the message, for a sender whose
   receipt is still on its way, and for a ledger that asks for the verdict of a root.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from quiesce.errors import JournalBroken, QuiesceError
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
from quiesce.mesh.protocol.receipt import unpack
from quiesce.mesh.store.record_format import record_line, record_of
from quiesce.mesh.store.rows import EdgeRow

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from quiesce.mesh.protocol.facts import Record
    from quiesce.mesh.protocol.receipt import Receipt, Status
    from quiesce.mesh.store.rows import Batch, Side

__all__: list[str] = []

Place = tuple["Side", bytes]
_KEPT = object()


class RecordRows:
    """The rows of one incarnation that are not over.

    Args:
        agent: The name of the node.
        owner: The incarnation.
        wall: A function that returns the time of day, in seconds since 1970.
        keep: A function that returns for how many seconds a row that is over has to stay.
    """

    def __init__(
        self, agent: str, owner: str, wall: Callable[[], float], keep: Callable[[], float]
    ) -> None:
        """Begin without rows."""
        self._agent = agent
        self._owner = owner
        self._wall = wall
        self._keep = keep
        self._rows: dict[Place, EdgeRow] = {}
        self._sent: dict[bytes, list[bytes]] = {}  # by hop: the edges that it has sent
        self._stays: dict[bytes, int] = {}
        # What the next batch changes. A row that is here is put or, if it is None, removed.
        self._changed: dict[Place, EdgeRow | None] = {}

    @property
    def is_changed(self) -> bool:
        """Whether rows were changed since the last `take_changes`."""
        return bool(self._changed)

    def take_changes(self, batch: Batch) -> None:
        """Add the changed rows to a batch."""
        for (side, key), row in self._changed.items():
            if row is None:
                batch.drops.append((side, key))
            else:
                batch.puts.append(row)
        self._changed = {}

    def claim_of(self, record: Begun | Over) -> EdgeRow:
        """Return the row that claims an edge for a first record: to run it, or to refuse it for good."""
        if isinstance(record, Begun):
            return self._new("hop", record, record.edge, record.cascade)
        row = self._new("hop", record, record.edge, b"")
        return replace(row, state="over", keep_until=self._until(record.edge))

    def claimed(self, row: EdgeRow) -> None:
        """Record that a claim was won, so that its row is in the store."""
        if row.state != "over":
            self._rows["hop", row.key] = row

    def give_back(self, row: EdgeRow) -> None:
        """Remove the row of a claim that was won, because its message did not begin to run."""
        self._rows.pop(("hop", row.key), None)
        self._changed["hop", row.key] = None

    def is_given_back(self, key: bytes) -> bool:
        """Return whether the next batch removes the row of a message."""
        return self._changed.get(("hop", key), _KEPT) is None

    @property
    def is_empty(self) -> bool:
        """Whether no row is left that is not over."""
        return not self._rows

    def inherit(self, rows: Iterable[EdgeRow]) -> None:
        """Own rows of a dead incarnation from now on."""
        for row in rows:
            place: Place = (row.side, row.key)
            if place not in self._rows:
                self._rows[place] = self._changed[place] = replace(row, owner=self._owner)
                if row.side == "sent":
                    self._sent.setdefault(row.above, []).append(row.key)

    def add(self, records: Iterable[Record]) -> None:
        """Change the rows by records that the node has made."""
        for record in records:
            if isinstance(record, Begun):
                if ("hop", record.edge) not in self._rows:  # else it was claimed with this record
                    self._set(self._new("hop", record, record.edge, record.cascade))
            elif isinstance(record, Sent):
                self._add_sent(record)
            elif isinstance(record, Taken | EdgeClosed):
                self._append("sent", record.edge, record, is_closed=isinstance(record, EdgeClosed))
            elif isinstance(record, Tallied | Ended | Cancelled | Closed):
                self._append("hop", record.edge, record, is_closed=isinstance(record, Closed))
                if isinstance(record, Closed):
                    self._drop_sent(record.edge)
            else:
                self._add_other(record)

    def _add_sent(self, record: Sent) -> None:
        row = self._new("sent", record, record.edge, self._cascade_of(record.hop))
        self._sent.setdefault(record.hop, []).append(record.edge)
        self._set(replace(row, above=record.hop))

    def _add_other(self, record: Over | Gone | Stay | Keep | Born | Aged | Counted) -> None:
        match record:
            case Over(edge):
                self._end(record)
                self._drop_sent(edge)
            case Gone(edge):
                self._rows.pop(("hop", edge), None)
                self._changed["hop", edge] = None
            case Stay(edge, by):
                self._stays[edge] = by
            case Keep() | Born() | Aged() | Counted():
                pass  # each row says for itself how long it stays

    def _cascade_of(self, hop: bytes) -> bytes:
        row = self._rows.get(("hop", hop))
        return b"" if row is None else row.cascade

    def _new(self, side: Side, record: Record, edge: bytes, cascade: bytes) -> EdgeRow:
        root = record.name if isinstance(record, Begun) and record.is_root else None
        return EdgeRow(
            key=edge, side=side, agent=self._agent, owner=self._owner, cascade=cascade, root=root, began_at=self._wall(),
            body=record_line(record),
        )  # fmt: skip

    def _set(self, row: EdgeRow) -> None:
        self._rows[row.side, row.key] = self._changed[row.side, row.key] = row

    def _append(self, side: Side, edge: bytes, record: Record, *, is_closed: bool = False) -> None:
        row = self._rows.get((side, edge))
        if row is not None:  # else the hop above it is over
            state = "closed" if is_closed else row.state
            self._set(replace(row, state=state, body=row.body + record_line(record)))

    def _drop_sent(self, hop: bytes) -> None:
        """Remove the rows of the edges that a hop has sent: its receipt, in the same batch, includes theirs (1)."""
        for edge in self._sent.pop(hop, ()):
            del self._rows["sent", edge]
            self._changed["sent", edge] = None

    def _end(self, record: Over) -> None:
        row = self._rows.pop(("hop", record.edge), None)
        if row is None:
            row = self._new("hop", record, record.edge, b"")
        until, body = self._until(record.edge), record_line(record)
        self._changed["hop", record.edge] = replace(row, state="over", keep_until=until, body=body)

    def _until(self, edge: bytes) -> float:
        until = self._wall() + self._keep()
        stay = self._stays.pop(edge, None)
        return until if stay is None else max(until, stay + DRIFT_SECONDS)


def records_of_rows(rows: Iterable[EdgeRow]) -> list[Record]:
    """Return the records that restore some rows of one incarnation, in an order in which they can be restored.

    *Raises*: `JournalBroken` if a row is damaged.
    """
    hops = [row for row in rows if row.side == "hop"]
    is_open = {row.key for row in hops if row.state == "open"}
    sent = [row for row in rows if row.side == "sent" and row.above in is_open]  # (1)
    first: list[Record] = []
    last: list[Record] = []
    for row in hops:
        begun, *later = _records_of(row)
        first.append(begun)
        last += later  # the end of a hop comes after the edges that it has sent
    for row in sent:
        first += _records_of(row)
    return first + last


def _records_of(row: EdgeRow) -> list[Record]:
    try:
        return [record_of(line) for line in row.body.splitlines(keepends=True)]
    except (LookupError, RecursionError, TypeError, ValueError, QuiesceError) as error:
        message = f"the row {row.key.hex()} of {row.agent!r} in the store is damaged ({error}): restore the store"
        raise JournalBroken(message) from error


def receipt_of_row(row: EdgeRow) -> Receipt | None:
    """Return the receipt in a row; None if it has none: it is open, was refused, or its receipt was delivered."""
    packed: bytes | None = None
    for record in _records_of(row):
        if isinstance(record, Closed | Over) and record.packed:
            packed = record.packed
    return None if packed is None else unpack(packed)


def was_refused(row: EdgeRow) -> bool:
    """Return whether the message of a row was never run, and never will be."""
    last = _records_of(row)[-1]
    return isinstance(last, Over) and last.packed is None


def is_cancelled(row: EdgeRow) -> bool:
    """Return whether the hop of a row was told to end."""
    return any(isinstance(record, Cancelled) for record in _records_of(row))


def first_record(row: EdgeRow) -> Record:
    """Return the first record of a row, which says what the row is about."""
    return _records_of(row)[0]


def status_of_ended(row: EdgeRow) -> Status | None:
    """Return how a hop's own work has ended; None while it is at work."""
    for record in _records_of(row):
        if isinstance(record, Ended):
            return record.status
    return None
