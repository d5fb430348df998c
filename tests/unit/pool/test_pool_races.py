"""Moments in which two things happen to a runner at once: each has one outcome, and an end."""

from __future__ import annotations

import asyncio
from typing import Any

import anyio
import pytest

from quiesce import ArgumentError, Scope, ScopeClosed, current_scope
from quiesce.errors import StartFailed
from quiesce.pool.backoff import Backoff
from quiesce.pool.pool import RunnerPool
from tests.stress import SCHEDULING, turns
from tests.unit.pool.pool_runners import FakeRunner, User, World

GRACE = 0.05
ROUNDING = 1e-6


def cancel_job(name: str) -> None:
    """Cancel a task by its name, as a program does that cancels all there are."""
    [task] = [task for task in asyncio.all_tasks() if task.get_name() == name]
    task.cancel()


@pytest.mark.backends("asyncio", "uvloop")
async def test_a_runner_whose_job_is_cancelled_from_outside_has_its_grace_and_no_more(
    backend: str,
) -> None:
    """Somebody cancels all tasks: a stubborn runner is killed, and the next lease is served."""
    world = World()
    world.stubborn = True
    async with Scope("a"):
        pool = world.pool(grace=GRACE)
        async with pool.lease("a") as first:
            cancel_job("runner a")
            begun = anyio.current_time()
            with anyio.fail_after(2):
                await first.wait()
            seconds = anyio.current_time() - begun
        assert GRACE - ROUNDING <= seconds < GRACE + SCHEDULING[backend]
        async with pool.lease("a") as second:
            assert second is not first


async def test_a_runner_that_is_broken_from_the_start_is_not_handed_out() -> None:
    """It is being stopped when the one who was woken for it goes on, who gets another."""
    world = World()

    async def wait() -> int:
        raise OSError

    async def start(key: str) -> FakeRunner:
        runner = await world.start(key)
        if len(world.runners) == 1:
            runner.wait = wait  # type: ignore[method-assign]  # a broken runner
        return runner

    scope = await Scope.open("a")
    pool = RunnerPool(start, scope=scope)
    async with pool.lease("a") as runner:
        assert runner is world.runners[1]
        assert pool.stats.crashed == 1
    assert world.runners[0].returncode == 0
    report = await scope.aclose()
    assert [type(item.error) for item in report.failed] == [OSError]


async def test_a_runner_that_cannot_be_waited_for_is_stopped_in_its_grace(backend: str) -> None:
    """A broken runner is ended, and its error is in the report."""
    world = World()
    world.stubborn = True
    broken = OSError("no such process")
    release = anyio.Event()

    async def wait() -> int:
        await release.wait()
        raise broken

    async def start(key: str) -> FakeRunner:
        runner = await world.start(key)
        runner.wait = wait  # type: ignore[method-assign]  # a broken runner
        return runner

    scope = await Scope.open("a")
    pool = RunnerPool(start, scope=scope, grace=GRACE)
    async with pool.lease("a"):
        release.set()
        begun = anyio.current_time()
        with anyio.fail_after(2):
            await world.runners[0].exited.wait()
        seconds = anyio.current_time() - begun
    report = await scope.aclose()
    assert GRACE - ROUNDING <= seconds < GRACE + SCHEDULING[backend]
    assert [item.error for item in report.failed] == [broken]


@pytest.mark.parametrize("early", range(4))
async def test_no_factory_is_called_once_the_close_has_begun(early: int) -> None:
    """A start that has not begun by then is not begun, and those who wait are told of the close."""
    states: list[str] = []
    world = World()

    async def start(key: str) -> FakeRunner:
        found = current_scope()
        assert found is not None
        states.append(found.state)
        return await world.start(key)

    outside = await Scope.open("users")
    scope = await Scope.open("a")
    pool = RunnerPool(start, scope=scope, runners_max=2)
    users = [User(pool, key) for key in "abcd"]
    for user in users:
        outside.spawn(user)
    while not pool.stats.starting:
        await turns(1)
    await turns(early)
    await scope.aclose()
    for user in users:
        user.done.set()
    await outside.drain()
    assert "closing" not in states
    assert world.total() == 0
    assert all(user.runner is not None or isinstance(user.error, ScopeClosed) for user in users)


