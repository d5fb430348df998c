"""asyncio's tasks, as holds: a job is a task that carries its own hold.

`OwnedTask` and `TaskJob` add five slots to `asyncio.Task` and nothing else, so an owned task costs no
second object: it takes less memory than a bare task with an entry in a set and a bound method
as its callback. The end of every job is seen by one shared function, `_task_done`.
"""

from __future__ import annotations

import sys
import weakref
from asyncio import Future, Task, current_task
from asyncio.events import _get_running_loop
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from quiesce.core import known, sites
from quiesce.core import report as reports
from quiesce.core.backends import asking, parts
from quiesce.core.backends.awaiting import let_go, passed_on_by, passes_on, runners
from quiesce.core.backends.swallowing import coro_of, deferred, spared, swallowed, went_on
from quiesce.core.hold import NOTHING, Fate
from quiesce.core.job import Job, Outcome
from quiesce.core.node import current
from quiesce.errors import JobCancelled, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator, Hashable, Mapping
    from types import CodeType, FrameType

    from quiesce.core.node import Node

T = TypeVar("T")

_getframe = sys._getframe
_UNASKED_MIN = 64  # failures kept before those that were asked for are let go


class OwnedTask(Task[T]):
    """A task that a scope holds."""

    __slots__ = ("_code_started", "_node", "_offset_started", "_since")

    _fate: ClassVar[Fate] = "stuck"
    _stops: ClassVar[bool] = True
    _node: Node
    _since: float
    _code_started: CodeType | None
    _offset_started: int

    @property
    def kind(self) -> str:
        """What sort of hold it is."""
        return "task"

    @property
    def name(self) -> str:
        """The task's name, or else that of its function."""
        return sites.task_name(self, self.get_coro())  # it is never an eager one: see coro_of

    @property
    def since(self) -> float:
        """When it was started."""
        return self._since

    @property
    def where(self) -> str | None:
        """The file and line that started it."""
        return sites.describe(self._code_started, self._offset_started)

    @property
    def details(self) -> Mapping[str, object]:
        """Nothing more is known."""
        return NOTHING

    @property
    def _declared_as(self) -> str | None:
        return known.full_name(coro_of(self))

    def _when_done(self, call: Callable[[], None]) -> Callable[[], None]:
        return watch(self, call)

    def cancel(self, msg: Any = None) -> bool:
        """Cancel the task, as ever; a hop wants to know whose wish that was."""
        asking.asked(self, self._node)
        return super().cancel(msg)

    def _stop(self, *, force: bool = False) -> None:
        if deferred(self):
            return
        if force or not self.cancelling() or swallowed(self):
            Task.cancel(self)
        else:  # somebody has cancelled it before, and it is cleaning up
            spared.add(self)

    def _swallowed(self) -> bool:
        return went_on(self) or swallowed(self)

    def _chain(self) -> list[sites.Frame]:
        return sites.await_chain(coro_of(self))

    def _move(self, node: Node) -> None:
        self._node = node

    def _reclassify(self) -> None:
        """Do nothing: whoever spawned it said whether it is a service."""


class AdoptedTask(OwnedTask[T]):
    """A task that other code created inside a scope, and that behaves like any other.

    Its failure is handled if a task receives it: by awaiting this task, or by asking for its result.
    A failure that no task has received when this task is collected, or when the scope closes, is
    the scope's to report.
    """

    __slots__ = ()

    def cancel(self, msg: Any = None) -> bool:
        """Cancel the task, unless the request was passed on by a task that another scope's close cancels.

        A task that is cancelled passes the request on to the task that it awaits. If tasks elsewhere
        await that one too, only the waiter ends.
        """
        node = passed_on_by(self, _getframe(1))
        if node is None or not (deferred(self) or let_go(self, self._node, node)):
            return super().cancel(msg)
        return True

    def set_name(self, value: object) -> None:
        """Name the task; a name may make it a service of its scope."""
        if value is not None:  # CPython 3.13.0 names what a factory made after nothing
            super().set_name(value)
            self._reclassify()

    def _reclassify(self) -> None:
        reclassify(self, self._node)


