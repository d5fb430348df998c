"""Adoption: every task that is created in a scope's context is held by that scope (asyncio).

While at least one open scope adopts, our function replaces the loop's own `create_task`. All code
that makes tasks calls `create_task`: asyncio, its task groups, anyio, the finalizers of async
generators. A task factory would be the official way. But a loop has only one factory, so a library
that installs another one would end the adoption silently. Our function still calls installed factories.
"""

from __future__ import annotations

import asyncio
from asyncio import current_task
from contextlib import contextmanager
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from quiesce.core import callsites
from quiesce.core.backends.asyncio import service_tasks
from quiesce.core.backends.asyncio.foreign_task import ForeignTask, foreign
from quiesce.core.backends.asyncio.tasks import (
    AdoptedTask,
    PartTask,
    SharedTask,
    adopted_done,
    is_service,
)
from quiesce.core.current import detached
from quiesce.core.libraries import GETTERS, SUSPECTS, is_process_wide
from quiesce.core.python_private import get_frame
from quiesce.core.tree import ScopeState, current
from quiesce.errors import UsageError

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Task
    from collections.abc import Callable, Iterator
    from types import CodeType, FrameType

    from quiesce.core.tree import TreeNode

PlainTask = asyncio.Task

# The search for the code that starts a task skips frames of the first set, and ends at frames of the
# second: below those is only the event loop.
_PLUMBING = frozenset({"asyncio", "anyio", "quiesce"})
_LOOPS = frozenset({"asyncio.events", "asyncio.runners", "uvloop", "uvloop._noop"})
_USER, _PASS, _END = range(3)
_modules: dict[str, int] = {}
_users: set[str] = set()  # the modules of kind _USER found so far
_CREATE_TASK = asyncio.create_task.__code__
_OPEN = ScopeState.OPEN


def install_adoption(loop: AbstractEventLoop, clock: Callable[[], float]) -> Callable[[], None]:
    """Begin to adopt in this loop; return a function that undoes this."""
    entrance: Entrance | None = getattr(loop.create_task, "entrance", None)
    if entrance is None:
        entrance = Entrance(loop, clock)
    entrance.users += 1
    return entrance.release


def adopter_of(node: TreeNode | None) -> TreeNode | None:
    """Return the innermost scope that adopts and is not closed.

    Tasks that a shared task starts belong to the scope it was handed to (see shared_tasks.py).
    """
    adopter = node.adopter if node is not None else None
    if adopter is not None and adopter.phase is not _OPEN:
        creator = current_task()
        if type(creator) is SharedTask:
            adopter = creator.owner_node
    while adopter is not None and adopter.phase is ScopeState.CLOSED:
        parent = adopter.parent
        adopter = parent.adopter if parent is not None else None
    return adopter


