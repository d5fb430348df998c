"""asyncio's tasks as holds: a job is a task that is its own hold.

`OwnedTask` and `TaskJob` only add five slots to `asyncio.Task`, so an owned task needs no second
object: it takes less memory than a bare task with an entry in a set and a bound method as its
callback. One shared function, `_task_done`, is the done callback of every job.
"""

from __future__ import annotations

import weakref
from asyncio import Future, Task, current_task
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
from quiesce.core.backends.asyncio.thread_frames import chain_of
from quiesce.core.hold import NOTHING, Fate
from quiesce.core.job import Job, Outcome
from quiesce.core.python_private import exception_of, get_frame, running_loop
from quiesce.core.tree import ScopeState, current
from quiesce.errors import JobCancelled, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator, Hashable, Mapping
    from types import CodeType, FrameType

    from quiesce.core.tree import TreeNode

T = TypeVar("T")

_CLOSING = ScopeState.CLOSING
_UNASKED_MIN = 64  # failures kept before the received ones are dropped


class OwnedTask(Task[T]):
    """A task that a scope holds."""

    __slots__ = ("began_at", "failed_at", "owner_node", "started_code", "started_offset")

    fate: ClassVar[Fate] = "stuck"
    can_be_stopped: ClassVar[bool] = True
    owner_node: TreeNode
    began_at: float
    failed_at: float  # when it failed; only a task that has failed has it
    started_code: CodeType | None
    started_offset: int

    @property
    def kind(self) -> str:
        return "task"

    @property
    def name(self) -> str:
        return callsites.task_name(self, self.get_coro())  # never an eager task: see coro_of

    @property
    def since(self) -> float:
        return self.began_at

    @property
    def where(self) -> str | None:
        return callsites.describe(self.started_code, self.started_offset)

    @property
    def details(self) -> Mapping[str, object]:
        return NOTHING

    @property
    def _declared_as(self) -> str | None:
        return libraries.full_name(coro_of(self))

    def call_when_done(self, call: Callable[[], None]) -> Callable[[], None]:
        return watch_task(self, call)

    def cancel(self, msg: Any = None) -> bool:
        """Cancel the task, and record for its hop which code did so."""
        cancel_origin.cancel_asked(self, self.owner_node)
        return super().cancel(msg)

    def request_stop(self, *, force: bool = False) -> None:
        if deferred(self):
            return
        if force or not self.cancelling() or swallowed(self):
            Task.cancel(self)
        else:  # other code has cancelled it before, and it is cleaning up
            spared.add(self)

    def goes_on_regardless(self) -> bool:
        return went_on(self) or swallowed(self)

    def list_frames(self) -> list[callsites.Frame]:
        return chain_of(self)

    def move_to(self, node: TreeNode) -> None:
        self.owner_node = node

    def reclassify(self) -> None:
        """Do nothing: `spawn` says whether it is a service."""


class AdoptedTask(OwnedTask[T]):
    """A task that other code created inside a scope. For that code it behaves like any other task.

    The failure of an adopted task is handled if a task receives it, by awaiting the adopted task or asking
    for its result. If no task has received the failure when the adopted task is collected, or when the scope
    closes, the scope reports the failure.
    """

    __slots__ = ()

    def cancel(self, msg: Any = None) -> bool:
        """Cancel the task, unless another scope's close only passes on its cancellation of a waiting task.

        A cancelled task passes the request on to the task that it awaits. If tasks of other scopes
        await this one, too, only the waiting task ends.
        """
        node = passed_on_by(self, get_frame(1))
        if node is None or not (deferred(self) or let_go(self, self.owner_node, node)):
            return super().cancel(msg)
        return True

    def set_name(self, value: object) -> None:
        """Set the name; a name may make the task a service of its scope."""
        if value is not None:  # CPython 3.13.0 sets None on tasks that a factory made
            super().set_name(value)
            self.reclassify()

    def reclassify(self) -> None:
        reclassify(self, self.owner_node)


class PartTask(AdoptedTask[T]):
    """An adopted task that a service, or another such task, has started."""

    __slots__ = ()

    def add_done_callback(self, *args: Any, **options: Any) -> None:
        """Add a callback, and check whether the service now waits for this task."""
        super().add_done_callback(*args, **options)
        if self in self.owner_node.holds:
            self.owner_node.backend.soon(partial(service_tasks.look_at_task, self))

    def request_stop(self, *, force: bool = False) -> None:
        if force or not service_tasks.is_ended_by_service(self):
            super().request_stop(force=force)


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
        if self._is_only_seen(get_frame(1)):
            return self._exception  # unlike `exception()`, this does not change `_log_traceback`
        return super().exception()

    def result(self) -> T:
        """Raise the error; a callback handles it under the same conditions as in `exception()`."""
        if self._is_only_seen(get_frame(1)):
            raise self._exception  # type: ignore[misc]  # it has failed
        return super().result()

    def _is_only_seen(self, frame: FrameType) -> bool:
        by_callback = running_loop() is not None and current_task() is None
        if not (self._log_traceback and by_callback) or passes_on(frame):
            return False
        self.__class__ = SeenTask
        return True

    def __del__(self) -> None:
        """Report a failure that no task has received."""
        if self._log_traceback:
            error = super().exception()
            assert error is not None  # noqa: S101 - the flag is set only with an error
            self.owner_node.note_unhandled(self, error, seen=type(self) is SeenTask)
        super().__del__()


