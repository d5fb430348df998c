"""Where pushes wait until they are delivered, and what is known of tasks after a crash.

`MemoryOutbox` forgets all when the process ends; `SqliteOutbox` (sqlite_outbox.py) does not.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol
from uuid import uuid4

from quiesce.core import arguments

if TYPE_CHECKING:
    from collections.abc import Sequence

    from quiesce.integrations.a2a.mesh.push_edges import PushEdge

__all__ = ["DeadLetter", "MemoryOutbox", "Outbox"]

WAITING = "waiting"
TRYING = "trying"  # its receiver is being asked at this moment
OVER = "over"  # it was given up while it waited


@dataclass(eq=False)
class Push:
    """One push to one receiver."""

    task_id: str
    url: str = field(repr=False)
    headers: dict[str, str] = field(repr=False)
    body: bytes = field(repr=False)
    status: str = ""
    """What tells the status that it is about from others; empty for artifacts."""
    attempts: int = 0
    id: str = field(default_factory=lambda: uuid4().hex)
    """The same whenever it comes again."""
    at: float = field(default_factory=time.time)
    """When it was written, in seconds since 1970."""
    event: Any = field(default=None, repr=False)
    """What it tells, for a sender of the user's own."""
    stage: str = WAITING
    cascade: str = field(default="", repr=False)
    """What it is sent with, if it is part of a cascade: a secret, kept with it."""
    edge: PushEdge | None = field(default=None, repr=False)
    """What is to know of its fate, if it is part of a cascade."""

    def let_go(self) -> None:
        """Record that it does not wait any more, whatever became of it."""
        if self.edge is not None:
            self.edge.let_go()

    def over(self) -> None:
        """Record that it will not be sent any more."""
        if self.edge is not None:
            self.edge.over()


@dataclass(frozen=True)
class PushTarget:
    """A receiver of pushes, as its configuration had it."""

    url: str = field(repr=False)
    headers: dict[str, str] = field(repr=False)


@dataclass(frozen=True)
class TaskNote:
    """What has to be known of a task to end it after a crash."""

    task_id: str
    user: str
    tenant: str
    targets: tuple[PushTarget, ...]


@dataclass(frozen=True)
class DeadLetter:
    """A push that was given up. It has none of the credentials that it was sent with."""

    task_id: str
    url: str
    body: bytes
    attempts: int
    why: str
    at: float
    """When, in seconds since 1970."""
    id: str = ""
    """What its receiver has seen, or will see, in `X-Quiesce-Push`."""


class Outbox(Protocol):
    """Where pushes wait. What `write` has returned from is delivered, or is a dead letter."""

    @property
    def durable(self) -> bool:
        """Whether it outlives the process."""
        ...

    async def open(self) -> None:
        """Get ready; it may be opened again after `close`."""

    async def close(self) -> None:
        """Close the files and end the threads."""

    async def write(
        self, note: TaskNote, pushes: Sequence[Push], ended: Sequence[str] = ()
    ) -> None:
        """Keep what is known of a task, and its pushes, in one step.

        Tasks that have ended before are forgotten in the same step.
        """

    async def sent(self, push: Push) -> None:
        """Forget a push: it was delivered, or tells of a state that was never stored."""

    async def failed(self, push: Push, why: str) -> None:
        """Keep that a delivery has failed; the push has the number of attempts."""

    async def dead(self, push: Push, why: str) -> None:
        """Move a push to the dead letters."""

    async def pending(self) -> list[Push]:
        """Return what was not delivered, oldest first."""
        ...

    async def unfinished(self) -> list[TaskNote]:
        """Return the tasks that have not ended, as far as is known here."""
        ...

    async def forget(self, task_ids: Sequence[str]) -> None:
        """Forget tasks; their pushes stay."""

    async def dead_letters(self) -> list[DeadLetter]:
        """Return what was given up, oldest first."""
        ...

    async def revive(self, ids: Sequence[str] | None = None) -> list[Push]:
        """Make pushes of dead letters again, behind those that wait; of all, without ids."""
        ...

    async def discard(self, ids: Sequence[str]) -> int:
        """Forget dead letters; return how many there were."""
        ...


_DEAD_MAX = 1000


@dataclass
class MemoryOutbox:
    """An outbox that lasts as long as the process, for tests and for what may be lost.

    Args:
        dead_max: How many dead letters are kept; the oldest go first.
    """

    dead_max: int = _DEAD_MAX
    _pending: dict[str, Push] = field(default_factory=dict)
    _dead: list[tuple[DeadLetter, Push]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        arguments.size("dead_max", self.dead_max)

    @property
    def durable(self) -> bool:
        """It does not outlive the process."""
        return False

    async def open(self) -> None:
        """Do nothing."""

    async def close(self) -> None:
        """Do nothing."""

    async def write(
        self, note: TaskNote, pushes: Sequence[Push], ended: Sequence[str] = ()
    ) -> None:
        """Keep the pushes; no task outlives a crash here."""
        del note, ended
        self._pending |= {push.id: push for push in pushes}

    async def sent(self, push: Push) -> None:
        """Forget a push."""
        self._pending.pop(push.id, None)

    async def failed(self, push: Push, why: str) -> None:
        """Keep nothing: the push itself counts."""

    async def dead(self, push: Push, why: str) -> None:
        """Move a push to the dead letters."""
        self._pending.pop(push.id, None)
        letter = DeadLetter(
            push.task_id, push.url, push.body, push.attempts, why, time.time(), push.id
        )
        self._dead = [*self._dead, (letter, push)][-self.dead_max :]

    async def pending(self) -> list[Push]:
        """Return what was not delivered."""
        return list(self._pending.values())

    async def unfinished(self) -> list[TaskNote]:
        """Return none."""
        return []

    async def forget(self, task_ids: Sequence[str]) -> None:
        """Do nothing."""

    async def dead_letters(self) -> list[DeadLetter]:
        """Return what was given up."""
        return [letter for letter, _ in self._dead]

    async def revive(self, ids: Sequence[str] | None = None) -> list[Push]:
        """Make pushes of dead letters again."""
        found = [push for _, push in self._dead if ids is None or push.id in ids]
        await self.discard([push.id for push in found])
        pushes = [
            replace(
                push, status="", attempts=0, at=time.time(), stage=WAITING, cascade="", edge=None
            )
            for push in found
        ]
        self._pending |= {push.id: push for push in pushes}
        return pushes

    async def discard(self, ids: Sequence[str]) -> int:
        """Forget dead letters."""
        before = len(self._dead)
        self._dead = [(letter, push) for letter, push in self._dead if push.id not in ids]
        return before - len(self._dead)
