"""A light scope: a scope like any other, most of which is made when it is first used.

It is for code that opens a scope for every request: most requests start nothing in their scope. A light scope has
its name, its parent and the table of its holds. Its other attributes are filled in, all at once, when code first reads
or sets one of them. Until then the scope has a class of its own, in which these attributes are properties (with
`__getattr__`, Python would find every attribute slowly). The values that light scopes share are in their `Model`.

A light scope can do three things that other scopes cannot:

- `dissolve` closes it in one step if nothing is left; `when_idle` tells its owner when that is so.
- `occupy` lets a task that another scope owns work in it for a while; that counts as work of this scope.
- `held_by` makes a scope of another tree hold it until it is closed.
"""

from __future__ import annotations

from asyncio.events import _get_running_loop
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from quiesce.core import arguments
from quiesce.core.backends.asyncio.tasks import TaskJob
from quiesce.core.hold import NOTHING
from quiesce.core.latch import Latch
from quiesce.core.scope import Scope
from quiesce.core.tree import ScopeState, TreeNode, current
from quiesce.core.visitors import Bond, Visitor
from quiesce.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping
    from types import CodeType

    from quiesce.core.job import Job

__all__: list[str] = []

_OPEN, _CLOSED = ScopeState.OPEN, ScopeState.CLOSED
_leave = current.reset  # a global is quicker; every request calls it
_SET_AT_ONCE = frozenset({
    "_adopter", "_backend", "_code", "_completed", "_errand_above", "_holds", "_loop", "_name", "_offset",
    "_since", "_state",
})  # fmt: skip


def _late(slot: Any) -> property:
    """Return the property that stands for a slot while the scope is light: reading or setting it calls `_fill()`."""

    def read(scope: LightScope) -> Any:
        scope._fill()
        return slot.__get__(scope)

    def write(scope: LightScope, value: object) -> None:
        scope._fill()
        slot.__set__(scope, value)

    return property(read, write)


_LATE: dict[str, Any] = {
    name: _late(vars(kind)[name])
    for kind in Scope.__mro__
    for name in getattr(kind, "__slots__", ())
    if not name.startswith("__") and name not in _SET_AT_ONCE
}