class PartTask(AdoptedTask[T]):
    """An adopted task that a service has started, or a task that a service has started."""

    __slots__ = ()

    def add_done_callback(self, *args: Any, **options: Any) -> None:
        """Add a callback, as ever; the service may have begun to wait for this task."""
        super().add_done_callback(*args, **options)
        if self in self._node._holds:
            self._node._backend.soon(partial(parts.look, self))

    def _stop(self, *, force: bool = False) -> None:
        if force or not parts.is_ended_by_service(self):
            super()._stop(force=force)


class SharedTask(AdoptedTask[T]):
    """An adopted task that was handed to another scope (sharing.py), or that such a task has started."""

    __slots__ = ()

    _is_handed_on: ClassVar[bool] = True


class FailedTask(AdoptedTask[T]):
    """What an adopted task becomes when it fails: a finalizer on all of them would cost."""

    __slots__ = ()

    def exception(self) -> BaseException | None:
        """Return the error. A callback that only looks at it has not handled it.

        asyncio takes any call for handling. Here a call counts if it is a task's, or that of a
        callback which passes the error on to a task that waits: `gather`, `shield`, a task group.
        """
        if self._is_only_seen(_getframe(1)):
            return self._exception  # which leaves the flag as it is
        return super().exception()

    def result(self) -> T:
        """Raise the error; for a callback, as `exception()`."""
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
            assert error is not None  # noqa: S101 - that is what the flag says
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
        """What sort of hold it is."""
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
        """Wait for the end, without tying the job's fate to the waiter's."""
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


class ForeignTask:
    """The hold of a task that somebody else's task factory made."""

    __slots__ = ("_code", "_creator", "_node", "_offset", "_since", "task")

    _fate: ClassVar[Fate] = "stuck"
    _stops: ClassVar[bool] = True

    def __init__(
        self, node: Node, code: CodeType | None, offset: int, *, creator: Task[Any] | None
    ) -> None:
        self._node: Node = node
        self._since: float = node._backend.clock()
        self._code = code
        self._offset = offset
        self._creator = creator
        self.task: Any = None

    def begin(self, task: Future[Any] | None) -> None:
        """Hold `task` from now on.

        Its factory gives it to us, or, if that is an eager one, it is seen running before: as
        the current task that is not the one that creates it.
        """
        if self.task is None and task is not None and task is not self._creator:
            self.task = task
            self._node._insert(task, self)

    @property
    def kind(self) -> str:
        return "task"

    @property
    def name(self) -> str:
        if not isinstance(self.task, Task):
            return repr(self.task)
        return sites.task_name(self.task, coro_of(self.task))

    @property
    def since(self) -> float:
        return self._since

    @property
    def where(self) -> str | None:
        return sites.describe(self._code, self._offset)

    @property
    def details(self) -> Mapping[str, object]:
        return NOTHING

    @property
    def _declared_as(self) -> str | None:
        return known.full_name(coro_of(self.task))

    def _stop(self, *, force: bool = False) -> None:
        task = self.task
        if not force and task is not None and parts.is_ended_by_service(task):
            return
        if isinstance(task, Task) and deferred(task):
            return
        fresh = force or not isinstance(task, Task) or not task.cancelling() or swallowed(task)
        if task is not None and fresh:
            task.cancel()
        elif task is not None:
            spared.add(task)  # as above

    def _swallowed(self) -> bool:
        task = self.task
        return isinstance(task, Task) and (went_on(task) or swallowed(task))

    def _chain(self) -> list[sites.Frame]:
        return sites.await_chain(coro_of(self.task))

    def _move(self, node: Node) -> None:
        self._node = node

    def _reclassify(self) -> None:
        if isinstance(self.task, Task):
            reclassify(self.task, self._node)

    def done(self, task: Future[Any]) -> None:
        """See the task's end."""
        settle_adopted(self._node, task, self)


def watch(task: Future[Any], call: Callable[[], None]) -> Callable[[], None]:
    """Call `call` in the loop when a task has ended; gives the way to forget it."""

    def ended(_: object) -> None:
        call()

    def forget() -> None:
        task.remove_done_callback(ended)

    task.add_done_callback(ended)
    return forget


