"""Nodes around real detectors, a network that does what it is told, and the truth about their work.

The truth is kept apart from what the detectors know: which work runs, who has sent what, and what became
of it, in all lives of all nodes. Each record that a node writes, and each verdict, is held against it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from quiesce.mesh.protocol.detector import Detector
from quiesce.mesh.protocol.facts import (
    Begun,
    Closed,
    EdgeClosed,
    Ended,
    Over,
    Post,
    Sent,
    Settle,
    Stop,
    Unwatch,
    Watch,
    Write,
)
from quiesce.mesh.protocol.receipt import unpack

if TYPE_CHECKING:
    from quiesce.mesh.protocol.facts import Effect, Record
    from quiesce.mesh.protocol.receipt import Receipt, Status
    from quiesce.mesh.protocol.states import HopRecord

COUNTS = ("hops", "failed", "cancelled", "lost", "opaque", "unknown", "volatile")
OPAQUE = "opaque"  # the name of an agent that takes no part


class Crashed(Exception):  # noqa: N818 - it is no error
    """A process is gone in the midst of a step."""


@dataclass
class Message:
    """Something on its way; an answer reaches only the process that waits for it."""

    kind: str
    to: str
    edge: bytes
    sender: str
    life: int = 0
    what: Any = None


@dataclass
class Fact:
    """The truth about an edge, or a root."""

    edge: bytes
    cascade: bytes
    to: str
    sender: str = ""
    reply: str | None = None
    hop: bytes = b""
    is_root: bool = False
    begun: int = 0
    refused: bool = False
    status: Status | None = None
    closed_as: Receipt | None = None
    """What its receiver has said in the end."""
    taken_as: Receipt | None = None
    """What its sender took it for."""
    known_taken: bool = False
    """Whether its sender was told that it is worked on."""


@dataclass
class Cascade:
    """The truth about a cascade."""

    verdict: Receipt | None = None
    home_lost: bool = False
    """Its root was on a node without a journal, which has died."""
    may_be_unknown: bool = False
    revived: bool = False
    """A node without a journal has met, after a restart, a copy of what it had met before."""


@dataclass
class Work:
    """A hop that runs, or has run, in the process that is there now."""

    hop: HopRecord
    is_running: bool = True
    is_answered: bool = False


class Truth:
    """What really happened."""

    def __init__(self) -> None:
        self.facts: dict[bytes, Fact] = {}
        self.cascades: dict[bytes, Cascade] = {}
        self.running: Counter[bytes] = Counter()
        """How much work runs, of each cascade."""
        self.ending: dict[bytes, Status] = {}
        """Hops whose work has just ended."""

    def below(self, edge: bytes) -> list[Fact]:
        """Return what was sent from a hop, as its node has written it."""
        return [fact for fact in self.facts.values() if fact.hop == edge]

    def of(self, cascade: bytes) -> list[Fact]:
        """Return what belongs to a cascade."""
        return [fact for fact in self.facts.values() if fact.cascade == cascade]

    # Work.

    def begins(self, edge: bytes) -> None:
        """Let work begin, if it may."""
        fact = self.facts[edge]
        cascade = self.cascades[fact.cascade]
        assert cascade.verdict is None or cascade.verdict.unknown or cascade.revived, (
            "work begins after the verdict"
        )
        self.running[fact.cascade] += 1

    def ends(self, edge: bytes) -> None:
        """Let work end."""
        self.running[self.facts[edge].cascade] -= 1

    # Records.

    def written(self, node: Node, record: Record) -> None:
        """Hold a record against what happened."""
        match record:
            case Begun(edge):
                self._begun(node, self.facts[edge])
            case Sent(hop, edge, to):
                cascade = self.facts[hop].cascade
                self.facts[edge] = Fact(edge, cascade, to, node.name, node.reply, hop)
            case EdgeClosed(edge, receipt):
                self._edge_closed(self.facts[edge], receipt)
            case Ended(edge, status):
                self._ended(self.facts[edge], status)
            case Closed(edge, packed) | Over(edge, bytes(packed)) if packed:
                self._closed(node, self.facts[edge], unpack(packed))
            case _:
                pass

    def _begun(self, node: Node, fact: Fact) -> None:
        cascade = self.cascades[fact.cascade]
        given_up = fact.taken_as is not None and fact.taken_as.status == "unknown"
        if fact.begun or fact.refused or (fact.taken_as is not None and not given_up):
            assert not node.lasting, "an id that is over is run"
            cascade.revived = True
            assert cascade.verdict is None or cascade.verdict.volatile or cascade.verdict.unknown
            fact.status = fact.closed_as = None
        fact.begun += 1

    def _ended(self, fact: Fact, status: Status) -> None:
        if fact.status is None:
            fact.status = self.ending.get(fact.edge, "lost")
        assert status == fact.status, "a hop ended otherwise"

    def _edge_closed(self, fact: Fact, receipt: Receipt) -> None:
        assert fact.taken_as is None, "an edge is closed twice"
        fact.taken_as = receipt
        cascade = self.cascades[fact.cascade]
        if receipt.hops:
            assert receipt == fact.closed_as or cascade.revived, "a receipt that nobody gave"
        elif receipt.status == "unknown":
            assert cascade.may_be_unknown, "unknown, although it could be known"
        elif receipt.status == "opaque":
            assert fact.to == OPAQUE
        elif fact.begun:
            # A node without a journal answers for this life of its own, as its answer says: that is
            # enough only for a sender that was never told of another.
            assert receipt.volatile, "what is run is said never to run"
            assert not fact.known_taken, "what was taken is said never to run"
            cascade.revived = True

    def _closed(self, node: Node, fact: Fact, receipt: Receipt) -> None:
        self._ended(fact, receipt.status)
        below = self.below(fact.edge) if node.lasting else node.sent_from(self, fact.edge)
        expected = Counter({"hops": 1, "volatile": int(not node.lasting and not fact.is_root)})
        expected[receipt.status] += receipt.status != "done"
        for child in below:
            assert child.taken_as is not None, "closed, with an edge open"
            expected.update({name: getattr(child.taken_as, name) for name in COUNTS})
        assert {name: getattr(receipt, name) for name in COUNTS} == {
            name: expected[name] for name in COUNTS
        }
        fact.closed_as = receipt

    # Verdicts.

    def settled(self, settle: Settle) -> None:
        """Hold a verdict against what happened."""
        cascade, receipt = self.cascades[settle.cascade], settle.receipt
        if cascade.verdict is not None:
            assert cascade.verdict == receipt, "another verdict after the first"
            return
        cascade.verdict = receipt
        if receipt.unknown:
            return
        if cascade.revived:
            assert receipt.volatile, "nobody is told that copies may have run"
            return
        assert not self.running[settle.cascade], "work runs at the verdict"
        for fact in self.of(settle.cascade):
            assert fact.is_root or fact.taken_as is not None, "an edge is open at the verdict"
        assert self._counted(settle.cascade) == {name: getattr(receipt, name) for name in COUNTS}

    def _counted(self, cascade: bytes) -> dict[str, int]:
        """Count it all again, without any receipt of a hop."""
        counts: Counter[str] = Counter({"hops": 0})
        for fact in self.of(cascade):
            if fact.begun:
                assert fact.status is not None
                counts["hops"] += 1
                counts[fact.status] += 1
                counts["volatile"] += fact.closed_as is not None and self._is_volatile(fact)
            elif fact.taken_as is not None:
                counts[fact.taken_as.status] += 1
                counts["volatile"] += fact.taken_as.volatile
        return {name: counts[name] for name in COUNTS}

    def _is_volatile(self, fact: Fact) -> bool:
        return fact.to in self.forgetful and not fact.is_root

    forgetful: frozenset[str] = frozenset()


@dataclass
class Node:
    """A process that comes and goes, what it keeps, and what it has to do."""

    name: str
    lasting: bool
    truth: Truth
    journal: list[Record] = field(default_factory=list)
    life: int = 0
    is_up: bool = True
    fuse: int | None = None
    """After how many records it dies, in the next step that writes some."""
    reply: str | None = None
    works: dict[bytes, Work] = field(default_factory=dict)
    sending: dict[bytes, bytes] = field(default_factory=dict)
    """Edges whose sending is under way, each with its hop."""
    watched: dict[bytes, bool] = field(default_factory=dict)
    posts: dict[bytes, tuple[str, Receipt]] = field(default_factory=dict)
    untold: set[bytes] = field(default_factory=set)
    """Roots whose verdict is still to be told to whoever waits."""
    sent: set[bytes] = field(default_factory=set)
    """Edges that were sent in this life."""
    aging: set[bytes] = field(default_factory=set)
    """Edges to this node, when it aged the last time; without a journal, in this life."""

    def __post_init__(self) -> None:
        """Start."""
        self.detector = Detector(self.name, lasting=self.lasting)

    def sent_from(self, truth: Truth, edge: bytes) -> list[Fact]:
        """Return what was sent from a hop in this life."""
        return [fact for fact in truth.below(edge) if fact.edge in self.sent]

    def commit(self) -> None:
        """Write, then do the rest; or die in the midst of it."""
        effects = self.detector.take()
        records = [effect.record for effect in effects if isinstance(effect, Write)]
        if self.fuse is not None and records:
            self._write(records[: self.fuse if self.lasting else 0])
            self.crash()
            raise Crashed
        for effect in effects:
            self._do(effect)
        for record in records:
            if isinstance(record, Closed):
                self._posts(record.edge)

    def _posts(self, edge: bytes) -> None:
        """See that a receipt is sent, unless it can ride on the answer, or its sender has no address."""
        fact, work = self.truth.facts[edge], self.works.get(edge)
        if fact.reply is not None and (work is None or work.is_answered):
            assert edge in self.posts, "a receipt is not sent"

    def _write(self, records: list[Record]) -> None:
        for record in records:
            if self.lasting:
                self.journal.append(record)
            if isinstance(record, Sent):
                self.sent.add(record.edge)
            self.truth.written(self, record)

    def _do(self, effect: Effect) -> None:
        match effect:
            case Write(record):
                self._write([record])
            case Post(edge, to, receipt):
                self.posts[edge] = to, receipt
            case Watch(edge, cancel=cancel):
                self.watched[edge] = self.watched.get(edge, False) or cancel
            case Unwatch(edge):
                self.watched.pop(edge, None)
            case Settle(edge):
                self.truth.settled(effect)
                self.untold.add(edge)
            case Stop(edge):
                assert self.works[edge].is_running

    def run(self, edge: bytes, hop: HopRecord) -> None:
        """Begin the work of a hop."""
        self.truth.begins(edge)
        self.works[edge] = Work(hop)

    def stop_running(self, edge: bytes) -> None:
        """End the work of a hop."""
        self.works[edge].is_running = False
        self.truth.ends(edge)

    def crash(self) -> None:
        """Crash: all that runs here ends."""
        self.is_up, self.fuse = False, None
        for edge, work in self.works.items():
            if work.is_running:
                self.truth.ends(edge)
            if not self.lasting:
                self._forget(edge)
        for fact in self.truth.facts.values():
            if fact.sender == self.name:
                fact.known_taken = False
        self.works, self.sending, self.watched, self.posts = {}, {}, {}, {}
        self.sent, self.untold = set(), set()
        if not self.lasting:
            self.aging = set()  # with a journal, the next process goes on with forgetting

    def _forget(self, edge: bytes) -> None:
        fact = self.truth.facts[edge]
        cascade = self.truth.cascades[fact.cascade]
        cascade.may_be_unknown = cascade.may_be_unknown or fact.taken_as is None
        cascade.home_lost = cascade.home_lost or fact.is_root

    def restart(self) -> None:
        """Start again as another process."""
        self.is_up = True
        self.life += 1
        self.detector = Detector(self.name, lasting=self.lasting)
        self.detector.restore(self.journal)
        self.commit()
