"""Which tasks of an A2A server are in flight, and when they no longer are.

1. A task is busy while its executor runs, or while an event that the executor has enqueued was not
   stored yet. In 1.x the SDK asks the push sender after each event that it has stored: enqueued less
   asked is what is still queued. (0.3 has no such count; there the scope adopts the tasks that
   store, and they end when all is stored.)
2. A task that waits for its client (input-required, auth-required), with nothing queued, is parked:
   not busy, although the SDK keeps loops for it and its executor may wait as well.
3. A stored terminal state is the end: what is queued behind it is of no account.
4. What is known of a task is kept while it is busy, or is in a state that the server has to end.
5. The states of a task are stored one at a time, in the order in which they came.
6. The loops that 1.x has for each task are owned apart: they live as long as the task does, and
   are not in the way of being idle.
7. If the SDK refuses a call, nothing is left of it.
"""

from __future__ import annotations

import asyncio
import gc
import hashlib
import sys
from collections import OrderedDict
from contextlib import suppress
from contextvars import Context, ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from quiesce.core import callsites
from quiesce.core.backends.asyncio.tasks import AdoptedTask
from quiesce.core.hold import NOTHING, Hold
from quiesce.core.tree import ScopeState, current
from quiesce.errors import ScopeClosed
from quiesce.integrations.a2a import versions

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import CodeType

    from quiesce.core.scope import Scope

__all__: list[str] = []

_TERMINAL, _PARKED, _ENDS = versions.TERMINAL, versions.PARKED, versions.ENDS
_ENDED_MAX = 10_000  # tasks of which it is remembered how they ended, and what was pushed last


@dataclass(eq=False, slots=True)
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
    """How many store it, or wait for their turn to do so."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by the one that stores it; the others get it in the order in which they came (5)."""

    @property
    def ended(self) -> bool:
        """Whether a terminal state is stored."""
        return self.state in _TERMINAL

    @property
    def busy(self) -> bool:
        """Whether something is still to come of it without its client."""
        # Written out: it is asked at every step of every event.
        if self.state in _TERMINAL:
            return self.executing > 0
        if self.queued:
            return True
        return self.executing > 0 and self.state not in _PARKED

    @property
    def owed(self) -> bool:
        """Whether it was accepted, and has neither ended nor is it parked."""
        return self.state is not None and self.state not in _ENDS


class TaskHold(Hold):
    """A task in flight; its details are looked up when a frontier or a report asks for them."""

    __slots__ = ("_entry",)

    def __init__(self, scope: Scope, entry: Entry, code: CodeType | None) -> None:
        """Hold a task in a scope, in the same step; `code` is that of the user's executor."""
        if scope._state is not ScopeState.OPEN:
            scope._admit()
        super().__init__(scope, "a2a task", entry.task_id, NOTHING, code, 0)
        self._entry = entry
        scope._insert(self, self)

    @property
    def details(self) -> Mapping[str, object]:
        """The task's state, how many of its events are not stored yet, and what it waits on."""
        entry = self._entry
        state = "accepted" if entry.state is None else versions.state_name(entry.state)
        return {"state": state, "events_queued": entry.queued, "waits_on": _waits_on(entry)}


class Request:
    """One call of the SDK's handler: the tasks that were executed for it, and what was begun.

    It stands for a scope in the context of the call. What the SDK begins there belongs to
    `loops` (6), until the user's executor runs for it: by then there are the loops that live as
    long as a task of the protocol. All that they begin, they wait for; it is left alone.
    """

    __slots__ = ("_adopter", "_began", "_loops", "_parent", "task_ids")

    _state = ScopeState.CLOSED  # so that the scope of code in here is the parent
    _errand = None  # the SDK's loops work for no hop; the executor does, see mesh/message_hops.py
    _services = NOTHING  # it owns none

    def __init__(self, task_id: str | None, scope: Scope | None, loops: Scope | None) -> None:
        self.task_ids: set[str] = {task_id} if task_id else set()
        self._parent = scope
        self._loops = loops
        self._adopter: Scope | None = loops
        self._began = 0.0

    @property
    def _since(self) -> float:
        return self._began

    def _owns(self, key: object) -> bool:
        del key
        return False

    def _above(self) -> Scope | None:
        return self._parent

    def enter(self) -> None:
        """Set this as the call that the running task makes."""
        request.set(self)
        if self._loops is not None:
            self._began = self._loops._backend.clock()
            current.set(self)  # type: ignore[arg-type]  # it has all that is asked of a node there

    def executes(self, task_id: str) -> None:
        """Record that the user's executor runs for it."""
        self.task_ids.add(task_id)
        self._adopter = None

    def leave(self) -> None:
        """Record that the call has ended."""
        self._adopter = None

    def end_orphans(self) -> None:
        """End what the SDK has begun for a call that it then refused (7)."""
        if self._loops is None:
            return
        born = []
        for task in reversed(self._loops._services):
            if not isinstance(task, AdoptedTask) or task._since < self._began:
                break
            if _asked_by(task) is self:
                born.append((task, versions.part_of(task.get_coro())))
        if any(part == "ActiveTask" for _, part in born):
            return  # it had begun; it ends by itself, and others may be waiting for it
        for task, part in born:
            if part == "EventQueueSource":
                task.cancel()


