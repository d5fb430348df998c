"""Adoption: every task that is born in a scope's context is held by that scope (asyncio).

The way in is the loop's own `create_task`, which everything that makes tasks calls: asyncio,
its task groups, anyio, the finalizers of async generators. While at least one open scope adopts,
the loop has our function in its place. A task factory would be the official way in; but the last
one to install a factory replaces the others, so it would take only one more library to end the
adoption, in silence. This way factories come and go as they like, and each is still called.
"""

from __future__ import annotations

import sys
from asyncio import current_task
from typing import TYPE_CHECKING, Any

from quiesce.core import sites
from quiesce.core.backends.tasks import (
    AdoptedTask,
    ForeignTask,
    adopted_done,
    foreign,
    is_service,
)
from quiesce.core.node import State, current
from quiesce.errors import UsageError

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Task
    from collections.abc import Callable
    from types import CodeType, FrameType

    from quiesce.core.node import Node

_getframe = sys._getframe

# Whose frames are passed over in the search for the code that starts a task, and at whose the
# search ends: below them is only the event loop.
_PLUMBING = frozenset({"asyncio", "anyio", "quiesce"})
_LOOPS = frozenset({"asyncio.events", "asyncio.runners", "uvloop", "uvloop._noop"})
_USER, _PASS, _END = range(3)
_modules: dict[str, int] = {}


def install(loop: AbstractEventLoop) -> Callable[[], None]:
    """Begin to adopt in this loop, once more; gives the way to end it."""
    entrance = vars(loop).get("create_task") if hasattr(loop, "__dict__") else None
    if not isinstance(entrance, Entrance):
        entrance = Entrance(loop)
    entrance.users += 1
    return entrance.release


def adopter_of(node: Node | None) -> Node | None:
    """Find the innermost scope that adopts and is not closed."""
    adopter = node._adopter if node is not None else None
    while adopter is not None and adopter._state is State.CLOSED:
        parent = adopter._parent
        adopter = parent._adopter if parent is not None else None
    return adopter


class Entrance:
    """What stands in for `create_task` of a loop in which at least one open scope adopts."""

    def __init__(self, loop: AbstractEventLoop) -> None:
        self.users: int = 0
        self._loop = loop
        self._before = vars(loop).get("create_task") if hasattr(loop, "__dict__") else None
        self._make: Callable[..., Task[Any]] = loop.create_task
        try:
            loop.create_task = self  # type: ignore[method-assign]  # on purpose, see above
        except AttributeError as error:
            message = f"{type(loop).__name__} does not let Scope(adopt=True) see its new tasks"
            raise UsageError(message) from error

    def release(self) -> None:
        """End one use; the last one leaves the loop as it would be without us."""
        self.users -= 1
        if self.users == 0 and vars(self._loop).get("create_task") is self:
            del self._loop.create_task
            if self._before is not None:
                self._loop.create_task = self._before

    def __call__(self, coro: Any, **options: Any) -> Task[Any]:
        """Make a task, held by the scope in whose context it is made."""
        loop = self._loop
        node = current.get()
        adopter = node._adopter if node is not None else None
        if adopter is not None and adopter._state is State.CLOSED:
            adopter = adopter_of(adopter)
        if adopter is None or adopter._loop is not loop or not self.users:
            return self._make(coro, **options)
        if self._before is not None or loop.get_task_factory() is not None:
            return self._make_foreign(adopter, coro, options)
        task: AdoptedTask[Any] = AdoptedTask(coro, loop=loop, **options)
        task._node = adopter
        task._since = adopter._backend.clock()
        task._code_started, task._offset_started = _starter(coro)
        task._key = None
        task.add_done_callback(adopted_done)
        if adopter._service_pattern is not None and is_service(adopter, task):
            adopter._services[task] = task
        else:
            holds = adopter._holds
            if not holds:
                adopter._turned_busy()
            holds[task] = task
        return task

    def _make_foreign(self, adopter: Node, coro: Any, options: dict[str, Any]) -> Task[Any]:
        """Have somebody else's factory make the task; the hold is there first (invariant 1).

        An eager factory runs the task's first step right here: see `ForeignTask.begin`.
        """
        held = ForeignTask(adopter, *_starter(coro), creator=current_task())
        adopter._insert(held, held)
        foreign.append(held)
        try:
            held.begin(self._make(coro, **options))
        finally:
            foreign.remove(held)
            held._node._discard(held)
        task: Task[Any] = held.task
        task.add_done_callback(held.done)
        held._reclassify()
        return task


def _starter(coro: Any) -> tuple[CodeType | None, int]:
    """Find the code that starts a task; failing that (a bare callback), the task's own."""
    frame: FrameType | None = _getframe(2)
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        kind = _modules.get(name)
        if kind is None:
            kind = _modules[name] = _kind_of(name)
        if kind == _USER:
            return frame.f_code, frame.f_lasti
        if kind == _END:
            break
        frame = frame.f_back
    return sites.code_of(coro), 0


def _kind_of(module: str) -> int:
    if module in _LOOPS:
        return _END
    return _PASS if module.partition(".")[0] in _PLUMBING else _USER
