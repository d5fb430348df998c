"""A journal is made smaller while its node goes on, and nobody has to wait for that."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
from contextlib import closing
from math import inf
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import pytest

from quiesce.mesh import SettledWithLosses
from quiesce.mesh.protocol.detector import Detector
from quiesce.mesh.protocol.facts import Over, Write
from quiesce.mesh.store import compaction
from quiesce.mesh.store.compaction import Compaction, Tidying
from quiesce.mesh.store.journal import Draft, Journal
from quiesce.testing.leaks.running_threads import present_threads
from tests.stress import turns
from tests.unit.mesh.meshing import Full, World, here, leaves, nothing, until
from tests.unit.mesh.test_node_recovery import restarted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

COUNT = 2000
EDGES = [number.to_bytes(12, "big") for number in range(COUNT)]


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    """Return an open journal of a node that remembers much, most of it twice."""
    made = Journal(tmp_path / "a.journal")
    made.open()
    made.write([Over(edge) for edge in EDGES] * 2)
    yield made
    made.close()


@pytest.fixture
def detector() -> Detector:
    """Return what that node knows."""
    made = Detector("a", lasting=True)
    made.restore([Over(edge) for edge in EDGES])
    return made


@pytest.fixture
def no_threads(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
    """Run everything in the loop, so that time may be virtual; return what was to be done in threads."""
    done: list[Callable[[], None]] = []

    async def in_thread(put: Callable[[], None]) -> None:
        await anyio.lowlevel.checkpoint()
        done.append(put)
        put()

    monkeypatch.setattr(compaction, "_in_thread", in_thread)
    monkeypatch.setattr(compaction, "_PUT_BYTES", 1)
    return done


def files(folder: Path) -> set[str]:
    """Return what there is of the journal of node a."""
    return {path.name for path in folder.iterdir() if path.name.startswith("a.journal")}


WHOLE = {"a.journal", "a.journal.lock"}


def known(journal: Journal) -> set[bytes]:
    """Read a journal as the next process would; gives what is over."""
    journal.close()
    return {record.edge for record in journal.open() if isinstance(record, Over)}


# Its course.


@pytest.mark.real_time
async def test_the_loop_goes_on(
    journal: Journal, detector: Detector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others run between any two slices, and the file is written and synced by threads alone."""
    monkeypatch.setattr(compaction, "_PUT_BYTES", 4096)
    monkeypatch.setattr(compaction, "_SYNC_BYTES", 4096)
    turn = 0
    slices: list[tuple[int, int]] = []
    syncs: list[int] = []
    slice_, sync = Compaction.slice, os.fdatasync

    def take_up(self: Compaction, count: int) -> bool:
        draft = journal.current_draft
        assert draft is not None
        before = draft.waiting
        more = slice_(self, count)
        slices.append((turn, draft.waiting - before))
        return more

    def note_thread(file: int) -> None:
        syncs.append(threading.get_ident())
        sync(file)

    async def others() -> None:
        nonlocal turn
        while True:
            turn += 1
            await anyio.lowlevel.checkpoint()

    monkeypatch.setattr(Compaction, "slice", take_up)
    monkeypatch.setattr(os, "fdatasync", note_thread)
    before = journal.size
    async with anyio.create_task_group() as group:
        group.start_soon(others)
        await Compaction(journal, detector.known).run()
        group.cancel_scope.cancel()
    turns = [turn for turn, _ in slices]
    assert len(set(turns)) == len(turns) > 4
    assert max(size for _, size in slices) < before / 2 / 4  # half of it is said twice
    assert len(syncs) > 2
    assert threading.get_ident() not in syncs
    assert journal.size < before
    assert known(journal) == set(EDGES)


