"""Engines that are connected by plain calls in memory: cascades of any size, without a network or a file.

Each shape returns its processor seconds, and checks that the verdict counts every hop once. The records of
the engines are dropped; another benchmark measures the journal.
"""

from __future__ import annotations

import gc
import time
from collections import deque
from typing import TYPE_CHECKING

from quiesce.mesh.protocol.engine import Engine
from quiesce.mesh.protocol.facts import Settle
from quiesce.mesh.protocol.receipt import edge_mark
from quiesce.mesh.protocol.scheduler import Patience

if TYPE_CHECKING:
    from collections.abc import Callable

    from quiesce.mesh.protocol.receipt import Receipt
    from quiesce.mesh.protocol.states import HopRecord

    Shape = Callable[[int], float]

NAMES = ("http://127.0.0.1:8001", "http://127.0.0.1:8002")
FAN_OUT = 10
CASCADE = bytes(16)


def new_engine(name: str = NAMES[0]) -> Engine:
    """Return an engine like a node's, without jitter."""
    return Engine(name, lasting=True, patience=Patience(), jitter=lambda: 1.0)


class Mesh:
    """Two nodes that send messages to each other; the first begins the cascades."""

    def __init__(self) -> None:
        """Make both nodes, without a cascade."""
        self.engines = {name: new_engine(name) for name in NAMES}
        self.first, self.second = self.engines.values()
        self.ids = 0
        self.settled: list[Receipt] = []

    def new_id(self) -> bytes:
        """Return a unique id."""
        self.ids += 1
        return self.ids.to_bytes(12, "big")

    def begin(self) -> HopRecord:
        """Begin a cascade at the first node."""
        hop = self.first.begin(self.new_id(), CASCADE, 0.0)
        self.first.take_writes()
        return hop

    def hand(self, engine: Engine, hop: HopRecord, to: str) -> bytes:
        """Send an edge from a hop."""
        edge = self.new_id()
        engine.send(hop, edge, to, 0.0)
        engine.take_writes()
        return edge

    def take(self, edge: bytes, parent: str, by: str, reply: str) -> HopRecord:
        """Deliver an edge; return its running hop."""
        engine = self.engines[by]
        assert engine.detector.arrive(edge, CASCADE, parent, reply).kind == "run"
        engine.take_writes()
        return engine.known.hop(edge)

    def answer(self, edge: bytes, by: Engine, sender: Engine) -> None:
        """Answer an edge's message; the receipt is on the answer, or comes later."""
        answer = by.ride(edge, 0.0)
        sender.answered(edge, answer, "is taken", 0.0)
        sender.take_writes()

    def end(self, engine: Engine, hop: HopRecord) -> None:
        """End the work of a hop."""
        engine.end(hop, "done", 0.0, seconds=0.25)
        engine.take_writes()

    def call(self) -> None:
        """Make all calls that are due, until no call is left."""
        while min(engine.next_at() for engine in self.engines.values()) <= 0.0:
            for engine in self.engines.values():
                for call in engine.due(0.0):
                    other = self.engines[call.to]
                    reply = other.called(call, 0.0)
                    other.take_writes()
                    engine.replied(call, reply, 0.0)
                    engine.take_writes()

    def settle(self, hops: int) -> None:
        """Check the verdicts: all cascades together have exactly `hops` hops."""
        self.call()
        for news in self.first.take_news():
            assert isinstance(news, Settle)
            self.first.told(news.edge, 0.0)
            self.settled.append(news.receipt)
        assert sum(receipt.hops for receipt in self.settled) == hops
        assert all(receipt.is_whole for receipt in self.settled)
        assert all(engine.next_at() == float("inf") for engine in self.engines.values())


def timed(work: Callable[[Mesh, int], None], count: int) -> float:
    """Run work in a new mesh; return processor seconds for each hop."""
    mesh = Mesh()
    gc.collect()
    begin = time.process_time()
    work(mesh, count)
    return (time.process_time() - begin) / count


def tree(mesh: Mesh, hops: int) -> None:
    """Hand on from every hop to ten others, in order, until there are `hops` hops.

    A hop that hands nothing on ends before its message is answered, so its receipt is on the answer.
    """
    waiting = deque([(0, mesh.begin(), NAMES[0])])
    while waiting:
        number, hop, name = waiting.popleft()
        engine, to = mesh.engines[name], NAMES[name == NAMES[0]]
        other, parent = mesh.engines[to], edge_mark(hop.edge)
        for below in range(number * FAN_OUT + 1, min(hops, (number + 1) * FAN_OUT + 1)):
            edge = mesh.hand(engine, hop, to)
            child = mesh.take(edge, parent, to, name)
            if below * FAN_OUT + 1 < hops:
                waiting.append((below, child, to))
            else:
                mesh.end(other, child)
            mesh.answer(edge, other, engine)
        mesh.end(engine, hop)
        mesh.call()
    mesh.settle(hops)


def star(mesh: Mesh, hops: int) -> None:
    """Hand on to all other hops from one hop, so that all edges are open at once."""
    root = mesh.begin()
    parent, (home, to) = edge_mark(root.edge), NAMES
    children = []
    for _ in range(hops - 1):
        edge = mesh.hand(mesh.first, root, to)
        children.append(mesh.take(edge, parent, to, home))
        mesh.answer(edge, mesh.second, mesh.first)
    mesh.end(mesh.first, root)
    for child in children:
        mesh.end(mesh.second, child)
    mesh.settle(hops)


def chain(mesh: Mesh, hops: int) -> None:
    """Hand on from every hop to one other, so that all hops wait for the last."""
    hop, name = mesh.begin(), NAMES[0]
    for _ in range(hops - 1):
        engine, to = mesh.engines[name], NAMES[name == NAMES[0]]
        edge = mesh.hand(engine, hop, to)
        child = mesh.take(edge, edge_mark(hop.edge), to, name)
        mesh.answer(edge, mesh.engines[to], engine)
        mesh.end(engine, hop)
        hop, name = child, to
    mesh.end(mesh.engines[name], hop)
    mesh.settle(hops)


HOPS_A_CASCADE = 3


def cascades(mesh: Mesh, hops: int) -> None:
    """Run many small cascades, all open at once: a root and two that it hands on to."""
    home, to = NAMES
    begun = [mesh.begin() for _ in range(hops // HOPS_A_CASCADE)]
    children = []
    for root in begun:
        for _ in range(HOPS_A_CASCADE - 1):
            edge = mesh.hand(mesh.first, root, to)
            children.append(mesh.take(edge, edge_mark(root.edge), to, home))
            mesh.answer(edge, mesh.second, mesh.first)
        mesh.end(mesh.first, root)
    for child in children:
        mesh.end(mesh.second, child)
    mesh.settle(len(begun) * HOPS_A_CASCADE)
    assert len(mesh.settled) == len(begun)
