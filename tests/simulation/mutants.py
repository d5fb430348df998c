"""The protocol, broken on purpose: a simulation that does not catch these shows nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from quiesce.mesh.detector import Detector
from quiesce.mesh.facts import NEVER, Answer, Begun, Sent, Tallied
from quiesce.mesh.receipt import Receipt
from quiesce.mesh.states import Edge, Hop, HopState
from tests.simulation.agent import Agent, Crashed, Task
from tests.simulation.world import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from quiesce.mesh.facts import Record
    from quiesce.mesh.receipt import Status
    from quiesce.mesh.states import Sending


class ReceiptAtReturn(Agent):
    """The receipt is given when the handler returns: "the stream was closed"."""

    def busy(self, task: Task, seconds: float) -> None:
        """Say so, whatever goes on in the background."""
        super().busy(task, seconds)
        if seconds == task.plan.handler and task.hop is not None:
            self.later(seconds, self.say_done, task)

    def say_done(self, task: Task) -> None:
        """Be done, it is said."""
        if task.hop is not None and task.hop.state is HopState.RUNNING:
            self.engine.end(task.hop, "done", self.world.now)

    def end(self, task: Task) -> None:
        """Be done in truth."""
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
        self.transmit(task, edge, to, attempts=1)


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
        self.engine.detector.age()
        self.engine.detector.age()
        super().compact()


class NoJournal(Agent):
    """There is a journal, it is said; after a restart it is empty."""

    def restart(self) -> None:
        """Forget."""
        self.journal = []
        super().restart()


class SnapshotWithoutEdges(Detector):
    """What is compacted leaves out the edges that are open."""

    def snapshot(self) -> Iterator[Record]:
        """Leave them out."""
        return (record for record in super().snapshot() if not isinstance(record, Sent))


class SnapshotWithoutTally(Detector):
    """What is compacted leaves out what is known of the edges that are closed."""

    def snapshot(self) -> Iterator[Record]:
        """Leave it out."""
        return (record for record in super().snapshot() if not isinstance(record, Tallied))


class Counting(Detector):
    """Receipts are counted, and not told apart."""

    def receive(self, edge: bytes, receipt: Receipt) -> None:
        """Take it for some edge."""
        known = edge if edge in self._edges else next(iter(self._edges), edge)
        super().receive(known, receipt)


class Closing(Detector):
    """A hop is closed when its own work has ended."""

    def end(self, hop: Hop, status: Status, **options: Any) -> None:
        """Wait for no edge."""
        for edge in list(hop.edges):
            del self._edges[edge], hop.edges[edge]
        super().end(hop, status, **options)


class OrphansIgnored(Detector):
    """After a restart, nobody asks for what was sent before."""

    def restore(self, records: Iterable[Record]) -> None:
        """Forget it."""
        super().restore([record for record in records if isinstance(record, Begun)])


class LostIsDone(Detector):
    """What was running when the process died is done."""

    def end(self, hop: Hop, status: Status, **options: Any) -> None:
        """Lose nothing."""
        super().end(hop, "done" if status == "lost" else status, **options)


class AskedForAndForgotten(Detector):
    """That an edge never came is said, and not kept."""

    def ask(self, edge: bytes, *, cancel: bool = False) -> Answer:
        """Say so."""
        return NEVER if self._known(edge) is None else super().ask(edge, cancel=cancel)


class RefusedAndForgotten(Detector):
    """An edge is refused, and a copy of it is taken later."""

    def refuse(self, edge: bytes) -> Answer:
        """Refuse this one."""
        return self._known(edge) or NEVER


class OverAndForgotten(Detector):
    """Once its receipt was taken, an edge is forgotten, and a copy of it is taken later."""

    def _known(self, edge: bytes) -> Answer | None:
        if self._over.get(edge) is None:
            self._over.pop(edge, None)
        return super()._known(edge)


class NoJournalAndNever(Detector):
    """Who keeps no journal says that an edge never came."""

    def ask(self, edge: bytes, *, cancel: bool = False) -> Answer:
        """Say so."""
        answer = super().ask(edge, cancel=cancel)
        return NEVER if answer.kind == "unknown" else answer


class NoJournalAndSilent(Detector):
    """Who keeps no journal does not say so in its receipts."""

    def _close(self, hop: Hop) -> None:
        lasting, self._lasting = self._lasting, True
        super()._close(hop)
        self._lasting = lasting


class SilenceIsDone(Detector):
    """A node that is not heard of any more has done its work."""

    def give_up(self, edge: bytes, why: str) -> None:
        """Be content."""
        del why
        self.receive(edge, Receipt("done"))


class DoubtIsUnsent(Detector):
    """A message without an answer was not sent."""

    def sent(self, edge: bytes, how: Sending) -> None:
        """Have no doubt."""
        super().sent(edge, "is not sent" if how == "is in doubt" else how)


class WrittenTooLate(Detector):
    """That an edge is sent is written when it was sent."""

    def send(self, hop: Hop, edge: bytes, to: str) -> None:
        """Write nothing."""
        self._edges[edge] = hop.edges[edge] = Edge(hop, to)

    def _closed(self, edge: bytes, found: Edge, event: str, receipt: Receipt) -> None:
        kept = len(self.writes)
        super()._closed(edge, found, event, receipt)
        del self.writes[kept]  # the record that it is closed: there is none that it is open


def using(kind: type[Detector]) -> type[Agent]:
    """Make agents with another detector."""
    return type(kind.__name__, (Agent,), {"detector": kind, "__doc__": kind.__doc__})


DETECTORS: tuple[type[Detector], ...] = (
    SnapshotWithoutEdges, SnapshotWithoutTally, Counting, Closing, OrphansIgnored, LostIsDone, AskedForAndForgotten, RefusedAndForgotten,
    OverAndForgotten, NoJournalAndNever, NoJournalAndSilent, SilenceIsDone, DoubtIsUnsent,
    WrittenTooLate,
)  # fmt: skip
AGENTS: tuple[type[Agent], ...] = (ReceiptAtReturn, FixedWait, WriteBehind, HastyAging, NoJournal)
MUTANTS: dict[str, type[Agent]] = {
    kind.__name__: kind for kind in (*AGENTS, *(using(detector) for detector in DETECTORS))
}
