"""Random lives of a journal, against a plain list of what was written.

Processes come and go, and die in mid-write and in mid-compaction, between any two steps of it; the disk
is full, and files are torn and changed. What `write` has returned from is there again, or the file is refused; a part of a line at
the end is dropped, and nothing else. A failure prints the steps, and a line that replays them.
`QUIESCE_MODEL_EXAMPLES=5000` makes it a long run, `QUIESCE_MODEL_SHRINK=1` a failure short.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from quiesce.errors import JournalBroken, JournalInUse, UsageError
from quiesce.mesh.protocol.facts import (
    Begun,
    Closed,
    EdgeClosed,
    Ended,
    Keep,
    Over,
    Sent,
    Taken,
    Tallied,
)
from quiesce.mesh.protocol.receipt import Note, Receipt, pack
from quiesce.mesh.store.journal import Journal
from tests.property.effort import effort

if TYPE_CHECKING:
    from collections.abc import Iterator

    from quiesce.mesh.protocol.facts import Record
    from quiesce.mesh.store.journal import Draft

HEAD = b"quiesce journal 1\n"

edges = st.binary(min_size=12, max_size=12)
texts = st.text(max_size=8)
counts = st.integers(0, 2**53 - 1)
statuses = st.sampled_from(["done", "failed", "cancelled", "lost"])
seconds = st.none() | st.floats(0, 1e9)
notes = st.builds(Note, st.just("0123456789ab"), st.just(""), texts, statuses, seconds, texts)
receipts = st.builds(
    Receipt, statuses, counts, lost=counts, notes=st.lists(notes, max_size=2).map(tuple)
)
records: st.SearchStrategy[Record] = st.one_of(
    st.builds(Begun, edges, st.just(bytes(16)), texts, st.none() | texts, st.booleans()),
    st.builds(Sent, edges, edges, texts, st.integers(0, 10**12)),
    st.builds(Taken, edges),
    st.builds(Keep, st.floats(0, 1e9)),
    st.builds(EdgeClosed, edges, receipts),
    st.builds(Tallied, edges, receipts),
    st.builds(Ended, edges, statuses, seconds, texts),
    st.builds(Closed, edges, receipts.map(pack)),
    st.builds(Over, edges, st.none() | receipts.map(pack)),
)
batches = st.lists(records, max_size=4)
places = st.integers(0, 2000)  # in a file or in what is written: taken modulo its size


class Killed(BaseException):
    """The process is gone."""


class Disk:
    """A disk that takes `room` bytes, a few at a time, and then fails in some way."""

    def __init__(self, room: int, failure: BaseException | None, at_once: int = 7) -> None:
        self.room = room
        self.failure = failure
        self.at_once = at_once
        self.taken = b""
        self._write = os.write

    def write(self, file: int, data: Any) -> int:
        """Write some of it, as the system may."""
        size = min(len(data), self.at_once)
        if self.failure is not None:
            size = min(size, self.room - len(self.taken))
            if size <= 0:
                raise self.failure
        written = self._write(file, data[:size])
        self.taken += bytes(data[:written])
        return written


@contextlib.contextmanager
def dead() -> Iterator[None]:
    """Nothing is cleaned up: there is no process that could."""
    with mock.patch.object(os, "ftruncate"), mock.patch.object(Path, "unlink"):
        yield


class Life(RuleBasedStateMachine):
    """One file, the processes that have it in turn, and what they have written."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="journal-"))
        self.path = self.folder / "node.journal"
        self.journal = Journal(self.path)
        self.is_open = False
        self.model: list[Record] = []
        self.draft: Draft | None = None
        self.drafted: list[Record] = []

    def teardown(self) -> None:
        """See once more that everything is there."""
        try:
            self.journal.close()
            self.open("process")
            self.journal.close()
        finally:
            self.journal.close()
            shutil.rmtree(self.folder)

    # Of a process that has it.

    @precondition(lambda self: not self.is_open)
    @rule(durability=st.sampled_from(["process", "process", "power"]))
    def open(self, durability: str) -> None:
        """Open the journal as the next process: all that was written is there."""
        self.journal = Journal(self.path, durability=durability)
        assert self.journal.open() == self.model
        assert not self.path.with_name("node.journal.new").exists()
        self.is_open = True

    @precondition(lambda self: self.is_open)
    @rule(times=st.integers(1, 2))
    def close(self, times: int) -> None:
        """End as one should, or more than that."""
        for _ in range(times):
            self.journal.close()
        self.is_open = False
        self.draft = None

    @precondition(lambda self: self.is_open)
    @rule(batch=batches, at_once=st.integers(1, 300))
    def write(self, batch: list[Record], at_once: int) -> None:
        """Write; the system takes it in pieces."""
        disk = Disk(0, None, at_once)
        with mock.patch.object(os, "write", disk.write):
            self.journal.write(batch)
        self.wrote(batch)

    def wrote(self, batch: list[Record]) -> None:
        """Record that something was written: a draft has it as well."""
        self.model += batch
        self.drafted += batch

    @precondition(lambda self: self.is_open)
    @rule(batch=batches, room=places, error=st.sampled_from([errno.ENOSPC, errno.EIO]))
    def write_and_fail(self, batch: list[Record], room: int, error: int) -> None:
        """Write until the disk is full in the midst of it: nothing of the batch is there."""
        disk = Disk(room % 300, OSError(error, os.strerror(error)))
        with mock.patch.object(os, "write", disk.write):
            try:
                self.journal.write(batch)
            except OSError as failure:
                assert failure.errno == error  # noqa: PT017 - or nothing is raised
            else:
                self.wrote(batch)

    @precondition(lambda self: self.is_open)
    @rule(batch=batches, room=places)
    def write_and_die(self, batch: list[Record], room: int) -> None:
        """Die in the midst of it: the lines that were whole by then are there."""
        disk = Disk(room % 300, Killed())
        with mock.patch.object(os, "write", disk.write), dead(), contextlib.suppress(Killed):
            self.journal.write(batch)
        self.model += batch[: disk.taken.count(b"\n")]
        self.die()

    def die(self) -> None:
        """Die: the system closes what was open, and a draft stays where it is."""
        with dead():
            self.journal.close()
        self.is_open = False
        self.draft = None

    # A draft, which is to take the place of the file.

    @precondition(lambda self: self.is_open and self.draft is None)
    @rule(batch=batches)
    def begin_draft(self, batch: list[Record]) -> None:
        """Begin one, with something else in it."""
        self.draft = self.journal.draft(iter)
        self.draft.add(batch)
        self.drafted = list(batch)

    @precondition(lambda self: self.draft is not None)
    @rule(batch=batches)
    def add(self, batch: list[Record]) -> None:
        """Add records to the draft; the journal does not contain them."""
        assert self.draft is not None
        self.draft.add(batch)
        self.drafted += batch

    @precondition(lambda self: self.draft is not None)
    @rule(at_once=st.integers(1, 300), sync=st.booleans())
    def put(self, at_once: int, *, sync: bool) -> None:
        """Write what it has by then."""
        assert self.draft is not None
        with mock.patch.object(os, "write", Disk(0, None, at_once).write):
            self.draft.put(self.draft.take(), sync=sync)

    @precondition(lambda self: self.draft is not None)
    @rule()
    def drop(self) -> None:
        """Think better of it."""
        assert self.draft is not None
        self.draft.drop()
        self.draft = None

    @precondition(lambda self: self.draft is not None)
    @rule()
    def replace(self) -> None:
        """Replace all records of the journal by those of the draft."""
        assert self.draft is not None
        self.draft.replace()
        self.draft, self.model = None, list(self.drafted)

    @precondition(lambda self: self.draft is not None)
    @rule(room=places, is_last=st.booleans())
    def fail_at_the_draft(self, room: int, *, is_last: bool) -> None:
        """Run out of room for the draft: all before is there, and nothing lies about."""
        assert self.draft is not None
        disk = Disk(room % 300, OSError(errno.ENOSPC, "No space left on device"))
        with mock.patch.object(os, "write", disk.write):
            try:
                if is_last:
                    self.draft.replace()
                else:
                    self.draft.put(self.draft.take(), sync=True)
            except OSError:
                self.drop()
                return
        if is_last:
            self.draft, self.model = None, list(self.drafted)

    @precondition(lambda self: self.draft is not None)
    @rule(
        room=places, stage=st.sampled_from(["between", "put", "write", "sync", "before", "after"])
    )
    def die_at_the_draft(self, room: int, stage: str) -> None:
        """Die in the midst of it: all is as before or as after, and something may lie about."""
        assert self.draft is not None
        replace = Path.replace

        def die_after(*paths: Any) -> None:
            replace(*paths)
            raise Killed

        writing = mock.patch.object(os, "write", Disk(room % 200, Killed()).write)
        deaths: dict[str, Any] = {
            "between": contextlib.nullcontext(),
            "put": writing,
            "write": writing,
            "sync": mock.patch.object(os, "fdatasync", side_effect=Killed),
            "before": mock.patch.object(Path, "replace", side_effect=Killed),
            "after": mock.patch.object(Path, "replace", die_after),
        }
        is_replaced = stage == "after"
        with deaths[stage], dead(), contextlib.suppress(Killed):
            if stage == "put":
                self.draft.put(self.draft.take(), sync=True)
            elif stage != "between":
                self.draft.replace()
                is_replaced = True
        if is_replaced:
            self.model = list(self.drafted)
        self.die()

    @precondition(lambda self: self.is_open)
    @rule()
    def open_twice(self) -> None:
        """Open the journal again, as another process or by confusion: the one that has it keeps it."""
        for _ in range(2):
            other = Journal(self.path)
            with pytest.raises(JournalInUse):
                other.open()
            other.close()
        with pytest.raises(UsageError):
            self.journal.open()

    # Of the world, while nobody has it.

    @precondition(lambda self: not self.is_open and self.path.exists())
    @rule(place=places)
    def tear(self, place: int) -> None:
        """Leave out the end, from any byte on: what is whole before it is there."""
        data = self.path.read_bytes()
        last_line = data[:-1].rfind(b"\n") + 1
        data = data[: last_line + place % (len(data) - last_line + 1)]
        self.path.write_bytes(data)
        self.model = self.model[: max(0, data.count(b"\n") - 1)]

    @precondition(lambda self: not self.is_open and self.path.exists() and self.path.stat().st_size)
    @rule(place=places, other=st.integers(1, 255))
    def flip(self, place: int, other: int) -> None:
        """Change a byte: it is refused, and left as it is; or it was the last line's end."""
        whole = self.path.read_bytes()
        place %= len(whole)
        changed = bytearray(whole)
        changed[place] ^= other
        self.path.write_bytes(changed)
        is_tail = place >= max(len(HEAD), whole.rfind(b"\n")) and changed[place] != ord("\n")
        journal = Journal(self.path)
        if is_tail:  # that a line was whole cannot be seen any more
            self.model = self.model[: changed.count(b"\n") - 1]
            assert journal.open() == self.model
            journal.close()
            return
        for _ in range(2):
            with pytest.raises(JournalBroken):
                journal.open()
            assert self.path.read_bytes() == bytes(changed)
        self.path.write_bytes(whole)

    @precondition(lambda self: not self.is_open)
    @rule(data=st.binary(max_size=40))
    def litter(self, data: bytes) -> None:
        """Leave something of a compaction that was never finished."""
        self.path.with_name("node.journal.new").write_bytes(data)

    @invariant()
    def the_size_is_known(self) -> None:
        """It has as many bytes as it says, and nothing lies about."""
        if self.is_open:
            assert self.journal.size == self.path.stat().st_size
            assert self.path.with_name("node.journal.new").exists() == (self.draft is not None)


TestLife = Life.TestCase
TestLife.settings = effort(examples=80, steps=30)
