"""Time, the network and the truth of a simulated world; everything follows from the seed."""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from quiesce.mesh.protocol.receipt import Receipt
    from tests.simulation.agent import Agent

CALL_WITHIN = 8.0
STOP_WITHIN = 2.0
"""How long work may take to end that is cancelled."""
LONG = 4000.0
"""For how long a node may be gone, or a message be under way, where what is old is forgotten."""
AT_ADDRESS = frozenset({"requested", "called", "polled"})


@dataclass(frozen=True)
class Faults:
    """What goes wrong, until `end`; one is the mean time of a message on its way."""

    loss: float = 0.0
    twice: float = 0.0
    late: float = 0.0
    crashes: int = 0
    restarts: float = 1.0
    """How probable it is that a node which crashed comes back."""
    torn: float = 0.0
    """How probable a crash in the midst of a step is, before or after what it writes."""
    partitions: int = 0
    opaque: int = 0
    """How many agents take no part."""
    forgetful: int = 0
    """How many nodes have no journal."""
    cancels: bool = False
    """Whether the cascade is cancelled at some time."""
    refusals: float = 0.0
    unaddressed: int = 0
    """How many nodes have no address: nobody can post to them, and they ask."""
    replicas: int = 0
    """How many addresses have two nodes behind them, each with a journal of its own."""
    losing: int = 0
    """How many nodes may lose their journal when they restart."""
    keeps: tuple[float, ...] = ()
    """How long messages may be under way: the first process of a node has one of these, those after it the
    first of them. None: there are no such times."""
    stale: float = 0.0
    """How probable it is that a copy of anything comes very late, whenever it was sent."""
    patient: float = 0.0
    """How probable it is that a sender waits very long for an answer, and sends a copy then."""
    sleeps: int = 0
    """How many nodes are suspended for long: they know nothing of it, and find what has come since then."""
    skew: float = 1.0
    """How many times further apart clocks are than they may be without anything being kept for longer."""
    background: float = 1.0
    """How many times as long as usual work in the background takes."""
    end: float = 80.0


@dataclass(frozen=True)
class Sizes:
    """How large a world is."""

    agents: int = 5
    hops_max: int = 25
    constant_delay: bool = False


@dataclass
class Work:
    """The truth about a message that was run: when, and whether it could finish."""

    agent: Agent
    edge: bytes
    begin: float
    end: float | None = None
    is_cut: bool = False


@dataclass
class Verdict:
    """What the root was told, and when."""

    receipt: Receipt
    at: float


@dataclass
class Traffic:
    """Messages that were sent: those of the agents, and those about them."""

    messages: int = 0
    controls: int = 0


@dataclass(order=True)
class _Due:
    at: float
    number: int
    call: Callable[..., object] = field(compare=False)
    args: tuple[Any, ...] = field(compare=False)


