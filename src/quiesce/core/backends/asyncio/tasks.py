"""asyncio's tasks as holds: a job is a task that is its own hold.

`OwnedTask` and `TaskJob` only add five slots to `asyncio.Task`, so an owned task needs no second
object: it takes less memory than a bare task with an entry in a set and a bound method as its
callback. One shared function, `_task_done`, is the done callback of every job.
"""

from __future__ import annotations

import sys
import weakref
from asyncio import Future, Task, current_task
from asyncio.events import _get_running_loop
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from quiesce.core import callsites, libraries
from quiesce.core import report as reports
from quiesce.core.backends.asyncio import cancel_origin, service_tasks
from quiesce.core.backends.asyncio.awaiters import (
    let_go,
    passed_on_by,
    passes_on,
    runners,
)
from quiesce.core.backends.asyncio.swallowing import (
    coro_of,
    deferred,
    spared,
    swallowed,
    went_on,
)
from quiesce.core.hold import NOTHING, Fate
from quiesce.core.job import Job, Outcome
from quiesce.core.tree import current
from quiesce.errors import JobCancelled, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator, Hashable, Mapping
    from types import CodeType, FrameType

    from quiesce.core.tree import TreeNode

T = TypeVar("T")

_getframe = sys._getframe
_UNASKED_MIN = 64  # failures kept before the received ones are dropped


class OwnedTask(Task[T]):
    """A task that a scope holds."""

    __slots__ = ("_code_started", "_failed_at", "_node", "_offset_started", "_since")

    _fate: ClassVar[Fate] = "stuck"
    _stops: ClassVar[bool] = True
    _node: TreeNode
    _since: float
    _failed_at: float  # when it failed; only a task that has failed has it
    _code_started: CodeType | None
    _offset_started: int

    @property
    def kind(self) -> str:
        """The kind of hold."""
        return "task"

    @property
    def name(self) -> str:
        """The task's name, or else that of its function."""
        return callsites.task_name(self, self.get_coro())  # never an eager task: see coro_of

    @property
    def since(self) -> float:
        """When it was started."""
        return self._since

    @property
    def where(self) -> str | None:
        """The file and line that started it."""
        return callsites.describe(self._code_started, self._offset_started)

    @property
    def details(self) -> Mapping[str, object]:
        """Nothing more is known."""
        return NOTHING

    @property
    def _declared_as(self) -> str | None:
        return libraries.full_name(coro_of(self))

    def _when_done(self, call: Callable[[], None]) -> Callable[[], None]:
        return watch_task(self, call)

    def cancel(self, msg: Any = None) -> bool:
        """Cancel the task, and record for its hop which code did so."""
        cancel_origin.cancel_asked(self, self._node)
        return super().cancel(msg)

    def _stop(self, *, force: bool = False) -> None:
        if deferred(self):
            return
        if force or not self.cancelling() or swallowed(self):
            Task.cancel(self)
        else:  # other code has cancelled it before, and it is cleaning up
            spared.add(self)

    def _swallowed(self) -> bool:
        return went_on(self) or swallowed(self)

    def _chain(self) -> list[callsites.Frame]:
        return callsites.await_chain(coro_of(self))

    def _move(self, node: TreeNode) -> None:
        self._node = node

    def _reclassify(self) -> None:
        """Do nothing: `spawn` says whether it is a service."""


class AdoptedTask(OwnedTask[T]):
    """A task that other code created inside a scope. To that code it behaves like any other.

    Its failure is handled if a task receives it: by awaiting this task, or by asking for its result.
    If no task has received it when this task is collected, or when the scope closes, the scope
    reports the failure.
    """

    __slots__ = ()

    def cancel(self, msg: Any = None) -> bool:
        """Cancel the task, unless another scope's close only passes on its cancellation of a waiting task.

        A cancelled task passes the request on to the task that it awaits. If tasks of other scopes
        await this one, too, only the waiting task ends.
        """
        node = passed_on_by(self, _getframe(1))
        if node is None or not (deferred(self) or let_go(self, self._node, node)):
            return super().cancel(msg)
        return True

    def set_name(self, value: object) -> None:
        """Set the name; a name may make the task a service of its scope."""
        if value is not None:  # CPython 3.13.0 sets None on tasks that a factory made
            super().set_name(value)
            self._reclassify()

    def _reclassify(self) -> None:
        reclassify(self, self._node)


