"""Runners that wait for work, crash, keep crashing, or have to share the room."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest

from quiesce import Scope
from quiesce.errors import StartFailed
from quiesce.pool.backoff import Backoff, Histories
from tests.stress import turns
from tests.unit.pool.pool_runners import User, World

if TYPE_CHECKING:
    from collections.abc import Iterable

    from quiesce import FrontierEntry
    from quiesce.pool.pool import RunnerPool
    from tests.unit.pool.pool_runners import FakeRunner

IDLE = 0.02
ROUNDING = 1e-6


async def passing(seconds: float) -> None:
    """Let time pass, and then everything that is ready run."""
    with anyio.move_on_after(seconds):
        await anyio.sleep_forever()
    await turns(20)


async def use(pool: RunnerPool[str, FakeRunner], key: str = "a") -> FakeRunner:
    """Lease, and give back at once."""
    async with pool.lease(key) as runner:
        return runner


async def test_an_idle_runner_is_ended() -> None:
    """When nobody has leased it for long enough, it goes."""
    world = World()
    async with Scope("a"):
        pool = world.pool(idle_seconds=IDLE)
        runner = await use(pool)
        await runner.wait()
        await turns(5)
        assert (pool.stats.reaped, pool.stats.crashed, world.total()) == (1, 0, 0)


async def test_a_leased_runner_is_never_ended_for_being_idle() -> None:
    """A lease that outlasts the idle time, and its end, begin the idle time anew."""
    world = World()
    async with Scope("a"):
        pool = world.pool(idle_seconds=IDLE)
        async with pool.lease("a") as runner:
            await passing(5 * IDLE)
            assert runner.returncode is None
        assert (pool.stats.idle, pool.stats.reaped) == (1, 0)
        await turns(5)
        assert runner.returncode is None


@pytest.mark.backends("asyncio", "trio")
async def test_a_lease_begins_the_idle_time_anew() -> None:
    """The time counts from the end of the last lease."""
    world = World()
    async with Scope("a"):
        pool = world.pool(idle_seconds=10)
        first = await use(pool)
        for _ in range(3):
            await passing(9)
            assert await use(pool) is first
        await passing(9.9)
        assert pool.stats.ready == 1
        await passing(0.2)
        assert pool.stats.ready == 0


@pytest.mark.backends("asyncio", "trio")
@pytest.mark.parametrize("early", [0, 1, 2, 3])
async def test_a_lease_at_the_very_end_of_the_idle_time(early: int) -> None:
    """Whoever comes at that moment gets this runner, alive, or a fresh one."""
    world = World()
    async with Scope("a") as scope:
        pool = world.pool(idle_seconds=1)
        await use(pool)
        users = [User(pool) for _ in range(6)]
        with anyio.move_on_after(1):
            await anyio.sleep_forever()
        await turns(early)
        for user in users:
            scope.spawn(user)
            await turns(1)
        await turns(20)
        assert all(user.runner is not None and user.runner.returncode is None for user in users)
        assert world.total() == 1
        for user in users:
            user.done.set()


async def test_without_an_idle_time_a_runner_stays() -> None:
    """None means for good."""
    world = World()
    async with Scope("a"):
        pool = world.pool(idle_seconds=None)
        await use(pool)
        await passing(IDLE)
        assert pool.stats.idle == 1


@pytest.mark.parametrize("leased", [False, True])
async def test_a_crash_is_seen_at_once(leased: bool) -> None:  # noqa: FBT001 - a parameter
    """The next lease gets a fresh runner, also if it comes before the pool's job has looked."""
    world = World()
    async with Scope("a") as scope:
        pool = world.pool()
        user = User(pool)
        if leased:
            scope.spawn(user)
        first = await use(pool)
        first.exit(3)
        second = await use(pool)
        assert second is not first
        assert second.returncode is None
        assert (pool.stats.crashed, pool.stats.ready, world.begun) == (1, 1, 2)
        user.done.set()


async def test_a_crash_that_nobody_uses_is_seen() -> None:
    """The pool forgets the runner without being asked."""
    world = World()
    async with Scope("a"):
        pool = world.pool()
        (await use(pool)).exit(3)
        await turns(5)
        assert (pool.stats.crashed, pool.stats.ready, pool.stats.stopping) == (1, 0, 0)


async def test_a_runner_that_dies_before_its_waiter_runs_is_not_handed_out() -> None:
    """Between the wake-up and the waiter's step, the runner may end."""
    world = World()
    world.gate = anyio.Event()
    async with Scope("a") as scope:
        pool = world.pool()
        user = User(pool)
        scope.spawn(user)
        await turns(5)
        world.gate.set()
        while not pool.stats.leases:
            await turns(1)
        if user.runner is None:
            world.runners[0].exit(3)
        await turns(20)
        assert user.error is None
        assert user.runner is not None
        assert user.runner.returncode is None
        user.done.set()


async def test_a_crash_loop_is_slowed_down() -> None:
    """The first restart is immediate, the next ones wait longer and longer."""
    world = World()
    first = 0.02
    waits: list[float] = []
    async with Scope("a"):
        pool = world.pool(restart=Backoff(first_seconds=first, factor=2, longest_seconds=0.05))
        for _ in range(5):
            asked = anyio.current_time()
            runner = await use(pool)
            waits.append(anyio.current_time() - asked)
            runner.exit(1)
    for waited, expected in zip(waits, [0, 0, first, 2 * first, 0.05], strict=True):
        assert expected - ROUNDING <= waited < expected + 0.5


