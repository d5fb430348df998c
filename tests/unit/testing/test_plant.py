"""Plants: each is in flight, sees its own fate, and is gone at the end of its block."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import anyio
import anyio.abc
import anyio.lowlevel
import pytest

from quiesce import ArgumentError, Scope, UsageError
from quiesce.testing.plants.planting import PLANTS, Planted, plant

LONG = 600.0  # seconds: nothing that takes so long ends by itself in a test


def about(planted: Planted, scope: Scope) -> list[str]:
    """List what the scope has in flight that names the planted thing."""
    return [str(entry) for entry in scope.frontier() if planted.is_named_in(str(entry))]


@pytest.mark.parametrize("kind", PLANTS)
async def test_what_is_planted_in_a_scope_is_in_flight_until_the_plant_takes_it_out(
    kind: str,
) -> None:
    """The frontier names it in the block, and the scope is idle and lossless after it."""
    async with Scope("app") as scope:
        async with plant(scope, kind, seconds=LONG) as planted:
            assert planted.alive()
            assert about(planted, scope)
        with anyio.fail_after(10):
            await scope.idle()
        assert not about(planted, scope)
    assert scope.report is not None
    assert scope.report.ok


@pytest.mark.parametrize("kind", PLANTS)
async def test_a_plant_is_taken_out_when_its_block_raises(kind: str) -> None:
    """The exception passes, and nothing stays; the test's own check sees that."""
    scope = await Scope.open("app")
    with pytest.raises(ZeroDivisionError):
        async with plant(scope, kind, seconds=LONG):
            raise ZeroDivisionError
    assert (await scope.aclose()).ok


@pytest.mark.parametrize("kind", PLANTS)
async def test_a_plant_is_taken_out_when_its_block_is_cancelled(kind: str) -> None:
    """A cancelled block ends cancelled, and nothing stays."""
    scope = await Scope.open("app")
    with anyio.CancelScope() as cancelling:
        async with plant(scope, kind, seconds=LONG):
            cancelling.cancel()
            await anyio.lowlevel.checkpoint()
    assert cancelling.cancelled_caught
    with anyio.fail_after(10):
        await scope.idle()
    assert (await scope.aclose()).ok


@pytest.mark.backends("asyncio", "uvloop")
@pytest.mark.parametrize("kind", PLANTS)
async def test_a_task_that_nobody_owns_is_found_in_the_event_loop_by_its_name(kind: str) -> None:
    """Without an owner, a planted task is a plain task of the loop, and gone after the block."""
    before = asyncio.all_tasks()
    async with plant(object(), kind, seconds=LONG) as planted:
        (task,) = asyncio.all_tasks() - before
        assert planted.is_named_in(task.get_name())
    assert asyncio.all_tasks() == before


@pytest.mark.backends("trio")
@pytest.mark.parametrize("kind", PLANTS)
async def test_on_trio_there_is_no_task_without_an_owner(kind: str) -> None:
    """A task of nobody is refused on trio."""
    with pytest.raises(UsageError, match="on trio every task has a nursery"):
        async with plant(object(), kind):
            pytest.fail("it was planted")


async def test_a_kind_that_does_not_exist_is_refused() -> None:
    """The message lists the kinds that do."""
    with pytest.raises(ArgumentError, match="stubborn task"):
        async with plant(object(), "tree"):
            pytest.fail("it was planted")


# --- each sees its own fate ----------------------------------------------------------------------


async def test_a_task_that_is_let_be_finishes_by_itself() -> None:
    """When its time has passed it is finished, without anybody's help."""
    async with Scope("app") as scope, plant(scope, "task", seconds=0.01) as planted:
        await scope.idle()
        assert planted.state == "finished"


async def test_what_a_close_ends_was_cut() -> None:
    """What did not come to its end, and is gone, was cut short."""
    scope = await Scope.open("app")
    async with plant(scope, "task", seconds=LONG) as planted:
        await scope.aclose()
        assert planted.state == "cut"


async def test_a_task_that_swallows_cancellation_outlives_a_close() -> None:
    """It is alive after the scope's deadline, and stuck in its report."""
    scope = await Scope.open("app")
    async with plant(scope, "stubborn task") as planted:
        report = await scope.aclose(cleanup=0.05)
        assert planted.alive()
        assert [item.name for item in report.stuck] == [planted.name]
    assert not planted.alive()


