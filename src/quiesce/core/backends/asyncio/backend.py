"""asyncio, and uvloop."""

from __future__ import annotations

import asyncio
import math
import sys
import time
from asyncio import BaseEventLoop, BaseTransport, CancelledError, Task, current_task
from contextvars import Context
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from quiesce.core.backends.asyncio import service_tasks, shared_tasks
from quiesce.core.backends.asyncio.foreign_task import begin_foreign, foreign
from quiesce.core.backends.asyncio.tasks import (
    AdoptedTask,
    OwnedTask,
    start_task,
    task_behind,
    unasked,
    watch_task,
)
from quiesce.core.python_private import (
    callback_of,
    context_of,
    exception_of,
    is_cancelled_handle,
    running_loop,
)
from quiesce.core.tree import current

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Future, Handle, TimerHandle
    from collections import deque
    from collections.abc import Callable, Collection, Coroutine, Iterable
    from types import CodeType

    from quiesce.core.backends.base import Body, Waiter
    from quiesce.core.hold import Held
    from quiesce.core.job import Job
    from quiesce.core.report import ReportEntry
    from quiesce.core.tree import TreeNode


_TIMER_SECONDS_MIN = 0.001
_READY_MAX = 64  # a longer queue is read only once a turn
_OF_SOCKETS = ("_read_ready", "_write_ready")


class AsyncioBackend:
    """One asyncio or uvloop event loop."""

    name = "asyncio"
    cancelled: type[BaseException] = CancelledError

    def __init__(self, loop: AbstractEventLoop) -> None:
        self.loop: AbstractEventLoop = loop
        plain = getattr(type(loop), "time", None) is asyncio.BaseEventLoop.time
        # loop.time() only calls time.monotonic(); calling that directly saves a Python call a spawn.
        self.clock: Callable[[], float] = time.monotonic if plain else loop.time
        self.waiter: Callable[[], Waiter] = loop.create_future
        # current_task() makes system calls on 3.11; a channel asks at every receive().
        tasks: dict[object, object] = vars(asyncio.tasks).get("_current_tasks", {})
        old = sys.version_info < (3, 12)
        self.task: Callable[[], object] = partial(tasks.get, loop) if old else current_task
        self.late_body: Callable[[Any], Body] | None = AsyncioBody
        self._nowhere = Context()
        # uvloop hides its ready queue, and so may a loop with a call_soon() of its own.
        known = isinstance(loop, BaseEventLoop) and type(loop).call_soon is BaseEventLoop.call_soon
        self._ready: deque[Any] | None = getattr(loop, "_ready", None) if known else None
        self._seen: set[TreeNode] | None = None
        self._last: Handle | None = None

    @property
    def start(self) -> Callable[[TreeNode, Coroutine[Any, Any, Any], str, CodeType, int], Job[Any]]:
        return start_task

    @classmethod
    def running(cls) -> AsyncioBackend | None:
        """Return the backend of the running loop, if one runs."""
        loop = running_loop()
        return None if loop is None else cls(loop)

    def here(self) -> bool:
        return running_loop() is self.loop

    def alive(self) -> bool:
        return not self.loop.is_closed()

    def current(self) -> object | None:
        task = current_task()
        if foreign:
            begin_foreign(self.loop, task)
        return task

    def working_for(self) -> Collection[object]:
        return service_tasks.task_and_creators(self.task())

    def fate(self, task: Any) -> BaseException | Literal["cancelled"] | None:
        if task is None or not task.done():
            return None
        return "cancelled" if task.cancelled() else exception_of(task)

    def ended(self, task: Any) -> bool:
        done: bool = task.done()
        return done

    def watch(self, call: Callable[[], None]) -> Callable[[], None]:
        task = current_task()
        if task is None:
            return call  # no task runs: a callback has no end to watch
        return watch_task(task, call)

    def own(
        self,
        fn: Callable[[], Coroutine[Any, Any, None]],
        name: str,
        interrupt: Callable[[], None] | None = None,
    ) -> bool:
        task = OwnerTask(fn(), loop=self.loop, name=name, context=Context())
        task.interrupt = interrupt
        owners.add(task)
        task.add_done_callback(owners.discard)
        return True

    def cancellations(self) -> int:
        task = current_task()
        return task.cancelling() if task is not None else 0

    def bell(self) -> AsyncioBell:
        return AsyncioBell(self.loop)

    def body(self) -> AsyncioBody:
        return AsyncioBody(self.task())

    def soon(self, fn: Callable[[], object]) -> bool:
        self.loop.call_soon(fn, context=self._nowhere)  # the loop runs, so it is not closed
        return True

    def about_to_run(self) -> set[TreeNode] | None:
        ready = self._ready
        if ready is None:
            return None
        if len(ready) > _READY_MAX:
            return self._about_to_run_of_many(ready)
        # Read a copy: other threads add callbacks, too. Copy to a list, not a tuple: on 3.11 making a tuple
        # may run the collector, and finalizers may add callbacks.
        return _add_left(set(), list(ready))

    def _about_to_run_of_many(self, ready: deque[Any]) -> set[TreeNode]:
        """Return the same for a long queue, including callbacks that were called earlier in this turn.

        Each callback is looked at once a turn: thousands may be ready, and thousands of scopes may ask.
        """
        if self._seen is None:
            self._seen = _add_left(set(), list(ready))
            self._last = self.loop.call_soon(self._forget, context=self._nowhere)
            return self._seen
        newest, last, place = ready[-1], self._last, -1
        while ready[place] is not last:  # `last` stays in the queue until `_forget` is called
            _add_left(self._seen, (ready[place],))
            place -= 1
        self._last = newest
        return self._seen

    def _forget(self) -> None:
        self._seen = self._last = None

    def post(self, fn: Callable[..., object], *args: object) -> bool:
        try:
            self.loop.call_soon_threadsafe(fn, *args)
        except RuntimeError:  # the loop is closed
            return False
        return True

    def fatal(self, error: BaseException, *, caught: bool) -> None:
        # The loop itself raises KeyboardInterrupt and SystemExit if a task or a callback raises them.
        if caught:
            self.loop.call_soon(_raise, error)

    def unasked(self, entries: list[tuple[Any, ReportEntry]]) -> list[tuple[Held, ReportEntry]]:
        found: list[tuple[Held, ReportEntry]] = []
        for ref, described in entries:
            held = unasked(ref)
            if held is not None:
                found.append((held, replace(described, error=task_behind(held).exception())))
        return found

    def stop_all(self, node: TreeNode, table: dict[object, Held]) -> int:
        return shared_tasks.stop_all(node, table)

    def look_at_parts(self, node: TreeNode) -> None:
        service_tasks.look_below(node)

    def adopt(self) -> Callable[[], None]:
        from quiesce.core.backends.asyncio.adoption import install_adoption  # noqa: PLC0415 - only for scopes that adopt

        return install_adoption(self.loop, self.clock)


