"""Releasing, draining and closing: in parallel, under one deadline, and nothing is left."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest

from quiesce import Scope, ScopeClosed, current_scope
from quiesce.pool.pool import RunnerPool
from tests.stress import SCHEDULING, Raising, run_bounded, turns, unclosed
from tests.unit.pool.pool_runners import User, World

if TYPE_CHECKING:
    from tests.unit.pool.pool_runners import FakeRunner

GRACE = 0.05
ROUNDING = 1e-6


async def fill(pool: RunnerPool[str, FakeRunner], keys: str = "abcde") -> list[FakeRunner]:
    """Start a runner for each key, and leave it idle."""
    found = []
    for key in keys:
        async with pool.lease(key) as runner:
            found.append(runner)
    return found


async def test_a_release_returns_when_the_runner_is_gone() -> None:
    """Leased or not, it is stopped with its grace."""
    world = World()
    async with Scope("a") as scope:
        pool = world.pool(grace=3)
        user = User(pool)
        scope.spawn(user)
        await turns(10)
        assert await pool.release("a")
        assert world.total() == 0
        assert world.runners[0].graces == pytest.approx([3.0], abs=0.1)
        assert not await pool.release("a")
        assert not await pool.release("unknown")
        user.done.set()
    assert pool.stats.crashed == 0


async def test_all_who_release_wait_for_the_same_end() -> None:
    """A second release, during the first, returns no sooner."""
    world = World()
    async with Scope("a") as scope:
        pool = world.pool()
        [runner] = await fill(pool, "a")
        world.stop_turns = 10
        jobs = [scope.spawn(pool.release, "a") for _ in range(3)]
        for job in jobs:
            assert await job
            assert runner.returncode == 0
        assert len(runner.graces) == 1


async def test_a_cancelled_release_waits_for_the_end_of_a_stubborn_runner() -> None:
    """The runner is ended all the same, before the cancellation is passed on."""
    world = World()
    world.stubborn = True
    async with Scope("a"):
        pool = world.pool(grace=GRACE)
        [runner] = await fill(pool, "a")
        with anyio.CancelScope() as cancelled:
            cancelled.cancel()
            await pool.release("a")
        assert cancelled.cancelled_caught
        assert runner.returncode == -9


@pytest.mark.backends("asyncio", "trio")
async def test_a_cancelled_release_does_not_wait_for_ever() -> None:
    """A stop that never ends is left to its owner when its time is over."""
    world = World()
    async with Scope("a"):
        pool = world.pool(grace=0)
        [runner] = await fill(pool, "a")
        stuck = anyio.Event()

        async def stop(grace: float) -> None:
            await stuck.wait()
            runner.exit(0)

        runner.stop = stop  # type: ignore[method-assign]  # a broken runner
        begun = anyio.current_time()
        with anyio.CancelScope() as cancelled:
            cancelled.cancel()
            await pool.release("a")
        seconds = anyio.current_time() - begun
        stuck.set()
        await turns(10)
        assert 2 <= seconds < 3
        assert pool.stats.stopping == 0


async def test_a_drain_ends_stubborn_runners_in_parallel(backend: str) -> None:
    """Five that ignore being asked take one grace, not five."""
    world = World()
    world.stubborn = True
    async with Scope("a"):
        pool = world.pool(grace=GRACE)
        await fill(pool)
        begun = anyio.current_time()
        report = await pool.drain(grace=10)
        assert GRACE - ROUNDING <= anyio.current_time() - begun < GRACE + SCHEDULING[backend]
        assert report.ok
        assert world.total() == 0


async def test_a_drain_waits_for_leases_and_stops_the_idle_at_once() -> None:
    """What is idle goes now, what is leased when it is given back, and nothing new comes."""
    world = World()
    async with Scope("a") as scope:
        pool = world.pool()
        idle, _ = await fill(pool, "ab")
        user = User(pool, "b")
        scope.spawn(user)
        await turns(5)
        job = scope.spawn(pool.drain, 10)
        await turns(10)
        assert user.runner is not None
        assert (idle.returncode, user.runner.returncode) == (0, None)
        with pytest.raises(ScopeClosed):
            await fill(pool, "b")
        user.done.set()
        assert (await job).ok
        assert user.runner.returncode == 0


async def test_a_drain_lets_those_who_wait_already_have_their_runner() -> None:
    """They came before it."""
    world = World()
    world.gate = anyio.Event()
    async with Scope("a") as scope:
        pool = world.pool()
        user = User(pool)
        scope.spawn(user)
        await turns(5)
        job = scope.spawn(pool.drain, 10)
        await turns(5)
        world.gate.set()
        await turns(10)
        assert user.runner is not None
        user.done.set()
        assert (await job).ok


async def test_a_drain_cuts_leases_short_at_its_deadline(backend: str) -> None:
    """The report names the lease; the runner gets its grace."""
    world = World()
    world.stubborn = True
    async with Scope("a") as scope:
        pool = world.pool(grace=GRACE)
        user = User(pool)
        scope.spawn(user)
        await turns(10)
        begun = anyio.current_time()
        report = await pool.drain(grace=GRACE)
        seconds = anyio.current_time() - begun
        assert 2 * GRACE - ROUNDING <= seconds < 2 * GRACE + SCHEDULING[backend]
        assert [(item.kind, item.name) for item in report.cancelled] == [("lease", "a")]
        assert world.total() == 0
        user.done.set()


async def test_a_drain_does_not_wait_for_the_leases_of_its_caller() -> None:
    """That would be a wait for oneself."""
    world = World()
    async with Scope("a"):
        pool = world.pool()
        async with pool.lease("a") as runner:
            report = await pool.drain(grace=None)
            assert report.ok
            assert runner.returncode == 0


async def test_work_that_is_drained_may_lease_a_warm_runner() -> None:
    """The drain of the scope around it leaves idle runners for the work that goes on."""
    world = World()
    async with Scope("a") as scope:
        pool = world.pool()
        [warm] = await fill(pool, "a")
        go = anyio.Event()

        async def work() -> None:
            await go.wait()
            async with pool.lease("a") as runner:
                assert runner is warm
            async with pool.lease("b"):
                pass

        scope.spawn(work)
        await turns(5)
        closing = await Scope.open("other")
        closing.spawn(scope.drain, 10)
        await turns(5)
        assert scope.state == "draining"
        go.set()
        await closing.drain()
    assert scope.report is not None
    assert scope.report.ok
    assert world.total() == 0


async def test_a_start_for_work_that_is_drained_may_start_what_it_needs() -> None:
    """The factory's own sub-work is let in, while nobody else's is."""
    world = World()

    async def start(key: str) -> FakeRunner:
        scope = current_scope()
        assert scope is not None
        assert scope.state == "draining"
        with scope.hold("port", key):
            return await scope.spawn(world.start, key)

    async with Scope("a") as scope:
        pool = RunnerPool(start)

        async def work() -> None:
            await scope.closing()
            async with pool.lease("a"):
                pass

        scope.spawn(work)
    assert world.begun == 1
    assert world.total() == 0


async def test_closing_the_scope_ends_everything() -> None:
    """Leases, starts and waits are cut short, runners are stopped, and nothing is left."""
    world = World()
    scope = await Scope.open("a")
    outside = await Scope.open("users", on_error=lambda _job, _error: None)
    pool = world.pool(scope=scope, runners_max=2)
    users = [User(pool, key) for key in "aabc"]
    for user in users[:2]:
        outside.spawn(user)
    await turns(10)
    world.gate = anyio.Event()
    for user in users[2:]:
        outside.spawn(user)
    await turns(5)
    report = await scope.aclose()
    assert world.total() == 0
    assert sorted(item.kind for item in report.cancelled) == ["lease", "lease", "runner"]
    assert not report.stuck
    for user in users:
        user.done.set()
    await outside.drain()
    assert [type(user.error) for user in users] == [type(None)] * 2 + [ScopeClosed] * 2
    with pytest.raises(ScopeClosed):
        await fill(pool, "z")


async def test_those_who_wait_and_are_cancelled_with_the_scope_are_not_told() -> None:
    """A lease of the scope's own work is cancelled, as all of it is: that is no failure."""
    world = World()
    world.gate = anyio.Event()

    async def work(pool: RunnerPool[str, FakeRunner]) -> None:
        async with pool.lease("a"):
            pass

    for _ in range(20):  # trio runs the two closings in any order
        async with Raising(ZeroDivisionError), Scope("a") as scope:
            pool = world.pool()
            for _ in range(3):
                scope.spawn(work, pool)
            await turns(5)
            raise ZeroDivisionError
        assert scope.report is not None
        assert [item.kind for item in scope.report.cancelled] == ["job"] * 3 + ["runner"]
        assert not scope.report.failed


