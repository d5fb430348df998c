"""Adoption: every task that is born in a scope's context is held by that scope (asyncio).

A task factory sees each new task of the loop and offers it to the innermost adopting scope of
the context that creates it. A factory that was there before is called as before; one that
somebody installs later is called by ours, instead of taking its place.
"""

from __future__ import annotations

import asyncio
import sys
from asyncio import Task
from typing import TYPE_CHECKING, Any

from quiesce.core import sites
from quiesce.core.backends.tasks import (
    AdoptedTask,
    ForeignTask,
    adopted_done,
    is_service,
)
from quiesce.core.node import State, current

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Future
    from collections.abc import Callable
    from types import CodeType, FrameType

    from quiesce.core.node import Node

    Factory = Callable[..., Future[Any]]

_getframe = sys._getframe

# Whose frames are passed over in the search for the code that starts a task, and at whose the
# search ends: below them is only the event loop.
_PLUMBING = ("asyncio", "anyio", __name__)
_LOOPS = frozenset({"asyncio.events", "asyncio.runners", "uvloop", "uvloop._noop"})
_USER, _PASS, _END = range(3)
_modules: dict[str, int] = {}


def install(loop: AbstractEventLoop) -> Callable[[], None]:
    """Begin to adopt in this loop, once more; gives the way to end it."""
    factory = loop.get_task_factory()
    adopting = factory if isinstance(factory, AdoptingFactory) else AdoptingFactory(loop)
    adopting.users += 1
    return adopting.release


def adopter_of(node: Node | None) -> Node | None:
    """Find the innermost scope that adopts and is not closed."""
    adopter = node._adopter if node is not None else None
    while adopter is not None and adopter._state is State.CLOSED:
        parent = adopter._parent
        adopter = parent._adopter if parent is not None else None
    return adopter


class AdoptingFactory:
    """The task factory of a loop in which at least one open scope adopts."""

    def __init__(self, loop: AbstractEventLoop) -> None:
        self.users: int = 0
        self._loop = loop
        self._inner: Factory | None = loop.get_task_factory()
        self._before: Factory | None = None  # what `_inner` replaced, and may call
        self._delegated: object = None  # the coroutine that `_inner` is making a task of
        loop.set_task_factory(self)
        # Whoever installs a factory later must not end the adoption: wrap theirs, too.
        loop.set_task_factory = self._replace  # type: ignore[method-assign]

    def _replace(self, factory: Factory | None) -> None:
        self._before = self._inner
        self._inner = factory

    def release(self) -> None:
        """End one use; the last one leaves the loop as it would be without us."""
        self.users -= 1
        if self.users == 0 and not self._loop.is_closed():
            del self._loop.set_task_factory
            if self._loop.get_task_factory() is self:
                self._loop.set_task_factory(self._inner)

    def __call__(self, loop: AbstractEventLoop, coro: Any, **options: Any) -> Future[Any]:
        """Make a task, held by the scope in whose context it is made."""
        node = current.get()
        adopter = node._adopter if node is not None else None
        if adopter is not None and adopter._state is State.CLOSED:
            adopter = adopter_of(adopter)
        if adopter is None or adopter._loop is not loop or coro is self._delegated:
            return self._make(loop, coro, options)
        code, offset = _starter(coro)
        if self._inner is not None:
            return self._make_foreign(adopter, code, offset, loop, coro, options)
        task: AdoptedTask[Any] = AdoptedTask(coro, loop=loop, **options)
        task._node = adopter
        task._since = adopter._backend.clock()
        task._code_started = code
        task._offset_started = offset
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

    def _make(self, loop: AbstractEventLoop, coro: Any, options: dict[str, Any]) -> Future[Any]:
        """Make a task that no scope wants."""
        factory = self._before if coro is self._delegated else self._inner
        if factory is None:
            return Task(coro, loop=loop, **options)
        return self._call(factory, loop, coro, options)

    def _call(
        self, factory: Factory, loop: AbstractEventLoop, coro: Any, options: dict[str, Any]
    ) -> Future[Any]:
        """Call another factory, which may call us in its turn with the same coroutine."""
        outer, self._delegated = self._delegated, coro
        try:
            return factory(loop, coro, **options)
        finally:
            self._delegated = outer

    def _make_foreign(
        self,
        adopter: Node,
        code: CodeType | None,
        offset: int,
        loop: AbstractEventLoop,
        coro: Any,
        options: dict[str, Any],
    ) -> Future[Any]:
        """Have another factory make the task; the hold is there first (invariant 1).

        An eager factory runs the task's first step right here.
        """
        held = ForeignTask(adopter, code, offset)
        adopter._insert(held, held)
        assert self._inner is not None  # noqa: S101 - checked by the caller
        try:
            task = self._call(self._inner, loop, coro, options)
            held.task = task
            adopter._insert(task, held)
        finally:
            adopter._discard(held)
        task.add_done_callback(held.done)
        if adopter._service_pattern is not None and isinstance(task, asyncio.Task):
            loop.call_soon(held._reclassify)  # its name is set after we return
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
    return _PASS if module.startswith(_PLUMBING) else _USER