async def test_a_late_start_is_refused_by_a_scope_that_closes() -> None:
    """The one that starts it is told."""
    scope = await Scope.open("app")
    async with plant(scope, "late start", seconds=LONG) as planted:
        await scope.aclose()
        assert planted.state == "refused"


async def test_a_late_start_that_is_taken_out_in_time_starts_nothing() -> None:
    """The end of the block is no shutdown."""
    async with Scope("app") as scope:
        async with plant(scope, "late start", seconds=LONG) as planted:
            assert planted.alive()
        assert planted.late is not None
        assert not planted.late.called


# --- ways of one's own ---------------------------------------------------------------------------


async def test_tasks_are_planted_by_a_way_of_the_callers() -> None:
    """What is planted is the app's own task then, and sees its cancellation."""
    async with anyio.create_task_group() as group:
        way = anyio.abc.TaskGroup.start_soon
        async with plant(group, "task", seconds=LONG, by=way) as planted:
            assert planted.alive()
            group.cancel_scope.cancel()
            with anyio.CancelScope(shield=True):
                for _ in range(5):
                    await anyio.lowlevel.checkpoint()
            assert planted.state == "cut"


@pytest.mark.backends("asyncio", "uvloop")
async def test_a_way_may_return_the_task_that_it_has_started() -> None:
    """The task is not taken for the rest of an async way."""
    way = lambda _, work: asyncio.create_task(work())  # noqa: E731 - as one would write it
    async with plant(object(), "task", seconds=LONG, by=way) as planted:
        assert planted.alive()


async def test_tasks_are_planted_by_an_async_way() -> None:
    """The plant awaits the way itself, and not what the way starts."""

    async def begin(group: anyio.abc.TaskGroup, work: Any) -> None:
        await anyio.lowlevel.checkpoint()
        group.start_soon(work)

    async with anyio.create_task_group() as group:
        async with plant(group, "task", seconds=LONG, by=begin) as planted:
            assert planted.alive()
        assert planted.state == "finished"


@pytest.mark.backends("asyncio", "trio")
async def test_a_task_that_the_way_does_not_start_is_refused() -> None:
    """A plant that is not in flight would prove nothing."""
    with pytest.raises(UsageError, match="did not begin within 10 s"):
        async with plant(object(), "task", by=lambda _, __: None):
            pytest.fail("it was planted")


@pytest.mark.backends("asyncio", "uvloop")
async def test_a_late_task_that_is_dropped_before_its_first_step_was_cut() -> None:
    """A coroutine that never ran cannot tell; its state does."""
    tasks: list[asyncio.Task[None]] = []
    way = lambda _, work: tasks.append(asyncio.create_task(work()))  # noqa: E731 - likewise
    async with plant(object(), "late start", seconds=LONG, by=way) as planted:
        tasks[0].cancel()
        with suppress(asyncio.CancelledError):
            await tasks[0]
        tasks[1].cancel()
        assert planted.alive()
        with suppress(asyncio.CancelledError):
            await tasks[1]
        assert planted.state == "cut"


async def test_names_of_plants_are_told_apart() -> None:
    """Number 1 is not found in a text about number 12."""
    async with Scope("app") as scope, plant(scope, "task") as planted:
        assert planted.is_named_in(f"lost: {planted.name}, sorry")
        assert planted.is_named_in(planted.name)
        assert not planted.is_named_in(f"lost: {planted.name}2, sorry")


@pytest.mark.backends("asyncio", "uvloop")
async def test_a_task_is_also_known_by_the_name_that_asyncio_gave_it() -> None:
    """Whoever speaks of Task-5 may mean it."""
    way = lambda _, work: asyncio.create_task(work())  # noqa: E731 - as one would write it
    before = asyncio.all_tasks()
    async with plant(object(), "task", seconds=LONG, by=way) as planted:
        (task,) = asyncio.all_tasks() - before
        assert planted.is_named_in(f"cancelled: {task.get_name()} after 2 s")
        assert not planted.is_named_in(f"cancelled: {task.get_name()}1 after 2 s")
