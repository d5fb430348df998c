"""The tree of holds: which scope holds what, which is busy, what may still start. No I/O, no waiting.

Invariants, cited below and in the other modules of the core:

1. A hold exists before its work can run.
2. Membership changes in one step, without an await.
3. There are no locks. All changes are made in the event loop's thread; other threads post their
   changes to it.
4. Closing is one-way, and it is checked in the same step as the insert.
5. A scope is closed by its closing task. Cancelling a caller of the close cannot stop that task.
6. A scope is idle when its table of holds is empty. Nothing else is looked at.
7. Every wait has a bound or an owner.
"""

from __future__ import annotations

import logging
from contextvars import ContextVar
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakKeyDictionary

from quiesce.core import announce, callsites, named_once
from quiesce.core import report as reports
from quiesce.core.hold import NOTHING, Described, Fate
from quiesce.core.life import Life
from quiesce.errors import ScopeClosed, UsageError

if TYPE_CHECKING:
    import re
    from collections.abc import Hashable, Iterator, Mapping, Sequence
    from types import CodeType

    from quiesce.core.backends import Backend, Waiter
    from quiesce.core.closing import Closing
    from quiesce.core.contexts import Context
    from quiesce.core.hold import Held, Resource
    from quiesce.core.job import Job

logger: logging.Logger = logging.getLogger(announce.LOGGER)

current: ContextVar[TreeNode | None] = ContextVar("quiesce.current_scope", default=None)
# The hold of the thread that the running task makes a call for.
acting: ContextVar[object | None] = ContextVar("quiesce.acting_for", default=None)


class ScopeState(Enum):
    """The state of a scope; it only moves forward."""

    NEW = "new"
    OPEN = "open"
    DRAINING = "draining"
    CLOSING = "closing"
    CLOSED = "closed"


SCOPE_LIFE: Life[ScopeState] = Life(
    "scope",
    {
        ScopeState.NEW: (ScopeState.OPEN,),
        ScopeState.OPEN: (ScopeState.DRAINING, ScopeState.CLOSING, ScopeState.CLOSED),
        ScopeState.DRAINING: (ScopeState.CLOSING, ScopeState.CLOSED),
        ScopeState.CLOSING: (ScopeState.CLOSED,),
        ScopeState.CLOSED: (),
    },
)


