"""What channels leave behind: nothing."""

from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING, Any

import anyio
import pytest
import trio

from quiesce import Channel, Scope
from tests.foreign_private import callbacks_of, trio_instruments
from tests.stress import turns

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine


def callbacks(job: Any) -> int:
    """Count who waits for the end of a job."""
    watching = getattr(job, "waiters", None)
    return callbacks_of(job) if watching is None else len(watching)


async def by_receive(channel: Channel[int]) -> None:
    """Read one item."""
    await channel.receive()


async def by_loop(channel: Channel[int]) -> None:
    """Read one item in a loop."""
    async for _ in channel:
        break


async def by_whole_loop(channel: Channel[int]) -> None:
    """Read to the end."""
    channel.close()
    async for _ in channel:
        pass


async def by_tap(channel: Channel[int]) -> None:
    """Read the channel, and a tap on it."""
    with channel.tap() as tap:
        channel.send_nowait(2)
        await tap.receive()
    await channel.batch()


WAYS = [by_receive, by_loop, by_whole_loop, by_tap]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.backends("asyncio", "trio")
async def test_a_task_that_reads_many_channels_keeps_none(
    backend: str, way: Callable[[Channel[int]], Coroutine[Any, Any, None]]
) -> None:
    """A long-lived job reads a thousand channels that are closed: nothing piles up on it."""
    refs: list[weakref.ref[Any]] = []
    counts: list[int] = []

    async def read() -> None:
        for _ in range(1000):
            channel = Channel[int]()
            channel.send_nowait(1)
            await way(channel)
            channel.close()
            refs.append(weakref.ref(channel))
            counts.append(callbacks(job))
            await turns(1)  # a reader that is dropped lets go in the event loop

    async with Scope("a") as scope:
        job = scope.spawn(read)
        await job
        assert max(counts) <= min(counts) + 1
        assert not scope.list_own_resources()
        gc.collect()
        await turns(4)  # a reader that is dropped lets go in the event loop
        assert not any(ref() for ref in refs)


async def test_a_reader_that_was_announced_keeps_no_closed_channel() -> None:
    """`read_by` leaves nothing on the job when the channel ends first."""
    async with Scope("a") as scope:
        job = scope.spawn(anyio.sleep_forever)
        refs = []
        for _ in range(100):
            channel = Channel[int]()
            channel.read_by(job)
            channel.close()
            refs.append(weakref.ref(channel))
        del channel
        gc.collect()
        assert not any(ref() for ref in refs)
        job.cancel()


async def test_an_empty_channel_that_nobody_has_any_more_is_let_go() -> None:
    """One that was never closed, as a queue for one reply is: its scope does not collect them."""
    async with Scope("a") as scope:
        refs = []
        for _ in range(100):
            channel = Channel[int](1)
            await channel.send(1)
            await scope.spawn(by_receive, channel)
            refs.append(weakref.ref(channel))
        del channel
        gc.collect()
        assert not any(ref() for ref in refs)
        assert not scope.list_own_resources()


async def test_a_channel_with_items_is_kept_by_its_scope() -> None:
    """Nobody has it, but what is in it is in flight, and is reported."""
    scope = await Scope.open("a")
    Channel[int](scope=scope).send_nowait(1)
    gc.collect()
    assert len(scope.frontier()) == 1
    report = await scope.aclose()
    assert len(report.undelivered) == 1


@pytest.mark.parametrize("begun", [False, True])
async def test_a_dropped_iterator_has_nothing_in_hand(*, begun: bool) -> None:
    """No item is being handled any more."""
    async with Scope("a") as scope:
        channel = Channel[int]()
        reader = aiter(channel)
        if begun:
            channel.send_nowait(1)
            assert await anext(reader) == 1
            assert scope.frontier()
        del reader
        await turns()
        assert not scope.frontier()


async def test_an_iterator_in_a_cycle_is_let_go_by_the_collector() -> None:
    """The collector may find it in any thread; the reader leaves in the loop's own."""
    async with Scope("a") as scope:
        channel = Channel[int]()
        channel.send_nowait(1)
        reader: Any = channel.batches()
        assert await anext(reader) == [1]
        reader.keeps = reader
        del reader
        assert scope.frontier()
        await anyio.to_thread.run_sync(gc.collect)
        await turns()
        assert not scope.frontier()


async def test_cancelled_waits_leave_nothing() -> None:
    """A thousand sends and receives that were cancelled leave no waiter behind."""
    async with Scope("a") as scope:
        empty, full = Channel[int](), Channel[int](1)
        full.send_nowait(0)
        jobs: list[Any] = [scope.spawn(by_receive, empty) for _ in range(500)]
        jobs += [scope.spawn(full.send, 1) for _ in range(500)]
        await turns()
        for job in jobs:
            job.cancel()
        await turns()
        assert empty.stats.readers_waiting == full.stats.senders_waiting == 0
        assert await full.receive() == 0


@pytest.mark.backends("trio")
async def test_no_instrument_is_left_on_trio() -> None:
    """Watching tasks that are nobody's job ends with the last of them."""
    async with Scope("a"):
        channel = Channel[int]()
        channel.send_nowait(1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(by_loop, channel)
        await turns()
        assert not channel.stats.depth
    assert not trio_instruments()


async def test_a_dropped_iterator_changes_nothing_in_the_step_of_its_collection() -> None:
    """The collector may run in the middle of a change: the item is put down a turn later."""
    async with Scope("a") as scope:
        channel = Channel[int]()
        channel.send_nowait(1)
        reader = aiter(channel)
        assert await anext(reader) == 1
        del reader
        assert scope.frontier()
        await turns()
        assert not scope.frontier()
