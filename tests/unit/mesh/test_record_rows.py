"""The rows that a node's records make: what is in the store after each of them, and what it restores."""

from __future__ import annotations

from dataclasses import replace

import pytest

from quiesce.errors import JournalBroken
from quiesce.mesh.protocol.facts import (
    Begun,
    Cancelled,
    Closed,
    EdgeClosed,
    Ended,
    Over,
    Sent,
    Stay,
)
from quiesce.mesh.protocol.horizon import DRIFT_SECONDS
from quiesce.mesh.protocol.receipt import Receipt, pack
from quiesce.mesh.store.record_rows import (
    RecordRows,
    receipt_of_row,
    records_of_rows,
    was_refused,
)
from quiesce.mesh.store.rows import Batch, EdgeRow

HOP, EDGE, CASCADE = b"h" * 16, b"e" * 16, b"c" * 16
NOW, KEEP = 1000.0, 60.0
RECEIPT = Receipt("done", hops=1)
BEGUN, SENT = Begun(HOP, CASCADE, "", None), Sent(HOP, EDGE, "http://b")
EDGE_CLOSED, CLOSED = EdgeClosed(EDGE, RECEIPT), Closed(HOP, pack(RECEIPT))


def rows_of(owner: str = "a1") -> RecordRows:
    """Return the rows of an incarnation."""
    return RecordRows("a", owner, lambda: NOW, lambda: KEEP)


def changes_of(rows: RecordRows) -> Batch:
    """Return what the rows change now."""
    batch = Batch("a1")
    rows.take_changes(batch)
    return batch


def written(*records: Begun | Sent | EdgeClosed | Ended | Closed) -> list[EdgeRow]:
    """Return the rows that records make, the newest state of each."""
    rows = rows_of()
    rows.add(records)
    return changes_of(rows).puts


def test_a_sent_row_stays_with_its_receipt_until_its_hop_is_closed() -> None:
    """The receipt of the hop includes that of the edge, so the same change writes the one and drops the other."""
    rows = rows_of()
    rows.add([BEGUN, SENT, EDGE_CLOSED])
    first = changes_of(rows)
    assert [(one.side, one.above, one.state) for one in first.puts] == [
        ("hop", b"", "open"),
        ("sent", HOP, "closed"),
    ]
    assert first.drops == []
    rows.add([CLOSED])
    last = changes_of(rows)
    assert [(one.side, one.state) for one in last.puts] == [("hop", "closed")]
    assert last.drops == [("sent", EDGE)]


def test_a_sent_row_of_a_dead_replica_is_dropped_with_its_hop() -> None:
    """The heir owns the rows that it inherits, and they go like its own."""
    rows = rows_of("a2")
    rows.inherit(written(BEGUN, SENT))
    first = changes_of(rows)
    assert {one.owner for one in first.puts} == {"a2"}
    rows.add([EDGE_CLOSED, CLOSED])
    assert changes_of(rows).drops == [("sent", EDGE)]


def test_rows_that_are_owned_already_are_not_inherited() -> None:
    """A row that was read late is older than what its owner has in hand."""
    rows, old = rows_of(), written(BEGUN)
    rows.add([BEGUN, Cancelled(HOP)])
    (own,) = changes_of(rows).puts
    rows.inherit(old)
    assert not rows.is_changed
    assert own.body != old[0].body


def test_the_row_of_a_hop_that_is_over_has_its_last_record_alone() -> None:
    """It is for copies and late questions, and its end is known."""
    rows = rows_of()
    over = Over(HOP, pack(RECEIPT))
    rows.add([BEGUN, CLOSED, over])
    (row,) = changes_of(rows).puts
    assert (row.state, row.keep_until, row.cascade) == ("over", NOW + KEEP, CASCADE)
    assert records_of_rows([row]) == [over]
    assert rows.is_empty


def test_the_row_of_a_message_that_may_come_late_stays_longer() -> None:
    """While copies of a message may come, the row that refuses them is there."""
    rows, late = rows_of(), int(NOW) + 5000
    rows.add([BEGUN, Stay(HOP, late), Over(HOP, b"")])
    (row,) = changes_of(rows).puts
    assert row.keep_until == late + DRIFT_SECONDS


def test_an_edge_that_is_refused_for_good_may_be_forgotten_at_some_time() -> None:
    """Its row is over from the beginning, so nobody takes it for work, and it goes when no copy can come."""
    row = rows_of().claim_of(Over(HOP))
    assert (row.state, row.keep_until) == ("over", NOW + KEEP)
    assert was_refused(row)
    assert not was_refused(replace(row, body=written(BEGUN, CLOSED)[0].body))


def test_a_hop_ends_after_the_edges_that_it_has_sent() -> None:
    """Records are restored in an order in which they can have happened."""
    ended = Ended(HOP, "done", 1.0, "")
    assert records_of_rows(written(BEGUN, SENT, ended, EDGE_CLOSED)) == [
        BEGUN,
        SENT,
        EDGE_CLOSED,
        ended,
    ]


def test_edges_of_a_closed_hop_are_not_restored() -> None:
    """A store that writes in steps may have left them behind, and the receipt of the hop includes theirs."""
    (hop, sent) = written(BEGUN, SENT)
    closed = replace(hop, state="closed", body=written(BEGUN, CLOSED)[0].body)
    assert records_of_rows([closed, sent]) == [BEGUN, CLOSED]


def test_the_receipt_of_a_row_is_that_of_its_end() -> None:
    """A row that is open, was refused, or whose receipt was delivered has none."""
    (row,) = written(BEGUN, CLOSED)
    assert receipt_of_row(row) == RECEIPT
    assert receipt_of_row(written(BEGUN)[0]) is None
    assert receipt_of_row(rows_of().claim_of(Over(HOP))) is None


def test_a_damaged_row_is_named() -> None:
    """What cannot be read is not left out: the error says which row it is."""
    with pytest.raises(JournalBroken, match=f"the row {HOP.hex()} of 'a' in the store is damaged"):
        records_of_rows([replace(written(BEGUN)[0], body=b"00000000 {}\n")])
