"""The protocol, broken on purpose: a simulation that does not catch these shows nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from quiesce.mesh.protocol.codec import Handed
from quiesce.mesh.protocol.detector import Detector
from quiesce.mesh.protocol.facts import (
    NEVER,
    UNKNOWN,
    Answer,
    Begun,
    Sent,
    Taken,
    Tallied,
    Watch,
)
from quiesce.mesh.protocol.horizon import Horizon
from quiesce.mesh.protocol.knowledge import Knowledge
from quiesce.mesh.protocol.receipt import Receipt, edge_mark
from quiesce.mesh.protocol.states import EdgeRecord, HopRecord, HopState
from tests.simulation.agent import Agent, Crashed, Task
from tests.simulation.world import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from quiesce.mesh.protocol.facts import Record
    from quiesce.mesh.protocol.receipt import Status
    from quiesce.mesh.protocol.scheduler import NodeCall, NodeReply
    from quiesce.mesh.protocol.states import Sending


class ReceiptAtReturn(Agent):
    """The receipt is given when the handler returns: "the stream was closed"."""

    def busy(self, task: Task, seconds: float) -> None:
        """Say so, whatever goes on in the background."""
        super().busy(task, seconds)
        if seconds == task.plan.handler and task.hop is not None:
            self.later(seconds, self.say_done, task)

    def say_done(self, task: Task) -> None:
        """Report the work as done."""
        if task.hop is not None and task.hop.state is HopState.RUNNING:
            self.engine.end(task.hop, "done", self.world.now)

    def end(self, task: Task) -> None:
        """End the work in truth."""
        if task.hop is not None and task.hop.state is HopState.RUNNING:
            super().end(task)
        task.is_over = True
        task.work.end = self.world.now

    def send(self, task: Task, to: str) -> None:
        """Send also what nobody is told of."""
        if task.hop is None or task.hop.state is HopState.RUNNING or task.is_over:
            super().send(task, to)
            return
        edge = self.world.new_id(12)
        self._sends[edge] = task
        by = int(self.engine.horizon.begin_by())
        handed = Handed(task.hop.cascade, edge, edge_mark(task.hop.edge), by, self.home)
        self.transmit(task, handed, to, attempts=1)


class FixedWait(Agent):
    """The root's handler has returned; wait a while, and assume."""

    def busy(self, task: Task, seconds: float) -> None:
        """Assume."""
        super().busy(task, seconds)
        if task.hop is not None and task.hop.is_root and seconds == task.plan.handler:
            self.later(seconds + 15, self.assume)

    def assume(self) -> None:
        """Say that all is done."""
        if self.world.verdict is None:
            self.world.verdict = Verdict(
                Receipt("done", hops=len(self.world.works)), self.world.now
            )


class WriteBehind(Agent):
    """What is written lasts only when the next thing is written."""

    _late: tuple[Record, ...] = ()

    def commit(self) -> None:
        """Write what was to be written before."""
        records = self.engine.take_writes()
        if records:
            self.journal += self._late
            self._late = tuple(records)
            if self.world.chance(self.world.faults.torn):
                raise Crashed

    def crash(self) -> None:
        """Lose it."""
        super().crash()
        self._late = ()


class HastyAging(Agent):
    """What is over is forgotten while copies of it may come."""

    def compact(self) -> None:
        """Forget twice, and write what is left."""
        self.engine.known.age(self.wall())
        self.engine.known.age(self.wall())
        super().compact()


class NoJournal(Agent):
    """There is a journal, it is said; after a restart it is empty."""

    def restart(self) -> None:
        """Forget."""
        self.journal = []
        super().restart()


class SnapshotWithoutEdges(Knowledge):
    """What is compacted leaves out the edges that are open."""

    def snapshot(self) -> Iterator[Record]:
        """Leave them out."""
        return (record for record in super().snapshot() if not isinstance(record, Sent))


class SnapshotWithoutTally(Knowledge):
    """What is compacted leaves out what is known of the edges that are closed."""

    def snapshot(self) -> Iterator[Record]:
        """Leave it out."""
        return (record for record in super().snapshot() if not isinstance(record, Tallied))