class Entrance:
    """Replaces `create_task` of a loop in which at least one open scope adopts."""

    def __init__(self, loop: AbstractEventLoop, clock: Callable[[], float]) -> None:
        self.users: int = 0
        self._loop = loop
        self._clock = clock
        self._making: object = None  # the coroutine that a foreign factory makes a task of
        # Do not read its `__dict__`: CPython then keeps all of the loop's attributes in a
        # dictionary, and finds each of them more slowly from then on.
        found: Any = loop.create_task
        own = getattr(found, "__func__", None) in {None, type(loop).create_task}
        self._before = None if own and getattr(found, "__self__", None) is loop else found
        self._get_factory: Callable[[Any], Any] = type(loop).get_task_factory
        if self._get_factory is asyncio.BaseEventLoop.get_task_factory:
            self._get_factory = attrgetter("_task_factory")  # the same, without a Python call
        self._make: Callable[..., Task[Any]] = loop.create_task
        self._late = self._make_late  # one bound method, to compare with `is`
        self._create = self._replacement()
        try:
            loop.get_task_factory = self._factory  # type: ignore[method-assign]  # on purpose,
            loop.create_task = self._create  # type: ignore[method-assign]  # see above
        except AttributeError as error:
            message = f"Scope(adopt=True) cannot replace create_task of a {type(loop).__name__}"
            raise UsageError(message) from error
        if self._get_factory(loop) is None:
            loop.set_task_factory(self._late)

    def release(self) -> None:
        """End one use. The last one restores the loop."""
        self.users -= 1
        if self.users == 0 and self._get_factory(self._loop) is self._late:
            self._loop.set_task_factory(None)
        if self.users == 0 and self._loop.create_task is self._create:
            del self._loop.create_task, self._loop.get_task_factory
            if self._before is not None:
                self._loop.create_task = self._before  # type: ignore[method-assign]  # as it was

    def _replacement(self) -> Any:
        """Return the function that replaces `create_task`. A closure is quicker: every task calls it."""
        loop, get_factory, late, before = self._loop, self._get_factory, self._late, self._before
        make, get_current, clock, suspects = self._make, current.get, self._clock, SUSPECTS

        def create_task(coro: Any, **options: Any) -> Task[Any]:
            node = get_current()
            adopter = node.adopter if node is not None else None
            ending = adopter is not None and adopter.phase is not _OPEN
            if ending:
                adopter = adopter_of(adopter)
            ours = before is None and get_factory(loop) is late and "eager_start" not in options
            is_suspect = adopter is not None and getattr(coro, "__name__", None) in suspects
            if is_suspect and is_process_wide(coro):
                with _elsewhere(coro):
                    return create_task(coro, **options)
            if adopter is None or adopter.loop is not loop or not self.users:
                # If no other factory is installed, this is what the loop itself would do.
                return PlainTask(coro, loop=loop, **options) if ours else make(coro, **options)
            if not ours:
                return self._make_foreign(make, adopter, coro, options)
            frame = get_frame(1)
            if frame.f_code is _CREATE_TASK:  # asyncio.create_task()
                frame = frame.f_back or frame
            task: AdoptedTask[Any] = AdoptedTask(coro, loop=loop, **options)
            if frame.f_globals.get("__name__") in _users:
                task.started_code, task.started_offset = frame.f_code, frame.f_lasti
            else:
                task.started_code, task.started_offset = _starter(coro, frame)
            _take_in(task, adopter, clock())
            if ending:
                _inherit(task)
            if adopter.services or (node is not adopter and node.services):  # type: ignore[union-attr]  # it led to the adopter
                _started(task, task, node, adopter)  # type: ignore[arg-type]  # likewise
            return task

        create_task.entrance = self  # type: ignore[attr-defined]  # for install()
        return create_task

    def _make_late(self, loop: AbstractEventLoop, coro: Any, **options: Any) -> Task[Any]:
        """Make a task for code that has kept the loop's original `create_task`.

        This is a task factory, installed unless other code installs one.
        """
        node = current.get()
        adopter = adopter_of(node)
        if adopter is not None and is_process_wide(coro):
            with _elsewhere(coro):
                return asyncio.Task(coro, loop=loop, **options)
        if node is None or adopter is None or adopter.loop is not loop or coro is self._making:
            return asyncio.Task(coro, loop=loop, **options)
        task: AdoptedTask[Any] = AdoptedTask(coro, loop=loop, **options)
        task.started_code, task.started_offset = _starter(coro, get_frame(1))
        _take_in(task, adopter, self._clock())
        _started(task, task, node, adopter)
        return task

    def _make_foreign(
        self, make: Callable[..., Task[Any]], adopter: TreeNode, coro: Any, options: dict[str, Any]
    ) -> Task[Any]:
        """Make a task with another library's factory; hold it first (invariant 1).

        An eager factory runs the task's first step inside this call: see `ForeignTask.begin`.
        """
        where = _starter(coro, get_frame(1))
        held = ForeignTask(adopter, *where, creator=current_task())
        adopter.insert_hold(held, held)
        foreign.append(held)
        outer, self._making = self._making, coro
        try:
            held.begin(make(coro, **options))
        finally:
            self._making = outer
            foreign.remove(held)
            held.owner_node.discard_hold(held)
        task: Task[Any] = held.task
        task.add_done_callback(held.done)
        if isinstance(task, asyncio.Task):
            _started(task, held, current.get() or adopter, adopter)
        if adopter.service_pattern is not None:
            held.reclassify()
            self._loop.call_soon(held.reclassify)  # asyncio.create_task() names it later
        return task

    def _factory(self) -> Any:
        """Return the task factory that other code installed: replaces `get_task_factory` of the loop.

        anyio takes the constructor of tasks out of asyncio's eager factory, and calls that instead
        of the factory. So an eager factory is returned with a constructor that adopts.
        """
        factory = self._get_factory(self._loop)
        if factory is self._late:
            return None
        eager = getattr(asyncio, "eager_task_factory", None)
        cells = getattr(factory, "__closure__", None)
        if eager is None or getattr(factory, "__code__", None) is not eager.__code__ or not cells:
            return factory
        make = cells[0].cell_contents

        def construct(coro: Any, **options: Any) -> Task[Any]:
            node = current.get()
            adopter = adopter_of(node)
            if adopter is not None and is_process_wide(coro):
                with _elsewhere(coro):
                    return make(coro, **options)  # type: ignore[no-any-return]  # out of a cell
            if adopter is None or adopter.loop is not self._loop or coro is self._making:
                made: Task[Any] = make(coro, **options)
                return made
            return self._make_foreign(make, adopter, coro, options)

        return asyncio.create_eager_task_factory(construct)  # type: ignore[attr-defined]  # since 3.12


@contextmanager
def _elsewhere(coro: Any) -> Iterator[None]:
    """Step out of the current scope, into the scope of a coroutine for which `is_process_wide` is true."""
    getter = GETTERS.get(getattr(coro, "cr_code", None))  # type: ignore[arg-type]  # it may be None
    found = None if getter is None else getter(coro)
    if found is None:
        with detached():
            yield
        return
    token = current.set(found[0])
    try:
        yield
    finally:
        current.reset(token)


def _take_in(task: AdoptedTask[Any], adopter: TreeNode, now: float) -> None:
    """Hold a new task in the step in which it was made."""
    task.owner_node = adopter
    task.began_at = now
    task.add_done_callback(adopted_done)
    if adopter.service_pattern is not None and is_service(adopter, task):
        adopter.services[task] = task
        return
    holds = adopter.holds
    if not holds:
        adopter.note_busy()
    holds[task] = task


def _inherit(task: AdoptedTask[Any]) -> None:
    """Make a task that a shared task starts a shared one, so that the same scope holds both."""
    if type(current_task()) is SharedTask:
        task.__class__ = SharedTask


def _started(task: Task[Any], held: Any, node: TreeNode, adopter: TreeNode) -> None:
    """Record a new task that a service, or a task of a service, starts; see service_tasks.py."""
    found = service_tasks.creator_of(current_task(), node, adopter)
    if found is not None and not task.done() and task not in adopter.services:
        if type(task) is AdoptedTask:
            task.__class__ = PartTask
        service_tasks.begin_service_task(
            task, service_tasks.Start(found[0], held, found[1]), task.get_loop()
        )


def _starter(coro: Any, frame: FrameType | None) -> tuple[CodeType | None, int]:
    """Return the code that starts a task; if there is none (a bare callback), the task's own code."""
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
    return callsites.code_of(coro), 0


def _kind_of(module: str) -> int:
    if module in _LOOPS:
        return _END
    if module.partition(".")[0] in _PLUMBING:
        return _PASS
    _users.add(module)
    return _USER
