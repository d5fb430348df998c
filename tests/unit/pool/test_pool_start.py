"""Cold starts: once a key, owned by the pool, and told to all who wait."""

from __future__ import annotations

import contextvars
from typing import Any

import anyio
import pytest

from quiesce import ArgumentError, Scope, UsageError
from quiesce.errors import RunnerReleased, StartFailed
from quiesce.pool.backoff import Backoff
from quiesce.pool.pool import RunnerPool
from tests.stress import turns
from tests.unit.pool.pool_runners import FakeRunner, User, World

request: contextvars.ContextVar[str] = contextvars.ContextVar("request", default="nobody's")


async def test_a_runner_is_started_once_for_all_who_wait() -> None:
    """However many lease a key at once, there is one start, and all get the same runner."""
    world = World()
    async with Scope("a") as scope:
        pool = world.pool()
        users = [User(pool) for _ in range(5)]
        for user in users:
            scope.spawn(user)
        await turns(20)
        assert {user.runner for user in users} == {world.runners[0]}
        assert world.begun == 1
        assert (pool.stats.ready, pool.stats.leases, pool.stats.idle) == (1, 5, 0)
        for user in users:
            user.done.set()
    assert world.total() == 0


async def test_a_warm_runner_is_leased_without_waiting() -> None:
    """The second lease gets the runner of the first."""
    world = World()
    async with Scope("a"):
        pool = world.pool()
        async with pool.lease("a") as first:
            pass
        async with pool.lease("a") as second:
            assert second is first
        assert world.begun == 1


async def test_each_key_has_its_own_runner() -> None:
    """Two keys are started beside each other."""
    world = World()
    async with Scope("a"):
        pool = world.pool()
        async with pool.lease("a") as first, pool.lease("b") as second:
            assert (first.key, second.key) == ("a", "b")
            assert pool.stats.ready == 2


async def test_a_cancelled_first_waiter_costs_the_others_nothing() -> None:
    """The start goes on for the one who is left."""
    world = World()
    world.gate = anyio.Event()
    async with Scope("a") as scope:
        pool = world.pool()
        first = scope.spawn(User(pool))
        second = User(pool)
        scope.spawn(second)
        await turns(5)
        first.cancel()
        await turns(5)
        world.gate.set()
        await turns(10)
        assert second.runner is world.runners[0]
        assert (world.begun, world.cancelled) == (1, 0)
        second.done.set()


@pytest.mark.parametrize("after", [0, 1, 3, 8])
async def test_the_last_waiter_to_leave_cancels_the_start(after: int) -> None:
    """When nobody waits any more, the start is cancelled, and the pool is empty."""
    world = World()
    world.gate = anyio.Event()
    async with Scope("a") as scope:
        pool = world.pool()
        jobs = [scope.spawn(User(pool)) for _ in range(2)]
        await turns(after)
        for job in jobs:
            job.cancel()
        await turns(20)
        assert world.total() == 0
        assert world.cancelled == world.begun
        stats = pool.stats
        assert (stats.starting, stats.stopping, stats.waiting, stats.started) == (0, 0, 0, 0)


async def test_a_start_that_ends_although_it_was_cancelled_is_stopped() -> None:
    """A factory that swallows its cancellation, and gives a runner, does not leak it."""
    world = World()
    world.gate = anyio.Event()
    world.swallow = True
    async with Scope("a") as scope:
        pool = world.pool()
        job = scope.spawn(User(pool))
        await turns(5)
        job.cancel()
        await turns(20)
        assert [runner.returncode for runner in world.runners] == [0]
        assert pool.stats.started == 0


async def test_a_release_interrupts_a_cold_start_at_once() -> None:
    """It does not wait for the start, and those who wait are told."""
    world = World()
    world.gate = anyio.Event()
    async with Scope("a") as scope:
        pool = world.pool()
        users = [User(pool), User(pool)]
        for user in users:
            scope.spawn(user)
        await turns(5)
        assert await pool.release("a")
        assert (world.total(), world.cancelled) == (0, 1)
        await turns(5)
        assert [type(user.error) for user in users] == [RunnerReleased, RunnerReleased]
        assert users[0].error is not users[1].error


async def test_a_release_before_the_first_step_of_a_start_is_told() -> None:
    """A start that has not begun is not begun any more."""
    world = World()
    async with Scope("a") as scope:
        pool = world.pool()
        user = User(pool)
        scope.spawn(user)
        while not pool.stats.starting:
            await turns(1)
        await pool.release("a")
        await turns(5)
        assert isinstance(user.error, RunnerReleased)
        assert world.total() == 0


async def test_a_failed_start_is_told_to_all_and_not_kept() -> None:
    """Each waiter gets an error of its own with the cause; the next lease tries again."""
    world = World()
    world.error = OSError("no such program")
    async with Scope("a") as scope:
        pool = world.pool()
        users = [User(pool), User(pool)]
        for user in users:
            scope.spawn(user)
        await turns(20)
        for user in users:
            assert isinstance(user.error, StartFailed)
            assert (user.error.key, user.error.cause) == ("a", world.error)
            assert user.error.__cause__ is world.error
        assert users[0].error is not users[1].error
        world.error = None
        async with pool.lease("a"):
            assert (world.begun, pool.stats.failed, pool.stats.started) == (2, 1, 1)
    assert scope.report is not None
    assert scope.report.ok


