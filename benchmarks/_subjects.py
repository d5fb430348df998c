"""What is measured of bare asyncio and of quiesce; `_peers` has the same for other libraries.

There are two kinds of piece. `spawn_…` starts and finishes many no-ops, and returns the CPU seconds a
job. `live_…` starts many jobs that wait, then closes them, and calls `marks` at each stage. Each piece
has a loop of its own, because a shared function would add one more call per job to every ratio.
"""

from __future__ import annotations

import asyncio
import gc
import time
import tracemalloc
from statistics import median
from typing import TYPE_CHECKING, Protocol

import quiesce

if TYPE_CHECKING:
    from collections.abc import Callable

# CPU time of the thread that runs the event loop. These pieces never wait, and wall
# time on a shared machine varies by half. If a piece may wait (a close), both times are measured.
now = time.thread_time
wall = time.perf_counter


class Marks(Protocol):
    """The calls that a `live` piece makes at its stages."""

    def empty(self) -> None:
        """Record that no job was started yet."""

    def live(self) -> None:
        """Record that all jobs run and wait."""

    def closed(self) -> None:
        """Record that the close has returned."""


class Memory:
    """Marks that measure the memory of a live job."""

    def __init__(self) -> None:
        self._empty = 0
        self.bytes_live = 0

    def empty(self) -> None:
        """Start tracemalloc."""
        gc.collect()
        tracemalloc.start()
        self._empty = tracemalloc.get_traced_memory()[0]

    def live(self) -> None:
        """Record the memory of all jobs together."""
        gc.collect()
        self.bytes_live = tracemalloc.get_traced_memory()[0] - self._empty
        tracemalloc.stop()

    def closed(self) -> None:
        """Nothing to do here."""


class Clock:
    """Marks that measure the time of the close."""

    def __init__(self) -> None:
        self._live = self._live_wall = 0.0
        self.seconds = self.seconds_wall = 0.0

    def empty(self) -> None:
        """Nothing to do here."""

    def live(self) -> None:
        """Start the clock after a garbage collection."""
        gc.collect()
        self._live_wall = wall()
        self._live = now()

    def closed(self) -> None:
        """Stop the clock."""
        self.seconds = now() - self._live
        self.seconds_wall = wall() - self._live_wall


async def noop() -> None:
    """Do nothing, so that only the overhead is measured."""


async def wait() -> None:
    """Wait on a new future until cancelled, as a real job does."""
    await asyncio.get_running_loop().create_future()


async def started() -> None:
    """Wait until every new task has reached its first await."""
    for _ in range(3):
        await asyncio.sleep(0)


async def spawn_bare(count: int) -> float:
    """Start and finish no-ops as the documentation of asyncio recommends."""
    tasks: set[asyncio.Task[None]] = set()
    begin = now()
    for _ in range(count):
        task = asyncio.create_task(noop())
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    while tasks:
        await asyncio.sleep(0)
    return (now() - begin) / count


async def live_bare(count: int, marks: Marks) -> None:
    """Close by cancelling all and gathering."""
    tasks: set[asyncio.Task[None]] = set()
    marks.empty()
    for _ in range(count):
        task = asyncio.create_task(wait())
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    await started()
    marks.live()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    marks.closed()


async def spawn_quiesce(count: int) -> float:
    """Start and finish no-ops in a scope."""
    async with quiesce.Scope("benchmark") as scope:
        begin = now()
        for _ in range(count):
            scope.spawn(noop)
        await scope.idle()
        seconds = now() - begin
    return seconds / count


async def spawn_elsewhere(count: int) -> float:
    """Do the same into a scope that is not the spawning task's current one."""
    scope = await quiesce.Scope.open("benchmark")
    async with quiesce.Scope("another"):
        begin = now()
        for _ in range(count):
            scope.spawn(noop)
        await scope.idle()
        seconds = now() - begin
    await scope.aclose()
    return seconds / count


async def spawn_adopted(count: int) -> float:
    """Create plain tasks, which an adopting scope then owns."""
    async with quiesce.Scope("benchmark", adopt=True) as scope:
        begin = now()
        for _ in range(count):
            asyncio.create_task(noop())  # noqa: RUF006 - the scope holds it
        await scope.idle()
        seconds = now() - begin
    return seconds / count


async def spawn_adopted_and_kept(count: int) -> float:
    """Do the same with code that also keeps its own set, as careful libraries do."""
    async with quiesce.Scope("benchmark", adopt=True) as scope:
        tasks: set[asyncio.Task[None]] = set()
        begin = now()
        for _ in range(count):
            task = asyncio.create_task(noop())
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        await scope.idle()
        seconds = now() - begin
    return seconds / count