async def test_a_close_leaves_a_stubborn_runner_no_more_time_than_it_has(backend: str) -> None:
    """The grace is cut so that the runner is killed, and seen dead, by the deadline."""
    world = World()
    world.stubborn = True
    scope = await Scope.open("a")
    pool = world.pool(scope=scope, grace=100)
    await fill(pool)
    begun = anyio.current_time()
    report = await scope.aclose(cleanup=0.5)
    assert anyio.current_time() - begun < 0.5 + SCHEDULING[backend]
    assert all(0 < min(runner.graces) <= 0.45 + ROUNDING for runner in world.runners)
    assert not report.stuck
    assert world.total() == 0


async def test_a_drain_hurries_a_stop_that_is_under_way(backend: str) -> None:
    """A runner in a long grace, released before, ends by the deadline of the close."""
    world = World()
    world.stubborn = True
    scope = await Scope.open("a")
    pool = world.pool(scope=scope, grace=100)
    await fill(pool, "a")
    other = await Scope.open("other")
    job = other.spawn(pool.release, "a")
    await turns(5)
    assert pool.stats.stopping == 1
    begun = anyio.current_time()
    report = await scope.aclose(cleanup=0.5)
    assert anyio.current_time() - begun < 0.5 + SCHEDULING[backend]
    assert not report.stuck
    assert world.total() == 0
    assert await job
    await other.aclose()


