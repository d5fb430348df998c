"""The tree of scopes: what each holds, whether it is busy, whether work may start. No I/O, no waiting.

The modules of the core cite these invariants:

1. A hold exists before its work can run.
2. Membership changes in one step, without an await.
3. There are no locks. All changes are made in the event loop's thread; other threads post their
   changes to it.
4. Closing is one-way, and it is checked in the same step as the insert.
5. A scope is closed by its closing task. Cancelling a caller of the close cannot stop that task.
6. A scope is idle exactly when its table of holds is empty.
7. Every wait has a bound or an owner.
"""

from __future__ import annotations

import logging
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakKeyDictionary

from quiesce.core import announce, callsites, named_once
from quiesce.core import report as reports
from quiesce.core.hold import NOTHING, Described, Fate
from quiesce.core.life import Life, State
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
# The hold of the thread for which the running task executes a `from_thread` call.
acting: ContextVar[object | None] = ContextVar("quiesce.acting_for", default=None)


class ScopeState(State):
    """The state of a scope; it only moves forward."""

    NEW = "new"
    OPEN = "open"
    DRAINING = "draining"
    CLOSING = "closing"
    CLOSED = "closed"


SCOPE_LIFE: Life[ScopeState] = Life(
    "a scope",
    {
        ScopeState.NEW: (ScopeState.OPEN,),
        ScopeState.OPEN: (ScopeState.DRAINING, ScopeState.CLOSING, ScopeState.CLOSED),
        ScopeState.DRAINING: (ScopeState.CLOSING, ScopeState.CLOSED),
        ScopeState.CLOSING: (ScopeState.CLOSED,),
        ScopeState.CLOSED: (),
    },
)


