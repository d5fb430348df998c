"""`drain()`: work that is in flight may start what it needs to finish, during the grace."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
import pytest

from quiesce import Scope, UsageError
from tests.unit.core.drains import (
    LONG_SECONDS,
    SHORT_SECONDS,
    STARTS,
    Start,
    child,
    draining,
    enter,
    hold,
    outcome_of,
    spawn,
    until_state,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

any_start = pytest.mark.parametrize("start", STARTS, ids=lambda start: start.__name__)


@pytest.mark.real_time  # threads
@any_start
async def test_running_work_may_start_its_sub_work_during_the_grace(start: Start) -> None:
    """A job in flight when the drain began may start whatever it needs to finish."""
    scope = await Scope.open("drain")

    async def work() -> str:
        await scope.closing()
        return await outcome_of(start, scope)

    job = scope.spawn(work)
    report = await scope.drain(LONG_SECONDS)
    assert await job == "allowed"
    assert report.ok


async def test_sub_work_may_have_sub_work_in_its_turn() -> None:
    """What was spawned during the grace is itself running work, and is waited for."""
    ended: list[int] = []

    async def work(depth: int) -> None:
        await scope.closing()
        if depth:
            scope.spawn(work, depth - 1)
        await anyio.lowlevel.checkpoint()
        ended.append(depth)

    scope = await Scope.open("drain")
    scope.spawn(work, 5)
    report = await scope.drain(LONG_SECONDS)
    assert sorted(ended) == list(range(6))
    assert report.completed == 6


async def through_a_child_that_was_there(scope: Scope, ready_made: Scope) -> None:
    """Spawn in a child scope that was opened before the drain."""
    await spawn(ready_made)


async def through_a_new_child(scope: Scope, ready_made: Scope) -> None:
    """Spawn in a child scope that is opened during the grace."""
    await child(scope)


async def through_a_grandchild(scope: Scope, ready_made: Scope) -> None:
    """Spawn below a child scope."""
    await child(ready_made)


async def through_a_block(scope: Scope, ready_made: Scope) -> None:
    """Open a block, which becomes a child of the job's scope, and spawn in it."""
    async with Scope("block") as block:
        job = block.spawn(spawn, block)
    await job


async def through_an_opened_scope(scope: Scope, ready_made: Scope) -> None:
    """Open a scope, which becomes a child of the job's scope, and spawn in it."""
    below = await Scope.open("opened")
    await spawn(below)
    await below.drain()


@pytest.mark.parametrize(
    "way",
    [
        through_a_child_that_was_there,
        through_a_new_child,
        through_a_grandchild,
        through_a_block,
        through_an_opened_scope,
    ],
)
async def test_sub_work_may_be_in_child_scopes(way: Callable[..., Awaitable[None]]) -> None:
    """Child scopes of a draining scope are draining too, and admit the same work as it does."""
    scope = await Scope.open("drain")
    ready_made = scope.child("ready made")

    async def work() -> None:
        await scope.closing()
        assert ready_made.state == "draining"
        await way(scope, ready_made)

    scope.spawn(work)
    report = await scope.drain(LONG_SECONDS)
    assert report.failed == ()
    assert report.ok


async def test_work_of_a_child_scope_may_start_sub_work_above_it() -> None:
    """Work anywhere below the draining scope is work that is being drained."""
    scope = await Scope.open("drain")

    async def work() -> str:
        await scope.closing()
        return await outcome_of(spawn, scope)

    job = scope.child("child").child("grandchild").spawn(work)
    assert (await scope.drain(LONG_SECONDS)).ok
    assert await job == "allowed"


async def test_a_child_scope_refuses_what_its_draining_parent_refuses() -> None:
    """Nobody gets new work in through a child scope, old or new."""
    scope = await Scope.open("drain")
    below = scope.child("below")
    gate = anyio.Event()
    below.spawn(gate.wait)
    async with draining(scope):
        for start in (spawn, hold, child, enter):
            assert await outcome_of(start, below) == "refused"
        gate.set()


@pytest.mark.parametrize("adopt", [False, True])
async def test_tasks_inside_running_work_may_start_its_sub_work(
    backend: str, *, adopt: bool
) -> None:
    """A task group's tasks inside a job may do what it may: on asyncio, if they are adopted."""
    if adopt and backend == "trio":
        with pytest.raises(UsageError, match="nursery"):
            await Scope.open("drain", adopt=adopt)
        return
    scope = await Scope.open("drain", adopt=adopt)
    seen = []

    async def inner() -> None:
        seen.append(await outcome_of(spawn, scope))

    async def work() -> None:
        await scope.closing()
        async with anyio.create_task_group() as group:
            group.start_soon(inner)

    scope.spawn(work)
    await scope.drain(LONG_SECONDS)
    assert seen == ["allowed" if adopt or backend == "trio" else "refused"]


@pytest.mark.parametrize("start", [spawn, hold, child, enter])
async def test_sub_work_is_refused_after_the_grace(start: Start) -> None:
    """Once the deadline has passed, work that cleans up can start nothing any more."""
    seen = []
    scope = await Scope.open("drain")

    async def work() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                seen.append((scope.state, await outcome_of(start, scope)))

    scope.spawn(work)
    scope.child("child").spawn(work)
    report = await scope.drain(SHORT_SECONDS)
    assert seen == [("closing", "refused")] * 2
    assert len(report.cancelled) == 2
    assert not report.failed


async def test_a_close_ends_the_grace_in_its_own_step() -> None:
    """An `aclose()` during a drain refuses sub-work at once, here and in child scopes."""
    scope = await Scope.open("drain")
    below = scope.child("below")
    seen = []

    async def work() -> None:
        await scope.closing()
        seen.append(await outcome_of(spawn, below))
        closer = elsewhere.spawn(scope.aclose)
        with anyio.CancelScope(shield=True):
            await until_state(scope, "closing")
            seen.append(await outcome_of(spawn, scope))
            seen.append(await outcome_of(spawn, below))
        assert not closer.done()

    elsewhere = await Scope.open("elsewhere")
    scope.spawn(work)
    await scope.drain(LONG_SECONDS)
    assert seen == ["allowed", "refused", "refused"]
    await elsewhere.idle()
    await elsewhere.aclose()