async def live_quiesce(count: int, marks: Marks) -> None:
    """Close a scope; the report must name every job."""
    await _live_quiesce(count, marks, read=False)


async def live_quiesce_read(count: int, marks: Marks) -> None:
    """Close a scope, and read every field of the report for each job."""
    await _live_quiesce(count, marks, read=True)


async def _live_quiesce(count: int, marks: Marks, *, read: bool) -> None:
    try:
        async with quiesce.Scope("benchmark") as scope:
            marks.empty()
            for _ in range(count):
                scope.spawn(wait)
            await started()
            marks.live()
            report = await scope.aclose()
            if read:
                for record in report.cancelled:
                    _ = record.name, record.kind, record.where, record.age
            marks.closed()
    except* quiesce.DrainTimeout:
        pass  # the end of the block reports jobs that were cut short, as intended
    if len(report.cancelled) != count:
        message = f"the report names {len(report.cancelled)} of {count} jobs"
        raise RuntimeError(message)


WAVE = 1_000


async def waves_bare(count: int) -> float:
    """Start and finish no-ops, a wave at a time, with one set for all."""
    tasks: set[asyncio.Task[None]] = set()
    taken = []
    for _ in range(count // WAVE):
        begin = now()
        for _ in range(WAVE):
            task = asyncio.create_task(noop())
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        while tasks:
            await asyncio.sleep(0)
        taken.append(now() - begin)
    return least_disturbed(taken) / WAVE


async def waves_quiesce(count: int) -> float:
    """Start and finish no-ops, a wave at a time, in one scope that goes idle in between."""
    taken = []
    async with quiesce.Scope("benchmark") as scope:
        for _ in range(count // WAVE):
            begin = now()
            for _ in range(WAVE):
                scope.spawn(noop)
            await scope.idle()
            taken.append(now() - begin)
    return least_disturbed(taken) / WAVE


def least_disturbed(taken: list[float]) -> float:
    """Return the lower quartile, because another process may slow most waves of a long run."""
    return sorted(taken)[len(taken) // 4]


class Stopwatch:
    """A clock that a callback starts when it wakes a waiter, and that the waiter stops."""

    def __init__(self) -> None:
        self._fired = 0.0
        self._taken: list[float] = []

    def fire(self, act: Callable[..., object], *args: object) -> None:
        """Start the clock, and call the function that wakes the waiter."""
        self._fired = wall()
        act(*args)

    def woken(self) -> None:
        """Stop the clock."""
        self._taken.append(wall() - self._fired)

    @property
    def seconds(self) -> float:
        """The median of the wake-ups, so that an interruption does not count."""
        return median(self._taken)


async def wake_bare(count: int) -> tuple[float, float]:
    """Wait for a future that a callback sets; return the seconds of a wake-up, and of a whole round."""
    loop = asyncio.get_running_loop()
    watch = Stopwatch()
    begin = now()
    for _ in range(count):
        future: asyncio.Future[None] = loop.create_future()
        loop.call_soon(watch.fire, future.set_result, None)
        await future
        watch.woken()
    return watch.seconds, (now() - begin) / count


async def wake_quiesce(count: int) -> tuple[float, float]:
    """Wait for idle, which a callback causes by releasing the last hold; return the same."""
    loop = asyncio.get_running_loop()
    async with quiesce.Scope("benchmark") as scope:
        watch = Stopwatch()
        begin = now()
        for _ in range(count):
            hold = scope.hold("benchmark", "round")
            loop.call_soon(watch.fire, hold.release)
            await scope.idle()
            watch.woken()
        seconds = now() - begin
    return watch.seconds, seconds / count


async def frontier(count: int) -> dict[str, float]:
    """Read the frontier of many live jobs; return the seconds of each way to read it."""
    scope = await quiesce.Scope.open("benchmark")
    for _ in range(count):
        scope.spawn(wait)
    await started()
    taken = {}
    for label, act in (
        ("taken", scope.frontier),
        ("taken and read", lambda: _read(scope.frontier())),
        ("as text", lambda: str(scope.frontier())),
        ("as JSON", lambda: scope.frontier().to_json()),
    ):
        gc.collect()
        begin = now()
        _ = act()
        taken[label] = now() - begin
    await scope.aclose()
    return taken


def _read(entries: quiesce.Frontier) -> None:
    for entry in entries:
        _ = entry.kind, entry.name, entry.age, entry.where, entry.waiting_on