class TreeNode(Described):
    """One scope's place in the tree: its parent, children, holds and state."""

    __slots__ = (
        "__weakref__", "_idle_waiters", "_keys", "_resources", "adopter", "backend", "began_at",
        "cancelled_holds", "child_reports", "children", "close_plan", "closers", "completed_count",
        "contexts", "counts_as_work", "draining_root", "failed_entries", "fatal_error",
        "handled_count", "has_given_up", "holds", "hop_served_above", "loop", "name_given",
        "parent", "phase", "place_code", "place_offset", "quiet_children", "reported_elsewhere",
        "service_pattern", "services", "stopped_count", "unasked_failures", "unasked_failures_max",
        "undelivered_items", "unheard_failures", "withdrawn_count",
    )  # fmt: skip

    _kind = "scope"
    is_ours: ClassVar[bool] = False  # whether its services and contexts are quiesce's own
    fate: ClassVar[Fate] = "stuck"
    can_be_stopped: ClassVar[bool] = False
    backend: Backend

    def __init__(self, name: str) -> None:
        self.name_given: str = name
        self.phase: ScopeState = ScopeState.NEW
        self.parent: TreeNode | None = None
        self.loop: object = self  # a placeholder until the scope is opened; then the backend's loop
        self.counts_as_work: bool = True  # whether the parent is busy while this scope is
        self.adopter: TreeNode | None = None
        self.hop_served_above: TreeNode | None = None
        self.began_at: float = 0.0
        self.place_code: CodeType | None = None
        self.place_offset: int = 0
        self.holds: dict[object, Held] = {}  # busy while not empty (invariant 6)
        self.services: dict[object, Held] = {}
        self.closers: dict[object, Held] = {}  # jobs that closed this scope or an ancestor
        self.service_pattern: re.Pattern[str] | None = None
        self._keys: dict[Hashable, Job[Any]] = {}
        self.children: dict[TreeNode, None] = {}
        self.quiet_children: dict[TreeNode, None] = {}  # children that hold only closers
        self.contexts: list[Context[Any]] = []
        self._resources: WeakKeyDictionary[Resource, None] | None = None  # made at its first use
        self._idle_waiters: dict[Waiter, None] = {}
        self.close_plan: Closing | None = None
        self.draining_root: TreeNode | None = None
        self.completed_count: int = 0
        self.withdrawn_count: int = 0
        self.stopped_count: int = 0
        self.reported_elsewhere: dict[
            object, None
        ] = {}  # the jobs whose cancellation another scope reports
        self.handled_count: int = 0
        self.cancelled_holds: list[Held] = []
        self.fatal_error: BaseException | None = None
        self.has_given_up: bool = False  # a drain stopped waiting for items that had no reader
        self.failed_entries: list[reports.ReportEntry] = []
        self.unasked_failures: list[tuple[Any, reports.ReportEntry]] = []  # see AdoptedTask
        self.unasked_failures_max: int = 0
        self.unheard_failures: list[
            tuple[Held, BaseException]
        ] = []  # failures to pass to `on_error` next
        self.undelivered_items: list[Sequence[reports.ReportEntry]] = []
        self.child_reports: dict[
            TreeNode, reports.Report
        ] = {}  # reports of children this scope closed

    @property
    def hop_served(self) -> TreeNode | None:
        """The hop that code in this scope works for; see errand.py."""
        return self.hop_served_above

    # A scope as a hold of its parent.

    @property
    def details(self) -> Mapping[str, object]:
        """The state, unless the scope is open."""
        return NOTHING if self.phase is ScopeState.OPEN else {"state": self.phase.value}

    def request_stop(self, *, force: bool = False) -> None:
        """Do nothing: a child is closed through its own closing, not as a hold."""

    def goes_on_regardless(self) -> bool:
        return False

    def list_frames(self) -> list[callsites.Frame]:
        return []

    def move_to(self, node: TreeNode) -> None:
        """Set the parent to `node`. The caller moves the hold."""
        self.parent = node

    def reclassify(self) -> None:
        """Do nothing: a scope is not a service."""

    # State.

    def enter_state(self, state: ScopeState) -> None:
        """Enter the next state; `SCOPE_LIFE` lists the allowed steps."""
        self.phase = SCOPE_LIFE.step(self.phase, state)

    # Membership.

    def insert_hold(self, key: object, held: Held) -> None:
        """Add a hold (invariants 1, 2). The caller has called `check_may_start()`."""
        if not self.holds:
            self.note_busy()
        self.holds[key] = held

    def discard_hold(self, key: object) -> None:
        """Remove a hold. Idempotent."""
        if self.holds.pop(key, None) is not None:
            if not self.holds:
                self.note_idle()
        elif self.services.pop(key, None) is not None or self.closers.pop(key, None) is not None:
            self.ring_closing()

    def forget_key(self, key: Hashable, job: object) -> None:
        """Free the key of a job that has ended, unless another job has taken the key."""
        if self._keys.get(key) is job:
            del self._keys[key]

    def note_busy(self) -> None:
        parent = self.parent
        if parent is not None and self.counts_as_work:
            parent.insert_hold(self, self)

    def note_idle(self) -> None:
        if self._idle_waiters:
            for waiter in self._idle_waiters:
                if not waiter.done():
                    waiter.set_result(None)
            self._idle_waiters.clear()
        if self.close_plan is not None:
            self.close_plan.bell.ring()
        parent = self.parent
        if parent is not None and self.counts_as_work:
            parent.discard_hold(self)

    def ring_closing(self) -> None:
        if self.close_plan is not None:
            self.close_plan.bell.ring()

    def ring_closings(self) -> None:
        """Wake the closing tasks of this scope and its ancestors, so that they check their tables again."""
        node: TreeNode | None = self
        while node is not None:
            node.ring_closing()
            node = node.parent

    def retire_closer(self, key: object) -> None:
        """Turn a task of this scope into a closer: it waits for the close, so it no longer counts as work."""
        if key in self.services:
            self.closers[key] = self.services.pop(key)
            self.ring_closing()
        elif key in self.holds:
            self.closers[key] = self.holds.pop(key)
            if not self.holds:
                self.note_idle()

    def make_service(self, key: object) -> None:
        """Turn a hold into a service: the scope still owns it, but can be idle while it runs."""
        held = self.holds.pop(key, None)
        if held is not None:
            self.services[key] = held
            if not self.holds:
                self.note_idle()

    # Admission (invariant 4).

    def check_may_start(self) -> None:
        """Raise if the running task may not start work in this scope now."""
        self.check_opened()
        self.check_here("start something in")
        state = self.phase
        if state is ScopeState.OPEN:
            return
        if state is ScopeState.DRAINING and self.is_asked_by_running_work():
            return
        message = f"scope {self.name_given!r} is {state.value}: nothing new may start in it"
        raise ScopeClosed(message)

    def check_opened(self) -> None:
        if self.phase is ScopeState.NEW:
            message = (
                f"scope {self.name_given!r} is not open: use `async with Scope(...)` "
                "or `await Scope.open(...)`"
            )
            raise UsageError(message)

    def check_here(self, what: str) -> None:
        if not self.backend.here():
            message = (
                f"cannot {what} scope {self.name_given!r} from another thread or event loop: "
                "use scope.from_thread(...)"
            )
            raise UsageError(message)

    def is_asked_by_running_work(self) -> bool:
        """Return whether the running task is work that the drain waits for, so that it may start more work.

        The same holds for a task, such as a service, while it handles an item that the drain waits for. Any
        other task would bring new work.
        """
        root = self.draining_root
        owner, key = self.find_owner_of_running_task(root)
        if owner is not None and key in owner.holds and owner.is_within(root):
            return True
        tasks = self.backend.working_for()
        return root is not None and any(
            held.handled_by(tasks) for held in root.list_all_resources()
        )

    def find_owner_of_running_task(
        self, root: TreeNode | None = None
    ) -> tuple[TreeNode | None, object]:
        """Return the node that owns the running task (as work, service or closer), and the task's key.

        A visitor (see visitors.py) has two owners: the scope that owns its task and the scope it visits.
        Return the owner of the task if it is within `root` (by default this node), else the visited scope.
        """
        held = acting.get()
        key = held or self.backend.current()
        own: TreeNode | None = getattr(key, "owner_node", None)
        node = current.get()
        if held is None and node is not None and node is not own:
            task = self.backend.task()
            if task in node.holds and (own is None or not own.is_within(root or self)):
                return node, task
        if own is not None:  # a job or an adopted task
            return own if own.owns_key(key) else None, key
        # The task has no owner of its own, but a scope may have adopted it under the task as key.
        while node is not None and key is not None:
            if node.owns_key(key):
                return node, key
            node = node.parent
        return self if self.owns_key(key) else None, key

    def owns_key(self, key: object) -> bool:
        return key in self.holds or key in self.services or key in self.closers

    def node_above(self) -> TreeNode | None:
        return self.parent

    def is_within(self, root: TreeNode | None) -> bool:
        node: TreeNode | None = self
        while node is not None and node is not root:
            node = node.parent
        return node is not None and root is not None

    def mark_draining(self, root: TreeNode, *, deep: bool = True) -> None:
        if self.phase is ScopeState.OPEN:
            self.enter_state(ScopeState.DRAINING)
            self.draining_root = root
            for resource in self.list_own_resources():
                resource.note_drain()
        for child in self.children if deep else ():
            child.mark_draining(root)
        for context in self.contexts:
            context.node.mark_draining(root)

    # Resources.

    def register_resource(self, resource: Resource) -> None:
        """Notify a resource when this scope drains or closes. The reference is weak."""
        if self._resources is None:
            self._resources = WeakKeyDictionary()
        self._resources[resource] = None

    def unregister_resource(self, resource: Resource) -> None:
        if self._resources is not None:
            self._resources.pop(resource, None)

    def list_own_resources(self) -> tuple[Resource, ...]:
        return () if self._resources is None else tuple(self._resources)

    def list_all_resources(self) -> Iterator[Resource]:
        yield from self.list_own_resources()
        for child in tuple(self.children):
            yield from child.list_all_resources()

    def list_left_running(self) -> Sequence[reports.ReportEntry]:
        """Return entries of work that still runs and that the close does not wait for, such as threads of a node."""
        return ()

    def is_close_awaited_by(self, task: object) -> bool:
        """Return whether a task waits for the close of this scope or of an ancestor."""
        node: TreeNode | None = self
        while node is not None:
            if node.close_plan is not None and task in node.close_plan.waiters:
                return True
            node = node.parent
        return False

    def is_only_forsaken(self) -> bool:
        """Return whether the scope holds only resources without a reader or writer, and the tasks that use them."""
        forsaken = [held for held in self.list_own_resources() if held.is_forsaken()]
        served = self.services or self.contexts  # one may become the missing reader
        if served and any(held.expects_services() for held in forsaken):
            return False
        idle: set[object] = {*forsaken, *(user for held in forsaken for user in held.list_users())}
        return all(child.is_only_forsaken() for child in self.children) and all(
            held in idle or getattr(held, "own_task", None) in idle or isinstance(held, TreeNode)
            for held in list(self.holds.values())
        )

    def lose_items(self, items: Sequence[reports.ReportEntry], *, given_up: bool) -> None:
        """Report undelivered items; with `given_up`, a drain stopped waiting for their reader."""
        self.undelivered_items.append(items)
        node: TreeNode | None = self
        while given_up and node is not None and node.phase is not ScopeState.OPEN:
            node.has_given_up = True
            node = node.parent

    # How jobs ended.

    def note_cancelled(self, held: Held, *, service: bool) -> None:
        if service:
            self.note_service_ended(held)
        elif self.phase is ScopeState.CLOSING:
            if not named_once.is_named(self, held):
                self.cancelled_holds.append(held)
        else:
            self.withdrawn_count += 1

    def note_service_ended(self, held: Held) -> None:
        """Count a stopped service for the report, unless quiesce itself started it."""
        self.stopped_count += not callsites.is_own(held.where)

    def note_failed(self, held: Held, error: BaseException) -> None:
        self.failed_entries.append(
            reports.report_entry(held, self.name_given, self.backend.clock(), error)
        )

    def note_unhandled(self, held: Held, error: BaseException, *, seen: bool = False) -> None:
        """Record the failure of an adopted task that was collected before any task received it.

        May be called in any thread. The failure is logged, unless other code has `seen` it.
        """
        where = (
            f"{held.kind} {held.name}, started {held.where}, adopted by scope {self.name_given!r}"
        )
        if not seen:
            logger.error("%s failed, and no task asked for its result", where, exc_info=error)
        if self.phase is not ScopeState.CLOSED:
            self.failed_entries.append(
                reports.report_entry(held, self.name_given, self.backend.clock(), error)
            )

    def work_failed(self, error: BaseException) -> None:
        """Do nothing. A hop overrides this, to record that its work in another scope failed."""

    # Attaching and detaching.

    def _attach(self, parent: TreeNode | None) -> None:
        """Make this a child of `parent`, or a root if that is None."""
        self.parent = parent
        if parent is not None:
            self.hop_served_above = parent.hop_served
            parent.children[self] = None
            if parent.phase is ScopeState.DRAINING:
                self.enter_state(ScopeState.DRAINING)
                self.draining_root = parent.draining_root

    def close_with_parent(self, join_by: float) -> Closing:
        """Close at once, with the parent's deadline. `Scope` implements this."""
        raise NotImplementedError

    def detach_node(self) -> None:
        parent = self.parent
        if parent is not None:
            parent.children.pop(self, None)
            parent.quiet_children.pop(self, None)
            parent.contexts = [context for context in parent.contexts if context.node is not self]
            parent.ring_closings()  # an ancestor may wait for the last closer below it

    def hand_over_to(self, parent: TreeNode) -> int:
        """Move everything that still runs to `parent`; return the number of moved holds and children."""
        count = 0
        for key, held in list(self.holds.items()):
            if not isinstance(held, TreeNode):
                held.move_to(parent)
                parent.insert_hold(key, held)
                held.reclassify()
                if parent.phase is ScopeState.CLOSING:
                    held.request_stop()
                count += 1
        for key, held in self.services.items():
            held.move_to(parent)
            parent.services[key] = held
            count += 1
        for child in list(self.children):
            busy = child in self.holds
            child.move_to(parent)
            parent.children[child] = None
            if busy:
                parent.insert_hold(child, child)
            if parent.close_plan is not None and parent.phase is ScopeState.CLOSING:
                child.close_with_parent(parent.close_plan.join_by)
            count += 1
        for resource in self.list_own_resources():
            resource.move_to(parent)
            parent.register_resource(resource)
        self._resources = None
        self.children.clear()
        self.services.clear()
        self._keys.clear()
        if self.holds:
            self.holds.clear()
            self.note_idle()
        parent.ring_closing()
        return count
