"""How long a message may be under way, and for how long a node remembers that it came.

`never` rests on this. By the sender's clock, a message may begin for `keep` seconds after it was sent; a receiver
takes it until five minutes after that time, by its own clock. So a receiver that has run an edge, or has said of
one that it never will run, has to know that for as long as a copy may come. What holds:

1. A receiver remembers ids for the longest `keep` that it has promised, and for twice `DRIFT_SECONDS` more. The
   time of the last forgetting is in the journal, so that it goes on where the process before it has stopped.
2. A message whose time is further ahead than that (its sender's clock is ahead, or its `keep` is longer) is taken,
   and its id is remembered until that time. One whose time is further ahead than `AHEAD_SECONDS` is refused.
3. A message whose time is over is refused, whatever the reason: it may be a copy of one that ran and was forgotten.
4. A receiver says `never` to a question only if the message cannot come for longer than it is remembered. The
   question says what the time is at the sender, and its `keep`: no clocks are compared over more than one call.
5. A sender believes `never` only until the message's time is over, by its own clock, and only from a journal that
   was there when the message was sent: a younger one may have replaced one that knew the message.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from quiesce.mesh.protocol.facts import NEVER, NOT_NOW, UNKNOWN
from quiesce.mesh.protocol.scheduler import NodeCall

if TYPE_CHECKING:
    from collections.abc import Callable

    from quiesce.mesh.protocol.codec import Handed
    from quiesce.mesh.protocol.detector import Detector
    from quiesce.mesh.protocol.facts import Answer
    from quiesce.mesh.protocol.scheduler import NodeReply
    from quiesce.mesh.protocol.states import Sending

__all__: list[str] = []

DRIFT_SECONDS = 300.0
"""By how much the clocks of two machines may differ, without anything being remembered for longer."""

KEEP_SECONDS = 3600.0
"""How long messages may be under way, of senders that do not say it when they ask."""

AHEAD_SECONDS = 86_400.0
"""How much further ahead the time of a message may be."""


class Horizon:
    """The times of one node: pure, the clocks are given.

    Args:
        detector: what the node knows.
        keep: how many seconds its messages may be under way.
        wall: gives the time of day, in seconds since 1970.
    """

    def __init__(self, detector: Detector, keep: float, wall: Callable[[], float]) -> None:
        """Promise nothing yet: `open` does."""
        self._detector = detector
        self.keep: float = keep
        self.wall: Callable[[], float] = wall
        self.promised: float = keep
        """For how long what came is remembered: also by a promise of the process before."""
        self.age_at: float = math.inf
        """When ids are forgotten the next time, by the clock that `open` and `age` are given."""
        self._ages = 0  # times that this process has forgotten anything

    # What is forgotten, and when (1).

    def open(self, now: float) -> None:
        """Promise to remember, and go on with forgetting, after what the process before wrote was restored."""
        detector, wall = self._detector, self.wall()
        self.promised = max(detector.keep, self.keep)
        detector.promise(self.promised)
        if detector.aged_at is None:  # nothing was ever forgotten, as there was nothing
            detector.age(wall)
        since = max(0.0, wall - (detector.aged_at or wall))
        self.age_at = now + max(0.0, self.period() - since)

    def period(self) -> float:
        """Return after how many seconds an id may be forgotten, at the earliest."""
        return self.promised + 2 * DRIFT_SECONDS

    def age(self, now: float) -> None:
        """Forget what is over for long, if it is time.

        After the second time, all that is remembered came to this process, and its own promise is enough.
        """
        if now >= self.age_at:
            self._detector.age(self.wall())
            self._ages += 1
            if self._ages > 1:
                self.promised = self.keep
                self._detector.promise(self.promised)
            self.age_at = now + self.period()

    # Messages that come.

    def objection(self, handed: Handed) -> str | None:
        """Return why a message must not begin, because of its time; None if it may."""
        ahead = handed.begin_by - self.wall()
        if ahead < -DRIFT_SECONDS:  # (3)
            return (
                f"it came {-ahead:.0f} s after the time by which it had to begin: it is a late copy, or the sender's"
                " clock is behind this agent's by more than its messages may take"
            )
        if ahead > self.keep + DRIFT_SECONDS + AHEAD_SECONDS:  # (2)
            return (
                f"it may begin until {ahead:.0f} s from now, which is longer than messages may take: set the clock of"
                " its sender, which is wrong"
            )
        return None

    def arrived(self, handed: Handed) -> None:
        """Remember a message that begins for longer, if its copies may come for longer (2)."""
        if handed.begin_by > self.wall() + self.keep + DRIFT_SECONDS:
            self._detector.stay(handed.edge, handed.begin_by)

    def _is_early(self, handed: Handed) -> bool:
        return handed.begin_by > self.wall() + self.keep + DRIFT_SECONDS

    def refusal(self, handed: Handed, answer: Answer) -> Answer:
        """Return what is answered to a message that does not run here."""
        if answer.kind == "never" and self._is_early(handed):
            return NOT_NOW  # it would be forgotten before its copies are too late
        return answer

    # Messages that are sent.

    def begin_by(self) -> float:
        """Return until when a message that is sent now may begin; its header has the whole seconds."""
        return float(self.wall() + self.keep)

    def _is_old(self, edge: bytes) -> bool:
        begin_by = self._detector.begin_by(edge)
        return begin_by is not None and int(begin_by) < self.wall()

    def outcome(self, edge: bytes, how: Sending, *, uses: int = 1) -> Sending:
        """Return what the answer to a message says of its sending, as far as its receiver can know that."""
        if how == "is refused" and self._is_old(edge):
            return "is in doubt"  # it may have run, and that be forgotten (5)
        if how == "is refused, for now" and uses > 1:
            return "is in doubt"  # a copy before this one may have been taken
        return how

    # Questions.

    def asking(self, call: NodeCall) -> NodeCall:
        """Return a call as it is sent (4); also messages of the process before this one may be under way."""
        return NodeCall(
            call.to, call.receipts, call.asks, call.wait, self.promised, self.wall(), call.seen
        )

    def answering(self, call: NodeCall, reply: NodeReply) -> NodeReply:
        """Return the answer to a call as it is sent (4)."""
        keep = KEEP_SECONDS if call.keep is None else call.keep
        spare = 0.0 if call.now is None else self.wall() + DRIFT_SECONDS - call.now
        if keep <= self.keep + spare:
            return reply
        told = ((edge, NOT_NOW if one == NEVER else one) for edge, one in reply.answers)
        return replace(reply, answers=tuple(told))

    def believed(self, reply: NodeReply) -> NodeReply:
        """Return an answer as far as its node can know it (5)."""
        answers = tuple(
            (edge, UNKNOWN if one == NEVER and not self._is_known(edge, reply.age) else one)
            for edge, one in reply.answers
        )
        return replace(reply, answers=answers)

    def _is_known(self, edge: bytes, age: float | None) -> bool:
        begin_by = self._detector.begin_by(edge)
        if begin_by is None:
            return True  # it is closed: nothing depends on it
        now = self.wall()
        sent = begin_by - (self.promised if isinstance(begin_by, int) else self.keep)  # or later
        return int(begin_by) >= now and (age is None or now - sent <= age)