class Counting(Detector):
    """Receipts are counted, and not told apart."""

    def receive(self, edge: bytes, receipt: Receipt) -> None:
        """Take it for some edge."""
        known = (
            edge if edge in self.known.edge_records else next(iter(self.known.edge_records), edge)
        )
        super().receive(known, receipt)


class Closing(Detector):
    """A hop is closed when its own work has ended."""

    def end(self, hop: HopRecord, status: Status, **options: Any) -> None:
        """Wait for no edge."""
        for edge in list(hop.edges):
            del self.known.edge_records[edge], hop.edges[edge]
        super().end(hop, status, **options)


class OrphansIgnored(Detector):
    """After a restart, nobody asks for what was sent before."""

    def restore(self, records: Iterable[Record]) -> None:
        """Forget it."""
        super().restore([record for record in records if isinstance(record, Begun)])


class LostIsDone(Detector):
    """What was running when the process died is done."""

    def end(self, hop: HopRecord, status: Status, **options: Any) -> None:
        """Lose nothing."""
        super().end(hop, "done" if status == "lost" else status, **options)


class AskedForAndForgotten(Detector):
    """That an edge never came is said, and not kept."""

    def ask(self, edge: bytes, *, cancel: bool = False) -> Answer:
        """Say so."""
        return NEVER if self._answer_about(edge) is None else super().ask(edge, cancel=cancel)


class RefusedAndForgotten(Detector):
    """An edge is refused, and a copy of it is taken later."""

    def refuse(self, edge: bytes) -> Answer:
        """Refuse this one."""
        return self._answer_about(edge) or NEVER


class OverAndForgotten(Detector):
    """Once its receipt was taken, an edge is forgotten, and a copy of it is taken later."""

    def arrive(self, edge: bytes, cascade: bytes, parent: str, reply: str | None) -> Answer:
        """Forget that the edge is over."""
        if self.known.over_receipts.get(edge) is None:
            self.known.over_receipts.pop(edge, None)
        return super().arrive(edge, cascade, parent, reply)


class CopyIsRefused(Detector):
    """A copy is told that it never runs, whatever becomes of the first one."""

    def arrive(self, edge: bytes, cascade: bytes, parent: str, reply: str | None) -> Answer:
        """Refuse it."""
        answer = super().arrive(edge, cascade, parent, reply)
        return answer if answer.kind == "run" else NEVER


class ToldAndForgotten(Detector):
    """A receipt that was asked for is over, whether or not the answer arrives."""

    def ask(self, edge: bytes, *, cancel: bool = False) -> Answer:
        """Return it once."""
        answer = super().ask(edge, cancel=cancel)
        if answer.kind == "closed":
            self.taken(edge)
        return answer


class CancelledAlone(Detector):
    """Who is cancelled ends, and tells nobody whom it has handed work to."""

    def cancel(self, hop: HopRecord) -> None:
        """Cancel the hop, without a word to the receivers of its work."""
        super().cancel(hop)
        self.acts = [act for act in self.acts if not (isinstance(act, Watch) and act.cancel)]


class CancelledBeforeItWasSent(Detector):
    """What is on its way when its sender is cancelled is not told."""

    def sent(self, edge: bytes, how: Sending, why: str = "") -> None:
        """Ask for it as for any other."""
        super().sent(edge, how, why)
        for act in self.acts:
            if isinstance(act, Watch):
                act.cancel = False


class OpaqueIsDone(Detector):
    """An agent that takes no part has done its work when it answers."""

    def sent(self, edge: bytes, how: Sending, why: str = "") -> None:
        """Record an opaque message as not sent."""
        super().sent(edge, "is not sent" if how == "is opaque" else how, why)


class DeniedIsLost(Detector):
    """Who says that an edge never will run is believed, also if it was taken."""

    def told(self, edge: bytes, answer: Answer) -> None:
        """Forget that the edge was taken."""
        if edge in self.known.edge_records:
            self.known.edge_records[edge].is_taken = False
        super().told(edge, answer)


