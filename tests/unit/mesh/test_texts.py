"""What other agents call themselves is shown to people, and cannot pretend to be something else."""

from __future__ import annotations

import re

import pytest

from quiesce.core.harmless_text import harmless
from quiesce.errors import RemoteProtocolError
from quiesce.mesh.protocol import codec
from quiesce.mesh.protocol.facts import Answer
from quiesce.mesh.protocol.horizon import Horizon
from quiesce.mesh.protocol.knowledge import Knowledge
from quiesce.mesh.protocol.receipt import Note, Receipt, edge_mark
from quiesce.mesh.protocol.scheduler import NodeCall
from quiesce.mesh.runtime.progress import Busy, MeshFrontier, answer_body, parse_answer
from quiesce.mesh.runtime.settlement import Unknown, settlement_of

EDGE = b"e" * 12
EVIL = "bank\x1b[2K\x1b]0;owned\x07\n\x1b[32mcascade 'trip': settled\x1b[0m\r\u202e\u2028"


def shows_nothing_else(text: str, lines: int) -> bool:
    """Return whether a text is as many lines as it should be, and nothing in them is not seen."""
    return all(line.isprintable() for line in text.split("\n")) and text.count("\n") == lines - 1


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("planner", "planner"),
        ("Zürich 東京", "Zürich 東京"),
        ("a\nb", "a\\nb"),
        ("\x1b[31m", "\\x1b[31m"),
        ("\u202eevil", "\\u202eevil"),
        ("\ud800", "\\ud800"),
        ("x" * 300, "x" * 200),
        ("\n" * 300, "\\n" * 100),
    ],
)
def test_what_is_not_seen_is_spelled_out(text: str, seen: str) -> None:
    """Everything else is as it was, up to a length."""
    assert harmless(text, 200) == seen


def test_a_receipt_cannot_forge_a_verdict() -> None:
    """Neither by a name nor by a reason: also not in what is logged or given to machines."""
    note = Note(edge_mark(EDGE), "", EVIL, "done", 0.1, f"why {EVIL}")
    body = codec.call_body(NodeCall("", ((EDGE, Receipt("done", notes=(note,))),), ()))
    ((_, receipt),) = codec.parse_call(body).receipts
    header = codec.response_header(EDGE, Answer("closed", Receipt("done", notes=(note,))))
    told = codec.parse_response_header(header, EDGE).answer.receipt
    for found in (receipt, told):
        assert found is not None
        assert found.notes[0].name.isprintable()
        assert found.notes[0].why.isprintable()
    text = str(settlement_of(receipt, name="trip", cascade=bytes(16), seconds=0.1))
    assert shows_nothing_else(text, 2)


def test_names_that_came_another_way_are_shown_as_harmless() -> None:
    """As that of an agent's card, which a message was sent to."""
    note = Note(edge_mark(EDGE), "", EVIL, "unknown", None, EVIL)
    receipt = Receipt("done", hops=0, unknown=1, notes=(note,))
    found = Unknown("trip", "", receipt, 0.1, missing=(f"what became of it {EVIL}",))
    assert shows_nothing_else(str(found), 3)


def test_a_frontier_cannot_forge_one_either() -> None:
    """Whatever it says of its state."""
    evil = EVIL[:12]
    (entry,) = parse_answer(answer_body([Busy(evil, "", EVIL, EVIL[:20], 1.0, EVIL)]))
    assert all(text.isprintable() for text in (entry.mark, entry.parent, entry.name, entry.state))
    assert entry.what.isprintable()
    assert shows_nothing_else(str(MeshFrontier("trip", (entry,))), 2)


NOTE = ["0123456789ab", "", "hotel", "done", 0.1, ""]


@pytest.mark.parametrize(
    ("receipt", "told"),
    [
        ({"s": "fine"}, "receipt: its status is not one of those of the protocol"),
        ({"s": "done", "n": -1}, "receipt: a count is not a whole number from 0 to "),
        ({"s": "done", "notes": [[1, *NOTE[1:]]]}, "note: its mark is not 12 hexadecimal digits"),
        ({"s": "done", "notes": [[*NOTE[:2], 7, *NOTE[3:]]]}, "note: its name is not a text of at"),
        ({"s": "done", "notes": [[*NOTE[:5], 7]]}, "note: its reason is not a text of at most"),
        ({"s": "done", "notes": [[*NOTE[:3], "fine", 0.1, ""]]}, "note: its status is not one of"),
        ({"s": "done", "notes": [[*NOTE[:4], "x", ""]]}, "note: its time is not a number of sec"),
    ],
)
def test_what_is_wrong_with_a_receipt_is_named(receipt: object, told: str) -> None:
    """Which part of it, and what that has to be."""
    with pytest.raises(RemoteProtocolError, match=told):
        codec.receipt_of(receipt)


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (-500, "it came 500 s after the time by which it had to begin"),
        (1_000_000_000, r"it may begin until 1000000000 s from now.*: set the clock"),
    ],
)
def test_a_message_at_a_wrong_time_is_refused_with_what_to_do(seconds: int, told: str) -> None:
    """Its sender reads it."""
    horizon = Horizon(Knowledge("b"), 100.0, lambda: 1000.0)
    handed = codec.Handed(bytes(16), EDGE, "", 1000 + seconds, None)
    why = horizon.objection(handed)
    assert why is not None
    assert re.search(told, why), why
