"""A node without its sockets, its clock and its files: detector and courier, put together.

Whoever drives it gives the time, and keeps this order: what `take_writes` gives is made to last before
anything else is done with what the engine has answered. A handler runs, a message leaves, a call is made
or answered, a verdict is told: all of it after the writes.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from quiesce.mesh.courier import Call, Courier, Patience, Reply
from quiesce.mesh.detector import Detector
from quiesce.mesh.facts import RUN, Post, Unwatch, Watch
from quiesce.mesh.horizon import KEEP_SECONDS, Horizon

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from quiesce.mesh.facts import Answer, Record, Settle, Stop
    from quiesce.mesh.receipt import Status
    from quiesce.mesh.states import Hop, Sending
    from quiesce.mesh.wire import Handed

__all__: list[str] = []

_SEEN_MAX = 10_000  # addresses


class Engine:
    """What a node knows, and what it is about to say to others."""

    def __init__(
        self,
        name: str,
        *,
        lasting: bool,
        patience: Patience,
        jitter: Callable[[], float],
        keep: float = KEEP_SECONDS,
        wall: Callable[[], float] = time.time,
        detector: type[Detector] = Detector,
        horizon: type[Horizon] = Horizon,
    ) -> None:
        """Begin with nothing, or with what `restore` is given first; then `open` it."""
        self.detector: Detector = detector(name, lasting=lasting)
        self.horizon: Horizon = horizon(self.detector, keep, wall)
        self._seen: dict[str, str] = {}  # what nodes have said of their journals, by address
        self._courier = Courier(patience, jitter, self.detector.give_up)
        self.news: list[Stop | Settle] = []
        self.is_stirred: bool = False

    def take_stir(self) -> bool:
        """Tell whether `next_at` may be another than when this was asked before."""
        stirred, self.is_stirred = self.is_stirred, False
        return stirred

    def take_writes(self) -> list[Record]:
        """Give what has to last before anything else is done."""
        detector = self.detector
        writes, detector.writes = detector.writes, []
        return writes

    def take_news(self) -> list[Stop | Settle]:
        """Give which hops are to stop, and which cascades have settled."""
        news, self.news = self.news, []
        return news

    def _absorb(self, now: float) -> None:
        acts, self.detector.acts = self.detector.acts, []
        courier = self._courier
        for act in acts:
            if isinstance(act, Watch):
                courier.watch(act, now)
                self.is_stirred = True
            elif isinstance(act, Unwatch):
                courier.unwatch(act.edge)
            elif isinstance(act, Post):
                courier.post(act, now)
                self.is_stirred = True
            else:
                self.news.append(act)

    def restore(self, records: Iterable[Record], now: float) -> None:
        """Take up what a process before this one has written."""
        self.detector.restore(records)
        self.resume(now)

    def resume(self, now: float) -> None:
        """Do what the detector wants done, after it was restored, and remember as long as was promised."""
        self.horizon.open(now)
        self._absorb(now)

    # Hops.

    def begin(self, edge: bytes, cascade: bytes, now: float, name: str = "") -> Hop:
        """Begin a cascade."""
        hop = self.detector.begin(edge, cascade, name)
        self._absorb(now)
        return hop

    def arrive(self, handed: Handed, reply: str | None) -> Answer:
        """Take a message that may begin; its handler is run if the answer is `run`."""
        answer = self.detector.arrive(handed.edge, handed.cascade, handed.parent, reply)
        if answer is RUN:
            self.horizon.arrived(handed)
            return answer
        return self.horizon.refusal(handed, answer)

    def refuse(self, handed: Handed, now: float) -> Answer:
        """Take no message that has arrived; unless it runs here already."""
        answer = self.detector.refuse(handed.edge)
        self._absorb(now)
        return self.horizon.refusal(handed, answer)

    def ride(self, edge: bytes, now: float) -> Answer:
        """Give what the answer to an edge's message says of it."""
        answer = self.detector.ride(edge)
        self._absorb(now)
        return answer

    def end(
        self, hop: Hop, status: Status, now: float, *, seconds: float | None = None, why: str = ""
    ) -> None:
        """Know that the work of a hop has ended."""
        self.detector.end(hop, status, seconds=seconds, why=why)
        if self.detector.acts:
            self._absorb(now)

    def told(self, edge: bytes, now: float) -> None:
        """Know that whoever waits for a cascade was told that it has settled."""
        self.detector.taken(edge)
        self._absorb(now)

    def cancel(self, hop: Hop, now: float) -> None:
        """Have a hop end, and all that was handed on from it."""
        self.detector.cancel(hop)
        self._absorb(now)

    # Edges.

    def send(self, hop: Hop, edge: bytes, to: str, now: float) -> int:
        """Record that an edge is about to be sent; returns until when it may begin."""
        by = self.horizon.begin_by()
        self.detector.send(hop, edge, to, by)
        self._absorb(now)
        return int(by)

    def sent(self, edge: bytes, how: Sending, now: float) -> None:
        """Know what became of the sending."""
        self.detector.sent(edge, how)
        self._absorb(now)

    def leave(
        self, hop: Hop, edge: bytes, route: str, why: str, now: float, how: Sending = "is untracked"
    ) -> None:
        """Record work that left a hop by a way that nobody follows: an edge that is closed at once."""
        self.detector.send(hop, edge, route)
        self.detector.sent(edge, how, why)
        self._absorb(now)

    def answered(
        self, edge: bytes, answer: Answer, how: Sending, now: float, *, uses: int = 1
    ) -> None:
        """Take the answer to a message, which was sent so many times."""
        if answer.receipt is not None:
            self.detector.receive(edge, answer.receipt)
        self.detector.sent(edge, self.horizon.outcome(edge, how, uses=uses))
        self._absorb(now)

    # Calls from node to node.

    @property
    def unposted(self) -> int:
        """How many receipts are to be posted, and nobody has taken so far."""
        return self._courier.unposted

    def next_at(self) -> float:
        """Tell when `due` has something to give."""
        return min(self._courier.next_at(), self.horizon.age_at)

    def due(self, now: float) -> list[Call]:
        """Return the calls that are to be made now; and forget what is old, if it is time."""
        self.horizon.age(now)
        calls = self._courier.due(now)
        self._absorb(now)
        return calls

    def asking(self, call: Call) -> Call:
        """Return a call as it is sent."""
        return self.horizon.asking(replace(call, seen=self._seen.get(call.to, "")))

    def replied(self, call: Call, reply: Reply, now: float) -> None:
        """Take the answer to a call."""
        self.is_stirred = True
        reply = self._believed(call.to, reply)
        self._courier.replied(call, reply, now)
        posted, asked = dict(call.receipts), dict(call.asks)  # it has no say about others
        for edge in reply.taken:
            if edge in posted:
                self.detector.taken(edge)
        for edge, answer in reply.answers:
            if edge in asked:
                self.detector.told(edge, answer)
        self._absorb(now)

    def failed(self, call: Call, now: float, why: str = "") -> None:
        """Know that a call was not answered; and why, if that will not pass by itself."""
        self.is_stirred = True
        self._courier.failed(call, now, why)

    def trouble(self, edge: bytes) -> str:
        """Tell what is wrong where an edge's receipt is to be posted, if that is known; else empty."""
        return self._courier.trouble(edge)

    def contact(self, to: str | None, now: float, *, is_node: bool = False) -> None:
        """Know that an agent is there, or even its node: what failed is tried again soon."""
        if to is not None and self._courier.contact(to, now, is_node=is_node):
            self.is_stirred = True

    def called(self, call: Call, now: float) -> Reply:
        """Answer a call of another node."""
        for edge, receipt in call.receipts:
            self.contact(self.detector.receiver(edge), now)
            self.detector.receive(edge, receipt)
        answers = tuple(
            (edge, self.detector.ask(edge, cancel=cancel)) for edge, cancel in call.asks
        )
        self._absorb(now)
        born = self.detector.born
        age = None if born is None else max(0.0, self.horizon.wall() - born.at)
        reply = Reply(tuple(edge for edge, _ in call.receipts), answers, age)
        return self.horizon.answering(call, reply)

    def heard(self, to: str, reply: Reply, now: float) -> None:
        """Take answers to questions that were asked without the courier."""
        for edge, answer in self._believed(to, reply).answers:
            self.detector.told(edge, answer)
        self._absorb(now)

    def _believed(self, to: str, reply: Reply) -> Reply:
        if reply.seen:
            if to not in self._seen and len(self._seen) >= _SEEN_MAX:
                self._seen.clear()
            self._seen[to] = reply.seen
        return self.horizon.believed(reply)
