"""A node without its sockets, its clock and its files: detector and courier, put together.

Whoever drives it gives the time, and keeps this order: what `take_writes` gives is made to last before
anything else is done with what the engine has answered. A handler runs, a message leaves, a call is made
or answered, a verdict is told: all of it after the writes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce.mesh.courier import Call, Courier, Patience, Reply
from quiesce.mesh.detector import Detector
from quiesce.mesh.facts import Post, Unwatch, Watch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from quiesce.mesh.facts import Answer, Record, Settle, Stop
    from quiesce.mesh.receipt import Receipt, Status
    from quiesce.mesh.states import Hop, Sending

__all__: list[str] = []


class Engine:
    """What a node knows, and what it is about to say to others."""

    def __init__(
        self,
        name: str,
        *,
        lasting: bool,
        patience: Patience,
        jitter: Callable[[], float],
        detector: type[Detector] = Detector,
    ) -> None:
        """Begin with nothing, or with what `restore` is given first."""
        self.detector: Detector = detector(name, lasting=lasting)
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
        """See to what the detector wants done, after it was restored."""
        self._absorb(now)

    # Hops.

    def begin(self, edge: bytes, cascade: bytes, now: float) -> Hop:
        """Begin a cascade."""
        hop = self.detector.begin(edge, cascade)
        self._absorb(now)
        return hop

    def arrive(
        self, edge: bytes, cascade: bytes, parent: str, reply: str | None, now: float
    ) -> Answer:
        """Take an edge that has arrived; its handler is run if the answer is `run`."""
        answer = self.detector.arrive(edge, cascade, parent, reply)
        if self.detector.acts:
            self._absorb(now)
        return answer

    def refuse(self, edge: bytes, now: float) -> Answer:
        """Take no edge that has arrived."""
        answer = self.detector.refuse(edge)
        self._absorb(now)
        return answer

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

    def send(self, hop: Hop, edge: bytes, to: str, now: float, by: int = 0) -> None:
        """Know that an edge is about to be sent."""
        self.detector.send(hop, edge, to, by)
        self._absorb(now)

    def sent(self, edge: bytes, how: Sending, now: float) -> None:
        """Know what became of the sending."""
        self.detector.sent(edge, how)
        self._absorb(now)

    def receive(self, edge: bytes, receipt: Receipt, now: float) -> None:
        """Take a receipt that came on an answer."""
        self.detector.receive(edge, receipt)
        self._absorb(now)

    # Calls from node to node.

    @property
    def unposted(self) -> int:
        """How many receipts are to be posted, and nobody has taken so far."""
        return self._courier.unposted

    def next_at(self) -> float:
        """Tell when `due` has something to give."""
        return self._courier.next_at()

    def due(self, now: float) -> list[Call]:
        """Give the calls that are to be made now."""
        calls = self._courier.due(now)
        self._absorb(now)
        return calls

    def replied(self, call: Call, reply: Reply, now: float) -> None:
        """Take the answer to a call."""
        self.is_stirred = True
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
        return Reply(tuple(edge for edge, _ in call.receipts), answers)

    def heard(self, answers: Iterable[tuple[bytes, Answer]], now: float) -> None:
        """Take answers to questions that were asked without the courier."""
        for edge, answer in answers:
            self.detector.told(edge, answer)
        self._absorb(now)
