"""The life of one runner in a pool: waiting for room, starting, running, stopping.

One job runs all of it, from the step in which the first lease asks for the runner. So a runner
has an owner before it exists and until it has ended. Callers only tell that job what to do, each
time in one step, and then wait or leave.
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

KILL_SECONDS = 2.0  # how long the end of a runner may take to be noticed after its grace
_INTERRUPTIONS_MAX = 16  # of one stop; only a broken runner is interrupted more often


class Runner(Protocol):
    """The interface that a pool needs of its runners; a `Process` has it."""

    @property
    def returncode(self) -> int | None:
        """The runner's exit code; None while it runs."""

    async def wait(self) -> int:
        """Wait for the runner's end; may be cancelled at any time."""

    async def stop(self, grace: float, /) -> object:
        """Stop the runner, politely for `grace` seconds; the runner is gone when this returns.

        It may be called again meanwhile, with less grace, and after the runner has ended.
        """


R = TypeVar("R", bound=Runner)


class Stage(Enum):
    """The stage of a runner's life; it only moves forward."""

    QUEUED = "queued"
    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"


class Slot(Generic[R]):
    """One runner, from the first request for it to its end."""

    __slots__ = (
        "_job",
        "_kill_at",
        "_kill_time",
        "_pool",
        "_wake_scope",
        "began",
        "gone",
        "has_room",
        "idle_since",
        "key",
        "leases",
        "not_before",
        "owner_node",
        "runner",
        "stage",
        "waiting",
    )

    fate: ClassVar[Fate] = "stuck"
    can_be_stopped: ClassVar[bool] = True

    def __init__(
        self,
        pool: RunnerPool[Any, R],
        key: Hashable,
        not_before: float,
        code: CodeType,
        offset: int,
    ) -> None:
        """Start the job; its first step runs after the pool has put the slot into its table."""
        node: TreeNode = pool.own_scope
        self._pool = pool
        self.owner_node: TreeNode = node
        self._wake_scope: anyio.CancelScope | None = None  # cancelled to wake the waiting job
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
        self.gone: Latch = Latch(node.backend)
        self._job: Job[None] = self._begin(self._run(), f"runner {key}", code, offset)
        node.insert_hold(self._job, self)  # as work: the factory may start things, even in a drain
        self._job.call_when_done(self._job_ended)

    def _begin(
        self, coro: Coroutine[Any, Any, None], name: str, code: CodeType, offset: int
    ) -> Job[None]:
        """Start a job in the pool's context, not in the context of the first caller."""
        context, start = self._pool.start_context.copy(), self.owner_node.backend.start
        return context.run(start, self.owner_node, coro, name, code, offset)

    # Called by the pool; each function runs in one step.

    def begin(self) -> None:
        """Start the runner: there is room, and its back-off is over."""
        self.stage = Stage.STARTING
        self.has_room = True
        self._wake()

    def end(self, grace: float) -> None:
        """End the runner in any stage; if it is already stopping, shorten its grace."""
        clock = self.owner_node.backend.clock
        kill_at = clock() + grace
        was, self.stage = self.stage, Stage.STOPPING
        if was is Stage.STOPPING:
            if kill_at < self._kill_at:
                self._kill_at = kill_at
                self.hurry_stop()
            return
        self._kill_at = kill_at
        if was is Stage.STARTING:
            self._job.cancel()
        else:
            self.owner_node.make_service(self._job)
            self._wake()

    def idle_until(self) -> float:
        """Return the time at which the runner is ended unless it is leased."""
        return math.inf if self.leases else self.idle_since + self._pool.idle_seconds

    def adjust(self) -> None:
        """Apply the idle time anew: the first lease began, or the last one ended."""
        if self._wake_scope is not None:
            self._wake_scope.deadline = self.idle_until()

    def runs_here(self) -> bool:
        """Return whether the running task is the slot's own job, which must not wait for itself."""
        return self.owner_node.backend.current() is self._job

    def _wake(self) -> None:
        if self._wake_scope is not None:
            self._wake_scope.cancel()

    def hurry_stop(self) -> None:
        """Shorten the grace of a stop in progress, by another job that calls `stop()` again."""
        if self.runner is not None and not self.gone.is_open:
            coro, code = self._stop_runner(self.runner), type(self).hurry_stop.__code__
            job = self._begin(coro, f"hurry {self.key}", code, 0)
            self.owner_node.services[job] = job  # type: ignore[assignment]  # a job is Held

    # The job.

    async def _run(self) -> None:
        while self.stage is Stage.QUEUED:
            with anyio.CancelScope(deadline=self._queued_until()) as self._wake_scope:
                await anyio.sleep_forever()
            self._wake_scope = None
            self._pool.serve_waiting()
        if self.stage is Stage.STARTING:
            await self._start()
        if self.runner is not None:
            await self._keep(self.runner)

    def _queued_until(self) -> float:
        """Return the time at which to check again; infinity if only room is missing."""
        now = self.owner_node.backend.clock()
        return self.not_before if self.not_before > now else math.inf

    async def _start(self) -> None:
        self.began = self.owner_node.backend.clock()
        try:
            runner = await self._pool._make(self.key)
        except BaseException as error:
            told = self._pool.note_start_failed(self, error)
            if not told or is_fatal(error) or isinstance(error, self.owner_node.backend.cancelled):
                raise
            self.owner_node.make_service(self._job)
            return
        self.owner_node.make_service(self._job)
        self.runner = runner
        if self.stage is Stage.STARTING:
            self.stage = Stage.READY
            self.idle_since = self.owner_node.backend.clock()
            self._pool.note_runner_ready(self)

    async def _keep(self, runner: R) -> None:
        """Wait for the runner's end, or stop it."""
        try:
            if await self._wait_for_exit(runner):
                return
        except Exception:  # wait() has failed: treated as a crash
            self._pool.note_runner_exited(self)
            await self._stop_runner(runner)
            raise
        except BaseException:  # the loop is being shut down, or all tasks are cancelled
            self._pool.finish_runner(self)
            await self._stop_runner(runner)
            raise
        await self._stop_runner(runner)

    async def _wait_for_exit(self, runner: R) -> bool:
        """Wait for the runner's own end; return False if it has to be stopped before."""
        try:
            while self.stage is Stage.READY:
                with anyio.CancelScope(deadline=self.idle_until()) as wake_scope:
                    self._wake_scope = wake_scope
                    await runner.wait()
                    self._wake_scope = None
                    self._pool.note_runner_exited(self)
                    return True
                self._wake_scope = None
                self._pool.expire_runner(self)
            return False
        finally:
            self._wake_scope = None  # a late wake-up must not cancel the next wait

    async def _stop_runner(self, runner: R) -> None:
        """Stop the runner in spite of cancellations; the last one is passed on afterwards."""
        cancellation: BaseException | None = None
        clock = self.owner_node.backend.clock
        for _ in range(_INTERRUPTIONS_MAX):
            try:
                with anyio.CancelScope(shield=True):
                    await runner.stop(max(0.0, self._kill_at - clock()))
                break
            except self.owner_node.backend.cancelled as error:
                cancellation = error
        else:
            message = f"the runner of {self.key!r} may still run: its stop() was interrupted {_INTERRUPTIONS_MAX} times without finishing"
            raise QuiesceError(message) from cancellation
        if cancellation is not None:
            raise cancellation

    def _job_ended(self) -> None:
        """Record the end of the job; the scope no longer holds it."""
        self._wake_scope = None
        self.stage = Stage.STOPPING
        self.gone.open()
        self._pool.note_runner_gone(self)

    # As a hold of the scope.

    @property
    def kind(self) -> str:
        return "runner"

    @property
    def name(self) -> str:
        return str(self.key)

    @property
    def since(self) -> float:
        """When the runner was first asked for, on the event loop's clock."""
        return self._job.since

    @property
    def where(self) -> str | None:
        """The file and line of the lease that first asked for the runner."""
        return self._job.where

    @property
    def details(self) -> Mapping[str, object]:
        """The stage of the runner, and how many leases use it or wait for it."""
        return {
            "state": self.stage.value,
            "leases": len(self.leases),
            "waiting": len(self.waiting),
        }

    def request_stop(self, *, force: bool = False) -> None:
        """End the runner in the time that the close has left; with `force`, without grace."""
        job: Any = self._job
        again = self.stage is Stage.STOPPING and self.runner is None
        self._pool.retire_runner(self)
        now = self.owner_node.backend.clock()
        self.end(
            0.0
            if force
            else min(self._pool.grace_seconds, self._kill_time.in_time(self.owner_node, now) - now)
        )
        if again and (force or job.goes_on_regardless()):
            job.request_stop(force=force)  # its start was cancelled, and continues in spite of that

    def goes_on_regardless(self) -> bool:
        """Return whether to ask again; also if the close now has less time than at the first request."""
        if self.runner is None:
            job: Any = self._job
            return bool(job.goes_on_regardless())
        return self._kill_at > self._kill_time.in_time(
            self.owner_node, self.owner_node.backend.clock()
        )

    def list_frames(self) -> list[callsites.Frame]:
        job: Any = self._job
        chain: list[callsites.Frame] = job.list_frames()
        return chain

    def move_to(self, node: TreeNode) -> None:
        self.owner_node = node
        job: Any = self._job
        job.move_to(node)

    def reclassify(self) -> None:
        """Do nothing: the slot becomes a service when the runner has started."""


def checked_runner(made: Any, factory: object) -> Any:
    """Return the object if it is a runner; otherwise raise `ArgumentError`."""
    methods = all(callable(getattr(made, name, None)) for name in ("wait", "stop"))
    if methods and hasattr(made, "returncode"):
        return made
    name = arguments.name_of(factory)
    message = f"{name} returned {made!r}, which is not a runner: it needs returncode, wait() and stop(grace)"
    raise ArgumentError(message)
