"""Random lives of a node's journal that is made smaller a little at a time, while the node goes on.

Messages come, are worked on, handed on, answered and forgotten; in between a compaction takes up an edge or
two, writes, ends, or is given up; and the process dies, at any point. What the next process knows then is
compared with what all records tell that were ever written, which are kept in a plain list. A failure
prints the steps, and a line that replays them. `QUIESCE_MODEL_EXAMPLES=5000` makes it a long run,
`QUIESCE_MODEL_SHRINK=1` a failure short.
"""

from __future__ import annotations

import shutil
import tempfile
from contextlib import closing
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from quiesce.mesh.protocol.detector import Detector
from quiesce.mesh.protocol.facts import WORKING, Write
from quiesce.mesh.protocol.receipt import Note, Receipt, edge_mark
from quiesce.mesh.protocol.states import HopState
from quiesce.mesh.store.compaction import Compaction
from quiesce.mesh.store.journal import Journal
from tests import sampling
from tests.property.effort import effort

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from quiesce.mesh.protocol.facts import Record

SAMPLED_COURSES = 12  # of those that begin after the same step

which = st.integers(0, 1000)  # of those there are: taken modulo their number
statuses = st.sampled_from(["done", "failed", "cancelled"])


def restored(records: Iterable[Record]) -> Detector:
    """Return what the next process knows."""
    detector = Detector("node", lasting=True)
    detector.restore(records)
    return detector


def of_hops(detector: Detector) -> dict[bytes, Any]:
    """Return all that counts of roots, and of hops whose receipt is not there."""
    return {
        hop.edge: (
            (hop.cascade, hop.parent, hop.reply, hop.is_root, hop.state, hop.receipt),
            hop.receipt  # all that it is made of is in it
            or (hop.status, hop.seconds, hop.why, hop.tally.sum(), hop.is_cancelled),
            {edge: (sent.to, sent.by, sent.is_taken) for edge, sent in hop.edges.items()},
        )
        for hop in detector.known.hop_records.values()
        if hop.is_root or hop.receipt is None
    }


def assert_same(found: Detector, truth: Detector, live: Detector, edges: Iterable[bytes]) -> None:
    """See that the next process knows what was written, unless the one that died had forgotten it."""
    assert of_hops(found) == of_hops(truth)
    assert found.known.keep == truth.known.keep
    assert {edge: sent.hop.edge for edge, sent in found.known.edge_records.items()} == {
        edge: sent.hop.edge for edge, sent in truth.known.edge_records.items()
    }
    for edge in edges:
        known = found._answer_about(edge)
        if known is not None or live.knows(edge):
            assert known == truth._answer_about(edge)
    for hop in live.known.hop_records.values():
        assert hop.edge in found.known.hop_records  # also its receipt, which is to be posted


