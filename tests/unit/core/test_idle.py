"""`idle()`: woken by the fact that nothing is in flight."""

from __future__ import annotations

import asyncio
import math
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import pytest
import trio

from quiesce import Scope, UsageError, detached
from tests.foreign_private import timers_of
from tests.loops import count_waiters

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine, Generator


class Counted:
    """Await a coroutine, and count how often it was woken."""

    def __init__(self, coro: Coroutine[Any, Any, object]) -> None:
        self._coro = coro
        self.wakeups = 0

    def __await__(self) -> Generator[Any, Any, None]:
        inner = self._coro.__await__()
        try:
            asked = next(inner)
            while True:
                given = yield asked
                self.wakeups += 1
                asked = inner.send(given)
        except StopIteration:
            return

    async def wait(self) -> None:
        """Await it, as a job does."""
        await self


async def let_others_run() -> None:
    """Pause for many turns, so that everything that is ready runs."""
    for _ in range(20):
        await anyio.lowlevel.checkpoint()


def timers(backend: str) -> int:
    """Count the timers that are set; uvloop does not tell."""
    if backend == "trio":
        deadline = trio.lowlevel.current_statistics().seconds_to_next_deadline
        return int(deadline != math.inf)
    loop: Any = asyncio.get_running_loop()
    return timers_of(loop) if backend == "asyncio" else 0


@asynccontextmanager
async def beside(*waiting: Counted) -> AsyncIterator[Scope]:
    """Await things in a scope of its own, beside the one that is watched; it must end well."""
    with detached():
        outside = await Scope.open("outside")
    for each in waiting:
        outside.spawn(each.wait)
    await let_others_run()
    yield outside
    await outside.idle()
    report = await outside.aclose()
    assert report.ok, report


async def test_idle_waits_for_a_job() -> None:
    """A job in flight keeps the scope from being idle until it ends."""
    async with Scope("idle") as scope:
        gate = anyio.Event()
        job = scope.spawn(gate.wait)
        waiting = Counted(scope.idle())
        async with beside(waiting):
            assert waiting.wakeups == 0
            gate.set()
        assert job.done()
        assert waiting.wakeups == 1


async def test_a_scope_with_nothing_in_flight_is_idle_at_once() -> None:
    """There is nothing to wait for in a new scope."""
    async with Scope("idle") as scope:
        waiting = Counted(scope.idle())
        await waiting
        assert waiting.wakeups == 0


async def test_idle_does_not_close() -> None:
    """A scope goes idle, busy and idle again, as often as its work does."""
    async with Scope("idle") as scope:
        for turn in range(3):
            job = scope.spawn(let_others_run)
            assert scope.frontier()
            await scope.idle()
            assert job.done()
            assert scope.state == "open"
            hold = scope.hold("request", str(turn))
            assert scope.frontier()
            hold.release()
            await scope.idle()


async def test_idle_neither_polls_nor_sets_a_timer(backend: str) -> None:
    """However long the wait, the waiter sleeps through it, and is woken once, by the fact."""
    async with Scope("idle") as scope:
        hold = scope.hold("request", "long")
        before = timers(backend)
        waiting = Counted(scope.idle())
        async with beside(waiting):
            assert timers(backend) == before
            with anyio.move_on_after(0.02 if backend == "uvloop" else 3600):
                await anyio.sleep_forever()
            assert waiting.wakeups == 0
            hold.release()
        assert waiting.wakeups == 1


async def test_idle_includes_work_spawned_while_waiting() -> None:
    """A job that hands on to another before it ends leaves no moment in which all is quiet."""
    ended: list[int] = []

    async def relay(left: int) -> None:
        await anyio.lowlevel.checkpoint()
        if left:
            scope.spawn(relay, left - 1)
        ended.append(left)

    async with Scope("idle") as scope:
        scope.spawn(relay, 10)
        waiting = Counted(scope.idle())
        await waiting
        assert ended == list(range(10, -1, -1))
        assert waiting.wakeups == 1


async def test_a_scope_that_is_busy_again_before_the_waiter_runs_is_not_idle() -> None:
    """`idle()` returns in a step in which the scope is idle, not in one after it was."""
    seen: list[int] = []

    async def waiter() -> None:
        await scope.idle()
        seen.append(len(scope.frontier()))

    async with Scope("idle") as scope, beside() as outside:
        first = scope.hold("request", "first")
        job = outside.spawn(waiter)
        await let_others_run()
        first.release()
        second = scope.hold("request", "second")
        await let_others_run()
        assert not job.done()
        second.release()
        await job
    assert seen == [0]


