"""Trio: a job is a system task, so it starts without a nursery, and any task may end it.

Each job runs inside two cancel scopes. `cancel()` cancels the outer one. The inner one becomes a
shield when the job is given up as stuck: trio delivers a cancellation at every checkpoint, so a job
that swallows it would otherwise spin for ever.
"""

from __future__ import annotations

import math
from contextlib import suppress
from contextvars import ContextVar, copy_context
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar

import trio

from quiesce.core import callsites
from quiesce.core.graveyard import Graveyard
from quiesce.core.hold import NOTHING, Fate
from quiesce.core.job import Job, Outcome
from quiesce.core.python_private import is_unread
from quiesce.core.tree import ScopeState, current
from quiesce.errors import JobCancelled, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Generator, Hashable, Mapping
    from types import CodeType

    from quiesce.core.backends.base import Body, Waiter
    from quiesce.core.hold import Held
    from quiesce.core.report import ReportEntry
    from quiesce.core.tree import TreeNode

T = TypeVar("T")

# Trio's own nurseries: for run_sync_soon, for system tasks, and, while it runs, for the main task.
_NURSERIES_OF_A_RUN = 3

running_job: ContextVar[TrioJob[Any] | None] = ContextVar("quiesce.running_job", default=None)


class TrioJob(Job[T], Generic[T]):
    """A spawned task."""

    __slots__ = (
        "_name",
        "began_at",
        "cancel_scope",
        "final_outcome",
        "own_task",
        "owner_node",
        "shield_scope",
        "spawn_key",
        "started_code",
        "started_offset",
        "waiters",
    )

    fate: ClassVar[Fate] = "stuck"
    can_be_stopped: ClassVar[bool] = True

    def __init__(self, node: TreeNode, name: str, code: CodeType, offset: int) -> None:
        self.owner_node: TreeNode = node
        self._name = name
        self.began_at: float = trio.current_time()
        self.started_code: CodeType = code
        self.started_offset: int = offset
        self.spawn_key: Hashable | None = None
        self.final_outcome: Outcome[T] | None = None
        self.waiters: list[Callable[[], None]] = []
        self.cancel_scope: trio.CancelScope = trio.CancelScope()
        self.shield_scope: trio.CancelScope = trio.CancelScope()
        self.own_task: trio.lowlevel.Task | None = None

    @property
    def kind(self) -> str:
        return "job"

    @property
    def name(self) -> str:
        return self._name

    @property
    def key(self) -> Hashable | None:
        return self.spawn_key

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
    def outcome(self) -> Outcome[T] | None:
        return self.final_outcome

    def done(self) -> bool:
        return self.final_outcome is not None

    def cancel(self, msg: str | None = None) -> bool:  # noqa: ARG002 - as in asyncio
        """Ask the job to stop; return False if it has already ended."""
        if self.final_outcome is not None:
            return False
        self.cancel_scope.cancel()
        return True

    def __await__(self) -> Generator[Any, Any, T]:
        return self._result().__await__()

    def __repr__(self) -> str:
        status = "running" if self.final_outcome is None else self.final_outcome.status
        return f"<TrioJob {self._name!r} {status}>"

    async def _result(self) -> T:
        if self.final_outcome is None and running_job.get() is self:
            message = f"job {self._name!r} awaits itself"
            raise UsageError(message)
        if self.final_outcome is None:
            ended = trio.Event()
            self.waiters.append(ended.set)
            try:
                await ended.wait()
            finally:
                self._forget(ended.set)
        else:
            await trio.lowlevel.checkpoint()
        outcome = self.final_outcome
        assert outcome is not None  # noqa: S101 - the waiter was set by it
        if outcome.status == "cancelled":
            message = f"job {self._name!r} was cancelled"
            raise JobCancelled(message)
        if outcome.error is not None:
            raise outcome.error
        return outcome.value  # type: ignore[return-value]  # it has completed

    def call_when_done(self, call: Callable[[], None]) -> Callable[[], None]:
        self.waiters.append(call)
        return lambda: self._forget(call)

    def _forget(self, call: Callable[[], None]) -> None:
        with suppress(ValueError):  # the end of the job has already removed it
            self.waiters.remove(call)

    def request_stop(self, *, force: bool = False) -> None:  # noqa: ARG002 - for tasks
        self.cancel_scope.cancel()

    def goes_on_regardless(self) -> bool:
        return False  # trio itself delivers a cancellation again at every checkpoint

    def list_frames(self) -> list[callsites.Frame]:
        frames = callsites.await_chain(self.own_task.coro) if self.own_task is not None else []
        own = run_trio_job.__code__.co_filename
        return [frame for frame in frames if frame.file != own]

    def reclassify(self) -> None:
        """Do nothing: `spawn` says whether it is a service."""

    def move_to(self, node: TreeNode) -> None:
        self.owner_node = node
        if isinstance(node, Graveyard):
            self.shield_scope.shield = True


