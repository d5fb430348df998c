"""A pool of runners: one a key, started when it is first wanted, and never lost.

What holds, besides the invariants of the core:

- A key has one runner at most: the next one starts when the last one is gone.
- The start belongs to the pool. Whoever waits for it may leave; when the last one leaves, it is
  cancelled.
- A lease is given in the step in which the runner becomes ready, or is found so; whether a runner
  is idle is decided in one step as well, so none is ended that was leased in between.
- Each runner's own job ends it (see `slot`): its idle time, its release, a drain and a close only
  tell that job, so they cannot be in each other's way.
- The tables are changed without an await, and in the event loop only.
- Nothing is begun once the close has begun: what was queued by then is told of it.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Hashable
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

import anyio

from quiesce.core import arguments
from quiesce.core.owner import owner_of
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


class RunnerPool(Generic[K_contra, R]):  # one for all keys is also one for some
    """Keeps one runner a key, for whoever leases it.

    ```python
    pool = RunnerPool(Program(["runner"]), runners_max=20, idle_seconds=300)
    async with pool.lease(conversation) as runner:
        ...
    ```

    It belongs to a scope, which ends the runners when it is closed. While there are leases or
    starts, that scope is busy; runners are services.

    Args:
        factory: A `Program`, for all keys; a function of the key that gives a `Program`; or an
            async function of the key that gives a runner. A program is started in the pool's
            scope, with the pool's grace, under the key's name; it finds the key in the environment
            variable `QUIESCE_RUNNER_KEY`. A function is called by a job of the pool, one call a
            key at a time. When it raises, also because it was cancelled, nothing may be left of
            the runner. What only one process can have (a listener, the address that a probe
            connects to, a log file) is refused in a program for all keys.
        runners_max: How many runners there may be, those among them that start or stop. Beyond that, the
            runner that was idle longest has to go, and keys wait in the order in which they came.
            A runner that is in use may be joined at any time.
        idle_seconds: How long a runner stays that nobody leases; None: for good.
        grace: How many seconds a runner may take to end when it is told to.
        restart: How long to wait before starting what keeps failing; None: not at all.
        scope: Whom it belongs to; the current scope by default.
        name: What it is called in frontiers, reports and errors.
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
        """Open a scope for the runners, below `scope`."""
        if isinstance(factory, Program):
            check_shared(factory)
        else:
            arguments.check_callable(factory, "RunnerPool", "a Program, or a function of the key")
        if restart is not None:
            arguments.instance("restart", restart, Backoff)
        limit = arguments.size("runners_max", runners_max)
        self._factory = factory
        self._max: float = math.inf if limit is None else limit
        self._idle_seconds: float = math.inf
        if idle_seconds is not None:
            self._idle_seconds = arguments.seconds("idle_seconds", idle_seconds)
        self._grace: float = arguments.seconds("grace", grace)
        if self._grace == math.inf:
            message = "grace must have an end: a runner that ignores it would never be killed"
            raise ArgumentError(message)
        self._node: Scope = owner_of("a RunnerPool", scope).child(
            name, cleanup=self._grace + KILL_SECONDS
        )
        frame = sys._getframe(1)
        self._node._code, self._node._offset = frame.f_code, frame.f_lasti  # not this line here
        self._node._register(self)
        self._context: Context = copy_context()
        # The one of each key that may be leased, or will be.
        self._slots: dict[Hashable, Slot[R]] = {}
        self._ending: dict[Hashable, dict[Slot[R], None]] = {}
        self._queue: dict[Slot[R], None] = {}
        self._idle: dict[Slot[R], None] = {}  # longest first
        self._leases: dict[Lease[R], None] = {}  # all, also those whose runner is gone
        self._revoked: list[Lease[R]] = []  # that wait, but not for a runner any more
        self._rooms = 0
        self._histories = Histories(restart)
        self._started = self._failed = self._crashed = self._reaped = 0

    # For everyone.

    def lease(self, key: K_contra) -> Lease[R]:
        """Use the runner of a key for a block; it is started if there is none.

        ```python
        async with pool.lease(key) as runner:
            ...
        ```

        Any number may lease a runner at once. The runner may end by itself meanwhile, or be
        ended by `release()`; the next lease then gets a fresh one.

        *Cancel safety*: a lease that waits may be cancelled at any time, and leaves at once. The
        start goes on for others that wait; if there are none, it is cancelled.

        *Raises*: `StartFailed`; `RunnerReleased`; `ScopeClosed` if the closing has begun, except
        for work that is being drained.
        """
        _check_key(key)
        return Lease(self, key, sys._getframe(1))

    async def release(self, key: K_contra) -> bool:
        """End the runner of a key, leased or not, or its start; False if there is none.

        Those who wait for its start get `RunnerReleased`. It returns when the runner is gone.

        *Cancel safety*: the runner is ended all the same, and that is waited for, up to its
        grace, before the cancellation is passed on.

        *Raises*: `UsageError` from inside the factory, which would wait for itself.
        """
        _check_key(key)
        self._node._check_here("release a runner of")
        current = self._slots.get(key)
        slots = [*self._ending.get(key, ()), *([] if current is None else [current])]
        if any(slot.runs_here() for slot in slots):
            message = f"the runner of {key!r} was released by its own factory: raise instead"
            raise UsageError(message)
        if current is not None:
            message = f"the runner of {key!r} was released while this lease waited for it"
            self._finish(current, lambda: RunnerReleased(message))
        if self._node._state is ScopeState.CLOSED or not slots:
            return False
        await self._see_gone(slots)
        return True

    async def drain(self, grace: float | None = 30.0) -> Report:
        """Refuse new leases, wait for those that are held, and end all runners.

        Idle runners are ended at once, all others as soon as they are given back, or after
        `grace` seconds (None: never); all at the same time, and each within the grace of the
        pool. Leases of the task that calls this are not waited for.

        *Cancel safety*: the drain then turns into a close, unless others wait for it too, and
        the cancellation is passed on when that is complete.

        *Raises*: nothing of what the runners raised; that is in the report.
        """
        self._node._check_here("drain")
        task = self._node._backend.task()
        for lease in self._leases:
            if lease._task is task and lease._hold is not None:
                lease._hold.release()
        return await self._node.drain(grace, cleanup=self._grace + KILL_SECONDS)

    @property
    def stats(self) -> PoolStats:
        """How the pool stands."""
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
        """Name the pool, its state, and how many runners it has."""
        return f"<RunnerPool {self._node.name!r} {self._node.state}, {self._rooms} runners>"

    async def _see_gone(self, slots: Sequence[Slot[R]]) -> None:
        """Wait until runners are gone; a cancelled caller waits no longer than they should take."""
        cancelled, clock = self._node._backend.cancelled, self._node._backend.clock
        try:
            for slot in slots:
                await slot.gone.wait()
        except cancelled:
            limit = clock() + self._grace + KILL_SECONDS
            with anyio.CancelScope(deadline=limit, shield=True) as bound:
                while left := [slot for slot in slots if not slot.gone.is_open]:
                    try:
                        await left[0].gone.wait()
                    except cancelled:  # asyncio's own, which knows no shield
                        if bound.cancel_called:
                            raise
            raise

    # Leases; each in one step.

    def _join(self, lease: Lease[R], code: CodeType, offset: int) -> Slot[R]:
        """Lease the runner of a key if it is ready; else give the slot to wait for."""
        key = lease._key
        slot = self._slots.get(key)
        if slot is not None and slot.runner is not None and slot.runner.returncode is not None:
            self._exited(slot)  # its job is about to see it
            slot = None
        if slot is None:
            slot = Slot(self, key, self._histories.not_before(key), code, offset)
            self._slots[key] = slot
            self._queue[slot] = None
            self._serve()
        elif slot.runs_here():
            message = f"the runner of {key!r} was leased by its own factory"
            raise UsageError(message)
        if slot.stage is Stage.READY:
            self._lease(slot, lease)
        return slot

    def _lease(self, slot: Slot[R], lease: Lease[R]) -> None:
        slot.leases[lease] = None
        self._idle.pop(slot, None)
        if len(slot.leases) == 1:
            slot.adjust()

    def _leave(self, lease: Lease[R], slot: Slot[R]) -> None:
        """End a lease, or the wait for one. Idempotent."""
        lease._slot = None
        slot.waiting.pop(lease, None)
        if lease in slot.leases:
            del slot.leases[lease]
            if not slot.leases and slot.stage is Stage.READY:
                self._turned_idle(slot)
        elif slot.stage in {Stage.QUEUED, Stage.STARTING} and not slot.waiting:
            self._finish(slot)

    def _turned_idle(self, slot: Slot[R]) -> None:
        if self._drains():
            self._finish(slot)
            return
        slot.idle_since = self._node._backend.clock()
        self._idle[slot] = None
        slot.adjust()
        self._serve()

    def _drains(self) -> bool:
        """Return whether the pool itself is drained: around it, work may still want a runner."""
        return self._node._drain_root is self._node

    # Room; each in one step.

    def _serve(self) -> None:
        """Start what may start, first come, first served; make room for the rest."""
        now = self._node._backend.clock()
        wanted = 0
        for slot in list(self._queue):
            if slot.not_before > now or self._ending.get(slot.key):
                continue  # it keeps its place, and the runner that it waits for keeps its room
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
            self._finish(next(iter(self._idle)))
            wanted -= 1

    def _finish(self, slot: Slot[R], error: Callable[[], BaseException] | None = None) -> None:
        """End a runner, with its grace."""
        self._retire(slot, error)
        slot.end(self._grace)

    def _retire(self, slot: Slot[R], error: Callable[[], BaseException] | None = None) -> None:
        """Take a runner out of the table: nobody gets it any more. Idempotent."""
        if self._slots.get(slot.key) is slot:
            del self._slots[slot.key]
            self._ending.setdefault(slot.key, {})[slot] = None
        self._queue.pop(slot, None)
        self._idle.pop(slot, None)
        waiting, slot.waiting = slot.waiting, {}
        for lease in waiting:
            if error is None and self._node._state is ScopeState.CLOSING:
                lease._defer()
            else:
                lease._tell((error or self._closed_error)())

    # What a slot tells; each in one step.

    async def _make(self, key: Any) -> R:
        if self._node._state is ScopeState.CLOSING:
            await anyio.sleep_forever()  # the close is about to cancel this
        runner: R = await runner_of(self._factory, key, self._node, self._grace)
        return runner

    def _ready(self, slot: Slot[R]) -> None:
        self._started += 1
        waiting, slot.waiting = slot.waiting, {}
        for lease, waiter in waiting.items():
            if not waiter.done():  # else it was cancelled, and is about to leave
                slot.leases[lease] = None
                waiter.set_result(None)
        if not slot.leases:
            self._turned_idle(slot)

    def _start_failed(self, slot: Slot[R], error: BaseException) -> bool:
        """Notify the tasks that wait; return False if none does: the start was to be ended anyway."""
        if slot.stage is not Stage.STARTING:
            return False
        if isinstance(error, ScopeClosed) and self._node._state is ScopeState.CLOSING:
            self._retire(slot)
            return True
        self._failed += 1
        self._histories.failed(slot.key, self._node._backend.clock())

        def failure() -> BaseException:
            found = StartFailed(slot.key, error)
            found.__cause__ = error
            return found

        self._retire(slot, failure)
        return True

    def _exited(self, slot: Slot[R]) -> None:
        """See that a runner has ended; nobody has asked for that, unless it is being stopped."""
        if slot.stage is Stage.READY:
            self._crashed += 1
            code = None if slot.runner is None else slot.runner.returncode
            logger.warning("runner %s of pool %r exited: %r", slot.key, self._node.name, code)
            self._histories.failed(slot.key, self._node._backend.clock())
            self._finish(slot)

    def _expire(self, slot: Slot[R]) -> None:
        """End a runner that was idle for too long, if that is still so."""
        now = self._node._backend.clock()
        if slot.stage is Stage.READY and not slot.leases and now >= slot.napping_until():
            self._reaped += 1
            self._finish(slot)

    def _ended(self, slot: Slot[R]) -> None:
        """See that nothing is left of a runner."""
        self._retire(slot)
        key = slot.key
        ending = self._ending.get(key, {})
        ending.pop(slot, None)
        if not ending:
            self._ending.pop(key, None)
        self._rooms -= slot.has_room
        self._serve()

    # As a resource of its own scope.

    def _closed_error(self) -> BaseException:
        return ScopeClosed(f"pool {self._node.name!r} was closed while this lease waited")

    def _drain(self) -> None:
        if self._drains():
            for slot in list(self._idle):
                self._finish(slot)

    def _forsaken(self) -> bool:
        return False

    def _expects_services(self) -> bool:
        return False

    def _users(self) -> Iterable[object]:
        return ()

    def _shut(self) -> None:
        """Do nothing: leases and runners are holds, which are told one by one."""

    def _gone(self) -> None:
        """Wake the tasks that wait for a lease or for a stuck runner: the report names both."""
        for lease in self._revoked:
            lease._tell(self._closed_error())
        for table in list(self._ending.values()):
            for slot in table:
                slot.gone.open()

    def _move(self, node: TreeNode) -> None:
        """Do nothing: its own scope is never handed over, only moved as a whole."""


def _check_key(key: object) -> None:
    try:
        hash(key)
    except TypeError as error:
        message = f"a key must be hashable, which {key!r} is not"
        raise ArgumentError(message) from error
