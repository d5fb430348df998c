"""The journal: what was written is there again, and nothing is made up."""

from __future__ import annotations

import errno
import gc
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, get_args
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quiesce.errors import ArgumentError, JournalBroken, JournalInUse, UsageError
from quiesce.mesh.protocol import codec
from quiesce.mesh.protocol.facts import (
    RAN,
    Aged,
    Begun,
    Born,
    Cancelled,
    Closed,
    Counted,
    EdgeClosed,
    Ended,
    Keep,
    Over,
    Sent,
    Stay,
    Taken,
    Tallied,
)
from quiesce.mesh.protocol.receipt import (
    ENDS,
    Alone,
    Note,
    Receipt,
    Status,
    edge_mark,
    pack,
    unpack,
)
from quiesce.mesh.store import record_format as forms
from quiesce.mesh.store.journal import Journal
from tests import sampling

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from quiesce.mesh.protocol.facts import Record

EDGE, OTHER = bytes(12), bytes(range(12))
SLOW_AND_SHARED = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
LOST = Receipt("lost", 2, lost=1, notes=(Note(edge_mark(EDGE), "", "n", "lost", 0.25, "why"),))
RECORDS: list[Record] = [
    Begun(EDGE, bytes(16), "0123456789ab", "http://a"),
    Begun(OTHER, bytes(16), "", None, is_root=True),
    Sent(EDGE, OTHER, 'somebody; a "name"\n', 1_800_000_000),
    Taken(OTHER),
    Keep(3600.0),
    EdgeClosed(OTHER, Receipt("opaque", 0, opaque=1)),
    Tallied(EDGE, Receipt("done", 0)),
    Ended(EDGE, "failed", None, "é"),
    Cancelled(EDGE),
    Closed(EDGE, pack(LOST)),
    Over(EDGE),
    Over(EDGE, RAN),
    Over(OTHER, pack(LOST)),
]  # fmt: skip


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    """Return a journal that is closed after the test."""
    made = Journal(tmp_path / "node.journal")
    yield made
    made.close()


def again(journal: Journal) -> list[Record]:
    """Close a journal, and read it as the next process would."""
    journal.close()
    return journal.open()


@pytest.mark.parametrize("durability", ["process", "power"])
def test_what_was_written_is_there_again(tmp_path: Path, durability: str) -> None:
    """Every kind of record, in order."""
    journal = Journal(tmp_path / "a", durability=durability)
    assert journal.open() == []
    journal.write(RECORDS[:2])
    journal.write(RECORDS[2:])
    assert again(journal) == RECORDS
    assert journal.size == (tmp_path / "a").stat().st_size
    journal.close()


def any_records() -> st.SearchStrategy[Record]:
    """Return records of every kind, with any text and any count."""
    edges, text, counts = (
        st.binary(min_size=12, max_size=12),
        st.text(max_size=20),
        st.integers(0, 9),
    )
    seconds = st.none() | st.floats(0, 1e9) | st.integers(0, 9)
    statuses = st.sampled_from(get_args(Status))
    marks = st.sampled_from(["", "0123456789ab"])
    notes = st.builds(Note, marks, marks, text, statuses, seconds, text)
    receipts = st.builds(Receipt, statuses, *[counts] * 9, st.lists(notes, max_size=3).map(tuple))
    return st.one_of(
        st.builds(Begun, edges, st.binary(min_size=16, max_size=16), text, st.none() | text, is_root=st.booleans()),
        st.builds(Sent, edges, edges, text, st.integers(0, 10**12)),
        st.builds(Taken, edges),
        st.builds(Keep, st.floats(0, 1e9)),
        st.builds(Ended, edges, st.sampled_from(ENDS), seconds, text),
        *(st.builds(kind, edges, receipts) for kind in (EdgeClosed, Tallied)),
        st.builds(Closed, edges, receipts.map(pack)),
        st.builds(Over, edges, st.none() | receipts.map(pack), st.booleans()),
        st.builds(Born, text, st.floats(0, 1e12), st.binary(max_size=16).map(bytes.hex), text),
        st.builds(Aged, st.floats(0, 1e12), st.booleans()),
        st.builds(Stay, edges, st.integers(0, 10**12)),
        st.builds(Counted, st.integers(0, 10**12)),
        st.builds(
            lambda edge, name, at: Begun(edge, bytes(16), "", None, is_root=True, name=name, at=at),
            edges, text, st.none() | st.floats(0, 1e12),
        ),
    )  # fmt: skip


@settings(suppress_health_check=SLOW_AND_SHARED, max_examples=sampling.fewer(300, 20))
@given(records=st.lists(any_records(), max_size=4))
def test_any_record_is_there_again(journal: Journal, records: list[Record]) -> None:
    """Whatever is in its texts; and a line has what it would have on the wire."""
    journal.path.unlink(missing_ok=True)
    journal.open()
    journal.write(records)
    assert again(journal) == records
    journal.close()
    lines = journal.path.read_bytes().splitlines()[1:]
    assert [json.loads(line[9:]) for line in lines] == [plain(one) for one in records]


