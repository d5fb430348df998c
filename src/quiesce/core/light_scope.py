"""A light scope: a scope like any other, most of which is made when it is first used.

It is for code that opens a scope for every request: nearly all of them start nothing, and ask for nothing. Such a
scope is its name, its parent and the table of its holds; the other attributes are filled in, all at once, when one
of them is read. Until then it is of a class of its own, in which these attributes are properties (with `__getattr__`,
Python would find every attribute slowly). What light scopes have in common is in their `Model`.

Three things that a scope of that kind needs, and others do not:

- it is closed in one step if nothing is left (`dissolve`), else by its owner when it is idle (`when_idle`);
- somebody else's task may work in it for a while (`occupy`), which is then the scope's own work;
- a scope of another tree may hold it until it is over (`held_by`), in whose midst it was opened.
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
_leave = current.reset  # every request pays for it
_SET_AT_ONCE = frozenset({
    "_adopter", "_backend", "_code", "_completed", "_errand_above", "_holds", "_loop", "_name", "_offset",
    "_since", "_state",
})  # fmt: skip


def _late(slot: Any) -> property:
    """Make what stands for a slot as long as the scope is light: whoever reads or sets it fills it all in."""

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
    """What the light scopes below one parent have in common; the options are those of `Scope`."""

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
    """A scope that is open when it is made, below the parent that its model names.

    It may be subclassed, with slots of its own.
    """

    __slots__ = ("_bond", "_filled", "_looks", "_model", "_when_idle")

    _light: ClassVar[type[LightScope]]
    _whole: ClassVar[type[LightScope]]
    _unseen_turns: ClassVar[int] = (
        1  # that are waited for, of a loop that does not show its callbacks
    )

    def __init_subclass__(cls, *, is_light: bool = False) -> None:
        """Make the class that its scopes are of while they are light."""
        if not is_light:
            cls._whole = cls
            cls._light = type(cls.__name__, (cls,), {"__slots__": (), **_LATE}, is_light=True)

    def __init__(self, model: Model, name: str, code: CodeType) -> None:
        """Open it; `code` is what it is for, as `where` shows it.

        *Raises*: what `Scope.child()` raises: `ScopeClosed`, and `UsageError` in another event loop.
        """
        parent, clock = model.parent, model.clock
        usual = parent._state is _OPEN and (
            _get_running_loop() is model.loop or model.backend.here()  # which is slower
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

    # What is made late.

    def _fill(self) -> None:
        """Fill in the rest, all in one go: from now on it is as any other scope."""
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
        parent._holds[self] = self  # as _insert() has it; every request pays for it

    def _turned_idle(self) -> None:
        if self._when_idle is not None:  # before the parent hears of it, and goes on
            self._look_soon()
        if self._filled:
            super()._turned_idle()
        else:
            self._model.parent._discard(self)

    def when_idle(self, call: Callable[[], object]) -> None:
        """Call `call` once, in a step in which nothing is in flight, services apart.

        That is a turn of the loop after the last hold went, if nothing has begun since: a task that has
        ended may have callbacks which start another. Nor while there are others (see `left_something`).
        In a drain of the parent it is called as well; not any more if this scope is being closed: whoever
        is to know of that has `_closed()`.
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
            return  # there is a later one
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
        """Return whether code of this scope has left a callback with the loop that is yet to be called.

        Such a callback may start anything, and then that is this scope's. None if it cannot be told: then some
        turns of the loop are waited for. (Those that have their time are not looked at.)
        """
        nodes = self._backend.about_to_run()
        return None if nodes is None else self in nodes

    def _above(self) -> TreeNode | None:
        return self._parent if self._filled else self._model.parent  # it is to stay light

    # Somebody else's task.

    def occupy(
        self,
        kind: str,
        name: str,
        details: Mapping[str, object] = NOTHING,
        on_stop: Callable[[], object] | None = None,
        code: CodeType | None = None,
    ) -> Visitor:
        """Make this scope the current one of the running task, until `Visitor.end()`.

        Args:
            kind: What the work is called, in one word.
            name: Which one it is.
            details: What else there is to say of it.
            on_stop: What ends it early, when the scope is closed; it may be called more than once.
            code: Where it is, as `where` shows it; the scope's own by default.
        """
        return Visitor(self, kind, name, details, code or self._code, on_stop)

    # A job of its own.

    def begin(self, coro: Coroutine[Any, Any, None], seen: Callable[[Any], None]) -> Job[None]:
        """Start a job as `spawn()` does, on asyncio; its end is `seen`, or settled by itself."""
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
        """Stop holding a job in its last step; False if it is not held here, as work, any more."""
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
        """Close it in one step if nothing is left, as is usual; False if there is, and nothing was done.

        A closing would come to the same, with a plan and two reports that nobody reads. What it has seen
        is counted in the parent's report. True also if it was dissolved before.
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
            del parent._children[self]  # which is not closing: it would have looked at us
        self._adopter = parent._adopter  # not itself any more: nothing is left for the collector
        self._closed()
        return True

    def dissolve_after(self, stay: Visitor) -> bool:
        """End a stay, and close it in the same step, if that was all and nobody has looked at it.

        What `Visitor.end()` and `dissolve()` come to, then: every request pays for it. False: nothing was done.
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
        """Return whether there is anything but holds for a closing to see to."""
        return bool(
            self._services or self._children or self._quiet or self._contexts
            or self._closers or self._resources or self._failed or self._unasked
            or self._unheard or self._undelivered
        )  # fmt: skip

    def _closed(self) -> None:
        """Record that it is closed, in this step, in whichever way; `report` says how, if not by `dissolve()`.

        There is nothing to undo here that opening did: it is no root, and its parent adopts for it.
        """
        if self._bond is not None:
            self._bond.end()

    def _cut_short(self) -> None:
        """Take note that what is in flight here is cancelled by a scope of another tree (see `Bond`)."""

    def __del__(self) -> None:
        """Do nothing: it has a parent, which closes it at the latest."""

    # Another tree.

    def held_by(self, outer: TreeNode) -> None:
        """Hold this scope in a scope of another tree until it is closed.

        If that one is closed, what is in flight here is cancelled along with its own work; if it hands
        over what it holds, this goes along.

        *Raises*: what `Scope.hold()` raises.
        """
        outer._admit()
        self._bond = bond = Bond(outer, self)
        outer._insert(bond, bond)


LightScope.__init_subclass__()


def count_in(node: TreeNode | None, completed: int, withdrawn: int, handled: int) -> None:
    """Count what a scope has seen that is closed before its parent, so that the parent's report has it."""
    if node is not None:
        node._completed += completed
        node._withdrawn += withdrawn
        node._handled += handled
