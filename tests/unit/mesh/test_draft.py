"""The draft of a journal: it takes its place whole, or nothing of it is left."""

from __future__ import annotations

import errno
import os
import threading
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

import pytest

from quiesce.errors import JournalBroken
from quiesce.mesh.protocol.facts import Over
from quiesce.mesh.store import journal as journals
from quiesce.mesh.store.journal import Journal

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from quiesce.mesh.protocol.facts import Record
    from quiesce.mesh.store.journal import Draft

A, B, C = (Over(letter * 12) for letter in (b"a", b"b", b"c"))


@pytest.fixture(params=["process", "power"])
def journal(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Journal]:
    """Return a journal that is open, with a record; it is closed after the test."""
    made = Journal(tmp_path / "node.journal", durability=request.param)
    made.open()
    made.write([A])
    yield made
    made.close()


def names(journal: Journal) -> set[str]:
    """Return what there is in the folder of a journal."""
    return {path.name for path in journal.path.parent.iterdir()}


WHOLE = {"node.journal", "node.journal.lock"}
DRAFTED = {*WHOLE, "node.journal.new"}


def written(journal: Journal) -> list[Record]:
    """Close a journal, and read it as the next process would."""
    journal.close()
    return journal.open()


def put(draft: Draft, *, sync: bool = True) -> None:
    """Do what a thread does."""
    draft.put(draft.take(), sync=sync)


def files() -> int:
    """Count the files that are open."""
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_draft_replaces_the_journal(journal: Journal) -> None:
    """What was written meanwhile follows, put or not; and so does what is written afterwards."""
    before = files()
    journal.write([A] * 50)
    draft = journal.draft(iter)
    draft.add([B])
    journal.write([C])
    put(draft)
    journal.write([A])
    draft.replace()
    assert journal.size == journal.path.stat().st_size
    journal.write([B])
    assert files() == before
    assert written(journal) == [B, C, A, B]
    assert names(journal) == WHOLE


def test_a_draft_has_the_records_that_it_follows(journal: Journal) -> None:
    """The journal has all of it."""
    told: list[Record] = []

    def follow(records: Iterable[Record]) -> Iterable[Record]:
        told.extend(records)
        return [C]

    draft = journal.draft(follow)
    journal.write([A, B])
    assert told == [A, B]
    draft.replace()
    assert written(journal) == [C]


@pytest.mark.parametrize("is_put", [False, True])
def test_nothing_is_left_of_a_dropped_draft(journal: Journal, *, is_put: bool) -> None:
    """What was written meanwhile is in the journal; there may be another then."""
    before = files()
    draft = journal.draft(iter)
    draft.add([B])
    journal.write([C])
    if is_put:
        put(draft)
    draft.drop()
    assert names(journal) == WHOLE
    assert files() == before
    draft.drop()
    another = journal.draft(iter)
    put(draft)  # of a thread that comes late
    draft.drop()
    assert names(journal) == DRAFTED
    another.replace()
    assert written(journal) == []


def test_a_draft_ends_with_the_journal(journal: Journal) -> None:
    """A journal that is closed leaves no draft."""
    draft = journal.draft(iter)
    journal.close()
    assert draft.is_dropped
    assert names(journal) == WHOLE


def test_the_draft_of_a_dead_process_is_removed(journal: Journal) -> None:
    """It was not finished, whatever it says; nobody else has it, for the journal is locked."""
    journal.close()
    journal.path.with_name("node.journal.new").write_bytes(b"quiesce journal 1\n")
    assert journal.open() == [A]
    assert names(journal) == WHOLE


@pytest.mark.parametrize("call", ["write", "fdatasync", "replace"])
def test_a_failed_draft_leaves_the_journal_as_it_is(
    journal: Journal, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no room, or the disk is broken, in the last step."""
    draft = journal.draft(iter)
    draft.add([B])
    failing = mock.Mock(side_effect=OSError(errno.ENOSPC, "no space left"))
    step = partial(put, draft) if call == "fdatasync" else draft.replace
    with monkeypatch.context() as patch:
        patch.setattr(Path if call == "replace" else os, call, failing)
        with pytest.raises(OSError, match="no space"):
            step()
    draft.drop()
    assert names(journal) == WHOLE
    journal.write([C])
    assert written(journal) == [A, C]


@pytest.mark.parametrize("call", ["fdatasync", "fsync"])
def test_with_power_the_last_of_it_is_synced_in_time(
    journal: Journal, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The content before the name, and the name before anything else is written."""
    is_power = journal.syncs
    done: list[str] = []
    real = getattr(os, call)

    def sync(file: int) -> None:
        done.append(f"{call} {journal.path.with_name('node.journal.new').exists()}")
        real(file)

    draft = journal.draft(iter)
    draft.add([B])
    monkeypatch.setattr(os, call, sync)
    draft.replace()
    assert done == ([f"{call} {call == 'fdatasync'}"] if is_power else [])


@pytest.mark.parametrize("journal", ["power"], indirect=True)
def test_nothing_follows_if_its_name_may_not_last(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a loss of power the file before might be there, which has nothing of it."""
    draft = journal.draft(iter)
    draft.add([B])
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", mock.Mock(side_effect=OSError(errno.EIO, "I/O error")))
        with pytest.raises(OSError, match="I/O"):
            draft.replace()
    with pytest.raises(JournalBroken, match="in a loss of power"):
        journal.write([C])
    assert written(journal) == [B]


@pytest.mark.parametrize("fails", [False, True])
def test_a_thread_that_is_at_it_closes_the_file_itself(
    journal: Journal, monkeypatch: pytest.MonkeyPatch, *, fails: bool
) -> None:
    """Its file may not become another's of the same number while the thread writes."""
    before = files()
    draft = journal.draft(iter)
    begun, may_end = threading.Event(), threading.Event()
    real = os.fdatasync

    def sync(file: int) -> None:
        begun.set()
        may_end.wait(10)
        real(file)
        if fails:
            raise OSError(errno.EIO, "I/O error")

    def run() -> None:
        try:
            put(draft)
        except OSError:
            assert fails

    monkeypatch.setattr(os, "fdatasync", sync)
    thread = threading.Thread(target=run)
    thread.start()
    assert begun.wait(10)
    draft.drop()
    assert names(journal) == WHOLE
    assert files() == before + 1
    may_end.set()
    thread.join()
    assert files() == before


def test_a_large_file_is_closed_in_a_thread(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system frees all it has then, which may take long; without a thread it takes what it takes."""
    monkeypatch.setattr(journals, "_LARGE", 1)
    before = files()
    closed: list[bool] = []
    real = os.close

    def close(file: int) -> None:
        closed.append(threading.current_thread() is threading.main_thread())
        real(file)

    with monkeypatch.context() as patch:
        patch.setattr(os, "close", close)
        journal.draft(iter).replace()
        for thread in threading.enumerate():
            if thread.name == "quiesce journal":
                thread.join()
        patch.setattr(threading.Thread, "start", mock.Mock(side_effect=RuntimeError))
        journal.draft(iter).replace()
    assert closed.count(False) == 1  # a folder that was synced is closed at once
    assert files() == before
