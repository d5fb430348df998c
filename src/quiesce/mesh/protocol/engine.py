"""A node without its sockets, its clock and its files: combines detector, horizon and courier.

The node passes the time to the engine, and keeps this order: it makes the records of `take_writes` durable
before it acts on any result of the engine. So it runs a handler, sends a message, makes or answers a call, and
delivers a verdict only after the writes.
"""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

from quiesce.mesh.protocol.codec import ITEMS_MAX
from quiesce.mesh.protocol.detector import Detector
from quiesce.mesh.protocol.facts import NEVER, RUN, UNKNOWN, Post, Unwatch, Watch
from quiesce.mesh.protocol.horizon import KEEP_SECONDS, Horizon
from quiesce.mesh.protocol.scheduler import Courier, NodeCall, NodeReply, Patience

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from quiesce.mesh.protocol.codec import Handed
    from quiesce.mesh.protocol.facts import Answer, Record, Settle, Stop
    from quiesce.mesh.protocol.knowledge import Knowledge
    from quiesce.mesh.protocol.receipt import Status
    from quiesce.mesh.protocol.states import HopRecord, Sending

__all__: list[str] = []

_SEEN_MAX = 10_000  # addresses


class Engine:
    """The knowledge of a node, and the calls that it has to make to other nodes."""

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
        """Begin without knowledge. The node calls `restore` with its journal's records, then `open`."""
        self.detector: Detector = detector(name, lasting=lasting)
        self.known: Knowledge = self.detector.known
        self.horizon: Horizon = horizon(self.known, keep, wall)
        # By address: the last statement of a node about its journal; and the addresses where several nodes answer.
        self._seen: dict[str, tuple[str, float]] = {}
        self._shared: set[str] = set()
        self._courier = Courier(patience, jitter, self.detector.give_up)
        self.may_call: Callable[[str], bool] = lambda _: True
        """Whether this node may call an address that another node has reported."""
        self._ended: set[bytes] = set()  # edges cancelled in the place of other nodes
        self.news: list[Stop | Settle] = []
        self.is_stirred: bool = False

    def take_stir(self) -> bool:
        """Return whether `next_at` may have changed since the last call."""
        stirred, self.is_stirred = self.is_stirred, False
        return stirred

    def take_writes(self) -> list[Record]:
        """Return the records to make durable before any other action."""
        writes, self.known.writes = self.known.writes, []
        return writes

    def take_news(self) -> list[Stop | Settle]:
        """Return the hops to stop and the cascades that have settled."""
        news, self.news = self.news, []
        return news

    def absorb_news(self, now: float) -> None:
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
        """Restore the records of an earlier process."""
        self.detector.restore(records)
        self.resume(now)

    def resume(self, now: float) -> None:
        """Carry out the effects of the restored records, and keep the promises of the earlier process."""
        self.horizon.open(now)
        self.absorb_news(now)

    # Hops.

    def begin(self, edge: bytes, cascade: bytes, now: float, name: str = "") -> HopRecord:
        """Begin a cascade; return its root."""
        hop = self.detector.begin(edge, cascade, name, self.horizon.wall())
        self.absorb_news(now)
        return hop

    def arrive(self, handed: Handed, reply: str | None) -> Answer:
        """Record a message that may begin. The caller runs its handler if the answer is `run`."""
        answer = self.detector.arrive(handed.edge, handed.cascade, handed.parent, reply)
        if answer is RUN:
            self.horizon.arrived(handed)
            return answer
        return self.horizon.refusal(handed, answer)

    def refuse(self, handed: Handed, now: float) -> Answer:
        """Refuse a message that has arrived, unless it already runs here."""
        answer = self.detector.refuse(handed.edge)
        self.absorb_news(now)
        return self.horizon.refusal(handed, answer)

    def ride(self, edge: bytes, now: float) -> Answer:
        """Return the content of the answer to a message."""
        answer = self.detector.ride(edge)
        self.absorb_news(now)
        return answer

    def end(
        self,
        hop: HopRecord,
        status: Status,
        now: float,
        *,
        seconds: float | None = None,
        why: str = "",
    ) -> None:
        """Record that a hop's own work has ended."""
        self.detector.end(hop, status, seconds=seconds, why=why)
        if self.detector.acts:
            self.absorb_news(now)

    def told(self, edge: bytes, now: float) -> None:
        """Record that the verdict of a cascade was delivered."""
        self.detector.taken(edge)
        self.absorb_news(now)

    def cancel(self, hop: HopRecord, now: float) -> None:
        """Cancel a hop and all work that was handed on from it."""
        self.detector.cancel(hop)
        self.absorb_news(now)

    # Edges.

    def send(self, hop: HopRecord, edge: bytes, to: str, now: float) -> int:
        """Record that an edge will be sent now; return the time until which it may begin."""
        by = self.horizon.begin_by()
        self.detector.send(hop, edge, to, by)
        self.absorb_news(now)
        return int(by)

    def sent(self, edge: bytes, how: Sending, now: float, why: str = "") -> None:
        """Record the outcome of a sending, and the reason if the outcome needs one."""
        self.detector.sent(edge, how, why)
        self.absorb_news(now)

    def leave(
        self,
        hop: HopRecord,
        edge: bytes,
        route: str,
        why: str,
        now: float,
        how: Sending = "is untracked",
    ) -> None:
        """Record work that left a hop by a way that is not tracked, as an edge that is closed at once."""
        self.detector.send(hop, edge, route)
        self.detector.sent(edge, how, why)
        self.absorb_news(now)

    def answered(
        self, edge: bytes, answer: Answer, how: Sending, now: float, *, uses: int = 1
    ) -> None:
        """Record the answer to a message that was sent `uses` times."""
        if answer.receipt is not None:
            self.detector.receive(edge, answer.receipt)
        self.detector.sent(edge, self.horizon.outcome(edge, how, uses=uses))
        self.absorb_news(now)

    # Calls from node to node.

    @property
    def unposted(self) -> int:
        """The number of receipts that were not delivered yet."""
        return self._courier.unposted

    def unposted_to(self) -> Iterable[str]:
        """Return the addresses of the undelivered receipts."""
        return self._courier.unposted_to()

    def unpost(self, edges: Iterable[bytes]) -> None:
        """Do not post the receipts of some edges: their senders have to ask."""
        for edge in edges:
            self._courier.unpost(edge)

    def adopt(self, records: Iterable[Record], now: float) -> None:
        """Take over the work of a dead replica of this agent: what it was running is lost."""
        self.detector.restore(records)
        self.absorb_news(now)

    def next_at(self) -> float:
        """Return the next time at which `due` returns calls."""
        return min(self._courier.next_at(), self.horizon.age_at)

    def due(self, now: float) -> list[NodeCall]:
        """Return the calls to make now. Also forget old edges, if it is time."""
        self.horizon.age(now)
        calls = self._courier.due(now)
        self.absorb_news(now)
        return calls

    def asking(self, call: NodeCall) -> NodeCall:
        """Return a call with the fields that are added when it is sent."""
        return self.horizon.asking(replace(call, seen=self._seen.get(call.to, ("",))[0]))

    def replied(self, call: NodeCall, reply: NodeReply, now: float) -> None:
        """Record the answer to a call."""
        self.is_stirred = True
        reply = self._believed(call.to, reply, now)
        self._courier.replied(call, reply, now)
        posted, asked = dict(call.receipts), dict(call.asks)  # ignore answers about other edges
        for edge in reply.taken:
            if edge in posted:
                self.detector.taken(edge)
        answers = tuple(one for one in reply.answers if one[0] in asked)
        for edge, answer in answers:
            if self.known.is_open(edge):
                self.detector.told(edge, answer)
            else:
                self._passed(edge, answer)
        self._learn(call.to, replace(reply, answers=answers))
        self.absorb_news(now)

    def failed(self, call: NodeCall, now: float, why: str = "", said: str = "") -> None:
        """Record a failed call: `why` is a reason that will not pass by itself, `said` the failure for people.

        If the call had to cancel an edge, this node cancels the known edges below it in the receiver's place.
        """
        self.is_stirred = True
        self._courier.failed(call, now, why, said)
        ending = (edge for edge, is_to_end in call.asks if is_to_end)
        below = (one for edge in ending for one in self.known.follows(edge))
        for edge, to in islice(below, ITEMS_MAX):
            if edge not in self._ended and self.may_call(to) and not self.known.is_open(edge):
                self._courier.watch(Watch(edge, to, cancel=True), now)

    def _passed(self, edge: bytes, answer: Answer) -> None:
        """Record that this node has cancelled an edge in place of the node that sent it."""
        self._courier.unwatch(edge)
        if answer.kind in {"working", "closed", "never"}:
            if len(self._ended) >= _SEEN_MAX:
                self._ended.clear()
            self._ended.add(edge)

    def _learn(self, to: str, reply: NodeReply) -> None:
        """Remember the edges below running edges: if their sender dies, this node may have to cancel them."""
        below: dict[bytes, list[tuple[bytes, str]]] = {}
        for edge, one, address in reply.below:
            below.setdefault(edge, []).append((one, address))
        for edge, answer in reply.answers:
            if answer.kind == "working":
                self.known.learn(edge, to, tuple(below.get(edge, ())))

    def passed(self, edge: bytes) -> tuple[set[str], set[str]]:
        """Return the agents below an edge that this node has told to end, and those that it has not."""
        told: set[str] = set()
        others: set[str] = set()
        for one, to in self.known.follows(edge):
            (told if one in self._ended else others).add(to)
        return told, others

    def trouble(self, edge: bytes) -> str:
        """Return the known problem with the address of an edge's receipt; empty if there is none."""
        return self._courier.trouble(edge)

    def contact(self, to: str | None, now: float, *, is_node: bool = False) -> None:
        """Record a sign of life from an agent or its node, so that failed calls to it are repeated soon."""
        if to is not None and self._courier.contact(to, now, is_node=is_node):
            self.is_stirred = True

    def post_now(self, now: float) -> None:
        """Make the receipts that wait for a retry due now, because the node is closing."""
        self._courier.post_now(now)

    def called(self, call: NodeCall, now: float) -> NodeReply:
        """Answer a call of another node."""
        for edge, receipt in call.receipts:
            self.contact(self.known.receiver(edge), now)
            self.detector.receive(edge, receipt)
        answers = tuple(
            (edge, self.detector.ask(edge, cancel=cancel)) for edge, cancel in call.asks
        )
        self.absorb_news(now)
        born = self.known.born
        age = None if born is None else max(0.0, self.horizon.wall() - born.at)
        open_edges = (
            (edge, one, to) for edge, _ in answers for one, to in self.known.follows(edge)
        )
        taken, below = tuple(edge for edge, _ in call.receipts), islice(open_edges, ITEMS_MAX)
        reply = NodeReply(taken, answers, age, below=tuple(below))
        return self.horizon.answering(call, reply)

    def heard(self, to: str, reply: NodeReply, now: float) -> None:
        """Record the answers to questions that were sent without the courier."""
        reply = self._believed(to, reply, now)
        for edge, answer in reply.answers:
            self.detector.told(edge, answer)
        self._learn(to, reply)
        self.absorb_news(now)

    def _believed(self, to: str, reply: NodeReply, now: float) -> NodeReply:
        """Return the reliable part of an answer. If several nodes share an address, no answer is reliable."""
        if reply.seen:
            before, at = self._seen.get(to, ("", now))
            is_other = reply.seen.partition(".")[0] != before.partition(".")[0]
            if before and is_other and reply.age is not None and reply.age > now - at:
                self._shared.add(to)  # two journals existed at the same time
            if to not in self._seen and len(self._seen) >= _SEEN_MAX:
                self._seen.clear()
                self._shared.clear()
            self._seen[to] = reply.seen, now
        reply = self.horizon.believed(reply)
        if to not in self._shared:
            return reply
        told = ((edge, UNKNOWN if one == NEVER else one) for edge, one in reply.answers)
        return replace(reply, answers=tuple(told))
