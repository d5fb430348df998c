"""Decides which receipts and questions go to which node, and when. It has no clock, and sends nothing.

A receipt is sent until its receiver has confirmed it. An edge is asked for until it is closed: soon if it may not
have arrived, otherwise seldom, because its receiver posts the receipt. Everything that is due to one node
goes out in one call. After each failure the next try waits longer. If the node shows a sign of life, the next
try comes soon. A node that has not answered for too long is given up.

If something other than a node answers at an address, the next tries are seldom, even if a message was answered
there. But the address is not given up earlier, because the node may be starting.

There may be a million edges to ask for, but almost all are closed before that. So an edge does not have its own
time: edges that are due at about the same time form a round, which has one time.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from quiesce.core import arguments

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from quiesce.mesh.protocol.facts import Answer, Post, Watch
    from quiesce.mesh.protocol.receipt import Receipt

__all__ = ["Patience"]

T = TypeVar("T")

_TEXTS_MAX = 4_000_000  # bytes of texts in a call, below a node's limit
_EARLY = 1 / 32  # an edge may join a round that is earlier by this share of its wait


@dataclass(frozen=True)
class Patience:
    """How often to try, and for how long.

    These times do not decide whether a cascade has settled. They decide how soon a node learns of it, and
    when it gives up and answers `unknown`.
    """

    retry_first: float = 0.2
    """Seconds until a failed call is repeated; doubled after each failure."""
    retry_most: float = 30.0
    ask_in_doubt: float = 1.0
    """Seconds until the node asks for an edge that may not have arrived."""
    ask_every: float = 30.0
    """Seconds between questions about an edge that is known to have arrived."""
    give_up: float = 600.0
    """Seconds without an answer of a node, until the edges to it are `unknown`.

    A question is sent after half of this time at the latest, whatever the other times are.
    """
    batch_max: int = 500
    """The largest number of receipts and questions in one call."""

    def __post_init__(self) -> None:
        """Refuse invalid times now, because they would only show at a later failure.

        Without a pause between calls, the node would call an unreachable node in an endless loop.
        """
        for name in ("retry_first", "retry_most", "ask_in_doubt", "ask_every"):
            arguments.seconds(name, getattr(self, name), some=True)
        arguments.seconds("give_up", self.give_up)
        arguments.size("batch_max", self.batch_max)

    def ask_after(self, seconds: float) -> float:
        """Return after how many seconds to ask: at most half of `give_up`."""
        return min(seconds, max(self.give_up / 2, self.retry_first))


@dataclass(frozen=True, slots=True)
class NodeCall:
    """One control message to a node."""

    to: str
    receipts: tuple[tuple[bytes, Receipt], ...]
    asks: tuple[tuple[bytes, bool], ...]
    """Edges to ask for, each with whether to cancel it."""
    wait: float = 0.0
    keep: float | None = None
    """How many seconds messages of the caller may be under way; None if the caller does not say."""
    now: float | None = None
    """The time of day at the caller; None if the caller does not say."""
    seen: str = ""
    """The node's last statement about its journal, unchanged; empty if there was none."""


@dataclass(frozen=True, slots=True)
class NodeReply:
    """A node's answer to a call."""

    taken: tuple[bytes, ...]
    answers: tuple[tuple[bytes, Answer], ...]
    age: float | None = None
    """For how many seconds its journal has been complete; None if the node does not say."""
    seen: str = ""
    """A statement about its journal, opaque to the caller, who returns it with the next call."""
    below: tuple[tuple[bytes, bytes, str], ...] = ()
    """For running edges of the question: the open edges below them, each with its receiver."""


class _Round(Generic[T]):
    """Errands that are due at the same time, after the same number of failures; by edge, in order."""

    __slots__ = ("at", "attempts", "errands", "heard", "hurried", "is_out", "said", "to", "why")

    def __init__(
        self,
        at: float,
        heard: float,
        attempts: int,
        to: str | None = None,
        why: str = "",
        said: str = "",
    ) -> None:
        self.at = at
        self.heard = heard
        self.attempts = attempts
        self.to = to  # the node of all errands, if a call to it has failed
        self.why = why  # a lasting problem at that address; empty if it only does not answer
        self.said = said  # how the last call failed, for people
        self.errands: dict[bytes, T] = {}
        self.is_out = False
        self.hurried: _Round[T] | None = None


