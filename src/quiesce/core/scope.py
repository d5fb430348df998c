"""The scope: the owner of everything in flight in one part of a program."""

from __future__ import annotations

import math
import warnings
from contextvars import Token
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, Self, TypeVar, TypeVarTuple, overload

from quiesce.core import (
    arguments,
    block_end,
    close_callers,
    contexts,
    failures,
    frontier,
    threads,
)
from quiesce.core.backends import running_backend
from quiesce.core.closing import Closing
from quiesce.core.current import current_scope, place_for
from quiesce.core.hold import Hold
from quiesce.core.latch import Latch
from quiesce.core.python_private import get_frame, running_loop
from quiesce.core.roots import roots
from quiesce.core.tree import ScopeState, TreeNode, current
from quiesce.errors import DuplicateKey, UsageError

if TYPE_CHECKING:
    import re
    from collections.abc import Callable, Coroutine, Hashable, Iterable
    from concurrent.futures import Future
    from contextlib import AbstractAsyncContextManager
    from types import CodeType, FrameType, TracebackType

    from quiesce.core.backends import Body
    from quiesce.core.backends.base import Backend
    from quiesce.core.callsites import Callsite
    from quiesce.core.frontier import Frontier
    from quiesce.core.job import Job
    from quiesce.core.report import Report

    ErrorPolicy = Literal["collect", "cancel"] | Callable[[Job[Any], BaseException], object]

__all__ = ["Scope"]

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
P = ParamSpec("P")

_OPEN = ScopeState.OPEN  # a plain global is quicker than an attribute of an enum