class SeenTask(FailedTask[T]):
    """A failed task whose error a callback has looked at, to log it for example."""

    __slots__ = ()


class TaskJob(OwnedTask[T], Job[T]):
    """A spawned task."""

    __slots__ = ("spawn_key",)

    spawn_key: Hashable | None

    @property
    def kind(self) -> str:
        return "job"

    @property
    def key(self) -> Hashable | None:
        return self.spawn_key

    @property
    def _declared_as(self) -> str | None:
        return None  # `spawn` says whether it is a service

    @property
    def outcome(self) -> Outcome[T] | None:
        if not self.done():
            return None
        if self.cancelled():
            return Outcome("cancelled")
        error = self.exception()
        return (
            Outcome("completed", self.result()) if error is None else Outcome("failed", error=error)
        )

    def __await__(self) -> Generator[Any, Any, T]:
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
    node = task.owner_node
    if task.spawn_key is not None:
        node.forget_key(task.spawn_key, task)
    holds = node.holds
    if (
        task.cancelled()
        or task.exception() is not None
        or task not in holds
        or (node.phase is _CLOSING and task.cancelling())
    ):
        settle_job(node, task, holds.get(task, task), task)
        return
    del holds[task]
    node.completed_count += 1
    if not holds:
        node.note_idle()


def settle_job(node: TreeNode, key: object, held: Any, task: Future[Any]) -> None:
    """Record how a job ended, then stop holding it."""
    service = key in node.services
    if service:
        service_tasks.release(task)  # type: ignore[arg-type]  # a job is a task
    if task.cancelled():
        node.note_cancelled(held, service=service)
        if not service:
            cancel_origin.task_cancelled(task, node, is_ours=True)
    elif (error := task.exception()) is not None:
        node.note_failed(held, error)
    elif service:
        node.note_service_ended(held)
    elif was_cut(node, task):
        node.note_cancelled(held, service=False)
    else:
        node.completed_count += 1
    node.discard_hold(key)


def adopted_done(task: AdoptedTask[Any]) -> None:
    """Record how an adopted task ended. Do not call its `exception()`: that counts as handling it."""
    node = task.owner_node
    holds = node.holds
    if (
        exception_of(task) is not None
        or task not in holds
        or task.cancelled()
        or (node.phase is _CLOSING and task.cancelling())
    ):
        settle_adopted(node, task, task)
        return
    del holds[task]
    node.completed_count += 1
    if not holds:
        node.note_idle()


def settle_adopted(node: TreeNode, task: Future[Any], held: Any) -> None:
    """Record how an adopted task ended, then stop holding it."""
    service = task in node.services
    part = service and service_tasks.is_part(task)
    if service:
        service_tasks.release(task)  # type: ignore[arg-type]  # it was adopted as a task
    if task.cancelled():
        if not part:
            node.note_cancelled(held, service=service)
        if not service:
            cancel_origin.task_cancelled(task, node, is_ours=held is task)
    elif exception_of(task) is not None:
        _note_unasked(node, task, held)
    elif service:
        if not part:
            node.note_service_ended(held)
    elif was_cut(node, task):
        node.note_cancelled(held, service=False)
    else:
        node.completed_count += 1
    node.discard_hold(task)


def _note_unasked(node: TreeNode, task: Future[Any], held: Any) -> None:
    """Keep the failure of an adopted task for the report, unless a task receives the failure before."""
    if len(node.unasked_failures) >= node.unasked_failures_max:
        node.unasked_failures = [
            entry for entry in node.unasked_failures if unasked(entry[0]) is not None
        ]
        node.unasked_failures_max = max(_UNASKED_MIN, 2 * len(node.unasked_failures))
    described = reports.report_entry(held, node.name_given, node.backend.clock())
    if isinstance(task, AdoptedTask):
        task.__class__ = FailedTask
        task.failed_at = node.backend.clock()
        runners.add(get_frame(3).f_code)  # the caller of `adopted_done`
        node.unasked_failures.append((weakref.ref(task), described))
    else:  # a foreign task has no finalizer of ours, so keep the task
        node.unasked_failures.append((lambda: held, described))


def was_cut(node: TreeNode, task: Future[Any]) -> bool:
    """Return whether the close of a scope has cancelled a task, which caught its cancellation and returned."""
    return node.phase is _CLOSING and isinstance(task, Task) and task.cancelling() > 0


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
    backend = node.backend
    loop: Any = backend.loop
    job: TaskJob[T]
    if current.get() is node:
        job = TaskJob(coro, loop=loop, name=name)
    else:
        context = copy_context()
        context.run(current.set, node)
        job = TaskJob(coro, loop=loop, name=name, context=context)
    job.owner_node = node
    job.began_at = backend.clock()
    job.started_code = code
    job.started_offset = offset
    job.spawn_key = None
    job.add_done_callback(_task_done)
    return job


def reclassify(task: Task[Any], node: TreeNode) -> None:
    """Turn a held task into a service if the scope's patterns match its name or its function."""
    if node.service_pattern is not None and task in node.holds and is_service(node, task):
        node.make_service(task)
        service_tasks.stand_alone(task)


def is_service(node: TreeNode, task: Task[Any]) -> bool:
    """Return whether the scope's `services` patterns match a task."""
    pattern = node.service_pattern
    if pattern is None:
        return False
    coro = coro_of(task)
    names = (task.get_name(), getattr(coro, "__qualname__", ""), libraries.full_name(coro) or "")
    return any(pattern.fullmatch(name) is not None for name in names)
