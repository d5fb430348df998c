"""How long an agent takes messages, and remembers them: what a node does around its engine, by its clocks.

Each method names what it does the same as; what is pure is called itself. In worlds without such times, none of
it does anything.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from quiesce.mesh.courier import Call, Reply
from quiesce.mesh.facts import NEVER, NOT_NOW, UNKNOWN
from quiesce.mesh.policy import DRIFT_SECONDS, KEEP_SECONDS, is_early, is_in_time
from tests.simulation.world import LONG

if TYPE_CHECKING:
    from quiesce.mesh.facts import Answer
    from quiesce.mesh.states import Sending
    from quiesce.mesh.wire import Handed
    from tests.simulation.agent import Agent

EPOCH = 1_000_000.0  # by the walls' clocks, when the world begins


class Memory:
    """The times of one process; it may have another `keep` than the one before it."""

    def __init__(self, agent: Agent) -> None:
        """Have promised nothing yet."""
        world = agent.world
        self.agent = agent
        keeps = world.faults.keeps
        self.is_timed = bool(keeps)
        self.keep = 0.0
        if keeps:
            self.keep = keeps[0] if agent.life else world.fate.choice(keeps)
        self.promised = 0.0
        self.age_at = math.inf

    def wall(self) -> float:
        """Give the time by the clock of its machine: `Node._wall`."""
        return EPOCH + self.agent.world.now + self.agent.clock_error

    # What is forgotten, and when.

    def start(self) -> None:
        """Promise to remember, after the journal was read: `Exchange.__init__` and `Exchange.promise`."""
        if self.is_timed:
            detector, world = self.agent.engine.detector, self.agent.world
            self.promised = max(detector.keep, self.keep)
            # The first process has been there for a while, when the world begins.
            part = 1.0 if self.agent.life else world.fate.random()
            self.age_at = world.now + part * self.period()
            detector.promise(self.promised)

    def period(self) -> float:
        """Give after what time what is over is forgotten, at the earliest: `Exchange._keep`."""
        return self.promised + 2 * DRIFT_SECONDS

    def see_to_age(self) -> None:
        """Forget what is over for long: `Exchange._make_calls` and `Exchange._age`."""
        if self.agent.world.now >= self.age_at:
            detector = self.agent.engine.detector
            detector.age()
            self.promised = self.keep
            detector.promise(self.promised)
            self.age_at = self.agent.world.now + self.period()

    # Messages.

    def begin_by(self) -> int:
        """Give until when a message that is sent now may begin: `Node._send`."""
        return int(self.wall() + self.keep) if self.is_timed else 0

    def answer_within(self, usual: float) -> float:
        """Give how long a sender waits for the answer to a message; some do so for very long."""
        fate, patient = self.agent.world.fate, self.agent.world.faults.patient
        return fate.uniform(usual, LONG) if patient and fate.random() < patient else usual

    def objects(self, handed: Handed) -> bool:
        """Tell whether a message is not to be worked on: `Node._objection`."""
        return self.is_timed and not is_in_time(handed, self.wall(), self.keep)

    def refusal(self, handed: Handed, answer: Answer) -> Answer:
        """Give what is answered to a message that is not run: `Node._refusal`."""
        if self.is_timed and answer == NEVER and is_early(handed, self.wall(), self.keep):
            return NOT_NOW
        return answer

    def outcome(self, edge: bytes, answer: Answer) -> Sending | None:
        """Give what an answer to a message says, if that is not what its words say.

        After `not now`, of one that was sent twice: `Handing.told`. An old one may have been run, and
        forgotten: `Node._answered`.
        """
        begin_by = self.agent.engine.detector.begin_by(edge)
        if not self.is_timed or begin_by is None:
            return None
        may_run = answer == NOT_NOW and self.agent.uses[edge] > 1
        may_have_run = answer == NEVER and begin_by < self.wall()
        return "is in doubt" if may_run or may_have_run else None

    # Questions.

    def asking(self, call: Call) -> Call:
        """Give a call as it is sent: `Exchange._ask`.

        Messages of the process before this one may be under way for longer than its own: so it says what is
        promised.
        """
        if not self.is_timed:
            return call
        return Call(call.to, call.receipts, call.asks, call.wait, self.promised)

    def answer(self, call: Call, reply: Reply) -> Reply:
        """Give the answer to a call as it is sent: `Exchange._answer`."""
        if not self.is_timed or (KEEP_SECONDS if call.keep is None else call.keep) <= self.keep:
            return reply
        told = ((edge, NOT_NOW if one == NEVER else one) for edge, one in reply.answers)
        return Reply(reply.taken, tuple(told))

    def believed(self, reply: Reply) -> Reply:
        """Give an answer as far as it is believed: `Exchange._believed`."""
        if not self.is_timed:
            return reply
        now, begin_by = self.wall(), self.agent.engine.detector.begin_by
        old = {edge for edge, one in reply.answers if one == NEVER and (begin_by(edge) or 0) < now}
        self.agent.world.doubted |= old
        answers = ((edge, UNKNOWN if edge in old else one) for edge, one in reply.answers)
        return Reply(reply.taken, tuple(answers))
