"""Which tasks of an A2A server are in flight, and when they have ended.

The request handler, the executor and the task store record here what they do.

1. A task is busy while its executor runs, and while any of its events is not stored yet. In 1.x the SDK
   calls the push sender after each stored event, so the events that are still queued can be counted.
   0.3 has no such count: there the scope adopts the tasks that store events, and waits for their end.
2. A task that waits for its client (input-required, auth-required) and has no queued event is parked. A
   parked task is not busy, although the SDK runs loops for it and its executor may wait as well.
3. A task has ended when its terminal state is stored. Events that are queued after that do not count.
4. The tracker keeps the entry of a task while the task is busy, or in a state that the server has to end.
5. The states of a task are stored one at a time, in the order of their events.
6. The SDK's loops for each task of 1.x belong to a scope of their own. They run as long as the task
   exists, and do not keep the server from being idle.
7. If the SDK refuses a call, the tracker ends what the SDK has started for it.
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
    from collections.abc import Iterable, Mapping
    from types import CodeType

    from quiesce.core.scope import Scope

__all__: list[str] = []

_TERMINAL, _PARKED, _ENDS = versions.TERMINAL, versions.PARKED, versions.ENDS
_ENDED_MAX = 10_000  # tasks whose last state and last push are remembered


@dataclass(eq=False, slots=True)
class Entry:
    """What the server knows of a task."""

    task_id: str
    context: Any = None
    state: Any = None
    status: bytes | None = None
    """The key of the last stored status; None if the store was not read yet."""
    fresh: bool = False
    """Whether the task is new, so that its status need not be read from the store."""
    executing: int = 0
    queued: int = 0
    runner: asyncio.Task[Any] | None = None
    said: Any = None
    """The last state that the executor has enqueued."""
    cut: bool = False
    """Whether the server's shutdown has cancelled the executor."""
    hold: Hold | None = None
    saving: int = 0
    """How many calls of `save` are storing the task, or waiting to store it."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Lets one call of `save` at a time store the task, in the order of the calls (5)."""

    @property
    def ended(self) -> bool:
        """Whether a terminal state is stored."""
        return self.state in _TERMINAL

    @property
    def busy(self) -> bool:
        """Whether the task goes on without its client (1, 2, 3)."""
        # Written out for speed: this is read several times for each event.
        if self.state in _TERMINAL:
            return self.executing > 0
        if self.queued:
            return True
        return self.executing > 0 and self.state not in _PARKED

    @property
    def owed(self) -> bool:
        """Whether the server still has to end the task: it was accepted, and is neither ended nor parked."""
        return self.state is not None and self.state not in _ENDS


class TaskHold(Hold):
    """A hold for a task in flight. A frontier or report reads its details from the entry."""

    __slots__ = ("_entry",)

    def __init__(self, scope: Scope, entry: Entry, code: CodeType | None) -> None:
        """Hold a task in a scope; `code` is the code of the user's executor."""
        if scope.phase is not ScopeState.OPEN:
            scope.check_may_start()
        super().__init__(scope, "a2a task", entry.task_id, NOTHING, code, 0)
        self._entry = entry
        scope.insert_hold(self, self)

    @property
    def details(self) -> Mapping[str, object]:
        """The task's state, the number of its events that are not stored yet, and what it waits on."""
        entry = self._entry
        state = "accepted" if entry.state is None else versions.state_name(entry.state)
        return {"state": state, "events_queued": entry.queued, "waits_on": _waits_on(entry)}


class Request:
    """One call of the SDK's handler, and the tasks of the protocol that were executed for the call.

    In the context of the call it takes the place of a scope. The event loop's tasks that the SDK starts
    there belong to `loops` (6), until the user's executor runs for the call. By then the SDK has started
    the loops that run as long as the task. These wait for all tasks that they start, so those need no
    owner.
    """

    __slots__ = ("_began", "_loops", "adopter", "caller", "parent", "task_ids")

    phase = ScopeState.CLOSED  # so that code in this context gets the parent as its scope
    hop_served = None  # no hop for the SDK's loops; for the executor see mesh/message_hops.py
    services = NOTHING

    def __init__(self, task_id: str | None, scope: Scope | None, loops: Scope | None) -> None:
        self.task_ids: set[str] = {task_id} if task_id else set()
        self.caller: object = current.get()  # the scope of a request, or a hop
        self.parent: Scope | None = scope
        self._loops = loops
        self.adopter: Scope | None = loops
        self._began = 0.0

    @property
    def began_at(self) -> float:
        return self._began

    def owns_key(self, key: object) -> bool:
        del key
        return False

    def node_above(self) -> Scope | None:
        return self.parent

    def enter(self) -> None:
        """Set this call in the context of the running task."""
        request.set(self)
        if self._loops is not None:
            self._began = self._loops.backend.clock()
            current.set(self)  # type: ignore[arg-type]  # it has every attribute of a node that is used there

    def executes(self, task_id: str) -> None:
        """Record that the user's executor runs a task for this call."""
        self.task_ids.add(task_id)
        self.adopter = None

    def leave(self) -> None:
        """Record that the call has ended."""
        self.adopter = None

    def end_orphans(self) -> None:
        """Cancel the tasks that the SDK has started for a call and then left, because it refused the call (7)."""
        if self._loops is None:
            return
        started = []
        for task in reversed(self._loops.services):
            if not isinstance(task, AdoptedTask) or task.began_at < self._began:
                break
            if _call_of(task) is self:
                started.append((task, versions.part_of(task.get_coro())))
        if any(part == "ActiveTask" for _, part in started):
            return  # a task of the protocol has begun: it ends by itself, and other calls may wait for it
        for task, part in started:
            if part == "EventQueueSource":
                task.cancel()