@given(
    st.binary(min_size=12, max_size=12),
    st.binary(min_size=16, max_size=16),
    st.sampled_from(["0123456789ab", ""]),
    st.text(max_size=20) | st.sampled_from(["planner", "x" * 200]),
    st.none() | st.sampled_from(["http://a", "https://a.example/b?", 'http://"']),
    st.integers(0, 10**15),
)
def test_usual_records_are_read_as_json_is(
    edge: bytes, cascade: bytes, parent: str, name: str, reply: str | None, microseconds: int
) -> None:
    """The short way to read a record gives what JSON gives, or nothing."""
    is_root = microseconds == 0
    begun = Begun(edge, cascade, parent, reply, is_root=is_root)
    over = Over(edge, Alone(name).packed(edge, parent, microseconds), is_root)
    for record in (begun, over):
        line = forms.record_line(record)
        spaced = (
            json.dumps(json.loads(line[9:])).encode() + b"\n"
        )  # JSON, but not as a node writes it
        assert spaced != line[9:]
        same = forms.record_of(b"%08x %s" % (zlib.crc32(spaced), spaced))
        assert plain(forms.record_of(line)) == plain(same) == plain(record)


def test_a_failed_open_leaves_the_journal_closed(journal: Journal) -> None:
    """At once, also while the error is still looked at: another may open it meanwhile, and keeps it."""
    journal.open()
    journal.write(RECORDS)
    journal.close()

    def take(records: Iterable[Record]) -> None:
        next(iter(records))
        raise KeyError

    with pytest.raises(JournalBroken, match="is inconsistent") as caught:
        journal.open_into(take)
    other = Journal(journal.path)
    assert other.open() == RECORDS
    del caught
    gc.collect()
    with pytest.raises(JournalInUse):
        journal.open()
    other.close()


def plain(record: Record) -> list[object]:
    """Return what the line of a record has to say."""
    name = "edge closed" if isinstance(record, EdgeClosed) else type(record).__name__.lower()
    values = [getattr(record, slot) for slot in type(record).__slots__]
    if isinstance(record, Begun):
        del values[-2:]
        if record.at is not None:
            return [
                "root at", record.edge.hex(), record.cascade.hex(), record.name, record.at,
            ]  # fmt: skip
        if record.name:
            return ["root", record.edge.hex(), record.cascade.hex(), record.name]
    if isinstance(record, Over):
        name = "old" if values.pop() else "over"
    if isinstance(record, (Closed, Over)) and record.packed is not None:
        values[1] = unpack(record.packed)
    return [name, *(_plain(value) for value in values)]


def _plain(value: object) -> object:
    if isinstance(value, Receipt):
        return codec.receipt_json(value)
    return value.hex() if isinstance(value, bytes) else value


def test_only_its_owner_may_read_it(journal: Journal) -> None:
    """The ids of edges are secrets, before and after a compaction."""
    journal.open()
    assert journal.path.stat().st_mode & 0o777 == 0o600
    journal.draft(iter).replace()
    assert journal.path.stat().st_mode & 0o777 == 0o600


def test_a_journal_is_locked_by_one_process(journal: Journal) -> None:
    """Another that opens it is told so; when it is closed, it may."""
    journal.open()
    other = Journal(journal.path)
    with pytest.raises(JournalInUse, match="of its own"):
        other.open()
    journal.close()
    other.open()
    other.close()


def test_a_forked_child_does_not_keep_the_lock(journal: Journal) -> None:
    """The worker of a process pool outlives a process that is killed: the next process has the journal all the same."""
    journal.open()
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        ours.close()
        theirs.send(b"forked")
        theirs.recv(1)
        os._exit(0)
    theirs.close()
    with ours:
        assert ours.recv(6) == b"forked"
        with pytest.raises(JournalInUse):
            Journal(journal.path).open()
        journal.close()
        journal.open()
    journal.close()
    assert os.waitpid(child, 0) == (child, 0)


PROGRAM = """
import sys
from quiesce.mesh.protocol.facts import Over
from quiesce.mesh.store.journal import Journal
journal = Journal(sys.argv[1])
journal.open()
number = 0
while True:
    journal.write([Over(number.to_bytes(12, "big"))])
    print(number, flush=True)
    number += 1
"""


def test_what_was_written_outlives_the_process(tmp_path: Path) -> None:
    """A process that says that it has written something is killed: it is there, and the lock is not."""
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "a")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        said = [int(next(writer.stdout)) for _ in range(50)]
        writer.send_signal(signal.SIGKILL)
        said += [int(line) for line in writer.stdout if line.endswith("\n")]
    journal = Journal(tmp_path / "a")
    found = journal.open()
    journal.close()
    assert found[: len(said)] == [Over(number.to_bytes(12, "big")) for number in said]


