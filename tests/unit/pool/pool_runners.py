"""A world of pretended runners, in which each start and each end is counted."""

from __future__ import annotations

import math
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import anyio

from quiesce.pool.pool import RunnerPool
from tests.stress import CANCELLED, turns

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Iterator

    from quiesce import Job


class FakeRunner:
    """A runner that is an object with an event; it ends politely, late, or only by force."""

    def __init__(self, world: World, key: str) -> None:
        self.world = world
        self.key = key
        self.returncode: int | None = None
        self.stubborn = world.stubborn
        self.graces: list[float] = []
        self.exited = anyio.Event()
        self._kill_at = math.inf
        self._bell = anyio.Event()

    def exit(self, code: int) -> None:
        """End, as a process does: all at once."""
        if self.returncode is None:
            self.returncode = code
            self.world.alive[self.key] -= 1
            self.exited.set()

    async def wait(self) -> int:
        """Wait for the end."""
        await self.exited.wait()
        assert self.returncode is not None
        return self.returncode

    async def stop(self, grace: float) -> None:
        """End; may be called several times at once, and the least grace counts."""
        self.graces.append(grace)
        if self.world.stop_error is not None:
            self.exit(1)
            raise self.world.stop_error
        if not self.stubborn:
            await turns(self.world.stop_turns)
            self.exit(0)
            return
        self._kill_at = min(self._kill_at, anyio.current_time() + grace)
        self._bell.set()
        self._bell = anyio.Event()
        while self.returncode is None and anyio.current_time() < self._kill_at:
            with anyio.CancelScope(deadline=self._kill_at):
                await self._bell.wait()
        self.exit(-9)


class World:
    """What the factory of a pool starts, and how many of it are alive."""

    def __init__(self) -> None:
        self.runners: list[FakeRunner] = []
        self.alive: Counter[str] = Counter()
        self.starting: Counter[str] = Counter()
        self.begun = 0
        self.cancelled = 0
        self.most = 0
        self.start_turns = 2
        self.stop_turns = 2
        self.stubborn = False
        self.swallow = False
        self.error: BaseException | None = None
        self.stop_error: Exception | None = None
        self.gate = anyio.Event()
        self.gate.set()

    async def start(self, key: str) -> FakeRunner:
        """Start a runner, as the factory: it exists from the first step, and is ready some turns later."""
        with self._counted(key):
            try:
                await turns(self.start_turns)
                await self.gate.wait()
            except CANCELLED:
                self.cancelled += 1
                if not self.swallow:
                    with anyio.CancelScope(shield=True):
                        await turns(self.stop_turns)
                    raise
            if self.error is not None:
                raise self.error
            runner = FakeRunner(self, key)
            self.runners.append(runner)
            self.alive[key] += 1
            return runner

    @contextmanager
    def _counted(self, key: str) -> Iterator[None]:
        self.begun += 1
        self.starting[key] += 1
        self.most = max(self.most, self.total())
        assert self.starting[key] + self.alive[key] == 1, "two runners of one key"
        try:
            yield
        finally:
            self.starting[key] -= 1

    def total(self) -> int:
        """Count what is alive, in whatever stage."""
        return self.starting.total() + self.alive.total()

    def pool(self, **options: Any) -> RunnerPool[str, FakeRunner]:
        """Make a pool of it, in the current scope."""
        return RunnerPool(self.start, **options)


class User:
    """Somebody who leases a runner, and keeps it until told otherwise."""

    def __init__(self, pool: RunnerPool[str, FakeRunner], key: str = "a") -> None:
        self.pool = pool
        self.key = key
        self.runner: FakeRunner | None = None
        self.done = anyio.Event()
        self.error: BaseException | None = None

    async def __call__(self) -> None:
        """Lease; an error is kept."""
        try:
            async with self.pool.lease(self.key) as self.runner:
                assert self.runner.returncode is None
                await self.done.wait()
        except Exception as error:
            self.error = error


async def surely(fn: Callable[[], Coroutine[Any, Any, object]]) -> None:
    """Call it until it has not been cancelled, then pass that on."""
    cancellation: BaseException | None = None
    done = False
    while not done:
        try:
            with anyio.CancelScope(shield=True):
                await fn()
                done = True
        except CANCELLED as error:
            cancellation = error
    if cancellation is not None:
        raise cancellation


async def joined(jobs: Iterable[Job[None]]) -> None:
    """Wait for jobs that end by themselves."""
    for job in jobs:
        await job
