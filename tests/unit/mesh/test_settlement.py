"""What may be claimed of a cascade, and how it is told."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from quiesce.errors import ArgumentError
from quiesce.mesh.protocol.receipt import Note, Receipt
from quiesce.mesh.runtime.settlement import (
    Settled,
    SettledWithLosses,
    Settlement,
    Unknown,
    settlement_of,
)

A, B, C, D = (letter * 12 for letter in "abcd")
NOTES = (
    Note(A, "", "planner", "done", 0.5),
    Note(B, A, "flights", "failed", 1.25, "ValueError: no seat"),
    Note(C, B, "payments", "lost", None, "its process stopped before it was done"),
    Note(D, A, "hotels", "opaque", None, "it takes no part"),
)
WHOLE = Receipt("done", 3, failed=1, notes=NOTES[:2])


def verdict(receipt: Receipt, require: str = "full") -> Settlement:
    """Judge a receipt."""
    return settlement_of(
        receipt,
        name="book-trip",
        cascade=bytes(16),
        seconds=2.0,
        require=require,  # type: ignore[arg-type]  # also a wrong one
    )


@pytest.mark.parametrize("require", ["full", "participants"])
@pytest.mark.parametrize(
    ("counts", "kind"),
    [
        ({}, Settled),
        ({"failed": 1}, Settled),
        ({"cancelled": 1}, Settled),
        ({"lost": 1}, SettledWithLosses),
        ({"unknown": 1}, Unknown),
        ({"unknown": 1, "lost": 1}, Unknown),
    ],
)
def test_a_verdict_says_no_more_than_is_known(
    counts: dict[str, int], kind: type[Settlement], require: str
) -> None:
    """Failed is finished; lost is told; nothing but done is ok, and true."""
    done = replace(WHOLE, failed=0, notes=NOTES[:1])
    found = verdict(replace(done, **counts), require)  # type: ignore[arg-type]  # counts by name
    assert type(found) is kind
    assert found.ok is bool(found) is (not counts)


@pytest.mark.parametrize("gap", ["opaque", "volatile"])
def test_what_takes_no_part_is_a_gap_unless_it_is_accepted(gap: str) -> None:
    """By default every agent has to take part, and to keep a journal."""
    receipt = replace(WHOLE, **{gap: 1})  # type: ignore[arg-type]  # counts by name
    found = verdict(receipt)
    assert isinstance(found, Unknown)
    assert len(found.missing) == 1
    assert isinstance(verdict(receipt, "participants"), Settled)
    assert isinstance(verdict(replace(receipt, lost=1), "participants"), SettledWithLosses)


def test_a_settlement_is_printed_as_a_tree() -> None:
    """With the verdict and the counts first, and what is missing."""
    receipt = Receipt("done", 9, failed=1, lost=1, opaque=1, notes=NOTES)
    assert str(verdict(receipt)).splitlines() == [
        "cascade 'book-trip': unknown after 2.00 s, 9 hops, 1 failed, 1 lost, 1 opaque",
        "  never known: when agents that take no part have ended (1 message)",
        "└─ planner  done  0.50 s",
        "   ├─ flights  failed  1.25 s  (ValueError: no seat)",
        "   │  └─ payments  lost  (its process stopped before it was done)",
        "   └─ hotels  opaque  (it takes no part)",
        "… and 6 more that went well",
    ]


@pytest.mark.parametrize("require", ["full", "participants"])
def test_untracked_work_is_never_green_and_is_named(require: str) -> None:
    """An agent that takes part has left work behind: the verdict says where, in both modes."""
    left = Note(B, A, "thread", "untracked", None, "started at app.py:12 in pay")
    found = verdict(Receipt("done", 1, untracked=3, notes=(NOTES[0], left)), require)
    assert isinstance(found, Unknown)
    assert found.missing == (
        "when work that left a hop of planner has ended: thread, started at app.py:12 in pay",
        "when 2 more pieces of work that left their hops have ended",
    )
    assert "   └─ thread  untracked" in str(found).splitlines()
    assert str(found).count("app.py:12 in pay") == 1


def test_equal_entries_are_printed_once_with_a_count() -> None:
    """However many messages it is about: in what is missing, and in the tree."""
    marks = [f"{number:012x}" for number in range(10, 17)]
    hops = [Note(mark, "", "svc", "done", 0.1, "") for mark in marks[:2]]
    left = [
        Note(mark, hops[number // 2].mark, "plain httpx", "untracked", None, "svc.py:121")
        for number, mark in enumerate(marks[2:6])
    ]
    refused = [Note(mark, "", "http://b", "refused", None, "") for mark in "ab"]
    found = verdict(Receipt("done", 2, untracked=4, notes=(*hops, *left, *refused)), "full")
    text = str(found)
    assert text.count("svc.py:121") == 1
    assert "when 4 pieces of work that left hops of svc have ended: plain httpx, svc.py:121" in text
    assert text.splitlines()[-5:] == [
        "├─ svc  done  0.10 s", "│  └─ plain httpx  untracked  (2 times)",
        "├─ svc  done  0.10 s", "│  └─ plain httpx  untracked  (2 times)", "└─ http://b  refused  (2 times)",
    ]  # fmt: skip


def test_the_reasons_for_unknown_messages_are_printed() -> None:
    """Each reason once."""
    notes = [Note(mark, "a", "mcp:1", "unknown", None, "the connection has ended") for mark in "bc"]
    found = verdict(Receipt("unknown", 3, unknown=2, notes=tuple(notes)))
    assert isinstance(found, Unknown)
    why = "whether 2 of its messages are still worked on: the connection has ended"
    assert found.missing == (why,)


@pytest.mark.parametrize(
    ("count", "are", "messages"), [(1, "is", "1 message"), (2, "are", "2 messages")]
)
def test_what_is_missing_is_counted(count: int, are: str, messages: str) -> None:
    """One, or more of them."""
    found = verdict(Receipt("unknown", 9, opaque=count, unknown=count, volatile=count))
    assert isinstance(found, Unknown)
    unknown, opaque, volatile = found.missing
    assert unknown == f"whether {count} of its messages {are} still worked on"
    assert opaque == f"when agents that take no part have ended ({messages})"
    assert volatile.startswith(f"whether a late copy of {messages} to agents without a journal")
    assert volatile.endswith("Give those agents a journal")


def test_notes_in_a_circle_are_printed() -> None:
    """A node may send any notes: the tree ends."""
    circle = (Note(A, B, "a", "done"), Note(B, A, "b", "done"), Note(C, C, "c", "done"))
    assert "3 hops" in str(verdict(Receipt("done", 3, notes=circle)))


def test_a_settlement_is_written_as_json() -> None:
    """The same facts, as JSON."""
    found = verdict(Receipt("done", 2, unknown=1, notes=NOTES[:1])).to_json()
    assert json.loads(json.dumps(found)) == found
    assert (found["verdict"], found["receipt"]["u"]) == ("unknown", 1)
    assert found["missing"] == ["whether 1 of its messages is still worked on"]


def test_a_wrong_requirement_is_an_error() -> None:
    """By its name."""
    with pytest.raises(ArgumentError, match="require"):
        verdict(WHOLE, "most")