def test_a_torn_last_line_is_dropped_wherever_it_is_torn(journal: Journal) -> None:
    """It was not returned from, and what comes next is written in its place."""
    journal.open()
    journal.write(RECORDS[:1])
    journal.close()
    whole = journal.path.read_bytes()
    journal.open()
    journal.write(RECORDS[1:2])
    journal.close()
    data = journal.path.read_bytes()
    for size in range(len(whole), len(data)):
        journal.path.write_bytes(data[:size])
        assert journal.open() == RECORDS[:1], size
        journal.write(RECORDS[2:3])
        assert again(journal) == [RECORDS[0], RECORDS[2]], size
        journal.close()


def test_a_file_that_was_begun_and_no_more_is_new(journal: Journal) -> None:
    """A process that dies while it makes the file has written nothing."""
    for size in range(18):
        journal.path.write_bytes(b"quiesce journal 1\n"[:size])
        assert journal.open() == []
        journal.write(RECORDS[:1])
        assert again(journal) == RECORDS[:1]
        journal.close()


@pytest.mark.parametrize("data", [b"\x00", b"SQLite format 3\x00", b"quiesce journal 0\n", b"\n\n"])
def test_what_is_no_journal_is_left_alone(journal: Journal, data: bytes) -> None:
    """A file that somebody else has made is refused, and not changed."""
    journal.path.write_bytes(data)
    with pytest.raises(
        JournalBroken, match=r"is not a journal of this version.*[Mm]ove the file away"
    ):
        journal.open()
    assert journal.path.read_bytes() == data


@settings(suppress_health_check=SLOW_AND_SHARED, max_examples=sampling.fewer(200, 20))
@given(data=st.data())
def test_what_was_changed_is_refused_or_was_the_end(journal: Journal, data: st.DataObject) -> None:
    """A byte is another, or gone: nobody takes it for what was written, and the line is named."""
    journal.path.unlink(missing_ok=True)
    journal.open()
    journal.write(RECORDS)
    journal.close()
    whole = journal.path.read_bytes()
    place = data.draw(st.integers(18, len(whole) - 1))
    new = data.draw(st.binary(max_size=2).filter(lambda new: new != whole[place : place + 1]))
    journal.path.write_bytes(whole[:place] + new + whole[place + 1 :])
    try:
        found = journal.open()
    except JournalBroken as error:
        assert "line " in str(error)  # noqa: PT017 - or nothing is raised
    else:
        assert found == RECORDS[: len(found)]
        assert len(found) >= len(RECORDS) - 1
    finally:
        journal.close()


def test_a_write_that_fails_leaves_no_part(journal: Journal) -> None:
    """The disk is full, say: what was there is there, and what comes later is whole."""
    journal.open()
    journal.write(RECORDS[:1])
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (journal.size + 40, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            journal.write(RECORDS[1:])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    assert journal.path.stat().st_size == journal.size  # also if nothing comes later
    journal.write(RECORDS[2:3])
    assert again(journal) == [RECORDS[0], RECORDS[2]]


def test_a_wrong_use_of_a_journal_is_an_error(journal: Journal) -> None:
    """A closed journal takes nothing; an open one is not opened again."""
    with pytest.raises(UsageError, match="is not open"):
        journal.write(RECORDS)
    with pytest.raises(UsageError, match="is not open"):
        journal.draft(iter)
    journal.open()
    journal.draft(iter)
    with pytest.raises(UsageError, match="has a draft already"):
        journal.draft(iter)
    with pytest.raises(UsageError, match="is open already"):
        journal.open()
    with pytest.raises(ArgumentError, match="durability"):
        Journal("a", durability="luck")


def test_a_folder_that_is_not_there_leaves_nothing_open(tmp_path: Path) -> None:
    """The error names the journal, and not the file for its lock, which nobody has asked for."""
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(
        UsageError, match=r"the folder of the journal .*/nowhere/a does not exist: make it"
    ):
        Journal(tmp_path / "nowhere" / "a").open()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.parametrize("goes_on", [False, True])
def test_nothing_follows_a_part_of_a_line_that_stays(goes_on: bool, tmp_path: Path) -> None:  # noqa: FBT001 - a case
    """A write fails, and so does taking it back: the next would be lost with it; the lock is kept."""
    path = tmp_path / "journal"
    journal = Journal(path)
    journal.open()
    left = [20]
    write = os.write

    def half(file: int, data: bytes) -> int:
        if not left:
            raise OSError(errno.EIO, "I/O error")
        return write(file, data[: left.pop()])

    cannot = mock.patch.object(os, "ftruncate", side_effect=OSError(errno.EIO, "I/O error"))
    with cannot:
        with mock.patch.object(os, "write", half), pytest.raises(OSError, match="I/O"):
            journal.write([Over(b"1" * 12)])
        with pytest.raises(JournalBroken, match="cannot be written"):
            journal.write([Over(b"2" * 12)])
    with pytest.raises(JournalInUse):
        Journal(path).open()
    if goes_on:  # when it can be taken back, the next one follows
        journal.write([Over(b"3" * 12)])
    journal.close()
    again = Journal(path)
    assert again.open() == ([Over(b"3" * 12)] if goes_on else [])
    again.close()
