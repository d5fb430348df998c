"""The scope: the owner of everything in flight in one part of a program."""

from __future__ import annotations

import math
import sys
import warnings
from asyncio.events import _get_running_loop
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
from quiesce.core.roots import roots
from quiesce.core.tree import ScopeState, TreeNode, current
from quiesce.errors import DuplicateKey, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Hashable, Iterable
    from concurrent.futures import Future
    from contextlib import AbstractAsyncContextManager
    from types import FrameType, TracebackType

    from quiesce.core.backends import Body
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
_getframe = sys._getframe


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
            interrupted. A function: it is called with the job and the error, which counts as
            handling it; also for an adopted task whose result no task asked for.
        leftovers: What a close does with work that still runs: `"cancel"` it, or hand it to
            the `"parent"` scope, where it goes on.
        grace: How many seconds the end of the block waits for the work before it cancels
            the rest; None: as long as the work takes.
        cleanup: How many seconds cancelled work may take to clean up.
    """

    __slots__ = (
        "_body",
        "_cancellations",
        "_cleanup",
        "_closing_gate",
        "_context",
        "_grace",
        "_leftovers",
        "_on_error",
        "_reason",
        "_services_given",
        "_start",
        "_token",
        "_unadopt",
        "_wants_adoption",
    )

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
        self._wants_adoption = adopt
        self._services_given = arguments.patterns("services", services)
        self._on_error = arguments.policy(on_error)
        self._leftovers = arguments.one_of("leftovers", leftovers, ("cancel", "parent"))
        self._grace = None if grace is None else arguments.seconds("grace", grace)
        self._cleanup = arguments.seconds("cleanup", cleanup)
        self._reason: BaseException | None = None
        self._token: Token[TreeNode | None] | None = None
        self._body: Body | None = None
        self._context: contexts.Context[Any] | None = None
        self._unadopt: Callable[[], None] | None = None

    # Opening.

    @classmethod
    async def open(cls, name: str = "scope", **options: Any) -> Self:
        """Open a scope that any task may close with `aclose()` or `drain()`.

        The scope is a child of the current scope, if there is one. The options are those of `Scope`.

        *Cancel safety*: it never waits, so it cannot be cancelled.
        """
        scope = cls(name, **options)
        scope._open(_enclosing(), _getframe(1))
        return scope

    def child(self, name: str, **options: Any) -> Scope:
        """Open a scope below this one. Closing this scope closes the child, too.

        While the child is busy, so is this scope.

        *Raises*: `ScopeClosed` if the closing has begun, unless work that is being drained calls it.
        """
        self._admit()
        scope = Scope(name, **options)
        scope._open(self, _getframe(1))
        return scope

    def _open(self, parent: TreeNode | None, frame: FrameType | Callsite) -> None:
        if self._state is not ScopeState.NEW:
            message = f"scope {self.name!r} was opened before: make a new one"
            raise UsageError(message)
        if parent is not None:
            parent._admit()
        elif self._leftovers == "parent":
            message = f"scope {self.name!r} has leftovers='parent', but no scope is open around it"
            raise UsageError(message)
        self._backend = running_backend() if parent is None else parent._backend
        self._loop, self._start = self._backend.loop, self._backend.start
        self._closing_gate = Latch(self._backend)
        if self._wants_adoption:
            self._unadopt = self._backend.adopt()
        self._since = self._backend.clock()
        self._code, self._offset = frame.f_code, frame.f_lasti
        self.enter_state(ScopeState.OPEN)
        self._attach(parent)
        if parent is None:
            roots.add(self)
        elif parent._state is ScopeState.DRAINING:
            self._closing_gate.open()
        self._adopter = self if self._wants_adoption else parent and parent._adopter
        self._service_pattern = arguments.one_pattern(self._services_given)

    async def __aenter__(self) -> Self:
        """Open the scope as a child of the current scope, and make it the current scope."""
        self._open(_enclosing(), _getframe(1))
        self._token = current.set(self)
        self._cancellations = self._backend.cancellations()
        if self._on_error == "cancel":
            self._body = self._backend.body()
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

        It is not async: when it returns, the scope already holds the job.

        Args:
            fn: An async function.
            args: Its arguments.
            name: The job's name; the function's name by default.
            key: A key to `cancel()` the job by while it runs. Two running jobs of a scope
                cannot have the same key.
            service: Whether the job is a loop rather than work. The scope owns it and stops it
                when it closes, but can be idle while it runs.

        *Raises*: `ScopeClosed` if the closing has begun, unless work that is being drained calls it;
        `DuplicateKey` if a running job has the key.
        """
        if self._state is not _OPEN or _get_running_loop() is not self._loop:
            arguments.check_callable(fn)
            self._admit()
        place = self if service or current.get() is self else place_for(self)
        if key is not None and key in self._keys and not self._keys[key].done():
            message = f"a job with key {key!r} is still in flight in scope {self.name!r}"
            raise DuplicateKey(message)
        try:
            coro: Any = fn(*args)
        except TypeError:
            arguments.check_callable(fn)
            raise
        if type(coro) is not CoroutineType:
            coro = arguments.coroutine(fn, coro)
            name = arguments.name_of(fn) if name is None else name
        frame = _getframe(1)
        job: Job[T] = self._start(
            place, coro, coro.__qualname__ if name is None else name, frame.f_code, frame.f_lasti
        )
        if key is not None:
            self._keys[key] = job
            job._key = key  # type: ignore[attr-defined]  # both backends' jobs have it
        if service:
            self._services[job] = job  # type: ignore[assignment]  # a job is Held
        else:
            holds = place._holds
            if not holds:
                place._turned_busy()
            holds[job] = job  # type: ignore[assignment]  # likewise
        return job

    def hold(self, kind: str, name: str, /, **details: object) -> Hold:
        """Hold something that is not a task, until `release()`.

        *Raises*: `ScopeClosed` if the closing has begun, unless work that is being drained calls it.
        """
        self._admit()
        arguments.check_text("kind", kind)
        arguments.check_text("name", name)
        frame = _getframe(1)
        place = place_for(self)
        hold = Hold(place, kind, name, details, frame.f_code, frame.f_lasti)
        place._insert(hold, hold)
        return hold

    async def enter(self, manager: AbstractAsyncContextManager[T, Any]) -> T:
        """Enter an async context manager in a task of its own, which also leaves it.

        The context is left when the scope closes, last entered first, or earlier by `exit()`. Any
        task may close the scope or call `exit()`, even if the context must be left by the task
        that entered it: anyio's task groups and cancel scopes, and clients built on them. An
        exception that ends the scope's block is passed to the context.

        *Cancel safety*: if cancelled, the context is left before the cancellation is passed on.

        *Raises*: the manager's exception; `ScopeClosed` if the scope is closed, or closes meanwhile.
        """
        arguments.context_manager(manager)
        self._admit()
        return await contexts.enter(self, manager, _getframe(1))

    async def exit(self, entered: object) -> None:
        """Leave a context before the scope ends. Pass the manager, or the value `enter()` returned.

        *Cancel safety*: if cancelled, it waits until the context is left, then passes the
        cancellation on.

        *Raises*: the manager's exception; `UsageError` if this scope did not enter the context.
        """
        await contexts.leave_early(self, entered)

    async def to_thread(self, fn: Callable[[*Ts], T], *args: *Ts) -> T:
        """Run a blocking function in a thread. The scope holds it until the function has returned.

        *Cancel safety*: if cancelled, the caller goes on at once. The thread cannot be stopped, so
        the hold stays, and an exception of the function goes into the report.

        *Raises*: the function's exception; `ScopeClosed` as `spawn` does.
        """
        arguments.check_callable(fn, "to_thread")
        self._admit()
        return await threads.run_in_thread(place_for(self), fn, args, _getframe(1))

    @overload
    def from_thread(
        self, fn: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **options: P.kwargs
    ) -> Future[T]: ...
    @overload
    def from_thread(self, fn: Callable[P, T], *args: P.args, **options: P.kwargs) -> Future[T]: ...
    def from_thread(self, fn: Callable[..., Any], *args: Any, **options: Any) -> Future[Any]:
        """Call a function of this scope, sync or async, from another thread.

        ```python
        report = scope.from_thread(scope.aclose, cleanup=5).result()
        ```

        *Raises*: `ScopeClosed` if the event loop has ended; `UsageError` in the loop's thread.
        """
        self._check_opened()
        return threads.call_from_thread(self, fn, args, options)

    # State.

    @property
    def state(self) -> str:
        """The scope's state: new, open, draining, closing or closed."""
        return self._state.value

    @property
    def report(self) -> Report | None:
        """What became of everything the scope owned; None until it is closed."""
        return self._closing.report if self._closing is not None else None

    def frontier(self) -> Frontier:
        """Return what is in flight: each thing's name, age, where it started, what it waits on."""
        self._check_opened()
        return frontier.take_frontier(self)

    async def idle(self) -> None:
        """Wait until neither this scope nor a child scope has work in flight. Services do not count.

        The scope is idle when this returns, but may be busy again afterwards: it is not closed.

        *Cancel safety*: if cancelled, nothing has changed.

        *Raises*: `UsageError` if work of this scope calls it: that would wait for itself.
        """
        self._check_opened()
        if not self._holds:
            return
        self._check_here("wait for")
        self._backend.look_at_parts(self)
        owner, key = self._owner_of_running_task()
        if owner is not None and key in owner._holds and owner._is_within(self):
            message = (
                f"idle() of scope {self.name!r} was called by work of that scope: it would wait "
                "for itself; call it from outside, or from a service"
            )
            raise UsageError(message)
        while self._holds:
            waiter = self._backend.waiter()
            self._idle_waiters[waiter] = None
            try:
                await waiter
            finally:
                self._idle_waiters.pop(waiter, None)  # a woken waiter was removed before

    async def closing(self) -> None:
        """Wait until a drain or close of this scope, or of an ancestor, has begun.

        *Cancel safety*: if cancelled, nothing has changed.
        """
        self._check_opened()
        await self._closing_gate.wait()

    def cancel(self, key: Hashable) -> bool:
        """Cancel the running job with this key; return False if there is none."""
        if self._keys:
            self._check_here("cancel a job of")
        job = self._keys.get(key)
        return job is not None and job.cancel()

    # Closing.

    async def drain(self, grace: float | None = 30.0, *, cleanup: float = 5.0) -> Report:
        """Refuse new work, wait for the work in flight, then close.

        Work in flight may start what it needs to finish; no other task may start anything. After
        `grace` seconds (None: never) the remaining work is cancelled, and has `cleanup` seconds
        to end. Any task may call it. A job of this scope may, too: it gets the report when all
        other work has ended.

        *Cancel safety*: if cancelled, the drain becomes a close, unless other callers still wait
        for the drain. The cancellation is passed on when the scope is closed.

        *Raises*: no job's exception; the report lists those.
        """
        grace = math.inf if grace is None else arguments.seconds("grace", grace)
        closing, early = close_callers.begin_close(
            self, grace, arguments.seconds("cleanup", cleanup)
        )
        return await close_callers.join_close(self, closing, early=early, patient=True)

    async def aclose(self, cleanup: float = 5.0) -> Report:
        """Cancel everything in flight, and wait at most `cleanup` seconds until it has ended.

        Any task may call it, any number of times; all callers get the same report. The report
        lists as `stuck` what has not ended by then.

        *Cancel safety*: if cancelled, it waits until the scope is closed, then passes the
        cancellation on.

        *Raises*: no job's exception; the report lists those.
        """
        closing, early = close_callers.begin_close(self, 0.0, arguments.seconds("cleanup", cleanup))
        return await close_callers.join_close(self, closing, early=early, patient=False)

    def _close(
        self, *, grace: float, cleanup: float, join_by: float = math.inf, by_parent: bool = False
    ) -> Closing:
        closing = self._closing
        begun = closing is not None
        if closing is None:
            closing = self._closing = Closing(self, by_parent=by_parent)
            # Children that will be handed to the parent do not drain.
            self._mark_draining(self, deep=self._leftovers != "parent")
        closing.by_parent = closing.by_parent or by_parent
        if self._state is not ScopeState.CLOSED:
            closing.tighten(grace=grace, cleanup=cleanup, join_by=join_by)
        if not begun:
            closing.start()
        return closing

    def _close_with_parent(self, join_by: float) -> Closing:
        return self._close(grace=0.0, cleanup=math.inf, join_by=join_by, by_parent=True)

    def _mark_draining(self, root: TreeNode, *, deep: bool = True) -> None:
        super()._mark_draining(root, deep=deep)
        self._closing_gate.open()

    def _closed(self) -> None:
        """Undo what opening did."""
        roots.discard(self)
        if self._context is not None:
            self._context.ready.open()  # it may never have been entered
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
        if self._body is not None:
            exc = self._body.leave(exc)  # remove our own interruption; its cause is raised below
        self._reason = exc
        by_hand = self._closing is not None
        limit = math.inf if self._grace is None else self._grace
        # A body that swallowed its cancellation was still told to stop.
        stop = exc is not None or self._backend.cancellations() > self._cancellations
        closing, early = close_callers.begin_close(self, 0.0 if stop else limit, self._cleanup)
        try:
            report = await close_callers.join_close(self, closing, early=early, patient=exc is None)
        except self._backend.cancelled as cancellation:
            if closing.has_result(early=early):  # else it could not wait: see close_callers.py
                block_end.end_block(self, closing.result(early=early), cancellation)
            raise
        late, gave_up = closing.expired and not by_hand, self._gave_up and not by_hand
        block_end.end_block(self, report, exc, late=late, gave_up=gave_up)

    def _leave_context(self) -> None:
        if self._token is not None:
            try:
                current.reset(self._token)
            except ValueError:  # another task leaves the block, such as a generator's finalizer
                old = self._token.old_value
                current.set(None if old is Token.MISSING else old)
            self._token = None

    # Failures.

    def _job_failed(self, held: Any, error: BaseException) -> None:
        if self._context is not None and self._parent is not None:
            self._parent._job_failed(held, error)  # a context's failure belongs to its scope
        else:
            failures.apply(self, held, error)

    def _unhandled(self, held: Any, error: BaseException, *, seen: bool = False) -> None:
        if not failures.apply_later(self, held, error):
            super()._unhandled(held, error, seen=seen)

    def __del__(self) -> None:
        """Warn of a scope that was not closed before its event loop ended."""
        state = getattr(self, "_state", ScopeState.NEW)  # unset if the constructor raised
        if state not in {ScopeState.NEW, ScopeState.CLOSED} and self._parent is None:
            message = f"scope {self.name!r}, opened at {self.where}, was never closed"
            warnings.warn(message, ResourceWarning, source=self, stacklevel=1)

    def __repr__(self) -> str:
        """Return the scope's name, its state, and how much it has in flight."""
        return f"<Scope {self.name!r} {self.state}, {len(self._holds)} in flight>"


def _enclosing() -> Scope | None:
    """Return the current scope, unless its context was carried into another event loop."""
    scope = current_scope()
    return scope if scope is not None and scope._backend.here() else None