async def test_a_start_that_fails_while_it_is_cancelled_is_reported() -> None:
    """Nobody waits for it, so the report tells."""
    world = World()
    world.gate = anyio.Event()
    world.swallow = True
    world.error = OSError("broken cleanup")
    scope = await Scope.open("a")
    pool = world.pool(scope=scope)
    job = scope.spawn(User(pool))
    await turns(5)
    job.cancel()
    await turns(20)
    report = await scope.aclose()
    assert [item.error for item in report.failed] == [world.error]


async def test_the_next_runner_of_a_key_starts_when_the_last_one_is_gone() -> None:
    """A lease during the stop waits: there are never two of a key."""
    world = World()
    async with Scope("a") as scope:
        pool = world.pool()
        async with pool.lease("a") as first:
            pass
        world.stop_turns = 10
        scope.spawn(pool.release, "a")
        await turns(3)
        assert (pool.stats.stopping, first.returncode) == (1, None)
        async with pool.lease("a") as second:
            assert second is not first
            assert first.returncode == 0


async def test_the_start_runs_in_the_context_of_the_pool() -> None:
    """A variable of the first who leases is not the runner's."""
    world = World()
    seen: list[str] = []

    async def start(key: str) -> FakeRunner:
        seen.append(request.get())
        return await world.start(key)

    async with Scope("a"):
        pool = RunnerPool(start)
        request.set("first's")
        async with pool.lease("a"):
            assert seen == ["nobody's"]


async def test_what_is_no_runner_is_refused() -> None:
    """The error names the factory and what it gave."""

    async def start(_: str) -> Any:
        return 7

    async with Scope("a"):
        pool: RunnerPool[str, Any] = RunnerPool(start)
        with pytest.raises(StartFailed, match=r"start returned 7, which is not a runner"):
            async with pool.lease("a"):
                pass


async def test_a_factory_that_is_not_async_is_refused() -> None:
    """The error says what is needed."""
    async with Scope("a"):
        pool: RunnerPool[str, Any] = RunnerPool(lambda _: 7)  # type: ignore[arg-type, return-value]  # wrong on purpose
        with pytest.raises(StartFailed, match="returned 7: RunnerPool needs a Program, a function"):
            async with pool.lease("a"):
                pass


@pytest.mark.parametrize("verb", ["lease", "release"])
async def test_a_factory_cannot_wait_for_itself(verb: str) -> None:
    """Leasing or releasing its own key is an error, not a deadlock."""

    async def start(key: str) -> FakeRunner:
        if verb == "release":
            await pool.release(key)
        async with pool.lease(key) as runner:
            return runner

    async with Scope("a"):
        pool = RunnerPool(start)
        with pytest.raises(StartFailed) as caught:
            async with pool.lease("a"):
                pass
    assert isinstance(caught.value.cause, UsageError)


async def test_a_key_must_be_hashable() -> None:
    """The error names it, and nothing is held."""
    async with Scope("a") as scope:
        pool: RunnerPool[Any, FakeRunner] = RunnerPool(World().start)
        with pytest.raises(ArgumentError, match="is not hashable"):
            pool.lease([1])
        assert not scope.frontier()


async def test_an_idle_pool_does_not_keep_its_scope_busy() -> None:
    """Runners are services; leases and starts are work."""
    world = World()
    world.gate = anyio.Event()
    async with Scope("a") as scope:
        user = User(world.pool())
        scope.spawn(user)
        await turns(5)
        assert scope.frontier()
        world.gate.set()
        user.done.set()
        await scope.idle()
        assert world.total() == 1


async def test_a_lease_is_used_once() -> None:
    """Entering it again is an error."""
    world = World()
    async with Scope("a"):
        lease = world.pool().lease("a")
        async with lease:
            pass
        with pytest.raises(UsageError, match="used before"):
            async with lease:
                pass


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"runners_max": 0}, "runners_max must be"),
        ({"idle_seconds": -1}, "idle_seconds must be"),
        ({"grace": "5"}, "grace must be"),
        ({"grace": float("inf")}, "grace must be finite"),
        ({"restart": 3}, "restart must be a Backoff"),
        ({"name": 3}, "name must be"),
    ],
)
async def test_wrong_options_are_named(options: dict[str, Any], match: str) -> None:
    """Each error says which option is wrong, and nothing is left open."""
    async with Scope("a") as scope:
        with pytest.raises(ArgumentError, match=match):
            World().pool(**options)
        assert not scope.children


async def test_a_pool_needs_a_scope() -> None:
    """Without one, the error says what to do."""
    with pytest.raises(UsageError, match="needs a scope"):
        World().pool()


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"first_seconds": -1}, "first_seconds must be"),
        ({"factor": 0.5}, "factor must be 1 or more"),
        ({"longest_seconds": "x"}, "longest_seconds must be"),
    ],
)
def test_a_wrong_back_off_is_named(options: dict[str, Any], match: str) -> None:
    """Each error says which option is wrong."""
    with pytest.raises(ArgumentError, match=match):
        Backoff(**options)