foreign: list[ForeignTask] = []  # those that are being made, of all loops, the innermost last


def begin_foreign(loop: object, task: Task[Any] | None) -> None:
    """Bind the running task to the innermost hold of this loop that has no task yet."""
    for held in foreign[::-1]:  # a copy: other threads change the list
        if held._node._loop is loop:
            held.begin(task)
            return


def _task_done(task: TaskJob[Any]) -> None:
    """See the end of a job. On the path of every job: keep it short."""
    node = task._node
    if task._key is not None:
        node._forget_key(task._key, task)
    holds = node._holds
    if task.cancelled() or task.exception() is not None or task not in holds:
        settle(node, task, holds.get(task, task), task)
        return
    del holds[task]
    node._completed += 1
    if not holds:
        node._turned_idle()


def settle(node: Node, key: object, held: Any, task: Future[Any]) -> None:
    """Record how a job ended, then stop holding it."""
    service = key in node._services
    if service:
        parts.release(task)  # type: ignore[arg-type]  # a job is a task
    if task.cancelled():
        node._job_cancelled(held, service=service)
        if not service:
            asking.ended(task, node, is_ours=True)
    elif (error := task.exception()) is not None:
        node._job_failed(held, error)
    elif service:
        node._stopped += 1
    else:
        node._completed += 1
    node._discard(key)


def adopted_done(task: AdoptedTask[Any]) -> None:
    """See the end of an adopted task; it must not be asked for its exception here."""
    node = task._node
    holds = node._holds
    if task._exception is not None or task not in holds or task.cancelled():
        settle_adopted(node, task, task)
        return
    del holds[task]
    node._completed += 1
    if not holds:
        node._turned_idle()


def settle_adopted(node: Node, task: Future[Any], held: Any) -> None:
    """Record how an adopted task ended, then stop holding it."""
    service = task in node._services
    part = service and parts.is_part(task)
    if service:
        parts.release(task)  # type: ignore[arg-type]  # it was adopted as a task
    if task.cancelled():
        if not part:
            node._job_cancelled(held, service=service)
        if not service:
            asking.ended(task, node, is_ours=held is task)
    elif task._exception is not None:
        if len(node._unasked) >= node._unasked_limit:
            node._unasked = [entry for entry in node._unasked if unasked(entry[0]) is not None]
            node._unasked_limit = max(_UNASKED_MIN, 2 * len(node._unasked))
        described = reports.ended(held, node._name, node._backend.clock())
        if isinstance(task, AdoptedTask):
            task.__class__ = FailedTask
            runners.add(_getframe(2).f_code)  # which has called `adopted_done`
            node._unasked.append((weakref.ref(task), described))
        else:  # there is no way to hear of its end: keep it
            node._unasked.append((lambda: held, described))
    elif service:
        node._stopped += not part
    else:
        node._completed += 1
    node._discard(task)


def unasked(ref: Callable[[], Any]) -> Any:
    """Return the hold of a failed task if it lives, and no task has received its failure."""
    held = ref()
    return held if held is not None and getattr(task_of(held), "_log_traceback", False) else None


def task_of(held: Any) -> Any:
    """Return the task behind a hold: mostly the same object."""
    return held.task if type(held) is ForeignTask else held


def start(
    node: Node, coro: Coroutine[Any, Any, T], name: str, code: CodeType, offset: int
) -> TaskJob[T]:
    """Make a task with its hold; its first step comes after the caller has inserted it."""
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


def reclassify(task: Task[Any], node: Node) -> None:
    """Make a held task a service if its name or its function is among the scope's services."""
    if node._service_pattern is not None and task in node._holds and is_service(node, task):
        node._serve(task)


def is_service(node: Node, task: Task[Any]) -> bool:
    """Return whether a task is one of those that the scope was told are loops, not work."""
    pattern = node._service_pattern
    if pattern is None:
        return False
    coro = coro_of(task)
    names = (task.get_name(), getattr(coro, "__qualname__", ""), known.full_name(coro) or "")
    return any(pattern.fullmatch(name) is not None for name in names)
