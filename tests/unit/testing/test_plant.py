"""Plants: each is in flight, sees its own fate, and is gone at the end of its block."""

from __future__ import annotations

import array
import asyncio
import fcntl
import os
import termios
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import pytest

from quiesce import ArgumentError, Scope, UsageError
from quiesce.processes.descriptors import readable
from quiesce.testing.plants import process_kind
from quiesce.testing.plants.kinds import PlantedLateStart
from quiesce.testing.plants.planting import PLANTS, Planted, plant
from quiesce.testing.plants.process_kind import PlantedProcess

if TYPE_CHECKING:
    from collections.abc import Callable

LONG = 600.0  # seconds: nothing that takes so long ends by itself in a test
ALONE = ["task", "stubborn task", "late start"]


def is_running(pid: int) -> bool:
    """Return whether there is a process with this number, dead or alive."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def about(planted: Planted, scope: Scope) -> list[str]:
    """List what the scope has in flight that names the planted thing."""
    return [str(entry) for entry in scope.frontier() if planted.is_named_in(str(entry))]


@pytest.mark.real_time
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


@pytest.mark.real_time
@pytest.mark.parametrize("kind", PLANTS)
async def test_a_plant_is_taken_out_when_its_block_raises(kind: str) -> None:
    """The exception passes, and nothing stays; the test's own check sees that."""
    scope = await Scope.open("app")
    with pytest.raises(ZeroDivisionError):
        async with plant(scope, kind, seconds=LONG):
            raise ZeroDivisionError
    assert (await scope.aclose()).ok


@pytest.mark.real_time
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
@pytest.mark.parametrize("kind", ALONE)
async def test_a_task_that_nobody_owns_is_found_in_the_event_loop_by_its_name(kind: str) -> None:
    """Without an owner, a planted task is a plain task of the loop, and gone after the block."""
    before = asyncio.all_tasks()
    async with plant(object(), kind, seconds=LONG) as planted:
        (task,) = asyncio.all_tasks() - before
        assert planted.is_named_in(task.get_name())
    assert asyncio.all_tasks() == before


@pytest.mark.real_time
async def test_a_process_that_nobody_owns_is_killed_and_buried_by_the_plant() -> None:
    """Its number belongs to nobody after the block."""
    async with plant(object(), "process", seconds=LONG) as planted:
        assert isinstance(planted, PlantedProcess)
        assert planted.pid is not None
        assert is_running(planted.pid)
        assert planted.alive()
    assert not is_running(planted.pid)


async def test_a_stream_that_nobody_owns_is_closed_by_the_plant() -> None:
    """Its `finally` has run after the block."""
    async with plant(object(), "unread stream") as planted:
        assert planted.alive()
    assert planted.state == "finished"


@pytest.mark.parametrize("kind", ["queued item", "delegation"])
async def test_what_makes_no_sense_without_an_owner_says_so(kind: str) -> None:
    """A queue of nobody is refused, with what to do about it."""
    with pytest.raises(UsageError, match="belongs to nobody: plant it by a way of your own"):
        async with plant(object(), kind):
            pytest.fail("it was planted")


@pytest.mark.backends("trio")
@pytest.mark.parametrize("kind", ALONE)
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


@pytest.mark.parametrize("kind", ["task", "queued item", "delegation"])
async def test_what_a_close_ends_was_cut(kind: str) -> None:
    """What did not come to its end, and is gone, was cut short."""
    scope = await Scope.open("app")
    async with plant(scope, kind, seconds=LONG) as planted:
        await scope.aclose(within=0.5)  # a delegation waits for all of it
        assert planted.state == "cut"


async def test_a_task_that_swallows_cancellation_outlives_a_close() -> None:
    """It is alive after the scope's deadline, and stuck in its report."""
    scope = await Scope.open("app")
    async with plant(scope, "stubborn task") as planted:
        report = await scope.aclose(within=0.05)
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
        assert isinstance(planted, PlantedLateStart)
        assert not planted.late.called


async def test_an_unread_stream_is_finished_by_a_close() -> None:
    """Its `finally`, which awaits, has run to its end."""
    scope = await Scope.open("app")
    async with plant(scope, "unread stream") as planted:
        await scope.aclose()
        assert planted.state == "finished"


async def test_a_stream_whose_cleanup_is_cut_short_was_cut() -> None:
    """A `finally` that was begun and not finished has not said goodbye."""
    streams: list[Any] = []

    async def read_once(_: object, source: Any) -> None:
        streams.append(source())
        await anext(streams[0])

    async with plant(object(), "unread stream", by=read_once) as planted:
        with anyio.CancelScope() as cancelling:
            cancelling.cancel()
            await streams[0].aclose()
        assert cancelling.cancelled_caught
        assert planted.state == "cut"


