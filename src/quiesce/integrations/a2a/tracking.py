"""Which tasks of an A2A server are in flight, and when they no longer are.

1. A task is busy while its executor runs, or while an event that the executor has enqueued was not
   stored yet. In 1.x the SDK asks the push sender after each event that it has stored: enqueued less
   asked is what is still queued. (0.3 has no such count; there the scope adopts the tasks that
   store, and they end when all is stored.)
2. A task that waits for its client (input-required, auth-required), with nothing queued, is parked:
   not busy, although the SDK keeps loops for it and its executor may wait as well.
3. A stored terminal state is the end: what is queued behind it is of no account.
4. What is known of a task is kept while it is busy, or is in a state that somebody has to end.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from quiesce.core import sites
from quiesce.errors import ScopeClosed
from quiesce.integrations.a2a import versions

if TYPE_CHECKING:
    from quiesce.core.hold import Hold
    from quiesce.core.scope import Scope

__all__: list[str] = []

_ENDED_MAX = 10_000  # tasks of which it is remembered how they ended, and what was pushed last


@dataclass(eq=False)
class Entry:
    """What is known of a task."""

    task_id: str
    context: Any = None
    state: Any = None
    status: bytes | None = None
    """The status that was stored last, or None: it was not looked at yet."""
    fresh: bool = False
    """Whether nothing can be stored of it that is not known here."""
    executing: int = 0
    queued: int = 0
    runner: asyncio.Task[Any] | None = None
    said: Any = None
    """The state that the executor has enqueued last."""
    cut: bool = False
    """Whether its executor was told to stop because the server does."""
    hold: Hold | None = None
    saving: int = 0
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Whose turn it is to store; held while the store works, and by nobody else's leave."""

    @property
    def ended(self) -> bool:
        """Whether a terminal state is stored."""
        return self.state in versions.TERMINAL

    @property
    def parked(self) -> bool:
        """Whether it waits for its client."""
        return self.state in versions.PARKED and not self.queued

    @property
    def busy(self) -> bool:
        """Whether something is still to come of it without its client."""
        if self.ended:
            return self.executing > 0
        return not self.parked and bool(self.executing or self.queued)

    @property
    def owed(self) -> bool:
        """Whether it was accepted, and has neither ended nor is it parked."""
        return self.state is not None and not self.ended and self.state not in versions.PARKED


class Request:
    """One call of the SDK's handler, and the tasks that were executed for it."""

    def __init__(self, task_id: str | None) -> None:
        self.task_ids: set[str] = {task_id} if task_id else set()


request: ContextVar[Request | None] = ContextVar("quiesce_a2a_request", default=None)


class Tracker:
    """The tasks of one server."""

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        self.told: OrderedDict[str, bytes] = OrderedDict()
        self.ends: OrderedDict[str, Any] = OrderedDict()
        self.scope: Scope | None = None

    def entry(self, task_id: str) -> Entry:
        """Give what is known of a task, be it nothing."""
        found = self.entries.get(task_id)
        if found is None:
            found = self.entries[task_id] = Entry(task_id, state=self.ends.get(task_id))
        return found

    def stored(self, entry: Entry, state: Any, key: bytes) -> None:
        """Know what was stored; of what has ended, it is remembered for a good while (3)."""
        entry.state = state
        entry.status = key
        if entry.ended:
            _remember(self.ends, entry.task_id, entry.state)

    def refresh(self, entry: Entry) -> None:
        """Hold the task in the scope if it is busy, else let go (1, 2, 3, 4)."""
        if entry.busy:
            if entry.hold is None and self.scope is not None:
                with suppress(ScopeClosed):  # the end is answered for by others (closing.py)
                    entry.hold = self.scope.hold("a2a task", entry.task_id, **_described(entry))
            elif entry.hold is not None:
                cast("dict[str, object]", entry.hold.details).update(_described(entry))
            return
        if entry.hold is not None:
            entry.hold.release()
            entry.hold = None
        kept = entry.owed or entry.executing or (entry.queued and not entry.ended)
        if not kept and not entry.saving:
            self.entries.pop(entry.task_id, None)

    def consumed(self, task_id: str) -> None:
        """Know that the SDK has stored an event (1)."""
        entry = self.entries.get(task_id)
        if entry is not None:
            entry.queued = max(0, entry.queued - 1)
            self.refresh(entry)

    def gave_up(self, failed: Request) -> None:
        """Know that the SDK has given up a request, and its queue: nothing is queued any more."""
        for task_id in failed.task_ids:
            entry = self.entries.get(task_id)
            if entry is not None:
                entry.queued = 0
                self.refresh(entry)

    def news(self, task_id: str, key: bytes) -> bool:
        """Tell whether something was not pushed yet; it counts as pushed from then on."""
        key = hashlib.blake2b(key, digest_size=16).digest()
        if self.told.get(task_id) == key:
            return False
        _remember(self.told, task_id, key)
        return True

    def look(self) -> None:
        """Bring what the holds say of their tasks up to date."""
        for entry in self.entries.values():
            if entry.hold is not None:
                details = cast("dict[str, object]", entry.hold.details)
                details.update(_described(entry))
                details["waits_on"] = _waits_on(entry)


def _remember(table: OrderedDict[str, Any], task_id: str, value: Any) -> None:
    table[task_id] = value
    table.move_to_end(task_id)
    if len(table) > _ENDED_MAX:
        table.popitem(last=False)


def _described(entry: Entry) -> dict[str, object]:
    state = "accepted" if entry.state is None else versions.state_name(entry.state)
    return {"state": state, "events_queued": entry.queued}


def _waits_on(entry: Entry) -> str:
    if entry.executing and entry.runner is not None and not entry.runner.done():
        place = sites.waiting_on(sites.await_chain(entry.runner.get_coro()))
        return f"its executor, at {place}" if place else "its executor"
    return "its events being stored" if entry.queued else "nothing"