class TakenAndDenied(Detector):
    """Whose receipt was taken is as if it had never been run."""

    def _answer_about(self, edge: bytes) -> Answer | None:
        known = super()._answer_about(edge)
        return NEVER if known is UNKNOWN else known


class KnowledgeWithoutTaken(Knowledge):
    """The records of an edge leave out that it was taken."""

    def records_of_sent(self, edge: bytes, sent: EdgeRecord) -> list[Record]:
        """Leave it out."""
        return super().records_of_sent(edge, sent)[:1]


class TakenIsNotWritten(Detector):
    """That an edge was taken is known to this process alone."""

    def __init__(self, name: str, *, lasting: bool) -> None:
        """Start with nothing known."""
        super().__init__(name, lasting=lasting)
        self.known = KnowledgeWithoutTaken(name)

    def _is_taken(self, edge: bytes, found: EdgeRecord) -> None:
        del edge
        found.is_taken = True


class SnapshotWithoutTaken(Knowledge):
    """What is compacted leaves out that edges were taken."""

    def snapshot(self) -> Iterator[Record]:
        """Leave it out."""
        return (record for record in super().snapshot() if not isinstance(record, Taken))


class NoJournalAndNever(Detector):
    """Who keeps no journal says that an edge never came."""

    def ask(self, edge: bytes, *, cancel: bool = False) -> Answer:
        """Say so."""
        answer = super().ask(edge, cancel=cancel)
        return NEVER if answer.kind == "unknown" and not self._lasting else answer


class NoJournalAndSilent(Detector):
    """Who keeps no journal does not say so in its receipts."""

    def _close(self, hop: HopRecord) -> None:
        lasting, self._lasting = self._lasting, True
        super()._close(hop)
        self._lasting = lasting


class SilenceIsDone(Detector):
    """A node that is not heard of any more has done its work."""

    def give_up(self, edge: bytes, why: str) -> None:
        """Record a lost edge as done."""
        del why
        self.receive(edge, Receipt("done"))


class DoubtIsUnsent(Detector):
    """A message without an answer was not sent."""

    def sent(self, edge: bytes, how: Sending, why: str = "") -> None:
        """Record a doubtful message as not sent."""
        super().sent(edge, "is not sent" if how == "is in doubt" else how, why)


class WrittenTooLate(Detector):
    """That an edge is sent is written when it was sent."""

    def send(self, hop: HopRecord, edge: bytes, to: str, by: float = 0) -> None:
        """Write nothing."""
        self.known.edge_records[edge] = hop.edges[edge] = EdgeRecord(hop, to, by)

    def _is_taken(self, edge: bytes, found: EdgeRecord) -> None:
        del edge
        found.is_taken = True

    def _closed(self, edge: bytes, found: EdgeRecord, receipt: Receipt) -> None:
        kept = len(self.known.writes)
        super()._closed(edge, found, receipt)
        del self.known.writes[kept]  # the record that it is closed: there is none that it is open


class NeverIsBelieved(Horizon):
    """Who says that an edge never will run is believed, however old the edge is."""

    def believed(self, reply: NodeReply) -> NodeReply:
        """Believe it."""
        return reply


class YoungIsBelieved(Horizon):
    """Who says that an edge never will run is believed, also if its journal is younger than the edge."""

    def believed(self, reply: NodeReply) -> NodeReply:
        """Ask nobody for the age of its journal."""
        return super().believed(replace(reply, age=None))


class AnswerIsBelieved(Horizon):
    """One who refuses a copy is believed that no other was taken, however old the message is."""

    def outcome(self, edge: bytes, how: Sending, *, uses: int = 1) -> Sending:
        """Believe it."""
        return how if how == "is refused" else super().outcome(edge, how, uses=uses)


class ForgetsTooEarly(Horizon):
    """Ids are kept for as long as messages are under way, as if all clocks were the same."""

    def period(self) -> float:
        """Forget earlier."""
        return self.promised


