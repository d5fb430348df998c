"""A light scope: a scope like any other, but most of its attributes are made at their first use.

Use it to open a scope for every request, because most requests do not start anything in their scope. At first, a light
scope has only its name, its parent and the table of its holds. When code first reads or sets another attribute, all other
attributes are filled in at once. Until then the scope has a class of its own, in which these attributes are properties.
(With `__getattr__`, Python would find every attribute slowly.) The values that light scopes share are in their `Model`.
Requests (`Quiesce`), errands (`errand`) and hops of the mesh are light scopes.

A light scope can do three things that other scopes cannot:

- `dissolve` closes the scope in one step if it has nothing left to close. `when_idle` calls a function at that time.
- `occupy` lets a task of another scope work in this scope for a while. The task then counts as work of this scope.
- `held_by` makes a scope of another tree hold this scope until this scope is closed.
"""

from __future__ import annotations

from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from quiesce.core import arguments
from quiesce.core.backends.asyncio.tasks import TaskJob
from quiesce.core.hold import NOTHING
from quiesce.core.latch import Latch
from quiesce.core.python_private import running_loop
from quiesce.core.scope import Scope
from quiesce.core.tree import ScopeState, TreeNode, current
from quiesce.core.visitors import Bond, Visitor
from quiesce.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping
    from types import CodeType

    from quiesce.core.backends.base import Backend
    from quiesce.core.hold import Held
    from quiesce.core.job import Job

__all__: list[str] = []

_OPEN, _CLOSED = ScopeState.OPEN, ScopeState.CLOSED
_leave = current.reset  # a global is faster, and every request calls it
_SET_AT_ONCE = frozenset({
    "adopter", "backend", "place_code", "completed_count", "hop_served_above", "holds", "loop", "name_given", "place_offset",
    "began_at", "phase",
})  # fmt: skip


def _filled_property(slot: Any) -> property:
    """Return the property that stands for a slot while the scope is light: reading or setting it calls `fill_slots()`."""

    def read(scope: LightScope) -> Any:
        scope.fill_slots()
        return slot.__get__(scope)

    def write(scope: LightScope, value: object) -> None:
        scope.fill_slots()
        slot.__set__(scope, value)

    return property(read, write)


_LATE_SLOTS: dict[str, Any] = {
    name: _filled_property(vars(kind)[name])
    for kind in Scope.__mro__
    for name in getattr(kind, "__slots__", ())
    if not name.startswith("__") and name not in _SET_AT_ONCE
}


class Model:
    """The values that light scopes below one parent share; the options are those of `Scope`."""

    def __init__(self, parent: Scope, **options: Any) -> None:
        scope = Scope("model", **options)
        self.adopts: bool = scope.is_adopting
        if self.adopts and parent.adopter is not parent:
            message = f"light scopes adopt only if their parent does: open {parent.name!r} with adopt=True"
            raise UsageError(message)
        self.parent: Scope = parent
        self.loop: Any = parent.loop
        self.backend: Any = parent.backend
        self.clock: Callable[[], float] = parent.backend.clock
        values: dict[str, Any] = {
            slot: getattr(scope, slot) for slot in _LATE_SLOTS if hasattr(scope, slot)
        } | {
            "parent": parent,
            "service_pattern": arguments.one_pattern(scope.services_given),
            "start_job": parent.start_job,
        }
        # Each scope has its own tables.
        self.tables: dict[str, type] = {
            slot: type(value) for slot, value in values.items() if type(value) in {dict, list}
        }
        self.values: dict[str, Any] = {
            slot: value for slot, value in values.items() if slot not in self.tables
        }