async def run_trio_job(job: TrioJob[T], coro: Coroutine[Any, Any, T]) -> None:
    """Run a job and record how it ended. Raise only the cancellation by trio's own shutdown."""
    running_job.set(job)
    outcome: Outcome[T] = Outcome("cancelled")
    try:
        with job.cancel_scope, job.shield_scope:
            outcome = Outcome("completed", await coro)
    except trio.Cancelled:  # not the job's own: trio.run is shutting down
        end_trio_job(job, Outcome("cancelled"))
        raise
    except BaseException as error:  # noqa: BLE001 - every failure of a job goes into the report
        end_trio_job(job, Outcome("failed", error=error))
    else:
        end_trio_job(job, outcome)


def end_trio_job(job: TrioJob[T], outcome: Outcome[T]) -> None:
    """Record how a job ended, then stop holding it."""
    job.final_outcome = outcome
    node = job.owner_node
    if job.spawn_key is not None:
        node.forget_key(job.spawn_key, job)
    service = job in node.services
    held = node.holds.get(job, job)
    is_cut = node.phase is ScopeState.CLOSING and job.cancel_scope.cancel_called
    if outcome.status == "cancelled" or (is_cut and outcome.error is None and not service):
        node.note_cancelled(held, service=service)
    elif outcome.error is not None:
        node.note_failed(held, outcome.error)
    elif service:
        node.note_service_ended(held)
    else:
        node.completed_count += 1
    node.discard_hold(job)
    waiters, job.waiters = job.waiters, []
    for call in waiters:
        call()


def start_trio_task(
    node: TreeNode, coro: Coroutine[Any, Any, T], name: str, code: CodeType, offset: int
) -> TrioJob[T]:
    """Start a system task and return its job. The caller inserts it before its first step."""
    job: TrioJob[T] = TrioJob(node, name, code, offset)
    context = copy_context()
    context.run(current.set, node)
    try:
        job.own_task = trio.lowlevel.spawn_system_task(
            run_trio_job, job, coro, name=name, context=context
        )
    except RuntimeError as error:  # trio.run is ending: its system nursery is closed
        coro.close()
        message = f"trio is shutting down: scope {node.name_given!r} cannot start new work"
        raise UsageError(message) from error
    return job


class TrioBackend:
    """One run of trio."""

    name = "trio"
    cancelled: type[BaseException] = trio.Cancelled

    def __init__(self) -> None:
        self.token: trio.lowlevel.TrioToken = trio.lowlevel.current_trio_token()
        self.loop: object = self.token  # not an asyncio loop: callers ask here()
        # Threads that work for a scope may call this; they may not call `trio.current_time`.
        self.clock: Callable[[], float] = trio.lowlevel.current_clock().current_time
        self.waiter: Callable[[], Waiter] = TrioWaiter
        self.task: Callable[[], object] = trio.lowlevel.current_task
        self.late_body: Callable[[Any], Body] | None = None
        self._watch = TaskEndWatch()

    @property
    def start(self) -> Callable[[TreeNode, Coroutine[Any, Any, Any], str, CodeType, int], Job[Any]]:
        return start_trio_task

    def here(self) -> bool:
        return trio.lowlevel.in_trio_run() and trio.lowlevel.current_trio_token() is self.token

    def alive(self) -> bool:
        try:
            self.token.run_sync_soon(int)
        except trio.RunFinishedError:
            return False
        return True

    def current(self) -> object | None:
        return running_job.get()

    def working_for(self) -> Collection[object]:
        task, job = trio.lowlevel.current_task(), running_job.get()
        return (task,) if job is None else (task, job.own_task)

    def fate(self, task: Any) -> BaseException | Literal["cancelled"] | None:
        job = task.context.get(running_job)
        if job is not None and job.own_task is not task:  # of a nursery in a job
            return "cancelled" if job.cancel_scope.cancel_called else None
        outcome = None if job is None else job.final_outcome
        if outcome is None or outcome.status == "completed":
            return None
        return outcome.error or "cancelled"

    def ended(self, task: Any) -> bool:
        return task.coro.cr_frame is None

    def watch(self, call: Callable[[], None]) -> Callable[[], None]:
        task, job = trio.lowlevel.current_task(), running_job.get()
        if job is not None and job.own_task is task:
            return job.call_when_done(call)

        return self._watch.begin(task, call)

    def own(
        self,
        fn: Callable[[], Coroutine[Any, Any, None]],
        name: str,
        interrupt: Callable[[], None] | None = None,  # noqa: ARG002 - here TrioBell notices it
    ) -> bool:
        try:
            trio.lowlevel.spawn_system_task(fn, name=name)
        except RuntimeError:  # trio.run is ending: its system nursery is closed
            return False
        return True

    def cancellations(self) -> int:
        return 0  # on trio a task cannot swallow a cancellation, because it is delivered again

    def bell(self) -> TrioBell:
        return TrioBell()

    def body(self) -> TrioBody:
        return TrioBody()

    def soon(self, fn: Callable[[], object]) -> bool:
        return self.post(fn)

    def about_to_run(self) -> set[TreeNode]:
        return set()  # trio code has no callbacks, only tasks

    def post(self, fn: Callable[..., object], *args: object) -> bool:
        try:
            self.token.run_sync_soon(fn, *args)
        except trio.RunFinishedError:
            return False
        return True

    def fatal(self, error: BaseException, *, caught: bool) -> None:  # noqa: ARG002 - see block_end
        """Cancel trio's main task, so that the scope's block ends and raises the error."""
        root = trio.lowlevel.current_root_task()
        nurseries = root.child_nurseries if root is not None else []
        if len(nurseries) == _NURSERIES_OF_A_RUN:
            nurseries[-1].cancel_scope.cancel()

    def unasked(self, entries: list[tuple[Any, ReportEntry]]) -> list[tuple[Held, ReportEntry]]:
        return [  # only calls in threads: trio adopts no tasks
            (held, replace(described, error=held.exception()))
            for held, described in ((ref(), described) for ref, described in entries)
            if is_unread(held)
        ]

    def stop_all(self, node: TreeNode, table: dict[object, Held]) -> int:  # noqa: ARG002 - trio adopts nothing
        for held in list(table.values()):
            held.request_stop()
        return 0

    def look_at_parts(self, node: TreeNode) -> None:
        """Do nothing: trio adopts no tasks."""

    def adopt(self) -> Callable[[], None]:
        message = (
            "Scope(adopt=True) works on asyncio and uvloop only: on trio a nursery owns every task "
            "already, so leave adopt=True out"
        )
        raise UsageError(message)