class World:
    """All of it."""

    def __init__(self, seed: int, faults: Faults, sizes: Sizes = Sizes()) -> None:  # noqa: B008 - frozen
        """Start empty; the builder of the world adds the agents."""
        self.random = random.Random(seed)  # noqa: S311 - nothing to guess
        # What newer kinds of misfortune draw from: a seed gives the same world of an older kind for ever.
        self.fate = random.Random(f"fate {seed}")  # noqa: S311 - the same
        self.faults = faults
        self.sizes = sizes
        self.now = 0.0
        self.agents: dict[str, Agent] = {}
        """By address."""
        self.twins: dict[str, Agent] = {}
        """Those behind the same addresses, by keys of their own."""
        self.works: list[Work] = []
        self.verdict: Verdict | None = None
        self.traffic = Traffic()
        self.planned = 0
        self.ids = 0
        self.depths: dict[bytes, int] = {}
        self.refused: set[bytes] = set()
        """Edges that an agent without a journal has refused: in another life it may run them."""
        self.taken: set[bytes] = set()
        """Edges whose sender was told that they are worked on."""
        self.known: set[bytes] = set()
        """Edges whose sender has also written that, while they were open."""
        self.denied: set[bytes] = set()
        """Edges whose sender was told that they never will run, while they were open."""
        self.strange: set[bytes] = set()
        """Edges of which that was said by one who has not run them, or has lost its journal."""
        self.doubted: set[bytes] = set()
        """Edges that are too old for those to know of who say that they never will run."""
        self.cancelled_at: float | None = None
        self.slowest = 0.0
        """The longest time that anything was on its way."""
        self._due: list[_Due] = []
        self._number = 0
        self._cuts: list[tuple[float, float, frozenset[str]]] = []

    def new_id(self, size: int) -> bytes:
        """Return an id that nobody else has."""
        self.ids += 1
        return self.ids.to_bytes(size, "big")

    def after(self, delay: float, call: Callable[..., object], *args: Any) -> None:
        """Schedule a call for later."""
        self._number += 1
        heapq.heappush(self._due, _Due(self.now + delay, self._number, call, args))

    def chance(self, probability: float) -> bool:
        """Return whether something goes wrong this time."""
        return probability > 0 and self.now < self.faults.end and self.random.random() < probability

    def cut(self, begin: float, end: float, some: frozenset[str]) -> None:
        """Separate some agents from the others for a time."""
        self._cuts.append((begin, end, some))

    def _is_cut(self, one: str, other: str) -> bool:
        return any(
            begin <= self.now < end and (one in some) != (other in some)
            for begin, end, some in self._cuts
        )

    def _delay(self) -> float:
        delay = 1.0
        if not self.sizes.constant_delay:
            delay = 0.3 + self.random.expovariate(1 / 0.7)
            if self.chance(self.faults.late):
                delay += self.random.uniform(0, 60)
        self.slowest = max(self.slowest, delay)
        return delay

    def carry(self, source: str, target: str, method: str, *args: Any) -> None:
        """Bring something to an agent: once, twice, late or never."""
        for _ in range(2 if self.chance(self.faults.twice) else 1):
            if not self.chance(self.faults.loss) and not self._is_cut(source, target):
                self.after(self._delay(), self._arrive, source, target, method, args)
        if self.faults.stale and self.fate.random() < self.faults.stale:
            most = self.fate.choice([LONG / 4, LONG])
            self.after(self.fate.uniform(60, most), self._arrive, source, target, method, args)

    def _arrive(self, source: str, target: str, method: str, args: tuple[Any, ...]) -> None:
        if not self._is_cut(source, target):
            agent = self._behind(target, method)
            agent.step(getattr(agent, method), *args)

    def _behind(self, target: str, method: str) -> Agent:
        """Return who gets what is brought: an answer, who has asked; else any that has the address."""
        if target in self.twins:
            return self.twins[target]
        twin = self.twins.get(f"{target}'") if method in AT_ADDRESS else None
        return self.agents[target] if twin is None or self.fate.random() < 0.5 else twin

    def run(self) -> None:
        """Let time pass until the verdict, and some more to see whether it was true."""
        until, watch = (4 * LONG, LONG) if self.faults.keeps else (4000.0, 200.0)
        while self._due:
            due = heapq.heappop(self._due)
            if due.at > until:
                return
            if self.verdict is not None:
                until = min(until, self.verdict.at + watch)
            self.now = due.at
            due.call(*due.args)

    def bound(self) -> float:
        """Return the earliest time at which anybody could know: a message a level after the last work."""
        return max((work.end or 0.0) + self.depths[work.edge] for work in self.works)

    # What is wrong with the verdict.

    def judge(self) -> list[str]:
        """Compare the verdict with the truth; gives what is wrong."""
        verdict = self.verdict
        taking_part = [work for work in self.works if work.agent.takes_part]
        once = [work.edge for work in taking_part if work.agent.lasting]
        is_beyond = self.is_beyond()
        if len(set(once)) < len(once) and not is_beyond:
            return ["an edge was run twice"]
        if verdict is None:
            nobody = not self.works or not self.agents["n0"].is_up
            return [] if nobody else ["no verdict"]
        receipt = verdict.receipt
        if receipt.unknown:
            return self._judge_unknown()
        if is_beyond or (receipt.volatile and self._met_again(taking_part)):
            return []  # the one is said to do harm; of the other it warns
        wrong = [
            "work in flight after the verdict"
            for work in taking_part
            if work.end is None or work.end > verdict.at or work.begin > verdict.at
        ][:1]
        cut = sum(work.is_cut for work in taking_part)
        if receipt.lost < cut:
            wrong.append(f"{cut} hops were cut, {receipt.lost} are said to be lost")
        seen = len({work.edge for work in self.works if not work.agent.takes_part})
        if receipt.opaque + receipt.lost + receipt.undelivered < seen:
            wrong.append(f"{seen} messages to opaque agents, {receipt.opaque} are told")
        # More may be told where a process has died between writing that a hop begins and running it.
        if receipt.hops < len(taking_part) or (
            not receipt.lost and receipt.hops > len(taking_part)
        ):
            wrong.append(f"{len(taking_part)} hops were run, {receipt.hops} are told")
        return wrong + self._judge_red() + self._judge_cancelling()

    def is_beyond(self) -> bool:
        """Return whether two have shared an address, or a journal was lost, so that nobody could know.

        Each of two nodes, or two lives of one, has run an edge. Or one node was asked for what the other has run,
        and its sender was not told before that it is worked on: a sender that was told does not believe it, and a
        node that has run an edge does not deny it. A node that has lost its journal is not believed.
        """
        if not (self.faults.replicas or self.faults.losing):
            return False
        run = [work.edge for work in self.works if work.agent.takes_part]
        if not self.faults.replicas:
            return len(set(run)) < len(run)
        denied = self.denied & self.strange
        return len(set(run)) < len(run) or not self.known.issuperset(denied.intersection(run))

    def _met_again(self, taking_part: list[Work]) -> bool:
        """Return whether an agent without a journal has met an edge in two lives, and nobody could know."""
        run = {work.edge for work in taking_part}
        return len(run) < len(taking_part) or bool(run & self.refused - self.taken)

    def _judge_unknown(self) -> list[str]:
        """Where everybody comes back, and has a journal, everything can be known."""
        faults = self.faults
        dying = faults.crashes and faults.restarts < 1
        shared = faults.replicas or faults.losing
        old = self.doubted or len(faults.keeps) > 1 or faults.skew > 1
        may_be = faults.forgetful or faults.opaque or dying or shared or old
        return [] if may_be else ["unknown, although all could be known"]

    def _judge_red(self) -> list[str]:
        """Without a fault, nothing is lost."""
        assert self.verdict is not None
        if self._is_harmless() and (self.verdict.receipt.lost or self.verdict.receipt.undelivered):
            return ["losses are told, and nothing went wrong"]
        return []

    def _is_harmless(self) -> bool:
        faults = self.faults
        return faults == Faults(
            opaque=faults.opaque, forgetful=faults.forgetful, cancels=faults.cancels,
            refusals=faults.refusals, unaddressed=faults.unaddressed, background=faults.background,
        )  # fmt: skip

    def _judge_cancelling(self) -> list[str]:
        """Without a fault, what is cancelled ends as soon as that can have come to it.

        At each level, the agent stops what it is sending, or has the answer to a question that is under
        way; then it asks the next one to end.
        """
        at, slowest = self.cancelled_at, self.slowest
        if at is None or not self._is_harmless() or 2 * slowest >= CALL_WITHIN:
            return []
        level = max(STOP_WITHIN, 2 * slowest) + slowest
        return [
            "work went on after it was cancelled"
            for work in self.works
            if work.agent.takes_part
            and (work.end or 0.0) > at + level * self.depths[work.edge] + STOP_WITHIN
        ][:1]