class LightScope(Scope):
    """A scope that is open when it is made, as a child of its model's parent.

    A subclass may add slots.
    """

    __slots__ = ("_looks", "_when_idle", "bond", "filled", "scope_model")

    _light: ClassVar[type[LightScope]]
    _whole: ClassVar[type[LightScope]]
    _unseen_turns: ClassVar[int] = 1  # turns to wait for if the loop does not show its callbacks

    def __init_subclass__(cls, *, is_light: bool = False) -> None:
        """Make the class that scopes of this subclass have while they are light."""
        if not is_light:
            cls._whole = cls
            cls._light = type(cls.__name__, (cls,), {"__slots__": (), **_LATE_SLOTS}, is_light=True)

    def __init__(self, model: Model, name: str, code: CodeType) -> None:
        """Open the scope; `where` shows the place of `code`.

        *Raises*: as `Scope.child()`: `ScopeClosed`, and `UsageError` in another event loop.
        """
        parent, clock = model.parent, model.clock
        usual = parent.phase is _OPEN and (
            running_loop() is model.loop or model.backend.here()  # here() is slower
        )
        if not usual:
            parent.check_may_start()
        self.__class__ = self._light  # a `__new__` method would take five times as long
        self.scope_model: Model = model
        self.filled: bool = False
        self.bond: Bond | None = None
        self._looks = 0
        self._when_idle: Callable[[], object] | None = None
        self.name_given = name
        self.phase = _OPEN
        self.adopter: TreeNode | None = self if model.adopts else parent.adopter
        self.hop_served_above: TreeNode | None = parent.hop_served_above
        self.backend: Backend = model.backend
        self.loop: object = model.loop
        self.began_at: float = clock()
        self.place_code: CodeType | None = code
        self.place_offset = 0
        self.completed_count: int = 0
        self.holds: dict[object, Held] = {}
        parent.children[self] = None
        if not usual:
            self.fill_slots()
            self._attach(parent)
            if self.phase is not _OPEN:
                self._closing_gate.open()

    # Filling in the other attributes.

    def fill_slots(self) -> None:
        """Set all other attributes. From now on this is a scope like any other."""
        self.__class__ = self._whole
        self.filled = True
        model = self.scope_model
        for slot, value in model.values.items():
            setattr(self, slot, value)
        for slot, kind in model.tables.items():
            setattr(self, slot, kind())
        self._closing_gate = Latch(model.backend)
        if self.phase is not _OPEN:
            self._closing_gate.open()

    # Busy and idle.

    def note_busy(self) -> None:
        if self.filled:
            super().note_busy()
            return
        parent = self.scope_model.parent
        if not parent.holds:
            parent.note_busy()
        parent.holds[self] = self  # as in insert_hold(), but faster: every request comes here

    def note_idle(self) -> None:
        if self._when_idle is not None:  # before the parent can turn idle and go on
            self._look_soon()
        if self.filled:
            super().note_idle()
        else:
            self.scope_model.parent.discard_hold(self)

    def when_idle(self, call: Callable[[], object]) -> None:
        """Call `call` once, in a step in which the scope has no work in flight. Services do not count as work.

        The call comes one turn of the loop after the last hold was released, because callbacks of an ended task may start
        another task. It does not come while such callbacks are left (see `left_something`). It also comes while the parent
        is drained, but not while this scope itself is closed: override `on_closed()` for that.
        """
        self._when_idle = call
        if not self.holds:
            self._look_soon()

    def _look_soon(self, unseen: int | None = None) -> None:
        self._looks += 1
        turns = self._unseen_turns if unseen is None else unseen
        self.backend.soon(partial(self._look, self._looks, turns))

    def _look(self, number: int, unseen: int) -> None:
        if number != self._looks:
            return  # a later look was scheduled
        call = self._when_idle
        being_closed = self.filled and self.close_plan is not None
        if call is None or self.holds or self.phase is _CLOSED or being_closed:
            return
        left = self.left_something()
        if left or (left is None and unseen > 1):
            self._look_soon(None if left else unseen - 1)
            return
        self._when_idle = None
        call()

    def left_something(self) -> bool | None:
        """Return whether code of this scope has left a callback in the loop's ready queue.

        Such a callback may start work, which then belongs to this scope. Return None if the loop does not show its
        queue: the caller then waits for some turns of the loop. Timers do not count.
        """
        nodes = self.backend.about_to_run()
        return None if nodes is None else self in nodes

    def node_above(self) -> TreeNode | None:
        # Reading `parent` would fill in a light scope.
        return self.parent if self.filled else self.scope_model.parent

    # Tasks that other scopes own.

    def occupy(
        self,
        kind: str,
        name: str,
        details: Mapping[str, object] = NOTHING,
        on_stop: Callable[[], object] | None = None,
        code: CodeType | None = None,
    ) -> Visitor:
        """Make this scope the current scope of the running task, until `Visitor.end()`.

        Args:
            kind: The kind of work, in one word.
            name: The name of this piece of work.
            details: More about it, for frontiers and reports.
            on_stop: A function that ends the work early. It is called when the scope is closed, perhaps more than once.
            code: The code whose place `where` shows; by default the scope's own.
        """
        return Visitor(self, kind, name, details, code or self.place_code, on_stop)

    # Jobs of the scope.

    def begin(self, coro: Coroutine[Any, Any, None], seen: Callable[[Any], None]) -> Job[None]:
        """Start a job as `spawn()` does, on asyncio. `seen` is called with the job when the job has ended."""
        context = copy_context()
        context.run(current.set, self)
        job: TaskJob[None] = TaskJob(
            coro, loop=self.scope_model.loop, name=self.name_given, context=context
        )
        job.owner_node = self
        job.began_at = self.began_at
        job.started_code = self.place_code
        job.started_offset = 0
        job.spawn_key = None
        job.add_done_callback(seen)
        holds = self.holds
        if not holds:
            self.note_busy()
        holds[job] = job
        return job

    def settle(self, job: Job[None]) -> bool:
        """Stop holding a job in its last step; return False if this scope does not hold it as work."""
        holds = self.holds
        if holds.pop(job, None) is None:
            return False
        self.completed_count += 1
        if not holds:
            if self.filled or self._when_idle is not None:
                self.note_idle()
            else:
                self.scope_model.parent.discard_hold(self)
        return True

    # The end.

    def dissolve(self) -> bool:
        """Close the scope in one step if it has nothing left to close. Otherwise return False and do nothing.

        The effect is that of a `Closing`, without its cost and its reports. The parent's report counts the work that this
        scope has completed. Return True also if the scope was dissolved before.
        """
        if self.holds:
            return False
        if self.filled and (self.close_plan is not None or self._has_more()):
            return False
        if self.phase is _CLOSED:
            return True
        self.enter_state(_CLOSED)
        if self.filled:
            parent = self.parent
            assert parent is not None  # noqa: S101 - a light scope always has a parent
            count_in(parent, self.completed_count, self.withdrawn_count, self.handled_count)
            self._closing_gate.open()
            self.detach_node()
        else:
            parent = self.scope_model.parent
            parent.completed_count += self.completed_count
            del parent.children[self]  # a closing of the parent would have filled in this scope
        self.adopter = parent.adopter  # without a reference to itself, the scope is freed at once
        self.on_closed()
        return True

    def dissolve_after(self, stay: Visitor) -> bool:
        """End a visit and close the scope in the same step, if the visit is its only work and the scope is still light.

        This does the same as `Visitor.end()` and `dissolve()`, but faster, because every request comes here. Otherwise
        return False and do nothing.
        """
        holds = self.holds
        is_all = len(holds) == 1 and holds.get(stay.visit_key) is stay
        if self.filled or not is_all or self._when_idle is not None:
            return False
        _leave(stay.context_token)
        holds.clear()
        self.enter_state(_CLOSED)
        parent = self.scope_model.parent
        self.adopter = parent.adopter
        parent.completed_count += self.completed_count
        del parent.children[self], parent.holds[self]
        if not parent.holds:
            parent.note_idle()
        self.on_closed()  # in this step
        return True

    def _has_more(self) -> bool:
        """Return whether a closing would have anything but holds to end or report."""
        return bool(
            self.services or self.children or self.quiet_children or self.contexts
            or self.closers or self._resources or self.failed_entries or self.unasked_failures
            or self.unheard_failures or self.undelivered_items
        )  # fmt: skip

    def on_closed(self) -> None:
        """Release the bond, in the step in which the scope is closed or dissolved.

        This does not call `Scope.on_closed()`: a light scope is never a root, and its parent has installed the adoption.
        """
        if self.bond is not None:
            self.bond.end()

    def note_cut_short(self) -> None:
        """Do nothing. A subclass may record that a scope of another tree cancels the work here (see `Bond`)."""

    def __del__(self) -> None:
        """Do nothing, because the parent closes the scope."""

    # Scopes of other trees.

    def held_by(self, outer: TreeNode) -> None:
        """Make `outer`, a scope of another tree, hold this scope until this scope is closed.

        If `outer` closes, it cancels the work in flight in this scope together with its own. If `outer` hands over its
        holds, it hands this hold over, too.

        *Raises*: as `Scope.hold()`.
        """
        outer.check_may_start()
        self.bond = bond = Bond(outer, self)
        outer.insert_hold(bond, bond)


LightScope.__init_subclass__()


def count_in(node: TreeNode | None, completed: int, withdrawn: int, handled: int) -> None:
    """Add the counts of a scope that is closed before its parent to the parent's report."""
    if node is not None:
        node.completed_count += completed
        node.withdrawn_count += withdrawn
        node.handled_count += handled