class TaskEndWatch(trio.abc.Instrument):
    """Notices the end of tasks that are not jobs; installed only while it watches a task."""

    def __init__(self) -> None:
        self._calls: dict[trio.lowlevel.Task, dict[Callable[[], None], None]] = {}

    def begin(self, task: trio.lowlevel.Task, call: Callable[[], None]) -> Callable[[], None]:
        if not self._calls:
            trio.lowlevel.add_instrument(self)
        self._calls.setdefault(task, {})[call] = None
        return lambda: self._end(task, call)

    def _end(self, task: trio.lowlevel.Task, call: Callable[[], None]) -> None:
        calls = self._calls.get(task, {})
        calls.pop(call, None)
        if not calls and self._calls.pop(task, None) is not None and not self._calls:
            trio.lowlevel.remove_instrument(self)

    def task_exited(self, task: trio.lowlevel.Task) -> None:
        for call in tuple(self._calls.get(task, ())):
            self._end(task, call)
            call()


class TrioWaiter:
    """An object that one task awaits, once: see `base.Waiter`."""

    __slots__ = ("_event", "_result")

    def __init__(self) -> None:
        self._event = trio.Event()
        self._result: Any = None

    def done(self) -> bool:
        return self._event.is_set()

    def cancelled(self) -> bool:
        return False  # trio's cancellation does not change the awaited event

    def set_result(self, result: Any, /) -> None:
        self._result = result
        self._event.set()

    def __await__(self) -> Generator[Any, Any, Any]:
        yield from self._event.wait().__await__()
        return self._result


class TrioBell:
    """The bell of an owner task: see `base.Bell`."""

    __slots__ = ("_event", "interrupted")

    def __init__(self) -> None:
        self._event = trio.Event()
        self.interrupted: bool = False

    def ring(self) -> None:
        self._event.set()

    async def wait(self, deadline: float | None) -> None:
        limit = math.inf if deadline is None else deadline
        try:
            with trio.CancelScope(deadline=limit, shield=self.interrupted):
                await self._event.wait()
        except trio.Cancelled:
            self.interrupted = True  # the owner task goes on, but ends its waits early
        self._event = trio.Event()

    async def yield_once(self) -> None:
        with trio.CancelScope(shield=True):
            await trio.lowlevel.checkpoint()


class TrioBody:
    """The body of a block. A cancel scope around it interrupts it."""

    __slots__ = ("_scope",)

    def __init__(self) -> None:
        self._scope = trio.CancelScope()
        self._scope.__enter__()

    def interrupt(self) -> None:
        self._scope.cancel()

    def leave(self, exc: BaseException | None) -> BaseException | None:
        try:
            if exc is None:
                self._scope.__exit__(None, None, None)
            elif self._scope.__exit__(type(exc), exc, exc.__traceback__):
                return None
        except BaseException as rest:  # noqa: BLE001 - a group, without our own cancellation
            return rest
        return exc
