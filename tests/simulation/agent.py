"""A simulated agent: the project's own engine, and a driver that may crash between any two steps."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from quiesce.mesh.protocol.codec import Handed
from quiesce.mesh.protocol.detector import Detector
from quiesce.mesh.protocol.engine import Engine
from quiesce.mesh.protocol.facts import Answer, Settle, Stop
from quiesce.mesh.protocol.horizon import KEEP_SECONDS, Horizon
from quiesce.mesh.protocol.receipt import edge_mark
from quiesce.mesh.protocol.scheduler import NodeCall, NodeReply, Patience
from quiesce.mesh.runtime.delegation import RESULTS
from tests.simulation.pulling import Pulls
from tests.simulation.world import CALL_WITHIN, LONG, STOP_WITHIN, Verdict, Work

if TYPE_CHECKING:
    from collections.abc import Callable

    from quiesce.mesh.protocol.facts import Record
    from quiesce.mesh.protocol.receipt import Status
    from quiesce.mesh.protocol.states import HopRecord, Sending
    from tests.simulation.world import World

PATIENCE = Patience(
    retry_first=2.0, retry_most=20.0, ask_in_doubt=4.0, ask_every=30.0, give_up=400.0
)
SLOW = Patience(retry_first=2.0, retry_most=300.0, ask_in_doubt=4.0, ask_every=200.0, give_up=1e5)
"""Where nodes are gone for long, and come back."""
ANSWER_WITHIN = 12.0
EPOCH = 1_000_000.0  # by the walls' clocks, when the world begins
LOST = 0.7  # how probable it is that a journal which may be lost is
COMPACTED = 0.1  # how probable it is that the journal is compacted after something was written


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

    def __init__(self, hop: HopRecord | None, plan: Plan, work: Work) -> None:
        """Begin the task."""
        self.hop = hop
        self.plan = plan
        self.work = work
        self.busy = 0
        self.status: Status = plan.status
        self.is_over = False


class Agent:
    """One process that comes and goes, with what it keeps."""

    detector: type[Detector] = Detector
    horizon: type[Horizon] = Horizon

    def __init__(
        self, world: World, name: str, *, takes_part: bool = True, lasting: bool = True
    ) -> None:
        """Start."""
        self.world = world
        self.name = self.key = name
        self.home: str | None = name
        """Where receipts are to be posted to; None: it asks for them."""
        self.loses = False
        """Whether its journal may be gone after a restart."""
        self.clock_error = 0.0
        self.asleep_until = 0.0
        self.takes_part = takes_part
        self.lasting = lasting
        self.is_up = True
        self.journal: list[Record] = []
        self.life = 0
        self._tasks: dict[bytes, Task] = {}
        self._sends: dict[bytes, Task] = {}
        self._calls: dict[int, NodeCall] = {}
        self.uses: Counter[bytes] = Counter()
        """How often each message was sent."""
        self._next = 0
        self._awake_at = math.inf
        self.engine = self.new_engine()
        self.pulls = Pulls(self)

    def new_engine(self) -> Engine:
        """Make what knows nothing yet; a process may have another `keep` than the one before it."""
        keeps = self.world.faults.keeps
        keep = KEEP_SECONDS
        if keeps:
            keep = keeps[0] if self.life else self.world.fate.choice(keeps)
        return Engine(
            self.name,
            lasting=self.lasting,
            patience=SLOW if keeps else PATIENCE,
            jitter=self.world.random.random,
            keep=keep,
            wall=self.wall,
            detector=self.detector,
            horizon=self.horizon,
        )

    def wall(self) -> float:
        """Return the time by the clock of its machine."""
        return EPOCH + self.world.now + self.clock_error

    def open(self) -> None:
        """Begin, as a node that has been there for a while when the world begins."""
        detector, horizon = self.engine.detector, self.engine.horizon
        ago = self.world.fate.random() if self.world.faults.keeps else 0.0
        detector.known.aged_at = self.wall() - ago * horizon.period()
        if self.lasting:
            detector.known.bear(EPOCH - LONG, "00")
        self.engine.resume(self.world.now)
        self.journal += self.engine.take_writes()

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
        if self.world.now < self.asleep_until:
            self.later(self.asleep_until - self.world.now, call, *args)
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
        self.pulls.written(records)
        if self.world.chance(self.world.faults.torn):
            raise Crashed

    def compact(self) -> None:
        """Write only what is needed of all that was written."""
        self.journal = list(self.engine.known.snapshot())

    def see_to_news(self) -> None:
        """Stop what is to stop, and tell the verdict."""
        self.commit()
        for news in self.engine.take_news():
            match news:
                case Stop(edge):
                    task = self._tasks.get(edge)
                    if task is not None:
                        self.later(self.world.random.uniform(0, STOP_WITHIN), self.stop, task)
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
            asked = self.engine.asking(call)
            self.world.carry(self.key, call.to, "called", self.key, self.life, self._next, asked)
            self.later(CALL_WITHIN, self.call_failed, self._next)
        at = self.engine.next_at()
        if at < self._awake_at:
            self._awake_at = at
            self.later(max(0.0, at - now), self.wake)

    def wake(self) -> None:
        """See what is due, as after every step."""
        self._awake_at = math.inf

    def called(self, caller: str, life: int, number: int, call: NodeCall) -> None:
        """Answer a call of another node."""
        if not self.takes_part:
            return
        reply = self.answer_call(call)
        self.commit()
        self.world.carry(self.key, caller, "replied", life, number, reply)

    def answer_call(self, call: NodeCall) -> NodeReply:
        """Return the answer to a call."""
        reply = self.engine.called(call, self.world.now)
        for edge, answer in reply.answers:
            self.saying(edge, answer)
        return reply

    def saying(self, edge: bytes, answer: Answer | None) -> None:
        """Record in the world which edges are denied by an agent that cannot know better."""
        if answer is not None and answer.kind == "never":
            ran = any(work.edge == edge and work.agent is self for work in self.world.works)
            if self.loses or not ran:
                self.world.strange.add(edge)

    def replied(self, life: int, number: int, reply: NodeReply) -> None:
        """Take the answer to a call, the first time."""
        call = self._calls.pop(number, None) if life == self.life else None
        if call is not None:
            working = self.seen(reply)
            self.engine.replied(call, reply, self.world.now)
            self.commit()
            self.world.known.update(working)

    def heard(self, to: str, reply: NodeReply) -> None:
        """Take the answer to a question that was put without the courier."""
        working = self.seen(reply)
        self.engine.heard(to, reply, self.world.now)
        self.commit()
        self.world.known.update(working)

    def seen(self, reply: NodeReply) -> list[bytes]:
        """Return the edges that are open and worked on; the world is told which are said never to run."""
        believed = self.engine.horizon.believed(reply).answers
        told = zip(reply.answers, believed, strict=True)
        self.world.doubted |= {one[0] for one, other in told if one != other}
        found = [one for one in reply.answers if self.engine.known.is_open(one[0])]
        self.world.denied.update(edge for edge, answer in found if answer.kind == "never")
        return [edge for edge, answer in found if answer.kind == "working"]

    def polled(self, caller: str, life: int, number: int, call: NodeCall) -> None:
        """Answer a question that may wait."""
        if self.takes_part:
            self.pulls.polled(caller, life, number, call)

    def pulled(self, life: int, number: int, call: NodeCall, reply: NodeReply) -> None:
        """Take the answer to it."""
        if life == self.life:
            self.pulls.told(number, call, reply)

    def call_failed(self, number: int) -> None:
        """Record that no answer came."""
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

    def cancel(self, hop: HopRecord) -> None:
        """Cancel the cascade."""
        if hop.receipt is None:
            self.world.cancelled_at = self.world.now
        self.engine.cancel(hop, self.world.now)

    def requested(self, source: str, life: int, handed: Handed) -> None:
        """Take a message from another agent."""
        edge = handed.edge
        if not self.takes_part:
            self.run(edge, None)
            self.answer(source, life, edge, None)
            return
        if self.world.chance(self.world.faults.refusals) or self.engine.horizon.objection(handed):
            answer = self.engine.refuse(handed, self.world.now)
        else:
            answer = self.engine.arrive(handed, handed.home)
        if answer.kind == "not now":
            self.world.refused.add(edge)
        self.commit()
        if answer.kind == "run":
            task = self.run(edge, self.engine.known.hop(edge))
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
        self.saying(edge, answer)
        self.world.carry(self.key, source, "answered", life, edge, answer)

    def run(self, edge: bytes, hop: HopRecord | None, *, is_root: bool = False) -> Task:
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
        return Plan(handler, background * world.faults.background, sends, status)

    def busy(self, task: Task, seconds: float) -> None:
        """Work for a while."""
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
        """End the work of a hop."""
        task.is_over = True
        task.work.end = self.world.now
        if task.hop is not None:
            # Half of them by the short way, which only those take that are about to be answered.
            is_short = task.status == "done" and task.work.edge[-1] % 2
            if not (is_short and self.engine.detector.finish(task.hop, 0)):
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
        by = self.engine.send(task.hop, edge, to, self.world.now)
        self.commit()
        self._sends[edge] = task
        handed = Handed(task.hop.cascade, edge, edge_mark(task.hop.edge), by, self.home)
        self.transmit(task, handed, to, attempts=2 if self.world.random.random() < 0.5 else 1)

    def transmit(self, task: Task, handed: Handed, to: str, attempts: int) -> None:
        """Send the bytes; and again, with the same id, if no answer comes."""
        edge = handed.edge
        if edge not in self._sends:
            return
        self.uses[edge] += 1
        self.world.traffic.messages += 1
        self.world.depths[edge] = self.world.depths[task.work.edge] + 1
        self.world.carry(self.key, to, "requested", self.key, self.life, handed)
        within = self.answer_within(ANSWER_WITHIN)
        if attempts > 1:
            self.later(within, self.transmit, task, handed, to, attempts - 1)
        else:
            self.later(within, self.resolve, edge, "is in doubt")

    def answered(self, life: int, edge: bytes, answer: Answer | None) -> None:
        """Take the answer to a message."""
        if life != self.life:
            return
        if answer is None:
            self.resolve(edge, "is opaque")
            return
        if answer.kind == "never" and edge in self._sends:
            self.world.denied.add(edge)
        how = self.engine.horizon.outcome(edge, RESULTS[answer.kind], uses=self.uses[edge])
        self.resolve(edge, how, answer)

    def answer_within(self, usual: float) -> float:
        """Return how long a sender waits for the answer to a message; some do so for very long."""
        fate, patient = self.world.fate, self.world.faults.patient
        return fate.uniform(usual, LONG) if patient and fate.random() < patient else usual

    def resolve(self, edge: bytes, how: Sending, answer: Answer | None = None) -> None:
        """Record what became of a message, the first time."""
        now = self.world.now
        task = self._sends.pop(edge, None)
        if task is None:
            if answer is not None and answer.receipt is not None:
                self.engine.answered(edge, answer, how, now)
            return
        if how == "is taken":
            self.world.taken.add(edge)
        to = self.engine.known.receiver(edge)
        if answer is None:
            self.engine.sent(edge, how, now)
        else:
            self.engine.answered(edge, answer, RESULTS[answer.kind], now, uses=self.uses[edge])
        if to is not None and self.home is None and how in {"is taken", "is in doubt"}:
            self.pulls.pull(edge, to)  # as `Node._answered` and `Node._resolve` do
        self.commit()
        if to is not None and how == "is taken":
            self.world.known.add(edge)
        self.idle(task)

    # The end of the process, and the next.

    def crash(self) -> None:
        """Crash, from one step to the next."""
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
            down = self.world.random.uniform(2, 40)
            if faults.keeps and self.world.fate.random() < 0.5:
                down = self.world.fate.uniform(40, LONG)
            self.world.after(down, self.restart)

    def sleep(self, seconds: float) -> None:
        """Pause, as a suspended process: do nothing for a while, and then all that has come to be due."""
        self.asleep_until = self.world.now + seconds

    def restart(self) -> None:
        """Start again, as another process."""
        self.is_up = True
        if self.loses and self.world.fate.random() < LOST:
            self.journal = []
        self.life += 1
        self.engine = self.new_engine()
        self.pulls = Pulls(self)
        self._awake_at = math.inf
        self.asleep_until = 0.0
        self.step(self.resume)

    def resume(self) -> None:
        """Go on from what is written."""
        self.engine.restore(self.journal, self.world.now)
        if self.lasting and self.engine.known.born is None:
            self.engine.known.bear(self.wall(), "00")  # as `Keeping.open` does