@pytest.mark.backends("asyncio", "trio")
async def test_failed_starts_are_slowed_down_and_a_healthy_time_forgives() -> None:
    """Failed starts count as crashes do, until nothing has failed for a while."""
    world = World()
    world.error = OSError()
    async with Scope("a"):
        pool = world.pool(restart=Backoff(first_seconds=4, factor=3, healthy_seconds=100))
        begun = anyio.current_time()
        for _ in range(4):
            with pytest.raises(StartFailed):
                await use(pool)
        assert anyio.current_time() - begun == pytest.approx(4 + 12)
        await passing(36 + 100)
        begun = anyio.current_time()
        for _ in range(2):
            with pytest.raises(StartFailed):
                await use(pool)
        assert anyio.current_time() == begun


async def test_without_a_back_off_nothing_waits() -> None:
    """None means to start at once, every time."""
    world = World()
    world.error = OSError()
    async with Scope("a"):
        pool = world.pool(restart=None)
        for _ in range(20):
            with pytest.raises(StartFailed):
                await use(pool)


async def test_a_key_in_its_back_off_takes_no_room_and_can_be_released() -> None:
    """Others are served meanwhile; a release ends the wait."""
    world = World()
    async with Scope("a") as scope:
        pool = world.pool(runners_max=1, restart=Backoff(first_seconds=1000, longest_seconds=1000))
        for _ in range(2):
            (await use(pool)).exit(1)
        user = User(pool)
        scope.spawn(user)
        await turns(5)
        assert pool.stats.queued == 1
        await use(pool, "b")
        assert await pool.release("a")
        await turns(5)
        assert user.error is not None


def test_old_failures_are_forgotten() -> None:
    """Keys that failed once, and never come again, do not stay."""
    found = Histories(Backoff())
    for number in range(10_000):
        found.failed(number, now=float(number))
    assert len(found) < 500


@pytest.mark.parametrize(
    ("failures", "delay"), [(0, 0), (1, 0), (2, 0.5), (3, 1), (4, 2), (99, 30), (10**9, 30)]
)
def test_the_delay_grows_to_its_limit(failures: int, delay: float) -> None:
    """It doubles from the second failure on."""
    assert Backoff().delay(failures) == delay


async def test_no_more_runners_than_the_maximum() -> None:
    """Keys beyond it wait, and are served in the order in which they came."""
    world = World()
    order: list[str] = []
    async with Scope("a") as scope:
        pool = world.pool(runners_max=2)

        async def work(key: str) -> None:
            async with pool.lease(key):
                order.append(key)
                await turns(20)

        for key in "abcdef":
            scope.spawn(work, key)
            await turns(2)  # trio starts tasks in any order
        assert pool.stats.queued == 4
    assert order == list("abcdef")
    assert world.most == 2


async def test_the_runner_that_was_idle_longest_makes_room() -> None:
    """A leased one does not, and no more go than are wanted."""
    world = World()
    async with Scope("a"):
        pool = world.pool(runners_max=3)
        async with pool.lease("leased") as leased:
            old, new = await use(pool, "old"), await use(pool, "new")
            await use(pool, "fourth")
            assert [runner.returncode for runner in (leased, old, new)] == [None, 0, None]


async def test_a_key_that_is_wanted_again_goes_to_the_end_of_the_queue() -> None:
    """When its runner is given back, those who came before are served first."""
    world = World()
    order: list[str] = []
    async with Scope("a") as scope:
        pool = world.pool(runners_max=1)

        async def work(key: str) -> None:
            async with pool.lease(key):
                order.append(key)
                await turns(3)

        async def work_twice() -> None:
            await work("a")
            await work("a")

        scope.spawn(work_twice)
        await turns(3)
        scope.spawn(work, "b")
        await turns(1)
        scope.spawn(work, "c")
    assert order == ["a", "b", "c", "a"]


async def test_one_who_leaves_the_queue_is_passed_over() -> None:
    """A cancelled lease keeps no place, and no room."""
    world = World()
    async with Scope("a") as scope:
        pool = world.pool(runners_max=1)
        holder, leaver, third = User(pool, "a"), User(pool, "b"), User(pool, "c")
        scope.spawn(holder)
        await turns(10)
        job = scope.spawn(leaver)
        scope.spawn(third)
        await turns(5)
        job.cancel()
        await turns(5)
        holder.done.set()
        third.done.set()
        await turns(30)
        assert (leaver.runner, world.begun) == (None, 2)
        assert third.runner is not None


async def test_the_stop_of_a_runner_keeps_its_room() -> None:
    """What is being stopped still exists, so nothing starts in its place before it is gone."""
    world = World()
    async with Scope("a") as scope:
        pool = world.pool(runners_max=1)
        await use(pool)
        world.stop_turns = 15
        scope.spawn(pool.release, "a")
        async with pool.lease("b"):
            assert world.most == 1


async def test_the_frontier_names_leases_and_runners() -> None:
    """Who waits, who holds, and where each runner is in its life."""
    world = World()
    async with Scope("a") as scope:
        pool = world.pool(name="runners")
        user = User(pool)
        scope.spawn(user)
        await turns(10)
        world.gate = anyio.Event()
        job = scope.spawn(User(pool, "b"))
        await turns(5)
        found = {(entry.kind, entry.name): entry.details for entry in _all(scope.frontier())}
        assert found["lease", "a"] == {"state": "held"}
        assert found["lease", "b"] == {"state": "waiting"}
        assert found["runner", "a"] == {"state": "ready", "leases": 1, "waiting": 0}
        assert found["runner", "b"] == {"state": "starting", "leases": 0, "waiting": 1}
        assert "runners" in str(scope.frontier())
        assert repr(pool) == "<RunnerPool 'runners' open, 2 runners>"
        user.done.set()
        job.cancel()


def _all(entries: Iterable[FrontierEntry]) -> list[FrontierEntry]:
    found: list[FrontierEntry] = []
    for entry in entries:
        found += [entry, *_all(entry.children)]
    return found
