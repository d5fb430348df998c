"""Receipts and their notes: how they are made, and which notes are kept."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quiesce.mesh.protocol import codec
from quiesce.mesh.protocol.receipt import (
    COUNT_MAX,
    ENDS,
    NAME_MAX,
    NOTES_MAX,
    WHY_MAX,
    Alone,
    Note,
    Receipt,
    Status,
    Tally,
    edge_mark,
    edge_note,
    foremost,
    not_run,
    pack,
    unpack,
)

EDGE = bytes(12)
OWN = edge_note(EDGE, "parent", "name", "done", 0.5, "why")


def some_notes(done: int) -> st.SearchStrategy[tuple[Note, ...]]:
    """Return notes, each another: up to so many of what went well, then of anything."""
    mixed = st.lists(st.sampled_from(("done", "done", *get_args(Status))), max_size=40)
    return st.builds(
        lambda good, more: tuple(
            Note(f"{number:012x}", "", "n", status, why="assumes" * (number % 7 == 3))
            for number, status in enumerate(["done"] * good + more)
        ),
        st.integers(0, done),
        mixed,
    )


def test_what_is_made_is_what_it_would_be_and_frozen() -> None:
    """It is equal, has the same hash, and nobody changes it."""
    tally = Tally()
    tally.add(Receipt("lost", 2, lost=1, volatile=1, notes=(OWN,)))
    receipt = tally.close("failed", OWN, volatile=True)
    other = Receipt("failed", 3, failed=1, lost=1, volatile=2, notes=(OWN, OWN))
    assert (type(receipt), receipt, hash(receipt)) == (Receipt, other, hash(other))
    same = Note(edge_mark(EDGE), "parent", "name", "done", 0.5, "why")
    assert (type(OWN), OWN, hash(OWN)) == (Note, same, hash(same))
    for made, name in ((receipt, "hops"), (OWN, "why")):
        with pytest.raises(FrozenInstanceError):
            setattr(made, name, 1)


@given(
    st.binary(min_size=12, max_size=12),
    st.text(max_size=20),
    st.text(max_size=NAME_MAX + 5),
    st.integers(0, 10**15),
    st.text(max_size=WHY_MAX + 5),
)
def test_the_short_receipt_of_a_lone_hop_equals_the_long_one(
    edge: bytes, parent: str, name: str, microseconds: int, why: str
) -> None:
    """It says what one says that is made in the long way, and others can read it."""
    own = edge_note(edge, parent, name, "done", microseconds / 1e6, why)
    other = Tally().close("done", own, volatile=False)
    written = Alone(name).packed(edge, parent, microseconds, why)
    assert unpack(written) == unpack(pack(other))
    if not parent:
        assert codec.receipt_of(json.loads(written)) == unpack(written)


@pytest.mark.parametrize("status", ENDS)
def test_a_hop_counts_itself(status: Status) -> None:
    """Once as a hop, and once as what became of it."""
    receipt = Tally().close(status, OWN, volatile=False)
    counts = {name: getattr(receipt, name) for name in ("failed", "cancelled", "lost")}
    assert receipt.hops == 1
    assert counts == {name: int(name == status) for name in counts}


def test_counts_stay_below_the_bound_of_a_receipt() -> None:
    """Whatever others say: what is made of it is a receipt that everybody takes."""
    own, tally = edge_note(EDGE, edge_mark(EDGE), "name", "done", 0.5, ""), Tally()
    for _ in range(3):
        tally.add(Receipt("done", *(COUNT_MAX,) * 8))
    for status in ENDS:
        for receipt in (tally.sum(), tally.close(status, own, volatile=True)):
            assert codec.receipt_of(json.loads(pack(receipt))) == receipt


def test_an_unsent_message_is_not_noted() -> None:
    """Whoever sent it was told; one that was refused is noted."""
    assert not_run("unsent", OWN, volatile=False).notes == ()
    assert not_run("refused", OWN, volatile=False).notes == (OWN,)


@given(notes=some_notes(10), most=st.integers(1, 20))
def test_what_went_well_is_left_out_first_from_the_end(notes: tuple[Note, ...], most: int) -> None:
    """The order stays; of what did not go well, the first are kept; then what is assumed to have gone well."""
    other = [one for one in notes if one.status != "done"]
    assumed = [one for one in notes if one.status == "done" and one.why]
    plain = [one for one in notes if one.status == "done" and not one.why]
    kept = {*[*other, *assumed, *plain][:most]}
    assert foremost(notes, most) == tuple(one for one in notes if one in kept)


@given(notes=some_notes(2 * NOTES_MAX), size=st.integers(1, NOTES_MAX))
def test_notes_that_come_in_parts_are_kept_as_if_at_once(
    notes: tuple[Note, ...], size: int
) -> None:
    """So it does not matter how many children a hop has."""
    tally = Tally()
    for first in range(0, len(notes), size):
        tally.add(Receipt("done", notes=notes[first : first + size]))
    assert tally.notes == foremost(notes)