@pytest.mark.parametrize("depth", [1, 3])
async def test_idle_includes_child_scopes(depth: int) -> None:
    """Work far below keeps every scope above it busy; a child that is merely open does not."""
    async with Scope("idle") as scope, beside() as outside:
        path = [scope]
        for level in range(depth):
            path.append(path[-1].child(f"level {level}"))
        await scope.idle()
        gate = anyio.Event()
        path[-1].spawn(gate.wait)
        jobs = [outside.spawn(each.idle) for each in path]
        await let_others_run()
        assert [job.done() for job in jobs] == [False] * (depth + 1)
        gate.set()
        for job in jobs:
            await job
        assert [each.state for each in path] == ["open"] * (depth + 1)


async def test_a_busy_child_is_counted_once_however_much_it_has() -> None:
    """The parent is idle when the last of its children's work ends, not the first."""
    async with Scope("idle") as scope:
        child, other = scope.child("child"), scope.child("other")
        holds = [child.hold("request", "a"), child.hold("request", "b"), other.hold("request", "c")]
        waiting = Counted(scope.idle())
        async with beside(waiting):
            for hold in holds:
                await let_others_run()
                assert waiting.wakeups == 0
                hold.release()
        assert waiting.wakeups == 1


async def test_services_are_not_in_the_way() -> None:
    """A service, of the scope or of a child, does not keep it from being idle."""
    async with Scope("idle") as scope:
        scope.spawn(anyio.sleep_forever, service=True)
        scope.child("child").spawn(anyio.sleep_forever, service=True)
        await let_others_run()
        await scope.idle()
        assert len(list(scope.frontier())) == 2


async def test_many_may_wait() -> None:
    """All waiters are woken by the same fact, each once."""
    async with Scope("idle") as scope:
        hold = scope.hold("request", "one")
        waiting = [Counted(scope.idle()) for _ in range(50)]
        async with beside(*waiting):
            assert [each.wakeups for each in waiting] == [0] * 50
            hold.release()
        assert [each.wakeups for each in waiting] == [1] * 50


async def test_a_service_may_wait() -> None:
    """A service of the scope may wait for the scope's work, as it is not work itself."""
    log: list[str] = []

    async def flush_when_idle() -> None:
        await scope.idle()
        log.append("idle")

    async with Scope("idle") as scope:
        job = scope.spawn(let_others_run)
        await scope.spawn(flush_when_idle, service=True)
        assert job.done()
    assert log == ["idle"]


async def test_work_may_wait_for_a_scope_below_it() -> None:
    """A job may await the idleness of a child scope that it does not belong to."""
    async with Scope("idle") as scope:
        child = scope.child("child")
        child.spawn(let_others_run)
        await scope.spawn(child.idle)
        assert not child.frontier()


@pytest.mark.parametrize("depth", [0, 1, 2])
async def test_work_may_not_wait_for_itself(depth: int) -> None:
    """`idle()` from work of the scope, or of a scope below it, is an error, not a deadlock."""
    scope = below = await Scope.open("idle")
    for _ in range(depth):
        below = below.child("below")
    job = below.spawn(scope.idle)
    with pytest.raises(
        UsageError, match=r"call idle\(\) from outside the scope, or from a service"
    ):
        await job
    assert len((await scope.aclose()).failed) == 1


async def test_a_cancelled_waiter_leaves_nothing() -> None:
    """A waiter that gave up is forgotten by the scope."""
    async with Scope("idle") as scope, beside() as outside:
        hold = scope.hold("request", "long")
        before = count_waiters(scope)
        for _ in range(10):
            with anyio.move_on_after(0):
                await scope.idle()
        jobs = [outside.spawn(scope.idle) for _ in range(10)]
        await let_others_run()
        for job in jobs:
            job.cancel()
        await outside.idle()
        del jobs, job
        await let_others_run()  # the loop keeps the last cancellation for one turn
        assert count_waiters(scope) <= before
        hold.release()


async def test_a_cancelled_waiter_does_not_take_the_others_along() -> None:
    """Of two waiters one gives up, and the other still sees the fact."""
    async with Scope("idle") as scope, beside() as outside:
        hold = scope.hold("request", "long")
        impatient, patient = outside.spawn(scope.idle), outside.spawn(scope.idle)
        await let_others_run()
        impatient.cancel()
        hold.release()
        await patient


async def test_idle_ends_with_the_scope() -> None:
    """Someone who waits for a scope that is closed meanwhile is let go when it is."""
    scope = await Scope.open("idle")
    scope.spawn(anyio.sleep_forever)
    hold = scope.hold("request", "never released")
    async with beside() as outside:
        waiter = outside.spawn(scope.idle)
        await let_others_run()
        assert not waiter.done()
        report = await scope.aclose(cleanup=0.01)
        assert len(report.undelivered) == 1
        await waiter
    await scope.idle()
    hold.release()