class Life(RuleBasedStateMachine):
    """One node, the processes that are it in turn, and all that they have ever written."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="compaction-"))
        self.path = self.folder / "node.journal"
        self.all: list[Record] = []
        self.edges: list[bytes] = []
        self.journal = Journal(self.path)
        self.detector = restored(self.journal.open())
        self.compaction: Compaction | None = None

    def teardown(self) -> None:
        """See once more that everything is there."""
        try:
            self.die()
        finally:
            self.journal.close()
            shutil.rmtree(self.folder)

    def new_edge(self) -> bytes:
        """Return one that was never there."""
        self.edges.append(len(self.edges).to_bytes(12, "big"))
        return self.edges[-1]

    def commit(self) -> None:
        """Write what is to be written, as each step of a node does."""
        records = [one.record for one in self.detector.take() if isinstance(one, Write)]
        self.journal.write(records)
        self.all += records

    def pick(self, number: int, *states: HopState) -> Any:
        """Choose a hop."""
        hops = [hop for hop in self.detector.known.hop_records.values() if hop.state in states]
        return hops[number % len(hops)] if hops else None

    # Of the node.

    @rule(is_root=st.booleans(), count=st.integers(0, 3))
    def begin(self, count: int, *, is_root: bool) -> None:
        """Begin a cascade, or take a message; hand some on at once."""
        edge = self.new_edge()
        if is_root:
            self.detector.begin(edge, bytes(16))
        else:
            self.detector.arrive(edge, bytes(16), "0123456789ab", "http://there")
        self.commit()
        for _ in range(count):
            self.detector.send(self.detector.known.hop(edge), self.new_edge(), "http://there")
            self.commit()

    @rule(is_asked=st.booleans())
    def refuse(self, *, is_asked: bool) -> None:
        """Say of an edge that never came that it never will run."""
        (self.detector.ask if is_asked else self.detector.refuse)(self.new_edge())
        self.commit()

    @rule(number=which)
    def send(self, number: int) -> None:
        """Hand something on."""
        hop = self.pick(number, HopState.RUNNING)
        if hop is not None:
            self.detector.send(hop, self.new_edge(), f"http://{number}", number)
            self.commit()

    @rule(number=which, answer=st.sampled_from(["is taken", "is in doubt", None]))
    def hear(self, number: int, answer: Any) -> None:
        """Hear of an edge that it was taken: by the answer to its message, or to a question."""
        edges = list(self.detector.known.edge_records)
        if edges:
            edge = edges[number % len(edges)]
            if answer is None:
                self.detector.told(edge, WORKING)
            else:
                self.detector.sent(edge, answer)
            self.commit()

    @rule(number=which)
    def cancel(self, number: int) -> None:
        """Cancel a hop, with all that was handed on from it."""
        hop = self.pick(number, HopState.RUNNING, HopState.WAITING)
        if hop is not None:
            self.detector.cancel(hop)
            self.commit()

    @rule(seconds=st.sampled_from([60.0, 3600.0]))
    def promise(self, seconds: float) -> None:
        """Remember what comes for another time than before."""
        self.detector.known.promise(seconds)
        self.commit()

    @rule(number=which, status=statuses, how=st.sampled_from(["is opaque", "is not sent", None]))
    def close_edge(self, number: int, status: Any, how: Any) -> None:
        """Hear of an edge that it is closed."""
        edges = list(self.detector.known.edge_records)
        if edges:
            edge = edges[number % len(edges)]
            note = Note(edge_mark(edge), "", "there", status, 0.5)
            if how is None:
                self.detector.receive(edge, Receipt(status, 1 + number, notes=(note,)))
            else:
                self.detector.sent(edge, how)
            self.commit()

    @rule(number=which, status=statuses, rides=st.booleans())
    def end(self, number: int, status: Any, *, rides: bool) -> None:
        """End a hop's own work, and answer."""
        hop = self.pick(number, HopState.RUNNING)
        if hop is not None:
            if rides and status == "done" and self.detector.finish(hop, 250_000):
                self.commit()
                return
            self.detector.end(hop, status, seconds=0.25, why=str(number))
            self.commit()
            if rides and not hop.is_root:
                self.detector.ride(hop.edge)
                self.commit()

    @rule(number=which, rides=st.booleans())
    def be_rid_of(self, number: int, *, rides: bool) -> None:
        """Let a receipt be taken: as an answer, of which nothing is written, or by a call."""
        hop = self.pick(number, HopState.CLOSED)
        if hop is not None:
            (self.detector.ride if rides and not hop.is_root else self.detector.taken)(hop.edge)
            self.commit()

    @rule()
    def age(self) -> None:
        """Forget what was over for long."""
        self.detector.known.age(0.0)
        self.commit()

    # Of the compaction.

    @precondition(lambda self: self.compaction is None)
    @rule()
    def begin_compaction(self) -> None:
        """Begin one; nothing is taken up yet."""
        self.compaction = Compaction(self.journal, self.detector.known)

    @precondition(lambda self: self.compaction is not None)
    @rule(count=st.integers(1, 3), puts=st.booleans())
    def take_up(self, count: int, *, puts: bool) -> None:
        """Take up an edge or two."""
        assert self.compaction is not None
        self.compaction.slice(count)
        if puts:
            self.put(sync=False)

    @precondition(lambda self: self.compaction is not None)
    @rule(count=st.integers(0, 2))
    def stop_at_a_hop(self, count: int) -> None:
        """Take up a hop, and hear of edges of it that were not: it seldom comes to that by itself."""
        assert self.compaction is not None
        while self.compaction.slice(1) and not self.compaction._edges:
            pass
        for edge in list(self.compaction._edges)[:count]:
            self.detector.receive(edge, Receipt("done", 1))
            self.commit()

    def put(self, *, sync: bool) -> None:
        """Do what the thread does."""
        assert self.compaction is not None
        draft = self.compaction._draft
        draft.put(draft.take(), sync=sync)

    @precondition(lambda self: self.compaction is not None)
    @rule(
        is_given_up=st.sampled_from([False, False, False, True]),
        then=st.sampled_from(["goes on", "dies"]),
    )
    def finish(self, then: str, *, is_given_up: bool) -> None:
        """Take up what is left, an edge at a time, and have a smaller journal; or give it up."""
        assert self.compaction is not None
        if not is_given_up and not self.compaction._draft.is_dropped:  # as it has aged
            while self.compaction.slice(1):
                pass
            self.put(sync=True)
            self.compaction.replace()
        self.compaction.end()
        self.compaction = None
        assert not self.path.with_name("node.journal.new").exists()
        assert not self.detector.known.frozen_receipts
        if then == "dies":
            self.die()

    # Of the world.

    @rule(is_time=st.sampled_from([False, False, False, True]))
    def die_at_last(self, *, is_time: bool) -> None:
        """Die, but not all the time: there would be no life."""
        if is_time:
            self.die()

    def die(self) -> None:
        """Die, wherever that is, and see what the next process knows."""
        with mock.patch.object(Path, "unlink"):
            self.journal.close()
        live, truth = self.detector, restored(self.all)
        self.journal, self.compaction = Journal(self.path), None
        found = self.detector = restored(self.journal.open())
        assert_same(found, truth, live, self.edges)
        self.commit()