@pytest.mark.real_time
@pytest.mark.parametrize(("number", "state"), [(15, "finished"), (9, "cut")])
async def test_a_process_that_is_asked_to_stop_finishes_and_one_that_is_killed_is_cut(
    number: int, state: str
) -> None:
    """SIGTERM lets it finish; SIGKILL does not."""
    async with Scope("app") as scope, plant(scope, "process", seconds=LONG) as planted:
        assert isinstance(planted, PlantedProcess)
        assert planted.pid is not None
        os.kill(planted.pid, number)
        await scope.idle()
        assert planted.state == state


@pytest.mark.real_time
async def test_a_process_that_finishes_before_it_is_listened_to_is_understood(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What it says comes in one piece then."""

    async def late(fd: int) -> None:
        await readable(fd)
        waiting = array.array("i", [0])
        while waiting[0] <= len(b"finished\n"):  # and the number, which is shorter
            fcntl.ioctl(fd, termios.FIONREAD, waiting)
            await anyio.lowlevel.checkpoint()

    monkeypatch.setattr(process_kind, "readable", late)
    async with Scope("app") as scope, plant(scope, "process", seconds=0.0) as planted:
        while planted.alive():
            await anyio.lowlevel.checkpoint()
        assert planted.state == "finished"


@pytest.mark.real_time
async def test_a_process_that_is_let_be_finishes_by_itself() -> None:
    """When its time has passed it exits, finished."""
    async with Scope("app") as scope, plant(scope, "process", seconds=0.01) as planted:
        await scope.idle()
        assert planted.state == "finished"


async def test_an_item_that_is_read_is_finished_and_a_hold_that_is_released_too() -> None:
    """What ends while the scope is open has come to its end."""
    async with Scope("app") as scope:
        async with plant(scope, "queued item") as item:
            await item._channel.receive()  # type: ignore[attr-defined]  # a queued item has it
            assert item.state == "finished"
        async with plant(scope, "delegation") as delegation:
            delegation._hold.release()  # type: ignore[attr-defined]  # a delegation has it
            assert delegation.state == "finished"


# --- ways of one's own ---------------------------------------------------------------------------


class App:
    """A system under test with a queue, tasks and streams of its own."""

    def __init__(self, group: anyio.abc.TaskGroup) -> None:
        self.group = group
        self.queue: list[str] = []
        self.streams: list[Any] = []

    def enqueue(self, item: str) -> Callable[[], bool]:
        """Queue an item, and give what tells whether it is still there."""
        self.queue.append(item)
        return lambda: item in self.queue

    async def read_once(self, source: Any) -> None:
        """Read one item, and keep the rest."""
        self.streams.append(source())
        await anext(self.streams[-1])


async def test_tasks_are_planted_by_a_way_of_the_callers() -> None:
    """What is planted is the app's own task then, and sees its cancellation."""
    async with anyio.create_task_group() as group:
        way = lambda app, work: app.group.start_soon(work)  # noqa: E731 - as one would write it
        async with plant(App(group), "task", seconds=LONG, by=way) as planted:
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


@pytest.mark.parametrize("kind", ["queued item", "delegation"])
async def test_items_are_planted_by_a_way_that_tells_whether_they_are_there(kind: str) -> None:
    """The app's own queue is asked."""
    async with anyio.create_task_group() as group:
        app = App(group)
        async with plant(app, kind, by=App.enqueue) as planted:
            assert app.queue == [planted.name]
            assert planted.alive()
            app.queue.clear()
            assert planted.state == "finished"


async def test_a_way_that_does_not_tell_whether_the_item_is_there_is_refused() -> None:
    """The message says what the way has to return."""
    with pytest.raises(UsageError, match="has to return a function that tells"):
        async with plant(object(), "queued item", by=lambda _, __: None):
            pytest.fail("it was planted")


async def test_a_stream_is_planted_by_an_async_way() -> None:
    """The app reads it once; the plant closes what the app leaves."""
    async with anyio.create_task_group() as group:
        async with plant(App(group), "unread stream", by=App.read_once) as planted:
            assert planted.alive()
        assert planted.state == "finished"


async def test_a_stream_that_the_way_does_not_read_is_refused() -> None:
    """A generator that has not begun has nothing in flight."""
    with pytest.raises(UsageError, match="was to be read once"):
        async with plant(object(), "unread stream", by=lambda _, __: None):
            pytest.fail("it was planted")


@pytest.mark.backends("asyncio", "trio")
async def test_a_task_that_the_way_does_not_start_is_refused() -> None:
    """A plant that is not in flight would prove nothing."""
    with pytest.raises(UsageError, match="has not begun within 10 s"):
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
    async with Scope("app") as scope, plant(scope, "delegation") as planted:
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