class _Errands(Generic[T]):
    """The errands of one kind, each in a round."""

    __slots__ = ("_count", "_heap", "_joined", "_rounds", "failing")

    def __init__(self) -> None:
        self._rounds: dict[bytes, _Round[T]] = {}
        self._joined: dict[float, _Round[T]] = {}
        self._heap: list[tuple[float, int, _Round[T]]] = []
        self._count = 0
        self.failing: dict[str, dict[_Round[T], None]] = {}
        """Rounds that wait after a failed call, by the called node."""

    def __len__(self) -> int:
        return len(self._rounds)

    def __iter__(self) -> Iterator[T]:
        return (into.errands[edge] for edge, into in self._rounds.items())

    def find(self, edge: bytes) -> _Round[T] | None:
        """Return the round of an edge's errand."""
        return self._rounds.get(edge)

    def remove(self, edge: bytes) -> None:
        """Remove the errand of an edge."""
        found = self._rounds.pop(edge, None)
        if found is not None:
            del found.errands[edge]

    def put(self, edge: bytes, errand: T, into: _Round[T]) -> None:
        """Set the errand of an edge, in place of an earlier one."""
        found = self._rounds.get(edge)
        if found is not None:
            del found.errands[edge]
        self._rounds[edge] = into
        into.errands[edge] = errand

    def add(self, edge: bytes, errand: T, wait: float, now: float) -> None:
        """Set the errand of an edge for later, in a round with others of about that time."""
        into = self._joined.get(wait)
        if into is None or into.is_out or now + wait - into.at > wait * _EARLY:
            into = self._joined[wait] = self.new(now + wait, now, 0)
        into.heard = now
        self.put(edge, errand, into)

    def hurry(self, edge: bytes, errand: T, before: _Round[T], now: float) -> None:
        """Make the errand of an edge due now, together with other hurried errands of its round."""
        into = before.hurried
        if into is None or into.is_out:
            into = before.hurried = self.new(now, before.heard, before.attempts)
        self.put(edge, errand, into)

    def hasten(self, to: str, at: float, *, is_node: bool = True) -> bool:
        """Make the failed errands of a node due at `at` or earlier; return whether any is now due earlier.

        The failures still count, so this does not extend the time until the node is given up.
        """
        found = False
        for before in self.failing.pop(to, ()):
            if before.why and not is_node:
                self._fail(to, before)
            elif at < before.at:
                found = True
                into = self.new(at, before.heard, 1)
                for edge, errand in list(before.errands.items()):
                    self.put(edge, errand, into)
        return found

    def _fail(self, to: str, waiting: _Round[T]) -> None:
        self.failing.setdefault(to, {})[waiting] = None

    def new(self, at: float, heard: float, attempts: int) -> _Round[T]:
        """Begin a round."""
        return self._begin(_Round(at, heard, attempts))

    def turn(self, to: str, first: float, last: float) -> float | None:
        """Return when the failed errands of a node are due, if that is between these times; else None."""
        times = (waiting.at for waiting in self.failing.get(to, ()))
        return min((at for at in times if first <= at <= last), default=None)

    def again(self, to: str, at: float, before: _Round[T], why: str, said: str = "") -> _Round[T]:
        """Begin a round of failed errands."""
        made = self._begin(_Round(at, before.heard, before.attempts + 1, to, why, said))
        self._fail(to, made)
        return made

    def _begin(self, made: _Round[T]) -> _Round[T]:
        self._count += 1
        heapq.heappush(self._heap, (made.at, self._count, made))
        return made

    def _pop(self) -> _Round[T]:
        """Remove and return the first round. No errand can join it any more."""
        _, _, first = heapq.heappop(self._heap)
        first.is_out = True
        if first.to is not None and first in (waiting := self.failing.get(first.to, {})):
            del waiting[first]
            if not waiting:
                del self.failing[first.to]
        return first

    def next_at(self) -> float:
        """Return the time of the first round; infinity without rounds."""
        heap = self._heap
        while heap:
            at, _, first = heap[0]
            if first.errands:
                return at
            self._pop()
        return math.inf

    def due(self, now: float) -> Iterator[_Round[T]]:
        """Yield the due rounds, which then count as sent."""
        while self.next_at() <= now:
            yield self._pop()


