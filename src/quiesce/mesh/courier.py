"""Which receipts and questions are to be sent to whom, and when; time is given, nothing is sent here.

A receipt is sent until it is taken. An edge is asked for until it is closed: soon if it is in doubt
whether it arrived, else seldom, for its receiver sends the receipt by itself. What is due to one node
goes out in one call. A node that was not heard of for too long is given up.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from quiesce.mesh.facts import Answer, Post, Watch
    from quiesce.mesh.receipt import Receipt

__all__ = ["Patience"]


@dataclass(frozen=True)
class Patience:
    """How often to try, and for how long.

    None of this decides whether a cascade is found to be settled: it decides how soon, and when to
    say that it cannot be known.
    """

    retry_first: float = 0.2
    """Seconds until a call that failed is made again; doubled each time."""
    retry_most: float = 30.0
    ask_in_doubt: float = 1.0
    """Seconds until an edge is asked for of which it is not known that it arrived."""
    ask_every: float = 30.0
    """Seconds between questions about an edge that is known to have arrived."""
    give_up: float = 600.0
    """Seconds without a word of a node, until what it was sent is `unknown`."""
    batch_max: int = 500
    """How many receipts and questions go into one call."""


@dataclass(frozen=True, slots=True)
class Call:
    """One control message to a node."""

    to: str
    receipts: tuple[tuple[bytes, Receipt], ...]
    asks: tuple[tuple[bytes, bool], ...]
    """Edges that are asked for, each with whether it is to end."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What a node answers to a call."""

    taken: tuple[bytes, ...]
    answers: tuple[tuple[bytes, Answer], ...]


class _Errand:
    """A receipt that is to be sent, or an edge that is to be asked for."""

    __slots__ = ("at", "attempts", "cancel", "edge", "heard", "out", "receipt", "to")

    def __init__(self, edge: bytes, to: str, now: float) -> None:
        self.edge = edge
        self.to = to
        self.at = now
        self.attempts = 0
        self.heard = now
        self.cancel = False
        self.out = False
        self.receipt: Receipt | None = None


class Courier:
    """The errands of a node."""

    def __init__(
        self, patience: Patience, jitter: Callable[[], float], give_up: Callable[[bytes, str], None]
    ) -> None:
        """Have nothing to do yet.

        Args:
            patience: how often, and for how long.
            jitter: gives numbers from 0 to 1, so that nodes do not all call at once.
            give_up: is told of an edge whose receiver is not heard of, and why.
        """
        self._patience = patience
        self._jitter = jitter
        self._give_up = give_up
        self._posts: dict[bytes, _Errand] = {}
        self._asks: dict[bytes, _Errand] = {}
        self._heap: list[tuple[float, int, _Errand]] = []
        self._count = 0

    def post(self, post: Post, now: float) -> None:
        """Send a receipt from now on."""
        errand = self._posts[post.edge] = _Errand(post.edge, post.to, now)
        errand.receipt = post.receipt
        self._push(errand, now)

    def watch(self, watch: Watch, now: float) -> None:
        """Ask for an edge from now on."""
        errand = self._asks.get(watch.edge)
        if errand is None:
            errand = self._asks[watch.edge] = _Errand(watch.edge, watch.to, now)
        errand.cancel = errand.cancel or watch.cancel
        patience = self._patience
        wait = patience.ask_in_doubt if watch.in_doubt else patience.ask_every
        self._push(errand, now if watch.cancel else now + wait)

    def unwatch(self, edge: bytes) -> None:
        """Ask for an edge no more."""
        self._asks.pop(edge, None)

    def _push(self, errand: _Errand, at: float) -> None:
        self._count += 1
        errand.at = at
        heapq.heappush(self._heap, (at, self._count, errand))

    def _is_live(self, at: float, errand: _Errand) -> bool:
        table = self._asks if errand.receipt is None else self._posts
        return table.get(errand.edge) is errand and errand.at == at and not errand.out

    def next_at(self) -> float:
        """Tell when something is due; never, if nothing is to be done."""
        while self._heap:
            at, _, errand = self._heap[0]
            if self._is_live(at, errand):
                return at
            heapq.heappop(self._heap)
        return math.inf

    def due(self, now: float) -> list[Call]:
        """Give the calls to be made now; each is answered by `replied` or `failed`."""
        by_node: dict[str, list[_Errand]] = {}
        while self._heap and self._heap[0][0] <= now:
            at, _, errand = heapq.heappop(self._heap)
            if not self._is_live(at, errand):
                continue
            if self._is_hopeless(errand, now):
                self._drop(errand)
                continue
            errand.out = True
            by_node.setdefault(errand.to, []).append(errand)
        most = self._patience.batch_max
        return [
            _call(to, errands[first : first + most])
            for to, errands in by_node.items()
            for first in range(0, len(errands), most)
        ]

    def _is_hopeless(self, errand: _Errand, now: float) -> bool:
        return errand.attempts > 0 and now - errand.heard >= self._patience.give_up

    def _drop(self, errand: _Errand) -> None:
        """Give up: an edge is unknown then; a receipt is kept for whoever asks."""
        if errand.receipt is None:
            self._asks.pop(errand.edge, None)
            self._give_up(errand.edge, f"{errand.to} was not heard of any more")
        else:
            self._posts.pop(errand.edge, None)

    def replied(self, call: Call, reply: Reply, now: float) -> None:
        """Know that a call was answered: what it did not settle is asked again in time."""
        taken = set(reply.taken)
        asked = dict(call.asks)
        for errand in self._of(call):
            errand.out = False
            errand.heard = now
            errand.attempts = 0
            if errand.receipt is not None and errand.edge in taken:
                self._posts.pop(errand.edge, None)
            elif errand.receipt is not None:
                self._again(errand, now)
            else:  # asked to end while the question was under way: that is still to be told
                is_told = asked[errand.edge] or not errand.cancel
                self._push(errand, now + self._patience.ask_every if is_told else now)

    def failed(self, call: Call, now: float) -> None:
        """Know that a call was not answered."""
        for errand in self._of(call):
            errand.out = False
            self._again(errand, now)

    def _again(self, errand: _Errand, now: float) -> None:
        patience = self._patience
        wait = min(patience.retry_most, patience.retry_first * 2.0 ** min(errand.attempts, 30))
        errand.attempts += 1
        self._push(errand, now + wait * (0.5 + 0.5 * self._jitter()))

    def _of(self, call: Call) -> Iterable[_Errand]:
        for edge, _ in call.receipts:
            if edge in self._posts:
                yield self._posts[edge]
        for edge, _ in call.asks:
            if edge in self._asks:
                yield self._asks[edge]


def _call(to: str, errands: list[_Errand]) -> Call:
    return Call(
        to,
        tuple((one.edge, one.receipt) for one in errands if one.receipt is not None),
        tuple((one.edge, one.cancel) for one in errands if one.receipt is None),
    )
