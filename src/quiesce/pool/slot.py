"""The life of one runner in a pool: it waits for room, starts, runs, is stopped, is gone.

One job goes through all of it, from the step in which the first lease asked for the runner; so a
runner has an owner before it exists, and until it has ended. Callers only tell that job what to
do, each time in one step, and then wait, or leave.
"""

from __future__ import annotations

import math
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

import anyio

from quiesce.core import arguments
from quiesce.core.failures import is_fatal
from quiesce.core.latch import Latch
from quiesce.errors import ArgumentError, QuiesceError
from quiesce.processes.process_owner import KillTime

if TYPE_CHECKING:
    from collections.abc import Coroutine, Hashable, Mapping
    from types import CodeType

    from quiesce.core import callsites
    from quiesce.core.backends import Waiter
    from quiesce.core.hold import Fate
    from quiesce.core.job import Job
    from quiesce.core.tree import TreeNode
    from quiesce.pool.lease import Lease
    from quiesce.pool.pool import RunnerPool

KILL_SECONDS = 2.0  # for the end of a runner to be seen, after its grace
_INTERRUPTIONS_MAX = 16  # of a stop; nobody does it more often, save a runner that is broken


class Runner(Protocol):
    """What a pool needs of the things that it keeps; a `Process` is one."""

    @property
    def returncode(self) -> int | None:
        """How it ended; None while it runs."""

    async def wait(self) -> int:
        """Wait for its end; may be cancelled at any time."""

    async def stop(self, grace: float, /) -> object:
        """End it, politely for `grace` seconds; when this returns, it is gone.

        It may be called again meanwhile, with less grace, and when it has ended by itself.
        """


R = TypeVar("R", bound=Runner)


class Stage(Enum):
    """Where a runner is in its life; it only moves forward."""

    QUEUED = "queued"
    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"