class ForgetsAtRestart(Horizon):
    """A process that is started takes for old all that is over."""

    def open(self, now: float) -> None:
        """Forget twice."""
        super().open(now)
        self._known.age(self.wall())
        self._known.age(self.wall())


class ForgetsWhatIsAhead(Horizon):
    """A message whose time is far ahead is remembered for no longer than any other."""

    def arrived(self, handed: Handed) -> None:
        """Do nothing for it."""


class PromisesNothing(Horizon):
    """What the process before this one has promised to remember is forgotten as its own."""

    def open(self, now: float) -> None:
        """Open without what the process before has promised to keep."""
        self._known.keep = 0.0
        super().open(now)


class AsksForTooLittle(Horizon):
    """Who asks says how long its own messages may be under way, not those of the process before it."""

    def asking(self, call: NodeCall) -> NodeCall:
        """Say so."""
        return replace(super().asking(call), keep=self.keep)


class AsksWithoutItsClock(Horizon):
    """Who asks does not say what the time is there."""

    def asking(self, call: NodeCall) -> NodeCall:
        """Leave it out."""
        return replace(super().asking(call), now=None)


class NeverForNow(Horizon):
    """Who forgets before the last copy of a message is too late says that it never will run."""

    def answering(self, call: NodeCall, reply: NodeReply) -> NodeReply:
        """Say so."""
        del call
        return reply

    def refusal(self, handed: Handed, answer: Answer) -> Answer:
        """Say so."""
        del handed
        return answer


class LateCopies(Horizon):
    """A message is taken however late it comes."""

    def objection(self, handed: Handed) -> str | None:
        """Object to those only that are too early."""
        return super().objection(handed) if handed.begin_by > self.wall() else None


def using(kind: type[Detector]) -> type[Agent]:
    """Make agents with another detector."""
    return type(kind.__name__, (Agent,), {"detector": kind, "__doc__": kind.__doc__})


def knowing(kind: type[Knowledge]) -> type[Agent]:
    """Make agents whose detector keeps other records."""

    class Knowing(Detector):
        def __init__(self, name: str, *, lasting: bool) -> None:
            super().__init__(name, lasting=lasting)
            self.known = kind(name)

    return type(kind.__name__, (Agent,), {"detector": Knowing, "__doc__": kind.__doc__})


def minding(kind: type[Horizon]) -> type[Agent]:
    """Make agents with another horizon."""
    return type(kind.__name__, (Agent,), {"horizon": kind, "__doc__": kind.__doc__})


DETECTORS: tuple[type[Detector], ...] = (
    Counting, Closing, OrphansIgnored, LostIsDone, AskedForAndForgotten, RefusedAndForgotten,
    OverAndForgotten, NoJournalAndNever, NoJournalAndSilent, SilenceIsDone, DoubtIsUnsent,
    WrittenTooLate, CopyIsRefused, ToldAndForgotten, CancelledAlone, CancelledBeforeItWasSent, OpaqueIsDone,
    DeniedIsLost, TakenAndDenied, TakenIsNotWritten,
)  # fmt: skip
KNOWLEDGE: tuple[type[Knowledge], ...] = (
    SnapshotWithoutEdges, SnapshotWithoutTally, SnapshotWithoutTaken,
)  # fmt: skip
AGENTS: tuple[type[Agent], ...] = (ReceiptAtReturn, FixedWait, WriteBehind, HastyAging, NoJournal)
HORIZONS: tuple[type[Horizon], ...] = (
    NeverIsBelieved, YoungIsBelieved, AnswerIsBelieved, ForgetsTooEarly, ForgetsAtRestart, ForgetsWhatIsAhead,
    PromisesNothing, AsksForTooLittle, AsksWithoutItsClock, NeverForNow, LateCopies,
)  # fmt: skip
MUTANTS: dict[str, type[Agent]] = {
    kind.__name__: kind
    for kind in (*AGENTS, *map(knowing, KNOWLEDGE), *map(using, DETECTORS), *map(minding, HORIZONS))
}