async def test_a_runner_that_cannot_be_stopped_is_stuck() -> None:
    """The close is bounded, the report names it, and a release does not wait for it."""
    world = World()
    scope = await Scope.open("a")
    pool = world.pool(scope=scope)
    [runner] = await fill(pool, "a")
    end = anyio.Event()

    async def stop(grace: float) -> None:
        await end.wait()
        runner.exit(0)

    runner.stop = stop  # type: ignore[method-assign]  # a broken runner
    other = await Scope.open("other")
    job = other.spawn(pool.release, "a")
    await turns(5)
    report = await scope.aclose(cleanup=0.1)
    stuck = [(item.kind, item.name) for item in report.stuck]
    assert ("runner", "a") in stuck
    assert await job
    assert not await pool.release("a")
    end.set()
    await turns(10)
    await other.aclose()


async def test_a_stop_that_fails_is_reported() -> None:
    """The runner is gone for the pool; the error is in the report."""
    world = World()
    world.stop_error = OSError("no permission")
    scope = await Scope.open("a")
    pool = world.pool(scope=scope)
    await fill(pool, "a")
    assert await pool.release("a")
    report = await scope.aclose()
    assert [item.error for item in report.failed] == [world.stop_error]
    assert pool.stats.stopping == 0


@pytest.mark.quiesce(allow=["task:runner *", "task:User.__call__"])
@pytest.mark.parametrize("backend", ["asyncio", "uvloop", "trio"])
def test_the_end_of_the_event_loop_ends_the_runners(backend: str) -> None:
    """A program that leaves without closing anything leaves no runner behind."""
    worlds: list[World] = []

    async def main() -> None:
        world = World()
        worlds.append(world)
        scope = await Scope.open("a")
        pool = world.pool(scope=scope)
        await fill(pool, "abc")
        world.gate = anyio.Event()
        scope.spawn(User(pool, "cold"))
        await turns(5)
        assert world.total() == 4

    run_bounded(backend, main)
    unclosed()
    assert worlds[0].total() == 0