@pytest.mark.usefixtures("no_threads")
@pytest.mark.parametrize("before", ["put", "rest"])
async def test_a_compaction_may_be_cancelled_at_any_wait(
    journal: Journal, detector: Detector, tmp_path: Path, before: str
) -> None:
    """Nothing is left of it, the node knows what it knew, and the journal takes more."""
    at, is_done = 0, False
    while not is_done:
        at += 1
        size = journal.size
        with anyio.CancelScope() as scope:
            made = Compaction(journal, detector.known)
            assert journal.current_draft is not None
            _cancel_at(journal.current_draft, "take" if before == "put" else "put", scope, at)
            await made.run()
            is_done = True
        assert files(tmp_path) == WHOLE
        assert journal.current_draft is None
        assert is_done == (journal.size < size)
        assert not detector.known.frozen_receipts
        assert len(detector.known.over_receipts) == COUNT
    assert at > 5  # the slices
    journal.write([Over(b"x" * 12)])
    assert known(journal) == {*EDGES, b"x" * 12}


def _cancel_at(draft: Draft, name: str, scope: anyio.CancelScope, at: int) -> None:
    real, count = getattr(draft, name), 0

    def call(*args: Any, **options: Any) -> Any:
        nonlocal count
        count += 1
        if count == at:
            scope.cancel()
        return real(*args, **options)

    setattr(draft, name, call)


