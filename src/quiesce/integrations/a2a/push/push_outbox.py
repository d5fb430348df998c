"""The outbox: pushes that wait to be delivered, and notes on their tasks for a start after a crash.

A `MemoryOutbox` is lost when the process ends. A `SqliteOutbox` (sqlite_outbox.py) is a file.
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
TRYING = "trying"  # the push is being sent now
OVER = "over"  # the push was given up while it waited


@dataclass(eq=False)
class Push:
    """One push to one receiver."""

    task_id: str
    url: str = field(repr=False)
    headers: dict[str, str] = field(repr=False)
    body: bytes = field(repr=False)
    status: str = ""
    """The key of the pushed status (`versions.status_mark`); empty for artifacts."""
    attempts: int = 0
    id: str = field(default_factory=lambda: uuid4().hex)
    """The push's id, the same at every attempt."""
    at: float = field(default_factory=time.time)
    """When the push was written, in seconds since 1970."""
    event: Any = field(default=None, repr=False)
    """The pushed event, for the user's own sender."""
    stage: str = WAITING
    cascade: str = field(default="", repr=False)
    """The header of the push's edge, if the push is part of a cascade. It is a secret."""
    edge: PushEdge | None = field(default=None, repr=False)
    """The push's edge, if the push is part of a cascade."""

    def let_go(self) -> None:
        """Record that the push does not wait any more: it was sent, given up, or left for the next start."""
        if self.edge is not None:
            self.edge.let_go()

    def over(self) -> None:
        """Record that the push will not be sent any more."""
        if self.edge is not None:
            self.edge.over()


@dataclass(frozen=True)
class PushTarget:
    """A receiver of pushes: the URL and headers from its push configuration."""

    url: str = field(repr=False)
    headers: dict[str, str] = field(repr=False)


@dataclass(frozen=True)
class TaskNote:
    """What a start after a crash needs to know of a task, to end it and to push its end."""

    task_id: str
    user: str
    tenant: str
    targets: tuple[PushTarget, ...]


@dataclass(frozen=True)
class DeadLetter:
    """A push that was given up, without its credentials."""

    task_id: str
    url: str
    body: bytes
    attempts: int
    why: str
    at: float
    """When the push was given up, in seconds since 1970."""
    id: str = ""
    """The push's id, which its receiver sees in `X-Quiesce-Push`."""


class Outbox(Protocol):
    """Where pushes wait. After `write` has returned, each push is delivered or becomes a dead letter."""

    @property
    def durable(self) -> bool:
        """Whether the outbox outlives the process."""
        ...

    async def open(self) -> None:
        """Open the outbox; it may be opened again after `close`."""

    async def close(self) -> None:
        """Close the files and end the threads."""

    async def write(
        self, note: TaskNote, pushes: Sequence[Push], ended: Sequence[str] = ()
    ) -> None:
        """Store the note of a task and its pushes, and remove the notes of `ended` tasks, in one transaction."""

    async def sent(self, push: Push) -> None:
        """Remove a push that was delivered, or whose state was never stored."""

    async def failed(self, push: Push, why: str) -> None:
        """Record that an attempt has failed; `push.attempts` is the number of attempts."""

    async def dead(self, push: Push, why: str) -> None:
        """Move a push to the dead letters."""

    async def pending(self) -> list[Push]:
        """Return the pushes that were not delivered, oldest first."""
        ...

    async def unfinished(self) -> list[TaskNote]:
        """Return the notes of the tasks that have not ended."""
        ...

    async def forget(self, task_ids: Sequence[str]) -> None:
        """Remove the notes of tasks; their pushes stay."""

    async def dead_letters(self) -> list[DeadLetter]:
        """Return the dead letters, oldest first."""
        ...

    async def revive(self, ids: Sequence[str] | None = None) -> list[Push]:
        """Turn dead letters, all of them without `ids`, into pushes behind the waiting ones; return these."""
        ...

    async def discard(self, ids: Sequence[str]) -> int:
        """Remove dead letters; return the number removed."""
        ...


_DEAD_MAX = 1000


@dataclass
class MemoryOutbox:
    """An outbox in memory, for tests, and for pushes that a restart may lose.

    Args:
        dead_max: How many dead letters are kept; beyond that, the oldest are removed.
    """

    dead_max: int = _DEAD_MAX
    _pending: dict[str, Push] = field(default_factory=dict)
    _dead: list[tuple[DeadLetter, Push]] = field(default_factory=list)

    def __post_init__(self) -> None:
        arguments.size("dead_max", self.dead_max)

    @property
    def durable(self) -> bool:
        """False: the outbox does not outlive the process."""
        return False

    async def open(self) -> None:
        """Do nothing."""

    async def close(self) -> None:
        """Do nothing."""

    async def write(
        self, note: TaskNote, pushes: Sequence[Push], ended: Sequence[str] = ()
    ) -> None:
        """Store the pushes; notes are not needed, because this outbox does not outlive a crash."""
        del note, ended
        self._pending |= {push.id: push for push in pushes}

    async def sent(self, push: Push) -> None:
        """Remove a push."""
        self._pending.pop(push.id, None)

    async def failed(self, push: Push, why: str) -> None:
        """Do nothing: the push object counts its attempts."""

    async def dead(self, push: Push, why: str) -> None:
        """Move a push to the dead letters."""
        self._pending.pop(push.id, None)
        letter = DeadLetter(
            push.task_id, push.url, push.body, push.attempts, why, time.time(), push.id
        )
        self._dead = [*self._dead, (letter, push)][-self.dead_max :]

    async def pending(self) -> list[Push]:
        """Return the pushes that were not delivered."""
        return list(self._pending.values())

    async def unfinished(self) -> list[TaskNote]:
        """Return an empty list."""
        return []

    async def forget(self, task_ids: Sequence[str]) -> None:
        """Do nothing."""

    async def dead_letters(self) -> list[DeadLetter]:
        """Return the dead letters."""
        return [letter for letter, _ in self._dead]

    async def revive(self, ids: Sequence[str] | None = None) -> list[Push]:
        """Turn dead letters into pushes again, and return these."""
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
        """Remove dead letters; return the number removed."""
        before = len(self._dead)
        self._dead = [(letter, push) for letter, push in self._dead if push.id not in ids]
        return before - len(self._dead)