EDGES = ROOT, FIRST, SECOND, THIRD, OTHER, NEVER = [letter.encode() * 12 for letter in "rabcon"]
DONE = Receipt("done", 1, notes=(Note(edge_mark(FIRST), "", "there", "done", 0.5),))

# What happens to one cascade and to one message, from its beginning until nobody asks for it any more.
COURSE: tuple[Callable[[Detector], object], ...] = (
    lambda node: node.refuse(NEVER),
    lambda node: node.known.age(0.0),
    lambda node: node.begin(ROOT, bytes(16)),
    lambda node: node.arrive(OTHER, bytes(16), "0123456789ab", "http://there"),
    lambda node: node.send(node.known.hop(ROOT), FIRST, "http://first"),
    lambda node: node.send(node.known.hop(ROOT), SECOND, "http://second", 1_800_000_000),
    lambda node: node.told(SECOND, WORKING),
    lambda node: node.receive(FIRST, DONE),
    lambda node: node.send(node.known.hop(ROOT), THIRD, "http://third"),
    lambda node: node.known.promise(60.0),
    lambda node: node.cancel(node.known.hop(ROOT)),
    lambda node: node.end(node.known.hop(ROOT), "failed", seconds=0.25, why="so"),
    lambda node: node.sent(SECOND, "is opaque"),
    lambda node: node.end(node.known.hop(OTHER), "done"),
    lambda node: node.ride(OTHER),
    lambda node: node.receive(THIRD, DONE),
    lambda node: node.taken(ROOT),
)


@pytest.mark.parametrize("begin", range(len(COURSE) + 1))
def test_every_course_of_a_compaction(begin: int, tmp_path: Path) -> None:
    """It begins after any step, takes up any number of edges after any, and ends then or later."""
    courses = list(product(range(begin, len(COURSE) + 1), range(1, 5), (0, 1, 3)))
    tried = sampling.at_most(SAMPLED_COURSES, courses, begin)
    for number, (middle, count, later) in enumerate(tried):
        with closing(Journal(tmp_path / str(number))) as journal:
            _run_course(journal, begin, {middle: count}, min(middle + later, len(COURSE)))


def _run_course(journal: Journal, begin: int, slices: dict[int, int], end: int) -> None:
    node, everything = restored(journal.open()), list[Any]()
    for step in COURSE[:begin]:
        everything += _make(step, node, journal)
    compaction = Compaction(journal, node.known)
    for at in range(begin, end + 1):
        compaction.slice(slices.get(at, 0))
        if at < end:
            everything += _make(COURSE[at], node, journal)
    while compaction.slice(1):
        pass
    if not compaction._draft.is_dropped:  # as it has aged
        compaction.replace()
    compaction.end()
    journal.close()
    assert_same(restored(journal.open()), restored(everything), node, EDGES)


def _make(step: Callable[[Detector], object], node: Detector, journal: Journal) -> list[Any]:
    step(node)
    records = [one.record for one in node.take() if isinstance(one, Write)]
    journal.write(records)
    return records


TestLife = Life.TestCase
TestLife.settings = effort(examples=80, steps=50)
