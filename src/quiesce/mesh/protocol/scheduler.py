"""Which receipts and questions are to be sent to whom, and when; time is given, nothing is sent here.

A receipt is sent until it is taken. An edge is asked for until it is closed: soon if it is in doubt
whether it arrived, else seldom, for its receiver sends the receipt by itself. What is due to one node
goes out in one call. What failed is tried again later each time; soon, as soon as the node is heard of. A
node that did not answer for too long is given up.

Where something else answers than a node, that is tried again seldom, and not sooner if a message was answered
there: but not given up sooner either, for the node may be on its way.

There may be a million edges to ask for, and hardly any is ever asked for. So an edge has no time of its
own: those that are to be asked for at about the same time are a round, and have one for all of them.
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

_TEXTS_MAX = 4_000_000  # bytes, in a call: less than a node takes
_EARLY = 1 / 32  # how much earlier than told an edge may be asked for, to be so with others


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

    def __post_init__(self) -> None:
        """Refuse what are no times: they would be found out when something fails, and later.

        Without a pause between calls, a node that is not there would be called without end.
        """
        for name in ("retry_first", "retry_most", "ask_in_doubt", "ask_every"):
            arguments.seconds(name, getattr(self, name), some=True)
        arguments.seconds("give_up", self.give_up)
        arguments.size("batch_max", self.batch_max)


@dataclass(frozen=True, slots=True)
class NodeCall:
    """One control message to a node."""

    to: str
    receipts: tuple[tuple[bytes, Receipt], ...]
    asks: tuple[tuple[bytes, bool], ...]
    """Edges that are asked for, each with whether it is to end."""
    wait: float = 0.0
    keep: float | None = None
    """How many seconds messages of the caller may be under way; None: it does not say."""
    now: float | None = None
    """The time of day at the caller; None: it does not say."""
    seen: str = ""
    """What the node has said of its journal the last time, as it was; empty: nothing."""


@dataclass(frozen=True, slots=True)
class NodeReply:
    """What a node answers to a call."""

    taken: tuple[bytes, ...]
    answers: tuple[tuple[bytes, Answer], ...]
    age: float | None = None
    """For how many seconds its journal has had all that it did; None: it does not say."""
    seen: str = ""
    """How far its journal has come: nothing for others, but to be said with the next call."""
    below: tuple[tuple[bytes, bytes, str], ...] = ()
    """Of edges that were asked for, and are worked on: each open edge that follows from one, and where it was sent."""


class _Round(Generic[T]):
    """Errands that are due at one time, after as many failures; by edge, in order."""

    __slots__ = ("at", "attempts", "errands", "heard", "hurried", "is_out", "to", "why")

    def __init__(
        self, at: float, heard: float, attempts: int, to: str | None = None, why: str = ""
    ) -> None:
        self.at = at
        self.heard = heard
        self.attempts = attempts
        self.to = to  # the node that all of them are for, if that is known to have failed
        self.why = why  # what is wrong there, if it is not just that nobody answers
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
        """Rounds that wait because a call has failed, by whom it was to."""

    def __len__(self) -> int:
        return len(self._rounds)

    def __iter__(self) -> Iterator[T]:
        return (into.errands[edge] for edge, into in self._rounds.items())

    def find(self, edge: bytes) -> _Round[T] | None:
        """Return the round that an edge's errand is in."""
        return self._rounds.get(edge)

    def remove(self, edge: bytes) -> None:
        """Remove the errand of an edge."""
        found = self._rounds.pop(edge, None)
        if found is not None:
            del found.errands[edge]

    def put(self, edge: bytes, errand: T, into: _Round[T]) -> None:
        """Set the errand of an edge, in place of the one before."""
        found = self._rounds.get(edge)
        if found is not None:
            del found.errands[edge]
        self._rounds[edge] = into
        into.errands[edge] = errand

    def add(self, edge: bytes, errand: T, wait: float, now: float) -> None:
        """Set an errand of an edge for later, with others of that time."""
        into = self._joined.get(wait)
        if into is None or into.is_out or now + wait - into.at > wait * _EARLY:
            into = self._joined[wait] = self.new(now + wait, now, 0)
        into.heard = now
        self.put(edge, errand, into)

    def hurry(self, edge: bytes, errand: T, before: _Round[T], now: float) -> None:
        """Set the errand of an edge to be due now, with others of its round that are to hurry."""
        into = before.hurried
        if into is None or into.is_out:
            into = before.hurried = self.new(now, before.heard, before.attempts)
        self.put(edge, errand, into)

    def hasten(self, to: str, at: float, *, is_node: bool = True) -> bool:
        """Set what failed for a node to be due at a time, at the latest; return whether anything is earlier.

        It has failed all the same: so nobody has more time than before, to be heard of.
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
        """Return when what has failed for a node is tried again anyway, if that is within these times."""
        times = (waiting.at for waiting in self.failing.get(to, ()))
        return min((at for at in times if first <= at <= last), default=None)

    def again(self, to: str, at: float, before: _Round[T], why: str) -> _Round[T]:
        """Begin a round of what has failed."""
        made = self._begin(_Round(at, before.heard, before.attempts + 1, to, why))
        self._fail(to, made)
        return made

    def _begin(self, made: _Round[T]) -> _Round[T]:
        self._count += 1
        heapq.heappush(self._heap, (made.at, self._count, made))
        return made

    def _pop(self) -> _Round[T]:
        """Send the first round: no errand joins it any longer."""
        _, _, first = heapq.heappop(self._heap)
        first.is_out = True
        if first.to is not None and first in (waiting := self.failing.get(first.to, {})):
            del waiting[first]
            if not waiting:
                del self.failing[first.to]
        return first

    def next_at(self) -> float:
        """Return when a round is due; never, if there is none."""
        heap = self._heap
        while heap:
            at, _, first = heap[0]
            if first.errands:
                return at
            self._pop()
        return math.inf

    def due(self, now: float) -> Iterator[_Round[T]]:
        """Return the rounds that are due; each is out then."""
        while self.next_at() <= now:
            yield self._pop()


def _batches(
    receipts: list[tuple[bytes, Receipt]], most: int
) -> Iterator[tuple[tuple[bytes, Receipt], ...]]:
    """Return so many at a time, and not more than a body may have."""
    some: list[tuple[bytes, Receipt]] = []
    size = 0
    for one in receipts:
        # At most: JSON has six characters for some.
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
        """Start with nothing to do.

        Args:
            patience: how often, and for how long.
            jitter: gives numbers from 0 to 1, so that nodes do not all call at once.
            give_up: is told of an edge whose receiver is not heard of, and why.
        """
        self._patience = patience
        self._jitter = jitter
        self._give_up = give_up
        self._posts: _Errands[Post] = _Errands()
        self._asks: _Errands[str] = _Errands()  # whom
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
            asks.add(edge, watch.to, 0.0 if watch.cancel else wait, now)
        elif not before.is_out:  # else whoever takes the answer sees to it
            asks.hurry(edge, watch.to, before, now)

    @property
    def unposted(self) -> int:
        """How many receipts nobody has taken so far."""
        return len(self._posts)

    def unposted_to(self) -> Iterable[str]:
        """Return the addresses of the nodes that have not taken a receipt so far."""
        return dict.fromkeys(post.to for post in self._posts)

    def unwatch(self, edge: bytes) -> None:
        """Ask for an edge no more."""
        self._asks.remove(edge)
        self._ending.discard(edge)

    def next_at(self) -> float:
        """Return when something is due; never, if nothing is to be done."""
        return min(self._posts.next_at(), self._asks.next_at())

    def due(self, now: float) -> list[NodeCall]:
        """Return the calls to be made now; each is answered by `replied` or `failed`."""
        receipts: dict[str, list[tuple[bytes, Receipt]]] = {}
        asks: dict[str, list[tuple[bytes, bool]]] = {}
        for posting in self._posts.due(now):
            if self._is_hopeless(posting, now):  # it is kept for whoever asks
                for edge in list(posting.errands):
                    self._posts.remove(edge)
            for edge, post in posting.errands.items():
                receipts.setdefault(post.to, []).append((edge, post.receipt))
        for asking in self._asks.due(now):
            if self._is_hopeless(asking, now):
                for edge, to in list(asking.errands.items()):
                    self.unwatch(edge)
                    self._give_up(
                        edge,
                        asking.why or f"{to} has not answered for {self._patience.give_up:g} s",
                    )
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

    def _is_hopeless(self, tried: _Round[T], now: float) -> bool:
        return tried.attempts > 0 and now - tried.heard >= self._patience.give_up

    def contact(self, to: str, now: float, *, is_node: bool = False) -> bool:
        """Record that an agent is there: what failed is tried again soon; tells whether that is earlier."""
        at = now + self._patience.retry_first  # not at once: it may say a lot, and answer nothing
        found = to in self._posts.failing and self._posts.hasten(to, at, is_node=is_node)
        return (to in self._asks.failing and self._asks.hasten(to, at, is_node=is_node)) or found

    def post_now(self, now: float) -> None:
        """Set every receipt whose call has failed to be posted at once: the node is about to be closed."""
        for to in list(self._posts.failing):
            self._posts.hasten(to, now)

    def trouble(self, edge: bytes) -> str:
        """Return what is wrong at the address to which an edge's receipt is posted; empty if nothing is known to be."""
        found = self._posts.find(edge)
        return "" if found is None else found.why

    def replied(self, call: NodeCall, reply: NodeReply, now: float) -> None:
        """Record that a call was answered: what it did not settle is asked again in time."""
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
        # It has not answered for all of them: so it is not heard of, as far as the others go.
        self._again(
            self._asks, (edge for edge, _ in call.asks if edge not in told), call.to, "", now
        )
        for edge, is_told in call.asks:
            if edge in told and self._asks.find(edge) is not None:
                # Asked to end while the question was under way: that is still to be told.
                is_late = edge in self._ending and not is_told
                self._asks.add(edge, call.to, 0.0 if is_late else patience.ask_every, now)

    def failed(self, call: NodeCall, now: float, why: str = "") -> None:
        """Record that a call was not answered; and why, if that will not pass by itself."""
        self._part = 0.5 + 0.5 * self._jitter()  # one for all of it, so that it stays one call
        self._again(self._posts, (edge for edge, _ in call.receipts), call.to, why, now)
        self._again(self._asks, (edge for edge, _ in call.asks), call.to, why, now)

    def _again(
        self, errands: _Errands[T], edges: Iterable[bytes], to: str, why: str, now: float
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
                later[before] = errands.again(to, at, before, why)
            errands.put(edge, before.errands[edge], later[before])