request: ContextVar[Request | None] = ContextVar("quiesce_a2a_request", default=None)


def _asked_by(task: asyncio.Task[Any]) -> Request | None:
    """Return the call in whose context a task was made."""
    if sys.version_info >= (3, 12):
        return task.get_context().get(request)
    for found in gc.get_referents(task):  # CPython 3.11 has no other way to ask
        if isinstance(found, Context):
            return found.get(request)
    return None


class Tracker:
    """The tasks of one server."""

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        self.told: OrderedDict[str, bytes] = OrderedDict()
        self.ends: OrderedDict[str, Any] = OrderedDict()
        self.last: OrderedDict[str, Any] = OrderedDict()
        """The statuses that tasks of 0.3 have ended with: it changes what its store has."""
        self.code: CodeType | None = None
        """The code of the user's executor, which frontiers and reports show as the place of a task."""
        self.scope: Scope | None = None
        self.work: Scope | None = None
        """What executors start, below `scope`; it is closed when they have ended, or were cut."""
        self.loops: Scope | None = None
        """The loops of 1.x (6)."""

    def request(self, params: Any) -> Request:
        """Return the call that is made for a message, or for anything else."""
        task_id = getattr(getattr(params, "message", None), "task_id", None)
        return Request(task_id or None, self.scope, self.loops)

    def entry(self, task_id: str) -> Entry:
        """Return what is known of a task, an empty entry if nothing is."""
        found = self.entries.get(task_id)
        if found is None:
            found = self.entries[task_id] = Entry(task_id, state=self.ends.get(task_id))
        return found

    def stored(self, entry: Entry, state: Any, key: bytes, status: Any = None) -> None:
        """Record what was stored; of a task that has ended, for a good while (3)."""
        entry.state = state
        entry.status = key
        if state in _TERMINAL:
            _remember(self.ends, entry.task_id, state)
            if status is not None:
                _remember(self.last, entry.task_id, status)

    async def streams_ended(self) -> None:
        """Wait until no response is open that the end of `work` would cut: without a mesh, none is.

        *Cancel safety*: may be cancelled at any time; it has no effect.
        """

    def refresh(self, entry: Entry) -> None:
        """Hold the task in the scope if it is busy, else let go (1, 2, 3, 4)."""
        if entry.busy:
            if entry.hold is None and self.scope is not None:
                with suppress(ScopeClosed):  # shutdown.py stores its end
                    entry.hold = TaskHold(self.scope, entry, self.code)
            return
        if entry.hold is not None:
            entry.hold.release()
            entry.hold = None
        if not (entry.executing or entry.saving or entry.owed):  # what is queued is of no account
            self.entries.pop(entry.task_id, None)

    def consumed(self, task_id: str) -> None:
        """Record that the SDK has stored an event (1)."""
        entry = self.entries.get(task_id)
        if entry is not None:
            if entry.queued:
                entry.queued -= 1
            if not entry.queued or entry.hold is None:
                self.refresh(entry)

    def gave_up(self, failed: Request) -> None:
        """Record that the SDK has given up a request, and its queue: nothing is queued any more."""
        for task_id in failed.task_ids:
            entry = self.entries.get(task_id)
            if entry is not None:
                entry.queued = 0
                self.refresh(entry)

    def news(self, task_id: str, key: bytes) -> bool:
        """Return whether something was not pushed yet; it counts as pushed from then on."""
        key = hashlib.blake2b(key, digest_size=16).digest()
        if self.told.get(task_id) == key:
            return False
        _remember(self.told, task_id, key)
        return True


def _remember(table: OrderedDict[str, Any], task_id: str, value: Any) -> None:
    table[task_id] = value
    table.move_to_end(task_id)
    if len(table) > _ENDED_MAX:
        table.popitem(last=False)


def _waits_on(entry: Entry) -> str:
    if entry.executing and entry.runner is not None and not entry.runner.done():
        place = callsites.waiting_on(callsites.await_chain(entry.runner.get_coro()))
        return f"its executor, at {place}" if place else "its executor"
    return "its events being stored" if entry.queued else "nothing"