def _batches(
    receipts: list[tuple[bytes, Receipt]], most: int
) -> Iterator[tuple[tuple[bytes, Receipt], ...]]:
    """Yield batches of errands that fit into one call."""
    some: list[tuple[bytes, Receipt]] = []
    size = 0
    for one in receipts:
        # The longest case: JSON writes some characters as six.
        texts = sum(120 + 6 * (len(note.name) + len(note.why)) for note in one[1].notes)
        if some and (len(some) == most or size + texts > _TEXTS_MAX):
            yield tuple(some)
            some, size = [], 0
        some.append(one)
        size += texts + 256
    if some:
        yield tuple(some)


class Courier:
    """The errands of a node."""

    def __init__(
        self, patience: Patience, jitter: Callable[[], float], give_up: Callable[[bytes, str], None]
    ) -> None:
        """Start without errands.

        Args:
            patience: how often to try, and for how long.
            jitter: returns random numbers from 0 to 1, so that nodes do not all call at the same time.
            give_up: called with an edge and the reason when its receiver is given up.
        """
        self._patience = patience
        self._jitter = jitter
        self._give_up = give_up
        self._posts: _Errands[Post] = _Errands()
        self._asks: _Errands[str] = _Errands()  # each is the receiver to ask
        self._ending: set[bytes] = set()
        self._part = 1.0

    def post(self, post: Post, now: float) -> None:
        """Send a receipt from now on."""
        self._posts.add(post.edge, post, 0.0, now)

    def watch(self, watch: Watch, now: float) -> None:
        """Ask for an edge from now on."""
        edge, asks = watch.edge, self._asks
        if watch.cancel:
            self._ending.add(edge)
        before = asks.find(edge)
        if before is None or not watch.cancel:
            patience = self._patience
            wait = patience.ask_in_doubt if watch.in_doubt else patience.ask_every
            asks.add(edge, watch.to, 0.0 if watch.cancel else patience.ask_after(wait), now)
        elif not before.is_out:  # otherwise the answer to the sent question handles it
            asks.hurry(edge, watch.to, before, now)

    def unpost(self, edge: bytes) -> None:
        """Do not post the receipt of an edge any more."""
        self._posts.remove(edge)

    @property
    def unposted(self) -> int:
        """The number of undelivered receipts."""
        return len(self._posts)

    def unposted_to(self) -> Iterable[str]:
        """Return the addresses of the undelivered receipts."""
        return dict.fromkeys(post.to for post in self._posts)

    def unwatch(self, edge: bytes) -> None:
        """Stop asking for an edge."""
        self._asks.remove(edge)
        self._ending.discard(edge)

    def next_at(self) -> float:
        """Return the next time at which a call is due; infinity without errands."""
        return min(self._posts.next_at(), self._asks.next_at())

    def due(self, now: float) -> list[NodeCall]:
        """Return the calls to make now. The caller reports each result by `replied` or `failed`."""
        receipts: dict[str, list[tuple[bytes, Receipt]]] = {}
        asks: dict[str, list[tuple[bytes, bool]]] = {}
        for posting in self._posts.due(now):
            if self._is_hopeless(posting, now):  # its sender may still ask
                for edge in list(posting.errands):
                    self._posts.remove(edge)
            for edge, post in posting.errands.items():
                receipts.setdefault(post.to, []).append((edge, post.receipt))
        for asking in self._asks.due(now):
            if self._is_hopeless(asking, now):
                for edge, to in list(asking.errands.items()):
                    self.unwatch(edge)
                    self._give_up(edge, asking.why or self._silence(to, asking.said))
            for edge, to in asking.errands.items():
                asks.setdefault(to, []).append((edge, edge in self._ending))
        return [
            call
            for to in dict.fromkeys((*receipts, *asks))
            for call in self._calls(to, receipts.get(to, []), asks.get(to, []))
        ]

    def _calls(
        self, to: str, receipts: list[tuple[bytes, Receipt]], asks: list[tuple[bytes, bool]]
    ) -> Iterator[NodeCall]:
        most, place = self._patience.batch_max, 0
        for some in _batches(receipts, most):
            first, place = place, place + most - len(some)
            yield NodeCall(to, some, tuple(asks[first:place]))
        for first in range(place, len(asks), most):
            yield NodeCall(to, (), tuple(asks[first : first + most]))

    def _silence(self, to: str, said: str) -> str:
        """Return in words how long a node has not answered, and how the last call failed, if known."""
        seconds = f"{self._patience.give_up:g} s"
        if not said:
            return f"{to} has not answered for {seconds}"
        return f"{to} has not said for {seconds} how the message stands: {said}"

    def _is_hopeless(self, tried: _Round[T], now: float) -> bool:
        return tried.attempts > 0 and now >= tried.heard + self._patience.give_up

    def contact(self, to: str, now: float, *, is_node: bool = False) -> bool:
        """Record a sign of life from an agent: repeat failed calls soon. Return whether any is now earlier."""
        at = now + self._patience.retry_first  # not at once, because signs of life may be frequent
        found = to in self._posts.failing and self._posts.hasten(to, at, is_node=is_node)
        return (to in self._asks.failing and self._asks.hasten(to, at, is_node=is_node)) or found

    def post_now(self, now: float) -> None:
        """Make all receipts that wait after a failed call due now, because the node is closing."""
        for to in list(self._posts.failing):
            self._posts.hasten(to, now)

    def trouble(self, edge: bytes) -> str:
        """Return the known problem with the address of an edge's receipt; empty if there is none."""
        found = self._posts.find(edge)
        return "" if found is None else found.why

    def replied(self, call: NodeCall, reply: NodeReply, now: float) -> None:
        """Record the answer to a call. Edges that it did not close are asked for again later."""
        self._posts.hasten(call.to, now)
        self._asks.hasten(call.to, now)
        self._part = 0.5 + 0.5 * self._jitter()
        patience, taken = self._patience, set(reply.taken)
        for edge, _ in call.receipts:
            posting = self._posts.find(edge)
            if edge in taken:
                self._posts.remove(edge)
            elif posting is not None:
                self._posts.add(edge, posting.errands[edge], patience.retry_first, now)
        told = {edge for edge, _ in reply.answers}
        # For the edges that the answer leaves out, the call counts as failed.
        self._again(
            self._asks, (edge for edge, _ in call.asks if edge not in told), call.to, "", now
        )
        for edge, is_told in call.asks:
            if edge in told and self._asks.find(edge) is not None:
                # The edge was cancelled while the question was under way: ask again with the request to end.
                is_late = edge in self._ending and not is_told
                every = patience.ask_after(patience.ask_every)
                self._asks.add(edge, call.to, 0.0 if is_late else every, now)

    def failed(self, call: NodeCall, now: float, why: str = "", said: str = "") -> None:
        """Record a failed call: `why` is a reason that will not pass by itself, `said` the failure for people."""
        self._part = 0.5 + 0.5 * self._jitter()  # the same for all, to stay one call
        self._again(self._posts, (edge for edge, _ in call.receipts), call.to, why, now)
        self._again(self._asks, (edge for edge, _ in call.asks), call.to, why, now, said)

    def _again(
        self,
        errands: _Errands[T],
        edges: Iterable[bytes],
        to: str,
        why: str,
        now: float,
        said: str = "",
    ) -> None:
        patience = self._patience
        later: dict[_Round[T], _Round[T]] = {}
        for edge in edges:
            before = errands.find(edge)
            if before is None:
                continue
            if before not in later:
                wait = math.inf if why else patience.retry_first * 2.0 ** min(before.attempts, 30)
                wait = min(patience.retry_most, wait)
                at = errands.turn(to, now + wait * 0.5, now + wait) or now + wait * self._part
                at = min(at, max(now, before.heard + patience.give_up))  # give up in time
                later[before] = errands.again(to, at, before, why, said)
            errands.put(edge, before.errands[edge], later[before])