class PartTask(AdoptedTask[T]):
    """An adopted task that a service, or another such task, has started."""

    __slots__ = ()

    def add_done_callback(self, *args: Any, **options: Any) -> None:
        """Add a callback, and check whether the service now waits for this task."""
        super().add_done_callback(*args, **options)
        if self in self._node._holds:
            self._node._backend.soon(partial(service_tasks.look_at_task, self))

    def _stop(self, *, force: bool = False) -> None:
        if force or not service_tasks.is_ended_by_service(self):
            super()._stop(force=force)


class SharedTask(AdoptedTask[T]):
    """An adopted task that was handed to another scope (shared_tasks.py), or that such a task has started."""

    __slots__ = ()

    _is_handed_on: ClassVar[bool] = True


class FailedTask(AdoptedTask[T]):
    """An adopted task that has failed. Only this class has a finalizer, because it costs time."""

    __slots__ = ()

    def exception(self) -> BaseException | None:
        """Return the error. A callback that only looks at it has not handled it.

        For asyncio any call handles the error. Here a call counts if a task makes it, or a callback
        that passes the error on to a waiting task: `gather`, `shield`, a task group.
        """
        if self._is_only_seen(_getframe(1)):
            return self._exception  # which does not change `_log_traceback`
        return super().exception()

    def result(self) -> T:
        """Raise the error; a callback handles it under the same conditions as in `exception()`."""
        if self._is_only_seen(_getframe(1)):
            raise self._exception  # type: ignore[misc]  # it has failed
        return super().result()

    def _is_only_seen(self, frame: FrameType) -> bool:
        by_callback = _get_running_loop() is not None and current_task() is None
        if not (self._log_traceback and by_callback) or passes_on(frame):
            return False
        self.__class__ = SeenTask
        return True

    def __del__(self) -> None:
        """Report a failure that no task has received."""
        if self._log_traceback:
            error = super().exception()
            assert error is not None  # noqa: S101 - the flag is set only with an error
            self._node._unhandled(self, error, seen=type(self) is SeenTask)
        super().__del__()


class SeenTask(FailedTask[T]):
    """A failed task whose error a callback has looked at, to log it for example."""

    __slots__ = ()


class TaskJob(OwnedTask[T], Job[T]):
    """A spawned task."""

    __slots__ = ("_key",)

    _key: Hashable | None

    @property
    def kind(self) -> str:
        """The kind of hold."""
        return "job"

    @property
    def key(self) -> Hashable | None:
        """The key given to `spawn`."""
        return self._key

    @property
    def _declared_as(self) -> str | None:
        return None  # `spawn` says whether it is a service

    @property
    def outcome(self) -> Outcome[T] | None:
        """How it ended; None while it runs."""
        if not self.done():
            return None
        if self.cancelled():
            return Outcome("cancelled")
        error = self.exception()
        return (
            Outcome("completed", self.result()) if error is None else Outcome("failed", error=error)
        )

    def __await__(self) -> Generator[Any, Any, T]:
        """Wait for the job to end; cancelling the waiting task does not cancel the job."""
        if not self.done():
            if current_task() is self:
                message = f"job {self.name!r} awaits itself"
                raise UsageError(message)
            future: Future[None] = self.get_loop().create_future()

            def wake(_: object) -> None:
                if not future.done():
                    future.set_result(None)

            self.add_done_callback(wake)
            try:
                yield from future
            finally:
                self.remove_done_callback(wake)
        if self.cancelled():
            message = f"job {self.name!r} was cancelled"
            raise JobCancelled(message)
        return self.result()


def watch_task(task: Future[Any], call: Callable[[], None]) -> Callable[[], None]:
    """Call `call` in the loop when a task has ended; return a function that undoes this."""

    def ended(_: object) -> None:
        call()

    def forget() -> None:
        task.remove_done_callback(ended)

    task.add_done_callback(ended)
    return forget