class Scope(TreeNode):
    """The owner of everything in flight in one part of a program.

    ```python
    async with Scope("server") as scope:
        scope.spawn(serve, connection)
    # here nothing that the scope owned still runs
    ```

    Args:
        name: The scope's name in frontiers, reports and errors.
        adopt: Own every task that any code creates inside the scope (asyncio and uvloop).
        services: Patterns (as in `fnmatch`) of names or functions of adopted tasks that are
            loops, not work. The scope owns them, but can be idle while they run.
        on_error: What a job's failure does. `"collect"`: the other jobs go on, and the report
            lists the failure. `"cancel"`: the scope closes, and the body of the block is
            interrupted. A function: the scope calls it with the job and the error, and the
            failure counts as handled; also for an adopted task whose result no task asked for.
        leftovers: What a close does with work that still runs: `"cancel"` it, or hand it to
            the `"parent"` scope, where it goes on.
        grace: How many seconds the end of the block waits for the work before it cancels
            the rest; None: as long as the work takes.
        cleanup: How many seconds the cancelled work may take to clean up.
    """

    __slots__ = (
        "_cancellations", "_closing_gate", "_grace", "_token", "_unadopt", "block_body",
        "cleanup_seconds", "close_reason", "error_policy", "is_adopting", "leftovers_policy",
        "own_context", "services_given", "start_job",
    )  # fmt: skip

    start_job: Callable[..., Job[Any]]
    place_offset: int
    place_code: CodeType | None
    loop: object
    close_plan: Closing | None

    def __init__(
        self,
        name: str = "scope",
        *,
        adopt: bool = False,
        services: Iterable[str] = (),
        on_error: ErrorPolicy = "collect",
        leftovers: Literal["cancel", "parent"] = "cancel",
        grace: float | None = None,
        cleanup: float = 5.0,
    ) -> None:
        """Describe a scope. `async with` or `await Scope.open(...)` opens it."""
        super().__init__(name)
        arguments.check_text("name", name)
        self.is_adopting: bool = adopt
        self.services_given: tuple[str, ...] = arguments.patterns("services", services)
        self.error_policy: Any = arguments.policy(on_error)
        self.leftovers_policy: Any = arguments.one_of("leftovers", leftovers, ("cancel", "parent"))
        self._grace = None if grace is None else arguments.seconds("grace", grace)
        self.cleanup_seconds: float = arguments.seconds("cleanup", cleanup)
        self.close_reason: BaseException | None = None
        self._token: Token[TreeNode | None] | None = None
        self.block_body: Body | None = None
        self.own_context: contexts.Context[Any] | None = None
        self._unadopt: Callable[[], None] | None = None

    # Opening.

    @classmethod
    async def open(cls, name: str = "scope", **options: Any) -> Self:
        """Open a scope that any task may close with `aclose()` or `drain()`.

        The scope is a child of the current scope, if there is one. The options are those of `Scope`.

        *Cancel safety*: `open()` never waits, so it cannot be cancelled.
        """
        scope = cls(name, **options)
        scope.open_under(_enclosing(), get_frame(1))
        return scope

    def child(self, name: str, **options: Any) -> Scope:
        """Open a scope below this one. Closing this scope closes the child, too.

        This scope counts as busy while the child is busy.

        *Raises*: `ScopeClosed` if the closing has begun, unless the caller is work that is being drained.
        """
        self.check_may_start()
        scope = Scope(name, **options)
        scope.open_under(self, get_frame(1))
        return scope

    def open_under(self, parent: TreeNode | None, frame: FrameType | Callsite) -> None:
        if self.phase is not ScopeState.NEW:
            message = f"scope {self.name!r} was opened before, and opens only once: make a new one"
            raise UsageError(message)
        if parent is not None:
            parent.check_may_start()
        elif self.leftovers_policy == "parent":
            message = f"scope {self.name!r} has leftovers='parent': open it inside another scope"
            raise UsageError(message)
        self.backend: Backend = running_backend() if parent is None else parent.backend
        self.loop, self.start_job = self.backend.loop, self.backend.start
        self._closing_gate = Latch(self.backend)
        if self.is_adopting:
            self._unadopt = self.backend.adopt()
        self.began_at: float = self.backend.clock()
        self.place_code, self.place_offset = frame.f_code, frame.f_lasti
        self.enter_state(ScopeState.OPEN)
        self._attach(parent)
        if parent is None:
            roots.add(self)
        elif parent.phase is ScopeState.DRAINING:
            self._closing_gate.open()
        self.adopter: TreeNode | None = self if self.is_adopting else parent and parent.adopter
        self.service_pattern: re.Pattern[str] | None = arguments.one_pattern(self.services_given)

    async def __aenter__(self) -> Self:
        """Open the scope as a child of the current scope, and make it the current scope."""
        self.open_under(_enclosing(), get_frame(1))
        self._token = current.set(self)
        self._cancellations = self.backend.cancellations()
        if self.error_policy == "cancel":
            self.block_body = self.backend.body()
        return self

    # Starting.

    def spawn(
        self,
        fn: Callable[[*Ts], Coroutine[Any, Any, T]],
        *args: *Ts,
        name: str | None = None,
        key: Hashable | None = None,
        service: bool = False,
    ) -> Job[T]:
        """Start `fn(*args)` as a job of this scope.

        `spawn` is not async: when it returns, the scope already holds the job.

        Args:
            fn: An async function.
            args: Its arguments.
            name: The job's name; the function's name by default.
            key: A key for `cancel(key)`. Two running jobs of a scope cannot have the same key.
            service: Whether the job is a loop rather than work. The scope owns a service and stops
                it during the close, but can be idle while the service runs.

        *Raises*: `ScopeClosed` if the closing has begun, unless the caller is work that is being drained;
        `DuplicateKey` if a running job has the key.
        """
        if self.phase is not _OPEN or running_loop() is not self.loop:
            arguments.check_callable(fn)
            self.check_may_start()
        place = self if service or current.get() is self else place_for(self)
        if key is not None and key in self._keys and not self._keys[key].done():
            message = f"a job with key {key!r} still runs in scope {self.name!r}: use another key"
            raise DuplicateKey(message)
        try:
            coro: Any = fn(*args)
        except TypeError:
            arguments.check_callable(fn)
            raise
        if type(coro) is not CoroutineType:
            coro = arguments.coroutine(fn, coro)
            name = arguments.name_of(fn) if name is None else name
        frame = get_frame(1)
        job: Job[T] = self.start_job(
            place, coro, coro.__qualname__ if name is None else name, frame.f_code, frame.f_lasti
        )
        if key is not None:
            self._keys[key] = job
            job.spawn_key = key  # type: ignore[attr-defined]  # both backends' jobs have it
        if service:
            self.services[job] = job  # type: ignore[assignment]  # a job is Held
        else:
            holds = place.holds
            if not holds:
                place.note_busy()
            holds[job] = job  # type: ignore[assignment]  # likewise
        return job

    def hold(self, kind: str, name: str, /, **details: object) -> Hold:
        """Hold something that is not a task, until `release()`.

        *Raises*: `ScopeClosed` if the closing has begun, unless the caller is work that is being drained.
        """
        self.check_may_start()
        arguments.check_text("kind", kind)
        arguments.check_text("name", name)
        frame = get_frame(1)
        place = place_for(self)
        hold = Hold(place, kind, name, details, frame.f_code, frame.f_lasti)
        place.insert_hold(hold, hold)
        return hold

    async def enter(self, manager: AbstractAsyncContextManager[T, Any]) -> T:
        """Enter an async context manager in a new task, and return its value. The same task leaves it.

        The task leaves the context when the scope closes (last entered first), or earlier when
        `exit()` is called. Any task may close the scope or call `exit()`. Use this for managers
        that must be entered and left by the same task: anyio's task groups and cancel scopes, and
        clients built on them. If an exception ends the scope's block, the context receives it.

        *Cancel safety*: if cancelled, the context is left before the cancellation is passed on.

        *Raises*: the manager's exception; `ScopeClosed` if the scope is closed before the context is entered.
        """
        arguments.context_manager(manager)
        self.check_may_start()
        return await contexts.enter(self, manager, get_frame(1))

    async def exit(self, entered: object) -> None:
        """Leave a context before the scope ends. Pass the manager, or the value `enter()` returned.

        *Cancel safety*: if cancelled, `exit()` waits until the context is left, then passes the
        cancellation on.

        *Raises*: the manager's exception; `UsageError` if this scope did not enter the context.
        """
        await contexts.leave_early(self, entered)

    async def to_thread(self, fn: Callable[[*Ts], T], *args: *Ts) -> T:
        """Run a blocking function in a thread, and return its result. The scope holds the call until it returns.

        *Cancel safety*: if cancelled, `to_thread` raises at once. The thread cannot be stopped, so
        the scope goes on holding the call; if the function then raises, the report lists it.

        *Raises*: the function's exception; `ScopeClosed` as `spawn` does.
        """
        arguments.check_callable(fn, "to_thread")
        self.check_may_start()
        return await threads.run_in_thread(place_for(self), fn, args, get_frame(1))

    @overload
    def from_thread(
        self, fn: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **options: P.kwargs
    ) -> Future[T]: ...
    @overload
    def from_thread(self, fn: Callable[P, T], *args: P.args, **options: P.kwargs) -> Future[T]: ...
    def from_thread(self, fn: Callable[..., Any], *args: Any, **options: Any) -> Future[Any]:
        """Call a function in this scope's event loop from another thread. An async function becomes a job of the scope.

        ```python
        report = scope.from_thread(scope.aclose, cleanup=5).result()
        ```

        Once the closing has begun, the future of an async function gets `ScopeClosed`; methods of a scope still run.

        *Raises*: `ScopeClosed` if the event loop has ended; `UsageError` in the loop's thread.
        """
        self.check_opened()
        return threads.call_from_thread(self, fn, args, options)

    # State.

    @property
    def state(self) -> str:
        """The scope's state: new, open, draining, closing or closed."""
        return self.phase.value

    @property
    def report(self) -> Report | None:
        """The report of the close; None until the scope is closed."""
        return self.close_plan.report if self.close_plan is not None else None

    def frontier(self) -> Frontier:
        """Return a snapshot of the work in flight: names, ages, where each was started and waits now."""
        self.check_opened()
        return frontier.take_frontier(self)

    async def idle(self) -> None:
        """Wait until neither this scope nor a child scope has work in flight. Services do not count.

        The scope is idle when `idle()` returns, but stays open and may become busy again.

        *Cancel safety*: if cancelled, the scope is unchanged.

        *Raises*: `UsageError` if the caller is work of this scope, which would wait for itself.
        """
        self.check_opened()
        if not self.holds:
            return
        self.check_here("wait for")
        self.backend.look_at_parts(self)
        owner, key = self.find_owner_of_running_task()
        if owner is not None and key in owner.holds and owner.is_within(self):
            message = (
                f"idle() of scope {self.name!r} was called by work of that scope, which would wait "
                "for itself: call idle() from outside the scope, or from a service"
            )
            raise UsageError(message)
        while self.holds:
            waiter = self.backend.waiter()
            self._idle_waiters[waiter] = None
            try:
                await waiter
            finally:
                self._idle_waiters.pop(waiter, None)  # a woken waiter was removed before

    async def closing(self) -> None:
        """Wait until a drain or close of this scope, or of an ancestor, has begun.

        *Cancel safety*: if cancelled, the scope is unchanged.
        """
        self.check_opened()
        await self._closing_gate.wait()

    def cancel(self, key: Hashable) -> bool:
        """Cancel the running job with this key; return False if no running job has it."""
        if self._keys:
            self.check_here("cancel a job of")
        job = self._keys.get(key)
        return job is not None and job.cancel()

    # Closing.

    async def drain(self, grace: float | None = 30.0, *, cleanup: float = 5.0) -> Report:
        """Refuse new work, wait for the work in flight, then close.

        Work in flight may start more work that it needs to finish; other tasks cannot start any.
        After `grace` seconds (None: never) the remaining work is cancelled, and has `cleanup`
        seconds to end. Any task may call `drain()`. If a job of this scope calls it, that job gets
        the report when all other work has ended.

        *Cancel safety*: if cancelled, the drain becomes a close, unless other callers still wait
        for the drain. The cancellation is passed on when the scope is closed.

        *Raises*: `UsageError` if the scope was never opened. Failures of jobs are in the report, not raised.
        """
        grace = math.inf if grace is None else arguments.seconds("grace", grace)
        closing, early = close_callers.begin_close(
            self, grace, arguments.seconds("cleanup", cleanup)
        )
        return await close_callers.join_close(self, closing, early=early, patient=True)

    async def aclose(self, cleanup: float = 5.0) -> Report:
        """Cancel everything in flight, and wait at most `cleanup` seconds until it has ended.

        Any task may call `aclose()`, any number of times; all callers get the same report. The
        report lists under `stuck` the work that has not ended by then.

        *Cancel safety*: if cancelled, `aclose()` waits until the scope is closed, then passes the
        cancellation on.

        *Raises*: `UsageError` if the scope was never opened. Failures of jobs are in the report, not raised.
        """
        closing, early = close_callers.begin_close(self, 0.0, arguments.seconds("cleanup", cleanup))
        return await close_callers.join_close(self, closing, early=early, patient=False)

    def plan_close(
        self, *, grace: float, cleanup: float, join_by: float = math.inf, by_parent: bool = False
    ) -> Closing:
        closing = self.close_plan
        begun = closing is not None
        if closing is None:
            closing = self.close_plan = Closing(self, by_parent=by_parent)
            # Children that will be handed to the parent do not drain.
            self.mark_draining(self, deep=self.leftovers_policy != "parent")
        closing.by_parent = closing.by_parent or by_parent
        if self.phase is not ScopeState.CLOSED:
            closing.tighten(grace=grace, cleanup=cleanup, join_by=join_by)
        if not begun:
            closing.start()
        return closing

    def close_with_parent(self, join_by: float) -> Closing:
        return self.plan_close(grace=0.0, cleanup=math.inf, join_by=join_by, by_parent=True)

    def mark_draining(self, root: TreeNode, *, deep: bool = True) -> None:
        super().mark_draining(root, deep=deep)
        self._closing_gate.open()

    def on_closed(self) -> None:
        """Drop the root reference, and end the adoption of tasks."""
        roots.discard(self)
        if self.own_context is not None:
            self.own_context.ready.open()  # wakes enter() if the context was never entered
        if self._unadopt is not None:
            self._unadopt()
            self._unadopt = None

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the scope: wait for its work, or cancel it if the block raised or was cancelled."""
        self._leave_context()
        if self.block_body is not None:
            exc = self.block_body.leave(
                exc
            )  # remove our own interruption; its cause is raised below
        self.close_reason = exc
        by_hand = self.close_plan is not None
        limit = math.inf if self._grace is None else self._grace
        # A body that swallowed its cancellation was asked to stop all the same.
        stop = exc is not None or self.backend.cancellations() > self._cancellations
        closing, early = close_callers.begin_close(
            self, 0.0 if stop else limit, self.cleanup_seconds
        )
        try:
            report = await close_callers.join_close(self, closing, early=early, patient=exc is None)
        except self.backend.cancelled as cancellation:
            if closing.has_result(early=early):  # false if the caller could not wait
                block_end.end_block(self, closing.result(early=early), cancellation)
            raise
        late, gave_up = closing.expired and not by_hand, self.has_given_up and not by_hand
        block_end.end_block(self, report, exc, late=late, gave_up=gave_up)

    def _leave_context(self) -> None:
        if self._token is not None:
            try:
                current.reset(self._token)
            except ValueError:  # another task than the one that entered leaves the block
                old = self._token.old_value
                current.set(None if old is Token.MISSING else old)
            self._token = None

    # Failures.

    def note_failed(self, held: Any, error: BaseException) -> None:
        if self.own_context is not None and self.parent is not None:
            self.parent.note_failed(held, error)  # the parent reports a context's failure
        else:
            failures.apply(self, held, error)

    def note_unhandled(self, held: Any, error: BaseException, *, seen: bool = False) -> None:
        if not failures.apply_later(self, held, error):
            super().note_unhandled(held, error, seen=seen)

    def __del__(self) -> None:
        """Warn if the scope was not closed before its event loop ended."""
        state = getattr(self, "phase", ScopeState.NEW)  # `phase` is unset if the constructor raised
        if state not in {ScopeState.NEW, ScopeState.CLOSED} and self.parent is None:
            message = (
                f"scope {self.name!r}, opened at {self.where}, was never closed: await aclose()"
            )
            warnings.warn(message, ResourceWarning, source=self, stacklevel=1)

    def __repr__(self) -> str:
        return f"<Scope {self.name!r} {self.state}, {len(self.holds)} in flight>"


def _enclosing() -> Scope | None:
    """Return the current scope, unless its context was carried into another event loop."""
    scope = current_scope()
    return scope if scope is not None and scope.backend.here() else None