class Model:
    """The values that light scopes below one parent share; the options are those of `Scope`."""

    def __init__(self, parent: Scope, **options: Any) -> None:
        scope = Scope("model", **options)
        self.adopts: bool = scope._wants_adoption
        if self.adopts and parent._adopter is not parent:
            message = f"light scopes adopt only if their parent does: open {parent.name!r} with adopt=True"
            raise UsageError(message)
        self.parent: Scope = parent
        self.loop: Any = parent._loop
        self.backend: Any = parent._backend
        self.clock: Callable[[], float] = parent._backend.clock
        values: dict[str, Any] = {
            slot: getattr(scope, slot) for slot in _LATE if hasattr(scope, slot)
        } | {
            "_parent": parent,
            "_service_pattern": arguments.one_pattern(scope._services_given),
            "_start": parent._start,
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

    __slots__ = ("_bond", "_filled", "_looks", "_model", "_when_idle")

    _light: ClassVar[type[LightScope]]
    _whole: ClassVar[type[LightScope]]
    _unseen_turns: ClassVar[int] = 1  # to wait for, if the loop does not show its callbacks

    def __init_subclass__(cls, *, is_light: bool = False) -> None:
        """Make the class that the subclass's scopes have while they are light."""
        if not is_light:
            cls._whole = cls
            cls._light = type(cls.__name__, (cls,), {"__slots__": (), **_LATE}, is_light=True)

    def __init__(self, model: Model, name: str, code: CodeType) -> None:
        """Open the scope; `where` shows the place of `code`.

        *Raises*: as `Scope.child()`: `ScopeClosed`, and `UsageError` in another event loop.
        """
        parent, clock = model.parent, model.clock
        usual = parent._state is _OPEN and (
            _get_running_loop() is model.loop or model.backend.here()  # here() is slower
        )
        if not usual:
            parent._admit()
        self.__class__ = self._light  # a method `__new__` would take five times as long
        self._model = model
        self._filled = False
        self._bond: Bond | None = None
        self._looks = 0
        self._when_idle: Callable[[], object] | None = None
        self._name = name
        self._state = _OPEN
        self._adopter = self if model.adopts else parent._adopter
        self._errand_above = parent._errand_above
        self._backend = model.backend
        self._loop = model.loop
        self._since = clock()
        self._code = code
        self._offset = 0
        self._completed = 0
        self._holds = {}
        parent._children[self] = None
        if not usual:
            self._fill()
            self._attach(parent)
            if self._state is not _OPEN:
                self._closing_gate.open()

    # The attributes that are made late.

    def _fill(self) -> None:
        """Set all other attributes: from now on this is a scope like any other."""
        self.__class__ = self._whole
        self._filled = True
        model = self._model
        for slot, value in model.values.items():
            setattr(self, slot, value)
        for slot, kind in model.tables.items():
            setattr(self, slot, kind())
        self._closing_gate = Latch(model.backend)
        if self._state is not _OPEN:
            self._closing_gate.open()

    # Busy and idle.

    def _turned_busy(self) -> None:
        if self._filled:
            super()._turned_busy()
            return
        parent = self._model.parent
        if not parent._holds:
            parent._turned_busy()
        parent._holds[self] = self  # as in _insert(), but quicker: every request comes here

    def _turned_idle(self) -> None:
        if self._when_idle is not None:  # before the parent can turn idle and go on
            self._look_soon()
        if self._filled:
            super()._turned_idle()
        else:
            self._model.parent._discard(self)

    def when_idle(self, call: Callable[[], object]) -> None:
        """Call `call` once, in a step in which the scope has no work in flight. Services do not count.

        It is called a turn of the loop after the last hold was released, since callbacks of an ended task may
        start another one, and not while such callbacks are left (see `left_something`). It is called in a
        drain of the parent, too, but not if this scope itself is being closed: override `_closed()` for that.
        """
        self._when_idle = call
        if not self._holds:
            self._look_soon()

    def _look_soon(self, unseen: int | None = None) -> None:
        self._looks += 1
        turns = self._unseen_turns if unseen is None else unseen
        self._backend.soon(partial(self._look, self._looks, turns))

    def _look(self, number: int, unseen: int) -> None:
        if number != self._looks:
            return  # a later look was scheduled
        call = self._when_idle
        being_closed = self._filled and self._closing is not None
        if call is None or self._holds or self._state is _CLOSED or being_closed:
            return
        left = self.left_something()
        if left or (left is None and unseen > 1):
            self._look_soon(None if left else unseen - 1)
            return
        self._when_idle = None
        call()

    def left_something(self) -> bool | None:
        """Return whether code of this scope has left a callback in the loop's ready queue.

        Such a callback may start work, which then belongs to this scope. None if the loop does not show its
        queue: the caller then waits for some turns of the loop. Timers are not looked at.
        """
        nodes = self._backend.about_to_run()
        return None if nodes is None else self in nodes

    def _above(self) -> TreeNode | None:
        return self._parent if self._filled else self._model.parent  # `_parent` would fill it

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
            on_stop: Called when the scope is closed, to end the work early; it may be called more than once.
            code: The code whose place `where` shows; by default the scope's own.
        """
        return Visitor(self, kind, name, details, code or self._code, on_stop)

    # A job of its own.

    def begin(self, coro: Coroutine[Any, Any, None], seen: Callable[[Any], None]) -> Job[None]:
        """Start a job as `spawn()` does, on asyncio. `seen` is called when it has ended."""
        context = copy_context()
        context.run(current.set, self)
        job: TaskJob[None] = TaskJob(coro, loop=self._model.loop, name=self._name, context=context)
        job._node = self
        job._since = self._since
        job._code_started = self._code
        job._offset_started = 0
        job._key = None
        job.add_done_callback(seen)
        holds = self._holds
        if not holds:
            self._turned_busy()
        holds[job] = job
        return job

    def settle(self, job: Job[None]) -> bool:
        """Stop holding a job in its last step; return False if this scope does not hold it as work."""
        holds = self._holds
        if holds.pop(job, None) is None:
            return False
        self._completed += 1
        if not holds:
            if self._filled or self._when_idle is not None:
                self._turned_idle()
            else:
                self._model.parent._discard(self)
        return True

    # The end.

    def dissolve(self) -> bool:
        """Close the scope in one step if nothing is left; else return False, and do nothing.

        The result is that of a `Closing`, without its cost and its reports. The parent's report counts
        what this scope has completed. Return True also if the scope was dissolved before.
        """
        if self._holds:
            return False
        if self._filled and (self._closing is not None or self._has_more()):
            return False
        if self._state is _CLOSED:
            return True
        self.enter_state(_CLOSED)
        if self._filled:
            parent = self._parent
            assert parent is not None  # noqa: S101 - it was opened below one
            count_in(parent, self._completed, self._withdrawn, self._handled)
            self._closing_gate.open()
            self._detach()
        else:
            parent = self._model.parent
            parent._completed += self._completed
            del parent._children[self]  # no closing of the parent waits: it would have filled this
        self._adopter = parent._adopter  # no reference to itself: nothing for the collector to do
        self._closed()
        return True

    def dissolve_after(self, stay: Visitor) -> bool:
        """End a visit and close the scope in the same step, if that was all and the scope is still light.

        It does the same as `Visitor.end()` and `dissolve()`, but quicker: every request comes here. Return False,
        and do nothing, otherwise.
        """
        holds = self._holds
        is_all = len(holds) == 1 and holds.get(stay._key) is stay
        if self._filled or not is_all or self._when_idle is not None:
            return False
        _leave(stay._token)
        holds.clear()
        self.enter_state(_CLOSED)
        parent = self._model.parent
        self._adopter = parent._adopter
        parent._completed += self._completed
        del parent._children[self], parent._holds[self]
        if not parent._holds:
            parent._turned_idle()
        self._closed()  # in this step
        return True

    def _has_more(self) -> bool:
        """Return whether a closing would have anything but holds to end or report."""
        return bool(
            self._services or self._children or self._quiet or self._contexts
            or self._closers or self._resources or self._failed or self._unasked
            or self._unheard or self._undelivered
        )  # fmt: skip

    def _closed(self) -> None:
        """Release the bond, in the step in which the scope is closed or dissolved.

        Opening needs no undoing: a light scope is not a root, and its parent installs the adoption.
        """
        if self._bond is not None:
            self._bond.end()

    def _cut_short(self) -> None:
        """Do nothing. A subclass may record that a scope of another tree cancels the work here (see `Bond`)."""

    def __del__(self) -> None:
        """Do nothing: its parent closes it."""

    # Another tree.

    def held_by(self, outer: TreeNode) -> None:
        """Make `outer`, a scope of another tree, hold this scope until it is closed.

        If `outer` closes, it cancels the work in flight here together with its own. If `outer` hands over
        its holds, it hands this one over, too.

        *Raises*: as `Scope.hold()`.
        """
        outer._admit()
        self._bond = bond = Bond(outer, self)
        outer._insert(bond, bond)


LightScope.__init_subclass__()


def count_in(node: TreeNode | None, completed: int, withdrawn: int, handled: int) -> None:
    """Add the counts of a scope that is closed before its parent to the parent's report."""
    if node is not None:
        node._completed += completed
        node._withdrawn += withdrawn
        node._handled += handled