def _add_left(found: set[TreeNode], handles: Iterable[Any]) -> set[TreeNode]:
    """Add the scopes whose code has left these callbacks, and their ancestors.

    Three kinds of callbacks do not count: steps of tasks (scopes hold the tasks), events of sockets, and
    cancellations that anyio delivers.
    """
    for handle in handles:
        node = context_of(handle).get(current)
        if node is None or node in found or is_cancelled_handle(handle):
            continue
        call = callback_of(handle)
        owner = getattr(call, "__self__", None)
        of_socket = isinstance(owner, BaseTransport) and call.__name__ in _OF_SOCKETS
        if not (of_socket or isinstance(owner, Task) or _cancels(owner, call)):
            while node is not None and node not in found:
                found.add(node)
                node = node.node_above()
    return found


def _cancels(owner: object, call: Any) -> bool:
    """Return whether a callback is the one by which anyio delivers a cancellation again and again."""
    name = getattr(call, "__name__", "")
    return name == "_deliver_cancellation" and type(owner).__module__.startswith("anyio.")


def _raise(error: BaseException) -> None:
    raise error


class OwnerTask(Task[None]):
    """A task whose `cancel()` calls `interrupt` instead, if that is set."""

    interrupt: Callable[[], None] | None

    def cancel(self, msg: object = None) -> bool:
        """Call `interrupt`; if there is none, cancel the task like any other."""
        if self.interrupt is None or self.done():
            return super().cancel(msg)
        self.interrupt()
        return False


owners: set[Task[None]] = set()


class AsyncioBell:
    """The bell of an owner task: see `base.Bell`."""

    __slots__ = ("_future", "_loop", "_rung", "interrupted")

    def __init__(self, loop: AbstractEventLoop) -> None:
        self._loop = loop
        self._rung = False
        self._future: Future[None] | None = None
        self.interrupted: bool = False

    def ring(self) -> None:
        self._rung = True
        self._wake()

    def _wake(self) -> None:
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    async def wait(self, deadline: float | None) -> None:
        if not self._rung:
            self._future = self._loop.create_future()
            timer: TimerHandle | None = None
            if deadline is not None and deadline != math.inf:
                # uvloop's timers have whole milliseconds: a shorter one would fire too early, over and over.
                soonest = self._loop.time() + _TIMER_SECONDS_MIN
                timer = self._loop.call_at(max(deadline, soonest), self._wake)
            try:
                await self._future  # never cancelled: see OwnerTask
            finally:
                self._future = None
                if timer is not None:
                    timer.cancel()
        self._rung = False

    async def yield_once(self) -> None:
        await asyncio.sleep(0)


class AsyncioBody:
    """The body of a block. It is interrupted as in an `asyncio.TaskGroup`."""

    __slots__ = ("_interrupted", "_task")

    def __init__(self, task: Any) -> None:
        self._task: Task[Any] | None = task
        self._interrupted = False

    def interrupt(self) -> None:
        if self._task is not None and not self._interrupted:
            self._interrupted = True
            why = "a job of the scope failed"
            if isinstance(self._task, AdoptedTask):
                OwnedTask.cancel(
                    self._task, why
                )  # not AdoptedTask.cancel: this is not a request that a waiter passes on
            else:
                self._task.cancel(why)

    def leave(self, exc: BaseException | None) -> BaseException | None:
        if self._interrupted and self._task is not None:
            only_ours = self._task.uncancel() == 0
            return None if only_ours and isinstance(exc, CancelledError) else exc
        self._interrupted = True  # too late to interrupt
        return exc