def _task_done(task: TaskJob[Any]) -> None:
    """Record how a job ended, then stop holding it. Every job comes here: keep it short."""
    node = task._node
    if task._key is not None:
        node._forget_key(task._key, task)
    holds = node._holds
    if task.cancelled() or task.exception() is not None or task not in holds:
        settle_job(node, task, holds.get(task, task), task)
        return
    del holds[task]
    node._completed += 1
    if not holds:
        node._turned_idle()


def settle_job(node: TreeNode, key: object, held: Any, task: Future[Any]) -> None:
    """Record how a job ended, then stop holding it."""
    service = key in node._services
    if service:
        service_tasks.release(task)  # type: ignore[arg-type]  # a job is a task
    if task.cancelled():
        node._job_cancelled(held, service=service)
        if not service:
            cancel_origin.task_cancelled(task, node, is_ours=True)
    elif (error := task.exception()) is not None:
        node._job_failed(held, error)
    elif service:
        node._service_ended(held)
    else:
        node._completed += 1
    node._discard(key)


def adopted_done(task: AdoptedTask[Any]) -> None:
    """Record how an adopted task ended. Do not call its `exception()`: that counts as handling it."""
    node = task._node
    holds = node._holds
    if task._exception is not None or task not in holds or task.cancelled():
        settle_adopted(node, task, task)
        return
    del holds[task]
    node._completed += 1
    if not holds:
        node._turned_idle()


def settle_adopted(node: TreeNode, task: Future[Any], held: Any) -> None:
    """Record how an adopted task ended, then stop holding it."""
    service = task in node._services
    part = service and service_tasks.is_part(task)
    if service:
        service_tasks.release(task)  # type: ignore[arg-type]  # it was adopted as a task
    if task.cancelled():
        if not part:
            node._job_cancelled(held, service=service)
        if not service:
            cancel_origin.task_cancelled(task, node, is_ours=held is task)
    elif task._exception is not None:
        if len(node._unasked) >= node._unasked_limit:
            node._unasked = [entry for entry in node._unasked if unasked(entry[0]) is not None]
            node._unasked_limit = max(_UNASKED_MIN, 2 * len(node._unasked))
        described = reports.report_entry(held, node._name, node._backend.clock())
        if isinstance(task, AdoptedTask):
            task.__class__ = FailedTask
            task._failed_at = node._backend.clock()
            runners.add(_getframe(2).f_code)  # the caller of `adopted_done`
            node._unasked.append((weakref.ref(task), described))
        else:  # it has no finalizer of ours: keep it
            node._unasked.append((lambda: held, described))
    elif service:
        if not part:
            node._service_ended(held)
    else:
        node._completed += 1
    node._discard(task)


def unasked(ref: Callable[[], Any]) -> Any:
    """Return the hold of a failed task if it was not collected and no task has received its failure."""
    held = ref()
    return (
        held if held is not None and getattr(task_behind(held), "_log_traceback", False) else None
    )


def task_behind(held: Any) -> Any:
    """Return the task behind a hold; mostly they are the same object."""
    return getattr(held, "task", held)


def start_task(
    node: TreeNode, coro: Coroutine[Any, Any, T], name: str, code: CodeType, offset: int
) -> TaskJob[T]:
    """Start a task that is its own hold. The caller inserts it before its first step."""
    backend = node._backend
    loop: Any = backend.loop
    job: TaskJob[T]
    if current.get() is node:
        job = TaskJob(coro, loop=loop, name=name)
    else:
        context = copy_context()
        context.run(current.set, node)
        job = TaskJob(coro, loop=loop, name=name, context=context)
    job._node = node
    job._since = backend.clock()
    job._code_started = code
    job._offset_started = offset
    job._key = None
    job.add_done_callback(_task_done)
    return job


def reclassify(task: Task[Any], node: TreeNode) -> None:
    """Turn a held task into a service if the scope's patterns match its name or its function."""
    if node._service_pattern is not None and task in node._holds and is_service(node, task):
        node._serve(task)


def is_service(node: TreeNode, task: Task[Any]) -> bool:
    """Return whether the scope's `services` patterns match a task."""
    pattern = node._service_pattern
    if pattern is None:
        return False
    coro = coro_of(task)
    names = (task.get_name(), getattr(coro, "__qualname__", ""), libraries.full_name(coro) or "")
    return any(pattern.fullmatch(name) is not None for name in names)
