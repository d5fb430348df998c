"""Cancellation at each step of a lease, a release, a drain and the idle time's end.

Each subject ends by counting: nothing alive, nothing half-started, no lease or wait left over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from quiesce import Scope
from quiesce.errors import RunnerReleased
from tests.stress import turns
from tests.sweeping import Plan, sweep
from tests.unit.pool.pool_runners import FakeRunner, User, World, joined, surely

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from quiesce.pool.pool import RunnerPool
    from tests.sweeping import Subject

    Act = Callable[[RunnerPool[str, FakeRunner], World], Awaitable[Any]]

KINDS = [
    ("asyncio", "native"),
    ("uvloop", "native"),
    ("asyncio", "anyio"),
    ("uvloop", "anyio"),
    ("trio", "anyio"),
]
KINDS_WITH_TURNS = [KINDS[0], KINDS[2], KINDS[4]]
GRACE = 0.002


def swept(act: Act, *, stubborn: bool = False, **options: Any) -> Subject:
    """Make a subject: a pool, what is done to it, and the count at its end."""

    async def subject() -> None:
        world = World()
        world.stubborn = stubborn
        scope = await Scope.open("a")
        pool = world.pool(scope=scope, grace=GRACE, **options)

        async def still_works() -> None:
            """See that nothing is wedged: a lease is given, and the pool gets quiet."""
            if scope.state == pool.own_scope.state == "open":
                async with pool.lease("after") as runner:
                    assert runner.returncode is None
                assert pool.stats.leases == pool.stats.waiting == 0

        async def close() -> None:
            report = await scope.aclose()
            assert not report.stuck
            assert not report.failed
            assert world.total() == 0
            stats = pool.stats
            assert stats.starting == stats.stopping == stats.queued == stats.ready == 0
            assert (stats.leases, stats.waiting) == (0, 0)
            assert ", 0 runners>" in repr(pool)

        try:
            await act(pool, world)
        finally:
            try:
                await surely(still_works)
            finally:
                await surely(close)

    return subject


async def leasing(pool: RunnerPool[str, FakeRunner], world: World) -> None:
    """Lease a cold runner, then a warm one."""
    for _ in range(2):
        async with pool.lease("a") as runner:
            assert runner.returncode is None
            await turns(1)


async def leasing_beside_others(pool: RunnerPool[str, FakeRunner], world: World) -> None:
    """Lease as one of two that wait: the other one gets the runner, from the same start."""
    scope = pool.own_scope.parent
    assert isinstance(scope, Scope)
    user = User(pool)

    async def other_is_served() -> None:
        user.done.set()
        await job
        assert user.runner is not None
        assert world.begun == 1

    job = scope.spawn(user)
    try:
        while not pool.stats.waiting:
            await turns(1)
        async with pool.lease("a"):
            await turns(1)
    finally:
        await surely(other_is_served)


async def leasing_in_a_queue(pool: RunnerPool[str, FakeRunner], world: World) -> None:
    """Wait for room, which others take and give back."""
    scope = pool.own_scope.parent
    assert isinstance(scope, Scope)

    async def work(key: str) -> None:
        async with pool.lease(key):
            await turns(2)

    jobs = [scope.spawn(work, key) for key in "bc"]
    try:
        await work("a")
    finally:
        await surely(lambda: joined(jobs))
        assert world.most == 1


async def releasing(pool: RunnerPool[str, FakeRunner], world: World) -> None:
    """Release a runner that is leased by another; when this ends, it is gone."""
    async with pool.lease("a") as runner:
        try:
            await pool.release("a")
        finally:
            assert runner.returncode is not None


async def releasing_cold(pool: RunnerPool[str, FakeRunner], world: World) -> None:
    """Release while the start is under way, and lease again at once."""
    scope = pool.own_scope.parent
    assert isinstance(scope, Scope)
    user = User(pool)
    user.done.set()
    job = scope.spawn(user)
    try:
        await turns(2)
        await pool.release("a")
    finally:
        await surely(lambda: joined([job]))
    assert user.error is None or isinstance(user.error, RunnerReleased)
    await leasing(pool, world)


async def draining(pool: RunnerPool[str, FakeRunner], world: World) -> None:
    """Drain with idle, leased and starting runners; when this ends, all are gone."""
    scope = pool.own_scope.parent
    assert isinstance(scope, Scope)
    for key in "ab":
        async with pool.lease(key):
            pass
    users = [User(pool, key) for key in "bc"]
    jobs = [scope.spawn(user) for user in users]
    begun = False
    try:
        await turns(2)
        begun = True
        await pool.drain(grace=GRACE)
    finally:
        assert world.total() == 0 or not begun
        for user in users:
            user.done.set()
        await surely(lambda: joined(jobs))


async def reaping(pool: RunnerPool[str, FakeRunner], world: World) -> None:
    """Lease again and again while the idle time, of nothing, ends the runner every time."""
    for pause in range(6):
        async with pool.lease("a") as runner:
            assert runner.returncode is None
            await turns(1)
            assert runner.returncode is None
        await turns(pause)


async def crashing(pool: RunnerPool[str, FakeRunner], world: World) -> None:
    """Let the runner crash in the middle of a lease, and lease again."""
    for _ in range(2):
        async with pool.lease("a") as runner:
            runner.exit(1)
    await turns(1)


SUBJECTS = {
    "lease": swept(leasing),
    "lease beside others": swept(leasing_beside_others),
    "lease in a queue": swept(leasing_in_a_queue, runners_max=1),
    "release": swept(releasing),
    "release, stubborn": swept(releasing, stubborn=True),
    "release, cold": swept(releasing_cold),
    "drain": swept(draining),
    "drain, stubborn": swept(draining, stubborn=True),
    "reaper": swept(reaping, idle_seconds=0),
    "reaper, stubborn": swept(reaping, idle_seconds=0, stubborn=True),
    "crash": swept(crashing, restart=None),
}
TWICE = ["lease beside others", "release, stubborn", "release, cold", "crash"]


@pytest.mark.sampled(2, "subject")
@pytest.mark.parametrize("subject", SUBJECTS)
@pytest.mark.parametrize(("backend", "kind"), KINDS)
def test_cancelled_at_each_suspension(backend: str, kind: str, subject: str) -> None:
    """Wherever it is suspended, cancellation comes out, and nothing is alive or left."""
    assert sweep(backend, SUBJECTS[subject], Plan(kind, "suspensions", "once")) == []


@pytest.mark.sampled(2, "subject")
@pytest.mark.parametrize("subject", TWICE)
@pytest.mark.parametrize(("backend", "kind"), KINDS)
def test_cancelled_twice(backend: str, kind: str, subject: str) -> None:
    """A second cancellation, at each later suspension, changes nothing."""
    assert sweep(backend, SUBJECTS[subject], Plan(kind, "suspensions", "twice")) == []


@pytest.mark.sampled(2, "subject")
@pytest.mark.parametrize("subject", SUBJECTS)
@pytest.mark.parametrize("times", ["once", "on"])
@pytest.mark.parametrize(("backend", "kind"), KINDS_WITH_TURNS)
def test_cancelled_at_each_turn_of_the_loop(
    backend: str, kind: str, times: str, subject: str
) -> None:
    """Whatever stage the runner is in, cancellation comes out, and nothing is alive or left."""
    assert sweep(backend, SUBJECTS[subject], Plan(kind, "turns", times)) == []
