"""How long a message may be under way, and how long a node remembers it. The answer `never` depends on this.

A message may begin until `keep` seconds after its sending, by the sender's clock. A receiver accepts it until five
minutes after that time, by the receiver's clock. So a receiver that has run an edge, or has answered `never`, must
remember the edge for as long as a copy may come. Rules:

1. A receiver remembers ids for the longest `keep` that it has promised, and for twice `DRIFT_SECONDS` more. The
   journal has the time of the last forgetting, so that the next process continues from it.
2. If a message's time is later than that (its sender's clock is ahead, or its `keep` is longer), the receiver
   accepts it, and remembers its id until that time. Beyond `AHEAD_SECONDS`, the receiver refuses it.
3. A message whose time is over is refused in every case: it may be a copy of a message that ran and was forgotten.
4. A receiver answers `never` to a question only if it remembers the edge longer than the message can take. The
   question contains the sender's time and its `keep`, so clocks are compared within one call only.
5. A sender believes `never` only until the message's time is over, by the sender's clock, and only from a journal
   that existed when the message was sent. A younger journal may have replaced one that knew the message.
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
    from quiesce.mesh.protocol.facts import Answer
    from quiesce.mesh.protocol.knowledge import Knowledge
    from quiesce.mesh.protocol.scheduler import NodeReply
    from quiesce.mesh.protocol.states import Sending

__all__: list[str] = []

DRIFT_SECONDS = 300.0
"""The difference between the clocks of two machines that needs no longer memory."""

KEEP_SECONDS = 3600.0
"""How long messages of a sender may be under way, if its question does not say so."""

AHEAD_SECONDS = 86_400.0
"""How much later than usual the time of a message may be."""


class Horizon:
    """The time rules of one node. It has no clock of its own.

    Args:
        known: the knowledge of the node.
        keep: how many seconds the node's messages may be under way.
        wall: returns the time of day, in seconds since 1970.
    """

    def __init__(self, known: Knowledge, keep: float, wall: Callable[[], float]) -> None:
        """Make no promise yet; `open` does."""
        self._known = known
        self.keep: float = keep
        self.wall: Callable[[], float] = wall
        self.promised: float = keep
        """How many seconds arrived edges are remembered, including promises of earlier processes."""
        self.age_at: float = math.inf
        """The time of the next forgetting, by the clock of the argument of `open` and `age`."""
        self._ages = 0  # number of forgettings in this process

    # Forgetting (1).

    def open(self, now: float) -> None:
        """Promise to remember edges, and continue the forgetting. Call this after the records were restored."""
        known, wall = self._known, self.wall()
        self.promised = max(known.keep, self.keep)
        known.promise(self.promised)
        if known.aged_at is None:  # a new node, which has not forgotten anything yet
            known.age(wall)
        since = max(0.0, wall - (known.aged_at or wall))
        self.age_at = now + max(0.0, self.period() - since)

    def period(self) -> float:
        """Return the number of seconds for which an id is remembered at least."""
        return self.promised + 2 * DRIFT_SECONDS

    def age(self, now: float) -> None:
        """Forget old edges, if it is time.

        After the second time, all remembered edges have arrived in this process, so its own promise is enough.
        """
        if now >= self.age_at:
            self._known.age(self.wall())
            self._ages += 1
            if self._ages > 1:
                self.promised = self.keep
                self._known.promise(self.promised)
            self.age_at = now + self.period()

    # Arriving messages.

    def objection(self, handed: Handed) -> str | None:
        """Return why the time of a message forbids it to begin; None if it may begin."""
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
        """Remember a message for longer than usual, if its copies may come later than usual (2)."""
        if handed.begin_by > self.wall() + self.keep + DRIFT_SECONDS:
            self._known.stay(handed.edge, handed.begin_by)

    def _is_early(self, handed: Handed) -> bool:
        return handed.begin_by > self.wall() + self.keep + DRIFT_SECONDS

    def refusal(self, handed: Handed, answer: Answer) -> Answer:
        """Return the answer to a refused message."""
        if answer.kind == "never" and self._is_early(handed):
            return NOT_NOW  # the node would forget it before the last copy can come
        return answer

    # Sent messages.

    def begin_by(self) -> float:
        """Return the time until which a message sent now may begin. The header has its whole seconds."""
        return float(self.wall() + self.keep)

    def _is_old(self, edge: bytes) -> bool:
        begin_by = self._known.begin_by(edge)
        return begin_by is not None and int(begin_by) < self.wall()

    def outcome(self, edge: bytes, how: Sending, *, uses: int = 1) -> Sending:
        """Return the reliable outcome of a sending, given the outcome that the answer claims."""
        if how == "is refused" and self._is_old(edge):
            return "is in doubt"  # the receiver may have run and forgotten it (5)
        if how == "is refused, for now" and uses > 1:
            return "is in doubt"  # the receiver may have accepted an earlier copy
        return how

    # Questions.

    def asking(self, call: NodeCall) -> NodeCall:
        """Return a call with this node's time and `keep` (4). Messages of an earlier process also count."""
        return NodeCall(
            call.to, call.receipts, call.asks, call.wait, self.promised, self.wall(), call.seen
        )

    def answering(self, call: NodeCall, reply: NodeReply) -> NodeReply:
        """Return the answer to a call, restricted by rule 4."""
        keep = KEEP_SECONDS if call.keep is None else call.keep
        spare = 0.0 if call.now is None else self.wall() + DRIFT_SECONDS - call.now
        if keep <= self.keep + spare:
            return reply
        told = ((edge, NOT_NOW if one == NEVER else one) for edge, one in reply.answers)
        return replace(reply, answers=tuple(told))

    def believed(self, reply: NodeReply) -> NodeReply:
        """Return the part of an answer that this node may believe (5)."""
        answers = tuple(
            (edge, UNKNOWN if one == NEVER and not self._is_known(edge, reply.age) else one)
            for edge, one in reply.answers
        )
        return replace(reply, answers=answers)

    def _is_known(self, edge: bytes, age: float | None) -> bool:
        begin_by = self._known.begin_by(edge)
        if begin_by is None:
            return True  # the edge is closed, so the answer does not matter
        now = self.wall()
        sent = begin_by - (self.promised if isinstance(begin_by, int) else self.keep)  # or later
        return int(begin_by) >= now and (age is None or now - sent <= age)
