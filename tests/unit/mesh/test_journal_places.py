"""Where a journal is, and for how long what it says is kept."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from quiesce.errors import JournalBroken, JournalInUse, UsageError
from quiesce.mesh import Settled
from quiesce.mesh.protocol import codec
from quiesce.mesh.protocol.facts import Answer, Begun
from quiesce.mesh.protocol.receipt import Note, Receipt, pack
from quiesce.mesh.store.journal import Journal
from tests.stress import lasting
from tests.unit.mesh.meshing import World
from tests.unit.mesh.test_exchange_keep import Late

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from quiesce.mesh.protocol.facts import Record

EDGES = [bytes([number]) * 12 for number in range(3)]


def begun(edge: bytes) -> Begun:
    """Return a record."""
    return Begun(edge, b"c" * 16, "", None)


def compact(journal: Journal, edges: list[bytes]) -> None:
    """Replace the journal by a smaller one with these edges, in one go."""
    draft = journal.draft(lambda records: records)
    draft.add(map(begun, edges))
    draft.put(draft.take(), sync=False)
    draft.replace()


def test_a_journal_stays_where_it_is_when_the_process_goes_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its name is relative, as in the documentation; a compaction comes after a `chdir`."""
    (tmp_path / "home").mkdir()
    (tmp_path / "away").mkdir()
    monkeypatch.chdir(tmp_path / "home")
    journal = Journal("agent.journal")
    os.chdir(tmp_path / "away")
    journal.open()
    os.chdir(tmp_path)
    journal.write([begun(EDGES[0])])
    os.chdir(tmp_path / "away")
    compact(journal, EDGES[:1])
    journal.write([begun(EDGES[1])])
    journal.close()
    os.chdir(tmp_path / "home")
    again = Journal("agent.journal")
    found = again.open()
    again.close()
    assert [one.edge for one in found if isinstance(one, Begun)] == EDGES[:2]
    assert not list((tmp_path / "away").iterdir())


def test_one_journal_has_one_lock_by_whatever_name(tmp_path: Path) -> None:
    """A link to it is the same journal: two processes that have it would both run a message."""
    (tmp_path / "link.journal").symlink_to(tmp_path / "real.journal")
    journal, other = Journal(tmp_path / "real.journal"), Journal(tmp_path / "link.journal")
    journal.open()
    try:
        with pytest.raises(JournalInUse):
            other.open()
    finally:
        other.close()
        journal.close()


def test_a_compaction_of_a_linked_journal_is_found_by_its_own_name(tmp_path: Path) -> None:
    """The link stays a link."""
    (tmp_path / "link.journal").symlink_to(tmp_path / "real.journal")
    journal = Journal(tmp_path / "link.journal")
    journal.open()
    compact(journal, EDGES[:1])
    journal.write([begun(EDGES[1])])
    journal.close()
    assert (tmp_path / "link.journal").is_symlink()
    again = Journal(tmp_path / "real.journal")
    found = again.open()
    again.close()
    assert [one.edge for one in found if isinstance(one, Begun)] == EDGES[:2]


@pytest.mark.parametrize("size", range(2000, 2049, 4))
def test_a_header_that_is_written_can_be_read(size: int) -> None:
    """However long the receipt is: what is over the limit is left out by the writer."""
    edge = EDGES[0]
    notes = tuple(Note("0" * 12, "0" * 12, "x" * 100, "done", None, "") for _ in range(8))
    rest = Note("0" * 12, "0" * 12, "x" * 100, "failed", None, "")
    receipt = Receipt("done", hops=9, notes=(*notes[:7], rest))
    pad = size - len(pack(receipt))
    assert pad >= 0
    whys = [min(500, pad), max(0, pad - 500), max(0, pad - 1000)]
    padded = [
        Note(one.mark, one.parent, one.name, one.status, None, "y" * why)
        for one, why in zip(receipt.notes, [*whys, *[0] * 5], strict=True)
    ]
    receipt = Receipt("done", hops=9, notes=tuple(padded))
    header = codec.response_header(edge, Answer("closed", receipt))
    assert codec.parse_response_header(header, edge).answer.receipt is not None


@pytest.mark.backends("asyncio", "trio")
@pytest.mark.parametrize("keep", [3600, 100])
async def test_a_node_that_is_started_with_less_time_keeps_what_it_has_promised(
    keep: float, tmp_path: Path
) -> None:
    """It was said of a message that it never will run: so it does not, as long as it may come."""
    async with World(tmp_path) as world:
        node, other = await world.add("a"), await world.add("b")
        late = Late(world)
        assert isinstance(await late.begin(node), Settled)
        await other.aclose()
        again = await world.add("b", keep_seconds=keep)
        for _ in range(33):
            await lasting(100)
            world.wall += 100
        await late.arrive()
        assert late.ran == []
        assert again is not None


def test_a_journal_that_is_not_taken_to_the_end_is_closed(tmp_path: Path) -> None:
    """Also if all of it was read by then: it may be opened again."""
    journal = Journal(tmp_path / "journal")

    def take(records: Iterable[Record]) -> None:
        assert list(records) == []
        raise KeyError

    with pytest.raises(JournalBroken):
        journal.open_into(take)
    assert journal.open() == []
    journal.close()


@pytest.mark.parametrize("place", ["pipe", "/proc/agent.journal", "x" * 300])
def test_a_place_that_cannot_have_a_journal_is_named(place: str, tmp_path: Path) -> None:
    """With the reason, and what to do; not by an error of the system."""
    os.mkfifo(tmp_path / "pipe")
    path = str(tmp_path / place)
    with pytest.raises(
        UsageError, match=r"the journal .* (must be a file|cannot be opened)"
    ) as caught:
        Journal(path).open()
    assert path in str(caught.value)
    assert ": name a file in" in str(caught.value)
    assert [one.name for one in tmp_path.iterdir()] == ["pipe"]  # and no lock


def test_a_folder_that_may_not_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A test may run as a user who may write anywhere: so the system's answer is played."""

    def refuse(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    journal = Journal(tmp_path / "a.journal")
    with pytest.raises(
        UsageError, match=r"a.journal cannot be opened \(Permission denied\): name a"
    ):
        journal.open()
