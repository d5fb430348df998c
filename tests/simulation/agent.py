"""A simulated agent: the project's own engine, and a driver that may crash between any two steps."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from quiesce.mesh.courier import Call, Patience, Reply
from quiesce.mesh.detector import Detector
from quiesce.mesh.engine import Engine
from quiesce.mesh.facts import Answer, Settle, Stop
from quiesce.mesh.receipt import mark
from tests.simulation.world import Verdict, Work

if TYPE_CHECKING:
    from collections.abc import Callable

    from quiesce.mesh.facts import Record
    from quiesce.mesh.receipt import Status
    from quiesce.mesh.states import Hop, Sending
    from tests.simulation.world import World

PATIENCE = Patience(
    retry_first=2.0, retry_most=20.0, ask_in_doubt=4.0, ask_every=30.0, give_up=400.0
)
ANSWER_WITHIN = 12.0
CALL_WITHIN = 8.0
COMPACTED = 0.1  # how probable it is that the journal is compacted after something was written
ANSWERS: dict[str, Sending] = {
    "working": "is taken",
    "never": "is refused",
    "not now": "is refused, for now",
}


class Crashed(Exception):  # noqa: N818 - it is no error of the simulation
    """The process is gone in the midst of a step."""


@dataclass
class Plan:
    """What a hop does: a handler, background work after it, and messages to others."""

    handler: float
    background: float
    sends: list[tuple[float, str]]
    """When, and to whom."""
    status: Status


class Task:
    """A hop at work."""

    def __init__(self, hop: Hop | None, plan: Plan, work: Work) -> None:
        """Have begun."""
        self.hop = hop
        self.plan = plan
        self.work = work
        self.busy = 0
        self.status: Status = plan.status
        self.is_over = False


class Agent:
    """One process that comes and goes, with what it keeps."""

    detector: type[Detector] = Detector

    def __init__(
        self, world: World, name: str, *, takes_part: bool = True, lasting: bool = True
    ) -> None:
        """Start."""
        self.world = world
        self.name = name
        self.takes_part = takes_part
        self.lasting = lasting
        self.is_up = True
        self.journal: list[Record] = []
        self.life = 0
        self._tasks: dict[bytes, Task] = {}
        self._sends: dict[bytes, Task] = {}
        self._calls: dict[int, Call] = {}
        self._next = 0
        self._awake_at = math.inf
        self.engine = self.new_engine()

    def new_engine(self) -> Engine:
        """Make what knows nothing yet."""
        return Engine(
            self.name,
            lasting=self.lasting,
            patience=PATIENCE,
            jitter=self.world.random.random,
            detector=self.detector,
        )

    # Steps: each may be torn by a crash.

    def later(self, delay: float, call: Callable[..., object], *args: Any) -> None:
        """Do something later, unless the process is another by then."""
        self.world.after(delay, self._due, self.life, call, args)

    def _due(self, life: int, call: Callable[..., object], args: tuple[Any, ...]) -> None:
        if self.life == life:
            self.step(call, *args)

    def step(self, call: Callable[..., object], *args: Any) -> None:
        """Do something, if the process is there; then see what is due."""
        if not self.is_up:
            return
        try:
            call(*args)
            self.see_to_news()
            self.make_calls()
        except Crashed:
            self.crash()

    def commit(self) -> None:
        """Write what the engine wants written; the process may die before or after."""
        records = self.engine.take_writes()
        if not records:
            return
        if self.world.chance(self.world.faults.torn):
            raise Crashed
        if self.lasting:
            self.journal += records
            if self.world.random.random() < COMPACTED:
                self.compact()
        if self.world.chance(self.world.faults.torn):
            raise Crashed

    def compact(self) -> None:
        """Write only what is needed of all that was written."""
        self.journal = list(self.engine.detector.snapshot())

    def see_to_news(self) -> None:
        """Stop what is to stop, and tell the verdict."""
        self.commit()
        for news in self.engine.take_news():
            match news:
                case Stop(edge):
                    task = self._tasks.get(edge)
                    if task is not None:
                        self.later(self.world.random.uniform(0, 2), self.stop, task)
                case Settle(edge, receipt=receipt):
                    if self.world.verdict is None:
                        self.world.verdict = Verdict(receipt, self.world.now)
                    self.engine.told(edge, self.world.now)

    def make_calls(self) -> None:
        """Make the calls that are due, and come back when more are."""
        now = self.world.now
        calls = self.engine.due(now)
        self.see_to_news()
        for call in calls:
            self.world.traffic.controls += 1
            self._next += 1
            self._calls[self._next] = call
            self.world.carry(self.name, call.to, "called", self.name, self.life, self._next, call)
            self.later(CALL_WITHIN, self.call_failed, self._next)
        at = self.engine.next_at()
        if at < self._awake_at:
            self._awake_at = at
            self.later(max(0.0, at - now), self.wake)

    def wake(self) -> None:
        """See what is due, as after every step."""
        self._awake_at = math.inf

    def called(self, caller: str, life: int, number: int, call: Call) -> None:
        """Answer a call of another node."""
        if not self.takes_part:
            return
        reply = self.engine.called(call, self.world.now)
        self.commit()
        self.world.carry(self.name, caller, "replied", life, number, reply)

    def replied(self, life: int, number: int, reply: Reply) -> None:
        """Take the answer to a call, the first time."""
        call = self._calls.pop(number, None) if life == self.life else None
        if call is not None:
            self.engine.replied(call, reply, self.world.now)

    def call_failed(self, number: int) -> None:
        """Know that no answer came."""
        call = self._calls.pop(number, None)
        if call is not None:
            self.engine.failed(call, self.world.now)

    # Hops.

    def begin_cascade(self) -> None:
        """Begin the one cascade of the world here."""
        edge = self.world.new_id(12)
        self.world.depths[edge] = 0
        hop = self.engine.begin(edge, self.world.new_id(16), self.world.now)
        self.commit()
        self.run(edge, hop, is_root=True)
        if self.world.faults.cancels:
            at = self.world.random.uniform(0, 40)
            self.later(at, self.cancel, hop)

    def cancel(self, hop: Hop) -> None:
        """Have the cascade end."""
        self.engine.cancel(hop, self.world.now)

    def requested(self, source: str, life: int, edge: bytes, cascade: bytes, parent: str) -> None:
        """Take a message from another agent."""
        if not self.takes_part:
            self.run(edge, None)
            self.answer(source, life, edge, None)
            return
        now = self.world.now
        if self.world.chance(self.world.faults.refusals):
            answer = self.engine.refuse(edge, now)
            if answer.kind == "not now":
                self.world.refused.add(edge)
        else:
            answer = self.engine.arrive(edge, cascade, parent, source, now)
        self.commit()
        if answer.kind == "run":
            task = self.run(edge, self.engine.detector.hop(edge))
            self.later(task.plan.handler, self.answer_at_end, source, life, edge)
        else:
            self.answer(source, life, edge, answer)

    def answer_at_end(self, source: str, life: int, edge: bytes) -> None:
        """Answer when the handler has returned: by then, all may be done."""
        answer = self.engine.ride(edge, self.world.now)
        self.commit()
        self.answer(source, life, edge, answer)

    def answer(self, source: str, life: int, edge: bytes, answer: Answer | None) -> None:
        """Send the answer to a message."""
        self.world.carry(self.name, source, "answered", life, edge, answer)

    def run(self, edge: bytes, hop: Hop | None, *, is_root: bool = False) -> Task:
        """Run a hop as it is planned; the truth is told to the world alone."""
        world = self.world
        work = Work(self, edge, world.now)
        world.works.append(work)
        task = Task(hop, self.plan(is_root=is_root), work)
        self._tasks[edge] = task
        self.busy(task, task.plan.handler)
        if task.plan.background:
            self.busy(task, task.plan.handler + task.plan.background)
        for at, to in task.plan.sends:
            task.busy += 1
            self.later(at, self.send, task, to)
        return task

    def plan(self, *, is_root: bool) -> Plan:
        """Think of something to do."""
        world, chance = self.world, self.world.random
        handler = chance.uniform(0.2, 8)
        background = chance.uniform(1, 15) if chance.random() < 0.4 else 0.0
        sends: list[tuple[float, str]] = []
        most = 4 if self.takes_part else 0
        while len(sends) < most and (chance.random() < 0.55 or (is_root and not sends)):
            if world.planned >= world.sizes.hops_max:
                break
            world.planned += 1
            at = chance.uniform(0, handler + background)
            sends.append((at, chance.choice(list(world.agents))))
        status: Status = "failed" if chance.random() < 0.1 else "done"
        return Plan(handler, background, sends, status)

    def busy(self, task: Task, seconds: float) -> None:
        """Be at work for a while."""
        task.busy += 1
        self.later(seconds, self.idle, task)

    def idle(self, task: Task) -> None:
        """End one thing; the last ends the hop."""
        task.busy -= 1
        if task.busy == 0 and not task.is_over:
            self.end(task)

    def stop(self, task: Task) -> None:
        """End a hop that was cancelled; what it is sending is in doubt."""
        if task.is_over:
            return
        task.status = "cancelled"
        for edge, sender in list(self._sends.items()):
            if sender is task:
                del self._sends[edge]
                self.engine.sent(edge, "is in doubt", self.world.now)
        self.end(task)

    def end(self, task: Task) -> None:
        """Have no more to do for a hop."""
        task.is_over = True
        task.work.end = self.world.now
        if task.hop is not None:
            self.engine.end(task.hop, task.status, self.world.now)
            self.commit()

    # Messages to others.

    def send(self, task: Task, to: str) -> None:
        """Send a message from a hop."""
        if task.is_over:
            return
        if task.hop is None:  # of an agent that takes no part: nobody knows of it
            self.idle(task)
            return
        edge = self.world.new_id(12)
        self.engine.send(task.hop, edge, to, self.world.now)
        self.commit()
        self._sends[edge] = task
        self.transmit(task, edge, to, attempts=2 if self.world.random.random() < 0.5 else 1)

    def transmit(self, task: Task, edge: bytes, to: str, attempts: int) -> None:
        """Send the bytes; and again, with the same id, if no answer comes."""
        if edge not in self._sends or task.hop is None:
            return
        self.world.traffic.messages += 1
        self.world.depths[edge] = self.world.depths[task.work.edge] + 1
        cascade, parent, life = task.hop.cascade, mark(task.hop.edge), self.life
        self.world.carry(self.name, to, "requested", self.name, life, edge, cascade, parent)
        if attempts > 1:
            self.later(ANSWER_WITHIN, self.transmit, task, edge, to, attempts - 1)
        else:
            self.later(ANSWER_WITHIN, self.resolve, edge, "is in doubt")

    def answered(self, life: int, edge: bytes, answer: Answer | None) -> None:
        """Take the answer to a message."""
        if life != self.life:
            return
        if answer is None:
            self.resolve(edge, "is opaque")
        elif answer.receipt is not None:
            self.engine.receive(edge, answer.receipt, self.world.now)
            self.resolve(edge, "is taken")
        else:
            self.resolve(edge, ANSWERS[answer.kind])

    def resolve(self, edge: bytes, how: Sending) -> None:
        """Know what became of a message, the first time."""
        task = self._sends.pop(edge, None)
        if task is None:
            return
        if how == "is taken":
            self.world.taken.add(edge)
        self.engine.sent(edge, how, self.world.now)
        self.commit()
        self.idle(task)

    # The end of the process, and the next.

    def crash(self) -> None:
        """Be gone, from one step to the next."""
        if not self.is_up:
            return
        self.is_up = False
        for task in self._tasks.values():
            if not task.is_over:
                task.is_over = True
                task.work.end = self.world.now
                task.work.is_cut = True
        self._tasks, self._sends, self._calls = {}, {}, {}
        faults = self.world.faults
        if self.world.random.random() < faults.restarts:
            self.world.after(self.world.random.uniform(2, 40), self.restart)

    def restart(self) -> None:
        """Be there again, as another process."""
        self.is_up = True
        self.life += 1
        self.engine = self.new_engine()
        self._awake_at = math.inf
        self.step(self.engine.restore, self.journal, self.world.now)


def build(world: World, kind: type[Agent] = Agent) -> None:
    """Fill a world with agents, and plan its misfortunes; the cascade begins at the first."""
    faults, chance = world.faults, world.random
    count = world.sizes.agents
    others = [f"n{number}" for number in range(1, count)]
    opaque = set(chance.sample(others, min(faults.opaque, len(others))))
    forgetful = set(chance.sample(others, min(faults.forgetful, len(others))))
    for name in ["n0", *others]:
        world.agents[name] = kind(
            world, name, takes_part=name not in opaque, lasting=name not in forgetful
        )
    for _ in range(faults.crashes):
        agent = world.agents[chance.choice(list(world.agents))]
        world.after(chance.uniform(1, faults.end / 2), agent.crash)
    for _ in range(faults.partitions):
        begin = chance.uniform(0, faults.end / 2)
        some = frozenset(name for name in world.agents if chance.random() < 0.4)
        world.cut(begin, begin + chance.uniform(5, faults.end / 2), some)
    first = world.agents["n0"]
    world.after(0.0, first.step, first.begin_cascade)