async def test_records_that_come_during_a_sync_are_not_left_for_the_last_step(
    journal: Journal,
    detector: Detector,
    no_threads: list[Callable[[], None]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A slow disk: there are some more rounds, and then it is enough."""
    monkeypatch.setattr(compaction, "_REST_BYTES", 10)
    put, replace = Draft.put, Draft.replace
    last: list[int] = []

    def slow(self: Draft, data: bytes, *, sync: bool) -> None:
        put(self, data, sync=sync)
        if sync:
            journal.write([Over(b"x" * 12)])

    def take_place(self: Draft) -> None:
        last.extend(map(len, self._lines))
        replace(self)

    monkeypatch.setattr(Draft, "put", slow)
    monkeypatch.setattr(Draft, "replace", take_place)
    await Compaction(journal, detector.known).run()
    assert 6 < len(no_threads) < 15  # some of them for the slices
    assert len(last) == 2  # what came, and how many records there were
    assert known(journal) == {*EDGES, b"x" * 12}


# When it is made.


async def test_a_failed_compaction_is_tried_again_later_and_logged_once(
    journal: Journal,
    detector: Detector,
    no_threads: list[Callable[[], None]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    """A disk without room for a second file: the first one is good enough until it has grown."""
    monkeypatch.setattr(compaction, "_COMPACT_FROM", 1000)
    tidying = Tidying("a", journal, detector)
    sync = os.fdatasync

    def fail(_: int) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(os, "fdatasync", fail)
    for _ in range(3):
        assert tidying.is_due()
        assert not tidying.is_due()  # it is under way
        size = journal.size
        await tidying.run()
        assert files(tmp_path) == WHOLE
        assert not tidying.is_due()
        while not journal.size > tidying.at:
            journal.write([Over(edge) for edge in EDGES[:20]])
        assert journal.size > 1.2 * size
    failures = [
        one for one in caplog.records if "could not make its journal smaller" in one.message
    ]
    assert [one.levelno for one in failures if one.levelno > logging.DEBUG] == [logging.ERROR]
    monkeypatch.setattr(os, "fdatasync", sync)
    assert tidying.is_due()
    size = journal.size
    await tidying.run()
    assert tidying.at == 2 * journal.size < size
    assert not tidying.is_due()
    assert known(journal) == set(EDGES)


@pytest.mark.real_time
async def test_a_journal_is_made_smaller_under_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While messages come and go; what is open is there after a restart."""
    monkeypatch.setattr(compaction, "_COMPACT_FROM", 4096)
    monkeypatch.setattr(compaction, "_SLICE", 5)
    compacted: list[Any] = []
    replace = Draft.replace

    def take_place(self: Draft) -> None:
        replace(self)
        compacted.append(self._journal)

    monkeypatch.setattr(Draft, "replace", take_place)
    async with World(tmp_path) as world:
        node, other = await world.add("a"), await world.add("b")
        async with node.cascade("long") as long:
            await world.hand("b", leaves)
        for _ in range(100):
            async with node.cascade("short") as cascade:
                await world.hand("b", nothing)
            assert (await cascade.settled(1)).ok
        await until(lambda: node.journal in compacted and other.journal in compacted)
        again = await restarted(world, other, tmp_path)
        detector = again.opened.engine.detector
        assert len(detector.known.over_receipts) + len(detector.known.hop_records) == 101
        found = await long.settled(5)
        assert isinstance(found, SettledWithLosses)
        assert found.receipt.lost == 1


class Hanging:
    """A disk that hangs when a draft is written, until it is told to go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun = threading.Event()
        self.may_go_on = threading.Event()
        self.threads: set[threading.Thread] = set()
        put = Draft.put

        def hang(draft: Draft, data: bytes, *, sync: bool) -> None:
            self.threads.add(threading.current_thread())
            self.begun.set()
            self.may_go_on.wait(10)
            put(draft, data, sync=sync)

        monkeypatch.setattr(compaction, "_COMPACT_FROM", 1)
        monkeypatch.setattr(Draft, "put", hang)

    async def go_on(self) -> None:
        """Let the disk go on, and wait until its threads have returned from their work: the compaction does not."""
        self.may_go_on.set()
        await until(lambda: self.threads.isdisjoint(present_threads()))


@pytest.mark.real_time
@pytest.mark.parametrize("drains", [False, True])
async def test_a_compaction_is_given_up_with_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, drains: bool
) -> None:
    """The node does not wait for a disk that hangs, and leaves nothing; the thread harms nobody."""
    disk = Hanging(monkeypatch)
    async with World(tmp_path) as world:
        node = await world.add("a")
        async with node.cascade("c") as kept:
            pass
        await until(disk.begun.is_set)
        report = await (node.drain(5) if drains else node.aclose(5))
        assert report.ok
        assert not report.stuck
        assert files(tmp_path) == WHOLE
        written = (tmp_path / "a.journal").read_bytes()
        await disk.go_on()
        assert files(tmp_path) == WHOLE
        assert (tmp_path / "a.journal").read_bytes() == written
        await node.open()
        assert [one.id for one in node.recovered] == [kept.id]


@pytest.mark.real_time
async def test_a_compaction_is_given_up_if_a_record_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the node knows is no longer what was written: a draft would tell of it."""
    disk, full = Hanging(monkeypatch), Full(monkeypatch, tmp_path / "a.journal")
    async with World(tmp_path) as world:
        node = await world.add("a")
        async with node.cascade("c"):
            pass
        await until(disk.begun.is_set)
        full.left = 0
        with pytest.raises(Exception, match="cannot write"):
            async with node.cascade("d"):
                pass
        assert files(tmp_path) == WHOLE
        written = (tmp_path / "a.journal").read_bytes()
        await disk.go_on()
        await until(lambda: not any("compaction" in str(one) for one in node.frontier()))
        assert files(tmp_path) == WHOLE
        assert (tmp_path / "a.journal").read_bytes() == written


async def test_none_is_begun_while_the_node_is_drained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_threads: list[Callable[[], None]]
) -> None:
    """It would be for nothing: the next process makes one if it has to."""
    async with World(tmp_path) as world:
        node = await world.add("a")
        async with anyio.create_task_group() as group:
            cascade = await node.cascade("c").__aenter__()
            group.start_soon(node.drain)
            await until(lambda: node.opened.exchange.is_ending)
            assert node.opened.keeping is not None
            monkeypatch.setattr(node.opened.keeping.tidying, "at", 1)
            node.opened.tidy_journal()
            node.opened.exchange.wake()
            await cascade.__aexit__(None, None, None)
        assert not no_threads


# What is known meanwhile.


async def test_what_is_being_written_is_known(journal: Journal, detector: Detector) -> None:
    """A copy of a message that comes meanwhile is not run; nor later, however it ends."""
    made = Compaction(journal, detector.known)
    made.slice(10)
    assert all(detector.knows(edge) for edge in EDGES)
    detector.refuse(b"x" * 12)
    made.end()
    assert all(detector.knows(edge) for edge in [*EDGES, b"x" * 12])


@pytest.mark.usefixtures("no_threads")
async def test_none_is_begun_while_records_wait_for_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The smaller journal would have what these records say, and count them again when they are written."""
    monkeypatch.setattr(compaction, "_COMPACT_FROM", 0)
    full = Full(monkeypatch, tmp_path / "a.journal")
    async with World(tmp_path) as world:
        node = await world.add("a", on_trouble="serve")
        keeping = node.opened.keeping
        assert keeping is not None
        tidying = keeping.tidying
        async with node.cascade("c"):
            await until(lambda: 0 < tidying.at < inf)
            full.left = 0
            engine, record = node.opened.engine, here().record
            engine.leave(record, b"x" * 12, "celery", "", node.opened.clock(), "is opaque")
            node.opened.commit_records()
            tidying.at = 0  # it is due
            node.opened.exchange.wake()
            await turns(50)
            await until(lambda: tidying.at < inf)  # one that began has ended
            full.left = None
            assert node.opened.retry_writing()
            node.opened.exchange.wake()
            await until(lambda: 0 < tidying.at < inf)
            shutil.copyfile(tmp_path / "a.journal", tmp_path / "a.copy")
    with closing(Journal(tmp_path / "a.copy")) as journal:
        detector = Detector("a", lasting=True)
        detector.restore(journal.open())
    (root,) = detector.known.roots()
    assert root.receipt is not None
    assert root.receipt.opaque == 1


async def test_what_ages_while_it_is_written_is_forgotten_in_time(
    journal: Journal, detector: Detector
) -> None:
    """The node forgets it at the second time from then, as the next process does with the same records."""
    made = Compaction(journal, detector.known)
    made.slice(10)
    detector.refuse(b"x" * 12)
    detector.known.age(0.0)
    journal.write([one.record for one in detector.take() if isinstance(one, Write)])
    detector.refuse(b"y" * 12)
    assert all(detector.knows(edge) for edge in EDGES)
    while made.slice(10):
        pass
    made.end()
    assert all(detector.knows(edge) for edge in [*EDGES, b"x" * 12, b"y" * 12])
    detector.known.age(0.0)
    assert not any(detector.knows(edge) for edge in [*EDGES, b"x" * 12])
    assert detector.knows(b"y" * 12)
    detector.known.age(0.0)
    assert not detector.knows(b"y" * 12)


# A process that is killed at it.

PROGRAM = """
import asyncio, sys
from quiesce.mesh.store import compaction
from quiesce.mesh.protocol.detector import Detector
from quiesce.mesh.protocol.facts import Write
from quiesce.mesh.store.journal import Journal

compaction._SLICE = 50

async def main():
    journal, node = Journal(sys.argv[1]), Detector("a", lasting=True)
    journal.open()
    asyncio.get_running_loop().create_task(compact(journal, node))
    for number in range(1_000_000):
        node.refuse(number.to_bytes(12, "big"))
        journal.write([one.record for one in node.take() if isinstance(one, Write)])
        print(number, flush=True)
        if number % 500 == 0:
            node.known.age(0.0)
        await asyncio.sleep(0)

async def compact(journal, node):
    while True:
        await compaction.Compaction(journal, node.known).run()
        print("smaller", flush=True)

asyncio.run(main())
"""


def test_what_was_written_outlives_a_process_that_is_killed_at_it(tmp_path: Path) -> None:
    """What it said that it has written, and did not forget, is in the file before or in the one after."""
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "a.journal")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        said = [next(writer.stdout)]
        while said.count("smaller\n") < 3:
            said.append(next(writer.stdout))
        said += [next(writer.stdout) for _ in range(150)]  # in the midst of the next, perhaps
        writer.send_signal(signal.SIGKILL)
        said += [line for line in writer.stdout if line.endswith("\n")]
    numbers = [int(line) for line in said if line != "smaller\n"][-500:]
    journal = Journal(tmp_path / "a.journal")
    found = [record.edge for record in journal.open() if isinstance(record, Over)]
    journal.close()
    assert set(numbers) <= {int.from_bytes(edge, "big") for edge in found}
    assert files(tmp_path) == WHOLE