class TreeNode(Described):
    """One scope, as the tree sees it."""

    __slots__ = (
        "__weakref__",
        "_adopter",
        "_backend",
        "_cancelled",
        "_children",
        "_closers",
        "_closing",
        "_code",
        "_completed",
        "_contexts",
        "_counts",
        "_drain_root",
        "_errand_above",
        "_failed",
        "_fatal",
        "_gave_up",
        "_handled",
        "_holds",
        "_idle_waiters",
        "_keys",
        "_loop",
        "_name",
        "_named",
        "_offset",
        "_parent",
        "_parts",
        "_quiet",
        "_resources",
        "_service_pattern",
        "_services",
        "_since",
        "_state",
        "_stopped",
        "_unasked",
        "_unasked_limit",
        "_undelivered",
        "_unheard",
        "_withdrawn",
    )

    _kind = "scope"
    _fate: ClassVar[Fate] = "stuck"
    _stops: ClassVar[bool] = False
    _backend: Backend

    def __init__(self, name: str) -> None:
        self._name = name
        self._state = ScopeState.NEW
        self._parent: TreeNode | None = None
        self._loop: object = self  # the backend's, once it has one
        self._counts = True  # whether being busy makes the parent busy
        self._adopter: TreeNode | None = None
        self._errand_above: TreeNode | None = None
        self._since = 0.0
        self._code: CodeType | None = None
        self._offset = 0
        self._holds: dict[object, Held] = {}  # busy while not empty (invariant 6)
        self._services: dict[object, Held] = {}
        self._closers: dict[object, Held] = {}  # jobs that closed a scope they are in
        self._service_pattern: re.Pattern[str] | None = None
        self._keys: dict[Hashable, Job[Any]] = {}
        self._children: dict[TreeNode, None] = {}
        self._quiet: dict[TreeNode, None] = {}  # children of which only closers are left
        self._contexts: list[Context[Any]] = []
        self._resources: WeakKeyDictionary[Resource, None] | None = None  # most have none
        self._idle_waiters: dict[Waiter, None] = {}
        self._closing: Closing | None = None
        self._drain_root: TreeNode | None = None
        self._completed = 0
        self._withdrawn = 0
        self._stopped = 0
        self._named: dict[object, None] = {}  # jobs whose cancellation another scope reports
        self._handled = 0
        self._cancelled: list[Held] = []
        self._fatal: BaseException | None = None
        self._gave_up = False  # a drain stopped waiting for items that had no reader
        self._failed: list[reports.ReportEntry] = []
        self._unasked: list[tuple[Any, reports.ReportEntry]] = []  # see AdoptedTask
        self._unasked_limit = 0
        self._unheard: list[tuple[Held, BaseException]] = []  # failures to pass to `on_error` next
        self._undelivered: list[Sequence[reports.ReportEntry]] = []
        self._parts: dict[TreeNode, reports.Report] = {}  # reports of children this scope closed

    @property
    def _errand(self) -> TreeNode | None:
        """The hop that code in this scope works for; see errand.py."""
        return self._errand_above

    # A scope as a hold of its parent.

    @property
    def details(self) -> Mapping[str, object]:
        """The state, unless the scope is open."""
        return NOTHING if self._state is ScopeState.OPEN else {"state": self._state.value}

    def _stop(self, *, force: bool = False) -> None:
        """Do nothing: a child is closed through its own closing, not as a hold."""

    def _swallowed(self) -> bool:
        return False

    def _chain(self) -> list[callsites.Frame]:
        return []

    def _move(self, node: TreeNode) -> None:
        """Set another parent. The caller moves the hold."""
        self._parent = node

    def _reclassify(self) -> None:
        """Do nothing: a scope is not a service."""

    # Its life.

    def enter_state(self, state: ScopeState) -> None:
        """Enter the next state; `SCOPE_LIFE` lists the allowed steps."""
        self._state = SCOPE_LIFE.step(self._state, state)

    # Membership.

    def _insert(self, key: object, held: Held) -> None:
        """Add a hold (invariants 1, 2). The caller has checked that it may start."""
        if not self._holds:
            self._turned_busy()
        self._holds[key] = held

    def _discard(self, key: object) -> None:
        """Remove a hold. Idempotent."""
        if self._holds.pop(key, None) is not None:
            if not self._holds:
                self._turned_idle()
        elif self._services.pop(key, None) is not None or self._closers.pop(key, None) is not None:
            self._ring()

    def _forget_key(self, key: Hashable, job: object) -> None:
        """Free the key of a job that has ended, unless another job has taken the key."""
        if self._keys.get(key) is job:
            del self._keys[key]

    def _turned_busy(self) -> None:
        parent = self._parent
        if parent is not None and self._counts:
            parent._insert(self, self)

    def _turned_idle(self) -> None:
        if self._idle_waiters:
            for waiter in self._idle_waiters:
                if not waiter.done():
                    waiter.set_result(None)
            self._idle_waiters.clear()
        if self._closing is not None:
            self._closing.bell.ring()
        parent = self._parent
        if parent is not None and self._counts:
            parent._discard(self)

    def _ring(self) -> None:
        if self._closing is not None:
            self._closing.bell.ring()

    def _ring_all(self) -> None:
        """Wake the closing tasks of this scope and its ancestors, to check again what they wait for."""
        node: TreeNode | None = self
        while node is not None:
            node._ring()
            node = node._parent

    def _retire(self, key: object) -> None:
        """Make a task of this scope that waits for the close a closer: it no longer counts as work."""
        if key in self._services:
            self._closers[key] = self._services.pop(key)
            self._ring()
        elif key in self._holds:
            self._closers[key] = self._holds.pop(key)
            if not self._holds:
                self._turned_idle()

    def _serve(self, key: object) -> None:
        """Turn a hold into a service: still owned, but the scope can be idle while it runs."""
        held = self._holds.pop(key, None)
        if held is not None:
            self._services[key] = held
            if not self._holds:
                self._turned_idle()

    # Admission (invariant 4).

    def _admit(self) -> None:
        """Raise if the running task may not start work in this scope now."""
        self._check_opened()
        self._check_here("start something in")
        state = self._state
        if state is ScopeState.OPEN:
            return
        if state is ScopeState.DRAINING and self._asked_by_running_work():
            return
        message = f"scope {self._name!r} is {state.value}: nothing new may start in it"
        raise ScopeClosed(message)

    def _check_opened(self) -> None:
        if self._state is ScopeState.NEW:
            message = (
                f"scope {self._name!r} is not open: use `async with Scope(...)` "
                "or `await Scope.open(...)`"
            )
            raise UsageError(message)

    def _check_here(self, what: str) -> None:
        if not self._backend.here():
            message = (
                f"cannot {what} scope {self._name!r} from another thread or event loop: "
                "use scope.from_thread(...)"
            )
            raise UsageError(message)

    def _asked_by_running_work(self) -> bool:
        """Return whether the running task is itself work that is being drained.

        Such a task may start what it needs to finish. Any other task, including a service, would
        bring new work.
        """
        owner, key = self._owner_of_running_task(self._drain_root)
        return owner is not None and key in owner._holds and owner._is_within(self._drain_root)

    def _owner_of_running_task(
        self, root: TreeNode | None = None
    ) -> tuple[TreeNode | None, object]:
        """Return the node that owns the running task, as work or otherwise, and the task's key.

        A visitor (see visitors.py) has two owners: the scope that owns its task and the scope it visits.
        Return the first if it is within `root` (by default this node), else the second.
        """
        held = acting.get()
        key = held or self._backend.current()
        own: TreeNode | None = getattr(key, "_node", None)
        node = current.get()
        if held is None and node is not None and node is not own:
            task = self._backend.task()
            if task in node._holds and (own is None or not own._is_within(root or self)):
                return node, task
        if own is not None:  # a job or an adopted task
            return own if own._owns(key) else None, key
        # A foreign task, if a scope has adopted it.
        while node is not None and key is not None:
            if node._owns(key):
                return node, key
            node = node._parent
        return self if self._owns(key) else None, key

    def _owns(self, key: object) -> bool:
        return key in self._holds or key in self._services or key in self._closers

    def _above(self) -> TreeNode | None:
        return self._parent

    def _is_within(self, root: TreeNode | None) -> bool:
        node: TreeNode | None = self
        while node is not None and node is not root:
            node = node._parent
        return node is not None and root is not None

    def _mark_draining(self, root: TreeNode, *, deep: bool = True) -> None:
        if self._state is ScopeState.OPEN:
            self.enter_state(ScopeState.DRAINING)
            self._drain_root = root
            for resource in self._own_resources():
                resource._drain()
        for child in self._children if deep else ():
            child._mark_draining(root)
        for context in self._contexts:
            context.node._mark_draining(root)

    # Resources.

    def _register(self, resource: Resource) -> None:
        """Notify a resource when this scope drains or closes. The reference is weak."""
        if self._resources is None:
            self._resources = WeakKeyDictionary()
        self._resources[resource] = None

    def _unregister(self, resource: Resource) -> None:
        if self._resources is not None:
            self._resources.pop(resource, None)

    def _own_resources(self) -> tuple[Resource, ...]:
        return () if self._resources is None else tuple(self._resources)

    def _all_resources(self) -> Iterator[Resource]:
        yield from self._own_resources()
        for child in tuple(self._children):
            yield from child._all_resources()

    def _left_running(self) -> Sequence[reports.ReportEntry]:
        """Return what still runs that the scope does not wait for, and that its report names. A node has threads."""
        return ()

    def _awaited_by(self, task: object) -> bool:
        """Return whether a task waits for the close of this scope or of an ancestor."""
        node: TreeNode | None = self
        while node is not None:
            if node._closing is not None and task in node._closing.waiters:
                return True
            node = node._parent
        return False

    def _only_forsaken(self) -> bool:
        """Return whether all that is left is resources without a reader or writer, and the tasks that use them."""
        forsaken = [held for held in self._own_resources() if held._forsaken()]
        served = self._services or self._contexts  # one of them may be the missing reader
        if served and any(held._expects_services() for held in forsaken):
            return False
        idle: set[object] = {*forsaken, *(user for held in forsaken for user in held._users())}
        return all(child._only_forsaken() for child in self._children) and all(
            held in idle or getattr(held, "_task", None) in idle or isinstance(held, TreeNode)
            for held in list(self._holds.values())
        )

    def _lose(self, items: Sequence[reports.ReportEntry], *, given_up: bool) -> None:
        """Report undelivered items; with `given_up`, a drain stopped waiting for their reader."""
        self._undelivered.append(items)
        node: TreeNode | None = self
        while given_up and node is not None and node._state is not ScopeState.OPEN:
            node._gave_up = True
            node = node._parent

    # How jobs ended.

    def _job_cancelled(self, held: Held, *, service: bool) -> None:
        if service:
            self._service_ended(held)
        elif self._state is ScopeState.CLOSING:
            if not named_once.is_named(self, held):
                self._cancelled.append(held)
        else:
            self._withdrawn += 1

    def _service_ended(self, held: Held) -> None:
        """Count a service for the report, unless quiesce itself has started it."""
        self._stopped += not callsites.is_own(held.where)

    def _job_failed(self, held: Held, error: BaseException) -> None:
        self._failed.append(reports.report_entry(held, self._name, self._backend.clock(), error))

    def _unhandled(self, held: Held, error: BaseException, *, seen: bool = False) -> None:
        """Record the failure of an adopted task that was collected before any task received it.

        May be called in any thread. The failure is logged, unless other code has `seen` it.
        """
        where = f"{held.kind} {held.name}, started {held.where}, adopted by scope {self._name!r}"
        if not seen:
            logger.error("%s failed, and no task asked for its result", where, exc_info=error)
        if self._state is not ScopeState.CLOSED:
            self._failed.append(
                reports.report_entry(held, self._name, self._backend.clock(), error)
            )

    def _fail(self, error: BaseException) -> None:
        """Do nothing. A hop records that work done for it in another scope failed."""

    # Coming and going.

    def _attach(self, parent: TreeNode | None) -> None:
        """Make this a child of `parent`, or a root if that is None."""
        self._parent = parent
        if parent is not None:
            self._errand_above = parent._errand
            parent._children[self] = None
            if parent._state is ScopeState.DRAINING:
                self.enter_state(ScopeState.DRAINING)
                self._drain_root = parent._drain_root

    def _close_with_parent(self, join_by: float) -> Closing:
        """Close at once, by the parent's deadline. `Scope` implements it."""
        raise NotImplementedError

    def _detach(self) -> None:
        parent = self._parent
        if parent is not None:
            parent._children.pop(self, None)
            parent._quiet.pop(self, None)
            parent._contexts = [context for context in parent._contexts if context.node is not self]
            parent._ring_all()  # an ancestor may wait for the last closer below it

    def _hand_over(self, parent: TreeNode) -> int:
        """Move everything that still runs to `parent`, and return how many holds and children moved."""
        count = 0
        for key, held in list(self._holds.items()):
            if not isinstance(held, TreeNode):
                held._move(parent)
                parent._insert(key, held)
                held._reclassify()
                if parent._state is ScopeState.CLOSING:
                    held._stop()
                count += 1
        for key, held in self._services.items():
            held._move(parent)
            parent._services[key] = held
            count += 1
        for child in list(self._children):
            busy = child in self._holds
            child._move(parent)
            parent._children[child] = None
            if busy:
                parent._insert(child, child)
            if parent._closing is not None and parent._state is ScopeState.CLOSING:
                child._close_with_parent(parent._closing.join_by)
            count += 1
        for resource in self._own_resources():
            resource._move(parent)
            parent._register(resource)
        self._resources = None
        self._children.clear()
        self._services.clear()
        self._keys.clear()
        if self._holds:
            self._holds.clear()
            self._turned_idle()
        parent._ring()
        return count
