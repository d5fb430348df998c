"""Where pushes wait until they are delivered, and what is known of tasks after a crash.

`MemoryOutbox` forgets all when the process ends; `SqliteOutbox` (sqlite_outbox.py) does not.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["DeadLetter", "MemoryOutbox", "Outbox"]


@dataclass(eq=False)
class Push:
    """One push to one receiver."""

    task_id: str
    url: str
    headers: dict[str, str]
    body: bytes
    status: str = ""
    """What tells the status that it is about from others; empty for artifacts."""
    number: int = 0
    attempts: int = 0
    event: Any = None
    """What it tells, for a sender of the user's own."""


@dataclass(frozen=True)
class Target:
    """A receiver of pushes, as its configuration had it."""

    url: str
    headers: dict[str, str]


@dataclass(frozen=True)
class Note:
    """What has to be known of a task to end it after a crash."""

    task_id: str
    user: str
    tenant: str
    targets: tuple[Target, ...]


@dataclass(frozen=True)
class DeadLetter:
    """A push that was given up."""

    task_id: str
    url: str
    body: bytes
    attempts: int
    why: str
    at: float
    """When, in seconds since 1970."""


class Outbox(Protocol):
    """Where pushes wait. What `write` has returned from is delivered, or is a dead letter."""

    @property
    def durable(self) -> bool:
        """Whether it outlives the process."""
        ...

    async def open(self) -> None:
        """Get ready; it may be opened again after `close`."""

    async def close(self) -> None:
        """Let go of files and threads."""

    async def write(self, note: Note, pushes: Sequence[Push], ended: Sequence[str] = ()) -> None:
        """Keep what is known of a task, and its pushes, in one step; number the pushes.

        Tasks that have ended before are forgotten in the same step.
        """

    async def sent(self, push: Push) -> None:
        """Forget a push: it was delivered, or tells of a state that was never stored."""

    async def failed(self, push: Push, why: str) -> None:
        """Keep that a delivery has failed; the push has the number of attempts."""

    async def dead(self, push: Push, why: str) -> None:
        """Give a push up, and keep it among the dead letters."""

    async def pending(self) -> list[Push]:
        """Give what was not delivered, oldest first."""
        ...

    async def unfinished(self) -> list[Note]:
        """Give the tasks that have not ended, as far as is known here."""
        ...

    async def forget(self, task_ids: Sequence[str]) -> None:
        """Forget tasks; their pushes stay."""

    async def dead_letters(self) -> list[DeadLetter]:
        """Give what was given up, oldest first."""
        ...


_DEAD_MAX = 1000


@dataclass
class MemoryOutbox:
    """An outbox that lasts as long as the process, for tests and for what may be lost.

    Args:
        dead_max: How many dead letters are kept; the oldest go first.
    """

    dead_max: int = _DEAD_MAX
    _number: int = 0
    _pending: dict[int, Push] = field(default_factory=dict)
    _dead: list[DeadLetter] = field(default_factory=list)

    @property
    def durable(self) -> bool:
        """It does not outlive the process."""
        return False

    async def open(self) -> None:
        """Do nothing."""

    async def close(self) -> None:
        """Do nothing."""

    async def write(self, note: Note, pushes: Sequence[Push], ended: Sequence[str] = ()) -> None:
        """Keep the pushes; no task outlives a crash here."""
        del note, ended
        for push in pushes:
            self._number += 1
            push.number = self._number
            self._pending[push.number] = push

    async def sent(self, push: Push) -> None:
        """Forget a push."""
        self._pending.pop(push.number, None)

    async def failed(self, push: Push, why: str) -> None:
        """Keep nothing: the push itself counts."""

    async def dead(self, push: Push, why: str) -> None:
        """Give a push up."""
        self._pending.pop(push.number, None)
        letter = DeadLetter(push.task_id, push.url, push.body, push.attempts, why, time.time())
        self._dead = [*self._dead, letter][-self.dead_max :]

    async def pending(self) -> list[Push]:
        """Give what was not delivered."""
        return list(self._pending.values())

    async def unfinished(self) -> list[Note]:
        """Know of none."""
        return []

    async def forget(self, task_ids: Sequence[str]) -> None:
        """Do nothing."""

    async def dead_letters(self) -> list[DeadLetter]:
        """Give what was given up."""
        return list(self._dead)