class Slot(Generic[R]):
    """One runner, from the first wish for it to its end."""

    __slots__ = (
        "_job",
        "_kill_at",
        "_kill_time",
        "_nap",
        "_node",
        "_pool",
        "began",
        "gone",
        "has_room",
        "idle_since",
        "key",
        "leases",
        "not_before",
        "runner",
        "stage",
        "waiting",
    )

    _fate: ClassVar[Fate] = "stuck"
    _stops: ClassVar[bool] = True

    def __init__(
        self,
        pool: RunnerPool[Any, R],
        key: Hashable,
        not_before: float,
        code: CodeType,
        offset: int,
    ) -> None:
        """Start the job; its first step comes after the pool has entered it into its table."""
        node: TreeNode = pool._node
        self._pool = pool
        self._node = node
        self._nap: anyio.CancelScope | None = None  # what the job waits in, if it can be woken
        self._kill_at = math.inf
        self._kill_time = KillTime()
        self.key: Hashable = key
        self.stage: Stage = Stage.QUEUED
        self.not_before: float = not_before
        self.has_room: bool = False
        self.began: float = 0.0
        self.idle_since: float = 0.0
        self.runner: R | None = None
        self.waiting: dict[Lease[R], Waiter] = {}  # leases that wait for the start
        self.leases: dict[Lease[R], None] = {}
        self.gone: Latch = Latch(node._backend)
        self._job: Job[None] = self._begin(self._run(), f"runner {key}", code, offset)
        node._insert(self._job, self)  # as work: it may start what it needs, also in a drain
        self._job._when_done(self._over)

    def _begin(
        self, coro: Coroutine[Any, Any, None], name: str, code: CodeType, offset: int
    ) -> Job[None]:
        """Start a job in the pool's context, not in that of the first who wants the runner."""
        context, start = self._pool._context.copy(), self._node._backend.start
        return context.run(start, self._node, coro, name, code, offset)

    # What the pool tells it; in one step.

    def begin(self) -> None:
        """Start it: there is room, and it is time."""
        self.stage = Stage.STARTING
        self.has_room = True
        self._wake()

    def end(self, grace: float) -> None:
        """End it, wherever it is; or sooner, if it is being stopped already."""
        clock = self._node._backend.clock
        kill_at = clock() + grace
        was, self.stage = self.stage, Stage.STOPPING
        if was is Stage.STOPPING:
            if kill_at < self._kill_at:
                self._kill_at = kill_at
                self._hurry()
            return
        self._kill_at = kill_at
        if was is Stage.STARTING:
            self._job.cancel()
        else:
            self._node._serve(self._job)
            self._wake()

    def napping_until(self) -> float:
        """Return the time at which it is to be ended if nobody has leased it by then."""
        return math.inf if self.leases else self.idle_since + self._pool._idle_seconds

    def adjust(self) -> None:
        """Record that it is leased from now on, or no longer."""
        if self._nap is not None:
            self._nap.deadline = self.napping_until()

    def runs_here(self) -> bool:
        """Return whether the running task is its own job, which must not wait for itself."""
        return self._node._backend.current() is self._job

    def _wake(self) -> None:
        if self._nap is not None:
            self._nap.cancel()

    def _hurry(self) -> None:
        """Cut the grace of a stop that is under way: the runner is told so by another job."""
        if self.runner is not None and not self.gone.is_open:
            coro, code = self._stop_runner(self.runner), type(self)._hurry.__code__
            job = self._begin(coro, f"hurry {self.key}", code, 0)
            self._node._services[job] = job  # type: ignore[assignment]  # a job is Held

    # The job.

    async def _run(self) -> None:
        while self.stage is Stage.QUEUED:
            with anyio.CancelScope(deadline=self._queued_until()) as self._nap:
                await anyio.sleep_forever()
            self._nap = None
            self._pool._serve()
        if self.stage is Stage.STARTING:
            await self._start()
        if self.runner is not None:
            await self._keep(self.runner)

    def _queued_until(self) -> float:
        """Return the time at which to look again; none if it is time, and only room is missing."""
        now = self._node._backend.clock()
        return self.not_before if self.not_before > now else math.inf

    async def _start(self) -> None:
        self.began = self._node._backend.clock()
        try:
            runner = await self._pool._make(self.key)
        except BaseException as error:
            told = self._pool._start_failed(self, error)
            if not told or is_fatal(error) or isinstance(error, self._node._backend.cancelled):
                raise
            self._node._serve(self._job)
            return
        self._node._serve(self._job)
        self.runner = runner
        if self.stage is Stage.STARTING:
            self.stage = Stage.READY
            self.idle_since = self._node._backend.clock()
            self._pool._ready(self)

    async def _keep(self, runner: R) -> None:
        """See the runner's end, or stop it."""
        try:
            if await self._sees_end(runner):
                return
        except Exception:  # it cannot be waited for: as good as a crash
            self._pool._exited(self)
            await self._stop_runner(runner)
            raise
        except BaseException:  # the loop is being shut down, or somebody cancels all there is
            self._pool._finish(self)
            await self._stop_runner(runner)
            raise
        await self._stop_runner(runner)

    async def _sees_end(self, runner: R) -> bool:
        """Wait for the runner's own end; False if it is to be stopped before."""
        try:
            while self.stage is Stage.READY:
                with anyio.CancelScope(deadline=self.napping_until()) as nap:
                    self._nap = nap
                    await runner.wait()
                    self._nap = None
                    self._pool._exited(self)
                    return True
                self._nap = None
                self._pool._expire(self)
            return False
        finally:
            self._nap = None  # whoever wakes it must not reach into what comes next

    async def _stop_runner(self, runner: R) -> None:
        """Stop the runner, whatever cancellation comes meanwhile; it is passed on afterwards."""
        cancellation: BaseException | None = None
        clock = self._node._backend.clock
        for _ in range(_INTERRUPTIONS_MAX):
            try:
                with anyio.CancelScope(shield=True):
                    await runner.stop(max(0.0, self._kill_at - clock()))
                break
            except self._node._backend.cancelled as error:
                cancellation = error
        else:
            message = f"the runner of {self.key!r} cannot be stopped: stop() was interrupted {_INTERRUPTIONS_MAX} times without finishing"
            raise QuiesceError(message) from cancellation
        if cancellation is not None:
            raise cancellation

    def _over(self) -> None:
        """See the end of the job; the scope has stopped holding it."""
        self._nap = None
        self.stage = Stage.STOPPING
        self.gone.open()
        self._pool._ended(self)

    # As a hold of the scope.

    @property
    def kind(self) -> str:
        """What sort of hold it is."""
        return "runner"

    @property
    def name(self) -> str:
        """The key."""
        return str(self.key)

    @property
    def since(self) -> float:
        """When it was first asked for, on the event loop's clock."""
        return self._job.since

    @property
    def where(self) -> str | None:
        """The file and line of the lease that asked for it first."""
        return self._job.where

    @property
    def details(self) -> Mapping[str, object]:
        """Where it is in its life, and for how many."""
        return {
            "state": self.stage.value,
            "leases": len(self.leases),
            "waiting": len(self.waiting),
        }

    def _stop(self, *, force: bool = False) -> None:
        """End, in the time that the closing has left; by force: without grace."""
        job: Any = self._job
        again = self.stage is Stage.STOPPING and self.runner is None
        self._pool._retire(self)
        now = self._node._backend.clock()
        self.end(
            0.0 if force else min(self._pool._grace, self._kill_time.in_time(self._node, now) - now)
        )
        if again and (force or job._swallowed()):
            job._stop(force=force)  # its start was cut short, and goes on all the same

    def _swallowed(self) -> bool:
        """Return whether to ask again: also if the closing has less time than when it asked."""
        if self.runner is None:
            job: Any = self._job
            return bool(job._swallowed())
        return self._kill_at > self._kill_time.in_time(self._node, self._node._backend.clock())

    def _chain(self) -> list[callsites.Frame]:
        job: Any = self._job
        chain: list[callsites.Frame] = job._chain()
        return chain

    def _move(self, node: TreeNode) -> None:
        self._node = node
        job: Any = self._job
        job._move(node)

    def _reclassify(self) -> None:
        """Do nothing: it is a service once it has started."""


def checked_runner(made: Any, factory: object) -> Any:
    """Refuse what is no runner."""
    methods = all(callable(getattr(made, name, None)) for name in ("wait", "stop"))
    if methods and hasattr(made, "returncode"):
        return made
    name = arguments.name_of(factory)
    message = (
        f"{name} gave {made!r}, which is no runner: it needs returncode, wait() and stop(grace)"
    )
    raise ArgumentError(message)