request: ContextVar[Request | None] = ContextVar("quiesce_a2a_request", default=None)


def _call_of(task: asyncio.Task[Any]) -> Request | None:
    """Return the call in whose context a task of the event loop was started."""
    if sys.version_info >= (3, 12):
        return task.get_context().get(request)
    for found in gc.get_referents(task):  # CPython 3.11 has no Task.get_context()
        if isinstance(found, Context):
            return found.get(request)
    return None


class Tracker:
    """The tasks of one server."""

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        self.pushed_last: OrderedDict[str, bytes] = OrderedDict()
        self.ends: OrderedDict[str, Any] = OrderedDict()
        self.last_statuses: OrderedDict[str, Any] = OrderedDict()
        """The last status of each ended task of 0.3, which changes the stored objects in place."""
        self.code: CodeType | None = None
        """The code of the user's executor, which frontiers and reports show as the place of a task."""
        self.calls: set[Request] = set()
        """The calls that have not ended."""
        self.scope: Scope | None = None
        self.work: Scope | None = None
        """A scope below `scope` that owns what executors start; closed after all executors have ended."""
        self.loops: Scope | None = None
        """The scope that owns the SDK's loops of 1.x (6)."""

    def request(self, params: Any) -> Request:
        """Return a new call for the parameters of a request, of any kind."""
        task_id = getattr(getattr(params, "message", None), "task_id", None)
        return Request(task_id or None, self.scope, self.loops)

    def entry(self, task_id: str) -> Entry:
        """Return the entry of a task; add an empty entry if there is none."""
        found = self.entries.get(task_id)
        if found is None:
            found = self.entries[task_id] = Entry(task_id, state=self.ends.get(task_id))
        return found

    def stored(self, entry: Entry, state: Any, key: bytes, status: Any = None) -> None:
        """Record a stored state; the end of a task is remembered after its entry is removed (3)."""
        entry.state = state
        entry.status = key
        if state in _TERMINAL:
            _remember(self.ends, entry.task_id, state)
            if status is not None:
                _remember(self.last_statuses, entry.task_id, status)

    def stands_for(self, task_id: str) -> Iterable[object]:
        """Return the scopes or hops of the requests that wait for a task."""
        return [call.caller for call in self.calls if task_id in call.task_ids]

    async def streams_ended(self) -> None:
        """Wait until no open response would be cut by closing `work`; without a mesh, return at once.

        *Cancel safety*: may be cancelled at any time; it has no effect.
        """

    def refresh(self, entry: Entry) -> None:
        """Hold the task in the scope while the task is busy, else release the hold (1, 2, 3, 4)."""
        if entry.busy:
            if entry.hold is None and self.scope is not None:
                with suppress(ScopeClosed):  # then shutdown.py stores the end of the task
                    entry.hold = TaskHold(self.scope, entry, self.code)
            return
        if entry.hold is not None:
            entry.hold.release()
            entry.hold = None
        if not (entry.executing or entry.saving or entry.owed):  # queued events do not count (3)
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
        """Record that the SDK has given up a request and its queue: its tasks have no queued events."""
        for task_id in failed.task_ids:
            entry = self.entries.get(task_id)
            if entry is not None:
                entry.queued = 0
                self.refresh(entry)

    def is_news(self, task_id: str, key: bytes) -> bool:
        """Return whether this was not the last push of the task, and remember it as the last push."""
        key = hashlib.blake2b(key, digest_size=16).digest()
        if self.pushed_last.get(task_id) == key:
            return False
        _remember(self.pushed_last, task_id, key)
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
