"""A pool of runners: one runner for each key, started when it is first needed.

Rules, besides the invariants of the core:

- A key has at most one runner: the next one starts when the last one is gone.
- The start belongs to the pool. A caller that waits for the start may leave; when the last one
  leaves, the start is cancelled.
- A lease begins in the step in which the runner becomes ready, or is found ready. Whether a runner
  is idle is decided in one step as well, so a runner that was leased in between is not ended.
- Each runner's own job ends it (see `slot`). Idle time, `release()`, a drain and a close only
  notify that job, so they cannot interfere with each other.
- The tables are changed without an await, and only in the event loop.
- Once the close has begun, no runner starts; callers that wait for a start are notified.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

import anyio

from quiesce.core import arguments
from quiesce.core.hold import EmptyHanded
from quiesce.core.owner import owner_of
from quiesce.core.python_private import get_frame
from quiesce.core.tree import ScopeState, logger
from quiesce.errors import ArgumentError, RunnerReleased, ScopeClosed, StartFailed, UsageError
from quiesce.pool.backoff import Backoff, Histories
from quiesce.pool.lease import Lease
from quiesce.pool.pool_stats import PoolStats
from quiesce.pool.program import Program, check_shared, runner_of
from quiesce.pool.slot import KILL_SECONDS, Runner, Slot, Stage

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence
    from contextvars import Context
    from types import CodeType

    from quiesce.core.report import Report
    from quiesce.core.scope import Scope
    from quiesce.core.tree import TreeNode
    from quiesce.processes.process import Process

__all__ = ["Runner", "RunnerPool"]

K_contra = TypeVar("K_contra", bound=Hashable, contravariant=True)
R = TypeVar("R", bound=Runner)

_BACKOFF = Backoff()


# Contravariant: a pool for all keys also serves as a pool for some keys.
class RunnerPool(EmptyHanded, Generic[K_contra, R]):
    """A pool that keeps one runner for each key, for all tasks that lease it.

    ```python
    pool = RunnerPool(Program(["runner"]), runners_max=20, idle_seconds=300)
    async with pool.lease(conversation) as runner:
        ...
    ```

    The pool belongs to a scope, which ends the runners when it is closed. The scope is busy while
    runners are leased or started; runners themselves are services.

    Args:
        factory: A `Program` for all keys; a function that is called with the key and returns a
            `Program`; or an async function that is called with the key and returns a runner. A
            program is started in the pool's scope, with the pool's grace, under the key's name, and
            with the key in the environment variable `QUIESCE_RUNNER_KEY`. A job of the pool calls the
            function, one call at a time for each key. If the function raises, even because it was
            cancelled, it must leave nothing of the runner behind. A program for all keys must not
            have options that only one process can use: a listener, a probe's address, a log file.
        runners_max: The limit on runners, including those that start or stop. When it is reached, the
            runner that was idle longest is ended, and keys wait in the order in which they came.
            Leasing a runner that is already in use never waits.
        idle_seconds: How long a runner stays without a lease; None: for good.
        grace: How many seconds a runner may take to end when it is stopped.
        restart: How long to wait before restarting a runner that keeps failing; None: no wait.
        scope: The owning scope; the current scope by default.
        name: The pool's name in frontiers, reports and errors.
    """

    @overload
    def __init__(
        self: RunnerPool[Hashable, Process],
        factory: Program,
        /,
        *,
        runners_max: int | None = None,
        idle_seconds: float | None = 300.0,
        grace: float = 5.0,
        restart: Backoff | None = _BACKOFF,
        scope: Scope | None = None,
        name: str = "pool",
    ) -> None: ...
    @overload
    def __init__(
        self: RunnerPool[K_contra, Process],
        factory: Callable[[K_contra], Program | Awaitable[Program]],
        /,
        *,
        runners_max: int | None = None,
        idle_seconds: float | None = 300.0,
        grace: float = 5.0,
        restart: Backoff | None = _BACKOFF,
        scope: Scope | None = None,
        name: str = "pool",
    ) -> None: ...
    @overload
    def __init__(
        self,
        factory: Callable[[K_contra], Awaitable[R]],
        /,
        *,
        runners_max: int | None = None,
        idle_seconds: float | None = 300.0,
        grace: float = 5.0,
        restart: Backoff | None = _BACKOFF,
        scope: Scope | None = None,
        name: str = "pool",
    ) -> None: ...
    def __init__(
        self,
        factory: Program | Callable[[K_contra], Any],
        /,
        *,
        runners_max: int | None = None,
        idle_seconds: float | None = 300.0,
        grace: float = 5.0,
        restart: Backoff | None = _BACKOFF,
        scope: Scope | None = None,
        name: str = "pool",
    ) -> None:
        """Open a scope for the runners inside `scope`."""
        if isinstance(factory, Program):
            check_shared(factory)
        else:
            arguments.check_callable(factory, "RunnerPool", "a Program, or a function of the key")
        if restart is not None:
            arguments.instance("restart", restart, Backoff)
        limit = arguments.size("runners_max", runners_max)
        self._factory = factory
        self._max: float = math.inf if limit is None else limit
        self.idle_seconds: float = math.inf
        if idle_seconds is not None:
            self.idle_seconds = arguments.seconds("idle_seconds", idle_seconds)
        self.grace_seconds: float = arguments.seconds("grace", grace)
        if self.grace_seconds == math.inf:
            message = (
                "grace must be finite: otherwise a runner that ignores its stop is never killed"
            )
            raise ArgumentError(message)
        self.own_scope: Scope = owner_of("a RunnerPool", scope).child(
            name, cleanup=self.grace_seconds + KILL_SECONDS
        )
        frame = get_frame(1)
        self.own_scope.place_code, self.own_scope.place_offset = (
            frame.f_code,
            frame.f_lasti,
        )  # reports name the caller's line, not a line of this module
        self.own_scope.register_resource(self)
        self.start_context: Context = copy_context()
        # For each key the slot that can be leased, now or when it has started.
        self._slots: dict[Hashable, Slot[R]] = {}
        self._ending: dict[Hashable, dict[Slot[R], None]] = {}
        self._queue: dict[Slot[R], None] = {}
        self._idle: dict[Slot[R], None] = {}  # longest idle first
        self.leases: dict[Lease[R], None] = {}  # all leases, even if their runner is gone
        self.revoked_leases: list[Lease[R]] = []  # leases that wait only for the end of the close
        self._rooms = 0
        self._histories = Histories(restart)
        self._started = self._failed = self._crashed = self._reaped = 0

    # The public interface.

    def lease(self, key: K_contra) -> Lease[R]:
        """Use the runner of a key for a block; start the runner if there is none.

        ```python
        async with pool.lease(key) as runner:
            ...
        ```

        Any number of tasks may lease a runner at once. The runner may end by itself meanwhile, or be
        ended by `release()`; the next lease then gets a new one.

        *Cancel safety*: a waiting lease may be cancelled at any time, and ends at once. The start
        continues for other waiting leases; without any, it is cancelled.

        *Raises*: `StartFailed`; `RunnerReleased`; `ScopeClosed` if the scope has begun to close,
        except for work that is being drained.
        """
        _check_key(key)
        return Lease(self, key, get_frame(1))

    async def release(self, key: K_contra) -> bool:
        """End the runner of a key, leased or not, or its start; return False if there is neither.

        Tasks that wait for the start get `RunnerReleased`. The call returns when the runner is gone.

        *Cancel safety*: if cancelled, the runner is still ended; the cancellation is passed on when
        the runner is gone, or after the pool's grace.

        *Raises*: `UsageError` if the factory calls it for its own key, as it would wait for itself.
        """
        _check_key(key)
        self.own_scope.check_here("release a runner of")
        current = self._slots.get(key)
        slots = [*self._ending.get(key, ()), *([] if current is None else [current])]
        if any(slot.runs_here() for slot in slots):
            message = f"the runner of {key!r} was released by its own factory, which would wait for itself: raise an error instead"
            raise UsageError(message)
        if current is not None:
            message = f"the runner of {key!r} was released while this lease waited for it"
            self.finish_runner(current, lambda: RunnerReleased(message))
        if self.own_scope.phase is ScopeState.CLOSED or not slots:
            return False
        await self._see_gone(slots)
        return True

    async def drain(self, grace: float | None = 30.0) -> Report:
        """Refuse new leases, wait for the current leases, and end all runners.

        Idle runners are ended at once; the others when their leases end, or after `grace` seconds
        (None: without a limit). All end at the same time, each within the grace of the pool. Leases of
        the calling task are not waited for.

        *Cancel safety*: if cancelled, the drain turns into a close, unless other tasks wait for it
        too; the cancellation is passed on when the close is complete.

        *Raises*: no errors of the runners; they are in the report.
        """
        self.own_scope.check_here("drain")
        task = self.own_scope.backend.task()
        for lease in self.leases:
            if lease.leasing_task is task and lease.hold is not None:
                lease.hold.release()
        return await self.own_scope.drain(grace, cleanup=self.grace_seconds + KILL_SECONDS)

    @property
    def stats(self) -> PoolStats:
        """The pool's figures now."""
        slots = self._slots.values()
        stages = [slot.stage for slot in slots]
        return PoolStats(
            ready=stages.count(Stage.READY),
            idle=len(self._idle),
            starting=stages.count(Stage.STARTING),
            queued=stages.count(Stage.QUEUED),
            stopping=sum(map(len, self._ending.values())),
            leases=sum(len(slot.leases) for slot in slots),
            waiting=sum(len(slot.waiting) for slot in slots),
            started=self._started,
            failed=self._failed,
            crashed=self._crashed,
            reaped=self._reaped,
        )

    def __repr__(self) -> str:
        return f"<RunnerPool {self.own_scope.name!r} {self.own_scope.state}, {self._rooms} runners>"

    async def _see_gone(self, slots: Sequence[Slot[R]]) -> None:
        """Wait until runners are gone; if cancelled, wait no longer than their stop may take."""
        cancelled, clock = self.own_scope.backend.cancelled, self.own_scope.backend.clock
        try:
            for slot in slots:
                await slot.gone.wait()
        except cancelled:
            limit = clock() + self.grace_seconds + KILL_SECONDS
            with anyio.CancelScope(deadline=limit, shield=True) as bound:
                while left := [slot for slot in slots if not slot.gone.is_open]:
                    try:
                        await left[0].gone.wait()
                    except cancelled:  # asyncio's own cancellation ignores the shield
                        if bound.cancel_called:
                            raise
            raise

    # Leases; each function runs in one step.

    def join_lease(self, lease: Lease[R], code: CodeType, offset: int) -> Slot[R]:
        """Lease the runner of a key if it is ready; otherwise return the slot to wait for."""
        key = lease.key
        slot = self._slots.get(key)
        if slot is not None and slot.runner is not None and slot.runner.returncode is not None:
            self.note_runner_exited(slot)  # its own job is about to notice this too
            slot = None
        if slot is None:
            slot = Slot(self, key, self._histories.not_before(key), code, offset)
            self._slots[key] = slot
            self._queue[slot] = None
            self.serve_waiting()
        elif slot.runs_here():
            message = (
                f"the runner of {key!r} was leased by its own factory, which would wait for itself"
            )
            raise UsageError(message)
        if slot.stage is Stage.READY:
            self._lease(slot, lease)
        return slot

    def _lease(self, slot: Slot[R], lease: Lease[R]) -> None:
        slot.leases[lease] = None
        self._idle.pop(slot, None)
        if len(slot.leases) == 1:
            slot.adjust()

    def leave_lease(self, lease: Lease[R], slot: Slot[R]) -> None:
        """End a lease, or the wait for its runner. Idempotent."""
        lease.slot = None
        slot.waiting.pop(lease, None)
        if lease in slot.leases:
            del slot.leases[lease]
            if not slot.leases and slot.stage is Stage.READY:
                self._turned_idle(slot)
        elif slot.stage in {Stage.QUEUED, Stage.STARTING} and not slot.waiting:
            self.finish_runner(slot)

    def _turned_idle(self, slot: Slot[R]) -> None:
        if self._drains():
            self.finish_runner(slot)
            return
        slot.idle_since = self.own_scope.backend.clock()
        self._idle[slot] = None
        slot.adjust()
        self.serve_waiting()

    def _drains(self) -> bool:
        """Return whether the drain began at the pool: in a drain of an outer scope, work may still lease."""
        return self.own_scope.draining_root is self.own_scope

    # Room; each function runs in one step.

    def serve_waiting(self) -> None:
        """Start the waiting slots that may start, in order, and make room for the others."""
        now = self.own_scope.backend.clock()
        wanted = 0
        for slot in list(self._queue):
            if slot.not_before > now or self._ending.get(slot.key):
                continue  # the slot keeps its place; a runner that it waits for keeps its room
            if self._rooms >= self._max:
                wanted += 1
                continue
            del self._queue[slot]
            self._rooms += 1
            slot.begin()
        if wanted:
            wanted -= sum(slot.has_room for table in self._ending.values() for slot in table)
        while wanted > 0 and self._idle:
            self._reaped += 1
            self.finish_runner(next(iter(self._idle)))
            wanted -= 1

    def finish_runner(
        self, slot: Slot[R], error: Callable[[], BaseException] | None = None
    ) -> None:
        """End a runner, within its grace."""
        self.retire_runner(slot, error)
        slot.end(self.grace_seconds)

    def retire_runner(
        self, slot: Slot[R], error: Callable[[], BaseException] | None = None
    ) -> None:
        """Remove a runner from the table, so that it cannot be leased any more. Idempotent."""
        if self._slots.get(slot.key) is slot:
            del self._slots[slot.key]
            self._ending.setdefault(slot.key, {})[slot] = None
        self._queue.pop(slot, None)
        self._idle.pop(slot, None)
        waiting, slot.waiting = slot.waiting, {}
        for lease in waiting:
            if error is None and self.own_scope.phase is ScopeState.CLOSING:
                lease.defer_close()
            else:
                lease.tell_waiter((error or self.make_closed_error)())

    # Called by a slot; each function runs in one step.

    async def _make(self, key: Any) -> R:
        if self.own_scope.phase is ScopeState.CLOSING:
            await anyio.sleep_forever()  # the close is about to cancel this
        runner: R = await runner_of(self._factory, key, self.own_scope, self.grace_seconds)
        return runner

    def note_runner_ready(self, slot: Slot[R]) -> None:
        self._started += 1
        waiting, slot.waiting = slot.waiting, {}
        for lease, waiter in waiting.items():
            if not waiter.done():  # otherwise the lease was cancelled, and is about to leave
                slot.leases[lease] = None
                waiter.set_result(None)
        if not slot.leases:
            self._turned_idle(slot)

    def note_start_failed(self, slot: Slot[R], error: BaseException) -> bool:
        """Notify the waiting tasks. Return False if the start was to be ended anyway."""
        if slot.stage is not Stage.STARTING:
            return False
        if isinstance(error, ScopeClosed) and self.own_scope.phase is ScopeState.CLOSING:
            self.retire_runner(slot)
            return True
        self._failed += 1
        self._histories.failed(slot.key, self.own_scope.backend.clock())

        def failure() -> BaseException:
            found = StartFailed(slot.key, error)
            found.__cause__ = error
            return found

        self.retire_runner(slot, failure)
        return True

    def note_runner_exited(self, slot: Slot[R]) -> None:
        """Record that a runner has exited; if it was not being stopped, count the exit as a crash."""
        if slot.stage is Stage.READY:
            self._crashed += 1
            code = None if slot.runner is None else slot.runner.returncode
            logger.warning("runner %s of pool %r exited: %r", slot.key, self.own_scope.name, code)
            self._histories.failed(slot.key, self.own_scope.backend.clock())
            self.finish_runner(slot)

    def expire_runner(self, slot: Slot[R]) -> None:
        """End a runner that was idle for too long, if it is still idle."""
        now = self.own_scope.backend.clock()
        if slot.stage is Stage.READY and not slot.leases and now >= slot.idle_until():
            self._reaped += 1
            self.finish_runner(slot)

    def note_runner_gone(self, slot: Slot[R]) -> None:
        """Record that a runner is gone completely."""
        self.retire_runner(slot)
        key = slot.key
        ending = self._ending.get(key, {})
        ending.pop(slot, None)
        if not ending:
            self._ending.pop(key, None)
        self._rooms -= slot.has_room
        self.serve_waiting()

    # As a resource of its own scope.

    def make_closed_error(self) -> BaseException:
        return ScopeClosed(f"pool {self.own_scope.name!r} was closed while this lease waited")

    def note_drain(self) -> None:
        if self._drains():
            for slot in list(self._idle):
                self.finish_runner(slot)

    def is_forsaken(self) -> bool:
        return False

    def expects_services(self) -> bool:
        return False

    def list_users(self) -> Iterable[object]:
        return ()

    def shut_down(self) -> None:
        """Do nothing: leases and runners are holds, and each is notified itself."""

    def note_scope_closed(self) -> None:
        """Wake the tasks that wait for a lease or for a stuck runner: the report names both."""
        for lease in self.revoked_leases:
            lease.tell_waiter(self.make_closed_error())
        for table in list(self._ending.values()):
            for slot in table:
                slot.gone.open()

    def move_to(self, node: TreeNode) -> None:
        """Do nothing: the pool's own scope is moved as a whole."""


def _check_key(key: object) -> None:
    try:
        hash(key)
    except TypeError as error:
        message = f"the key {key!r} is not hashable: use a string, number or tuple"
        raise ArgumentError(message) from error