async def test_a_start_that_is_refused_by_the_close_is_told_as_the_close() -> None:
    """The factory meets the closed scope first: that is no failed start."""
    world = World()
    go = anyio.Event()
    outside = await Scope.open("users")
    scope = await Scope.open("a")

    async def start(key: str) -> FakeRunner:
        await go.wait()
        found = current_scope()
        assert found is not None
        with found.hold("port", key):
            return await world.start(key)

    pool = RunnerPool(start, scope=scope)
    user = User(pool)
    outside.spawn(user)
    await turns(5)
    go.set()
    await scope.aclose()
    await outside.drain()
    assert isinstance(user.error, ScopeClosed)
    assert pool.stats.failed == 0


@pytest.mark.parametrize("how", ["crash", "release"])
async def test_a_drain_does_not_wait_for_its_callers_lease_of_a_runner_that_is_gone(
    how: str,
) -> None:
    """The runner of the lease was replaced, or is gone, meanwhile: it is the caller's all the same."""
    world = World()
    async with Scope("a"):
        pool = world.pool()
        async with pool.lease("a") as runner:
            if how == "crash":
                runner.exit(1)
                await turns(5)
            else:
                await pool.release("a")
            with anyio.fail_after(2):
                report = await pool.drain(grace=None)
        assert report.ok


async def test_a_pool_is_shown_where_it_was_made() -> None:
    """The frontier names the line of its user, not one of the library."""
    async with Scope("a"):
        where = World().pool().own_scope.where
        assert where is not None
        assert "src/quiesce/" not in where


async def test_a_release_names_a_key_that_cannot_be_one() -> None:
    """As a lease does."""
    async with Scope("a"):
        pool: RunnerPool[Any, FakeRunner] = RunnerPool(World().start)
        with pytest.raises(ArgumentError, match="is not hashable"):
            await pool.release([1])


async def test_what_does_not_tell_how_it_ended_is_no_runner() -> None:
    """`returncode` is asked for at every lease, so it has to be there."""

    class Half:
        async def wait(self) -> int:
            return 0

        async def stop(self, grace: float) -> None:
            pass

    async def start(_: str) -> Any:
        return Half()

    async with Scope("a"):
        pool: RunnerPool[str, Any] = RunnerPool(start)
        with pytest.raises(
            StartFailed, match=r"Half object .* needs returncode, wait\(\) and stop"
        ):
            async with pool.lease("a"):
                pass


@pytest.mark.parametrize(
    ("backoff", "delay"),
    [
        (Backoff(factor=1), 0.5),
        (Backoff(first_seconds=0), 0),
        (Backoff(factor=1.0001), 30),
        (Backoff(longest_seconds=float("inf")), float("inf")),
    ],
)
def test_the_delay_is_found_at_once_however_often_it_has_failed(
    backoff: Backoff, delay: float
) -> None:
    """It is not counted up."""
    assert backoff.delay(10**8) == delay


async def test_a_close_that_is_made_shorter_hurries_the_runners(backend: str) -> None:
    """They were asked already, with more time than there is now."""
    world = World()
    world.stubborn = True
    scope = await Scope.open("a")
    other = await Scope.open("other")
    pool = world.pool(scope=scope, grace=100)
    async with pool.lease("a"):
        pass
    other.spawn(scope.aclose, 60)
    await turns(20)
    assert pool.stats.stopping == 1
    begun = anyio.current_time()
    report = await scope.aclose(cleanup=0.5)
    assert anyio.current_time() - begun < 0.5 + SCHEDULING[backend]
    assert 0 < min(world.runners[0].graces) <= 0.45 + ROUNDING  # and not by the last call
    assert not report.stuck
    assert world.total() == 0
    await other.drain()
