"""Closing a channel: what is refused, what is still delivered, and that it never hangs."""

from __future__ import annotations

import asyncio
from typing import Any

import anyio
import pytest

from quiesce import Channel, ChannelClosed, Scope
from tests.stress import failing, turns


def filled(
    count: int = 3, maxsize: int | None = 100, *, scope: Scope | None = None
) -> Channel[int]:
    """Make a channel with some items in it."""
    channel = Channel[int](maxsize, scope=scope)
    for item in range(count):
        channel.send_nowait(item)
    return channel


async def take_one(channel: Channel[int]) -> int:
    """Read a single item, and end."""
    return await channel.receive()


async def test_a_graceful_close_delivers_what_is_there_then_ends_the_readers() -> None:
    """New items are refused from the call on; the queued ones come; then the loop ends."""
    got: list[int] = []
    async with Scope("a") as scope:
        channel = filled()
        channel.close()
        assert channel.closed
        with pytest.raises(ChannelClosed, match="closed: it accepts no more items"):
            channel.send_nowait(9)
        with pytest.raises(ChannelClosed):
            await channel.send(9)
        got.extend([item async for item in channel])
        assert channel.undelivered == ()
    assert got == [0, 1, 2]
    assert scope.report is not None
    assert scope.report.ok


@pytest.mark.parametrize("immediate", [False, True])
async def test_blocked_senders_are_thrown_out(*, immediate: bool) -> None:
    """Whoever waits for room gets `ChannelClosed`, and the item was never in the channel."""
    raised: list[int] = []

    async def send(item: int) -> None:
        try:
            await channel.send(item)
        except ChannelClosed:
            raised.append(item)

    async with Scope("a") as scope:
        channel = filled(1, maxsize=1)
        scope.spawn(send, 7)
        scope.spawn(send, 8)
        await turns()
        channel.close(immediate=immediate)
        await turns()
        assert sorted(raised) == [7, 8]
        assert channel.undelivered == ((0,) if immediate else ())
        assert [item async for item in channel] == ([] if immediate else [0])


async def test_an_immediate_close_ends_the_readers_and_keeps_the_items() -> None:
    """Nothing more is delivered; the items are kept, in order."""
    async with Scope("a") as scope:
        channel = filled()
        channel.close(immediate=True)
        assert channel.undelivered == (0, 1, 2)
        with pytest.raises(ChannelClosed):
            await channel.receive()
        assert [item async for item in channel] == []
        assert not scope.frontier()


async def test_an_immediate_close_reaches_a_reader_that_was_just_woken() -> None:
    """A reader that was promised an item, and did not run yet, sees the end; the item is listed."""
    async with Scope("a") as scope:
        channel = Channel[int]()
        reader = scope.spawn(ended_by_the_close, channel)
        await turns()
        channel.send_nowait(1)
        channel.close(immediate=True)
        assert channel.undelivered == (1,)
        assert await reader


async def ended_by_the_close(channel: Channel[int]) -> bool:
    """Return whether reading met the end."""
    try:
        await channel.receive()
    except ChannelClosed:
        return True
    return False


async def test_what_nobody_reads_after_a_close_is_reported() -> None:
    """Seed 003's trap: with no reader, the end of the scope does not hang; the items are undelivered."""
    scope = await Scope.open("a")
    channel = filled(scope=scope)
    channel.close()
    report = await scope.drain(None)
    assert channel.undelivered == (0, 1, 2)
    assert len(report.undelivered) == 3


DEATHS = ["returns", "raises", "is cancelled"]


async def dying(channel: Channel[int], how: str, go: anyio.Event) -> None:
    """Read one item, then end in one of the ways."""
    await channel.receive()
    await go.wait()
    if how == "raises":
        await failing(KeyError())
    if how == "is cancelled":
        await anyio.sleep_forever()


@pytest.mark.parametrize("how", DEATHS)
@pytest.mark.parametrize("closed", [False, True])
async def test_no_reader_is_left_when_the_last_that_was_named_has_ended(
    *, closed: bool, how: str
) -> None:
    """The channel is closed in that step, and nothing in it keeps the scope busy."""
    go = anyio.Event()
    async with Scope("a", on_error=lambda *_: None) as scope:
        channel = filled()
        reader = scope.spawn(dying, channel, how, go)
        channel.read_by(reader)
        await turns()
        if closed:
            channel.close()
        assert not channel.undelivered
        go.set()
        if how == "is cancelled":
            reader.cancel()
        await scope.idle()
        assert channel.undelivered == (1, 2)
        assert channel.closed


async def test_senders_are_thrown_out_when_the_last_reader_has_ended() -> None:
    """A task that waits for room would wait for ever."""
    async with Scope("a", on_error=lambda *_: None) as scope:
        channel = filled(1, maxsize=1)
        go = anyio.Event()
        channel.read_by(scope.spawn(dying, channel, "raises", go))
        await turns()
        await channel.send(1)
        sender = scope.spawn(channel.send, 2)
        await turns()
        go.set()
        with pytest.raises(ChannelClosed):
            await sender
        assert channel.undelivered == (1,)


async def test_a_channel_is_open_while_one_of_its_readers_runs() -> None:
    """The first reader that ends leaves the rest to the others."""
    go = anyio.Event()
    async with Scope("a") as scope:
        channel = filled()
        first, second = scope.spawn(take_one, channel), scope.spawn(dying, channel, "returns", go)
        channel.read_by(first, second)
        assert await first in {0, 1}  # trio starts them in any order
        await turns()
        assert not channel.closed
        channel.send_nowait(3)
        go.set()
        await second
        await turns()
        assert channel.undelivered == (2, 3)


async def test_a_reader_that_was_named_may_begin_late() -> None:
    """Nothing is given up while it has not begun, although it is not in the channel's scope."""
    got = []
    go = anyio.Event()

    async def read() -> None:
        await go.wait()
        got.extend([item async for item in channel])

    async with Scope("b") as other:
        scope = await Scope.open("a")
        channel = filled(scope=scope)
        channel.read_by(other.spawn(read))
        channel.close()
        async with anyio.create_task_group() as group:
            group.start_soon(scope.drain, None)
            await turns(20)
            go.set()
        assert scope.report is not None
        assert scope.report.ok
    assert got == [0, 1, 2]


async def test_naming_a_reader_that_has_ended_closes_the_channel() -> None:
    """No reader is left, as a fact."""
    async with Scope("a") as scope:
        channel = filled(1)
        job = scope.spawn(turns, 1)
        await job
        channel.read_by(job)
        assert channel.closed
        assert channel.undelivered == (0,)


@pytest.mark.parametrize("loop", [False, True])
@pytest.mark.parametrize("fails", [False, True])
async def test_a_drain_does_not_hang_on_a_dead_reader_that_is_no_job(
    *, fails: bool, loop: bool
) -> None:
    """A task of another task group has ended: it holds no item, although its frames are kept."""

    async def read() -> None:
        if not loop:
            await channel.receive()
        else:
            async for _ in channel:
                break
        if fails:
            raise KeyError

    async def read_in_loop() -> None:
        reader = aiter(channel)
        async for _ in reader:
            raise KeyError

    kept = None
    scope = await Scope.open("a")
    channel = filled(scope=scope)
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(read_in_loop if fails and loop else read)
    except ExceptionGroup as error:
        kept = error  # and with it the frames
    await scope.drain(None)
    assert channel.undelivered == (1, 2)
    assert (kept is not None) == fails


async def test_a_reader_that_was_just_spawned_gets_everything() -> None:
    """A close gives nothing up: a reader may begin after it."""
    got = []

    async def read() -> None:
        got.extend([item async for item in channel])

    async with Scope("a") as scope:
        channel = filled()
        reader = scope.spawn(read)
        channel.close()
        await reader
    assert got == [0, 1, 2]


async def test_a_reader_may_close_inside_its_loop() -> None:
    """It takes nothing more; the loop ends after what was there."""
    got = []
    async with Scope("a") as scope:
        channel = filled()
        async for item in channel:
            got.append(item)
            channel.close(immediate=item == 1)
        assert not scope.frontier()
    assert got == [0, 1]
    assert channel.undelivered == (2,)


async def test_a_close_that_nobody_reads_on_keeps_the_items() -> None:
    """A plain `close()` discards nothing, however long no reader comes."""
    async with Scope("a"):
        channel = filled()
        channel.close()
        await turns(20)
        assert channel.undelivered == ()
        assert await channel.batch() == [0, 1, 2]


async def test_immediate_ends_what_a_graceful_close_still_delivers() -> None:
    """A second, immediate close gives up the rest."""
    async with Scope("a"):
        channel = filled()
        channel.close()
        assert await channel.receive() == 0
        channel.close(immediate=True)
        assert channel.undelivered == (1, 2)
        channel.close()
        assert channel.undelivered == (1, 2)


@pytest.mark.parametrize("how", ["a callback of the loop", "a job's end"])
@pytest.mark.backends("asyncio", "uvloop")
async def test_closing_and_sending_from_a_callback(how: str) -> None:
    """Outside of any task, both take effect at once."""
    loop = asyncio.get_running_loop()
    async with Scope("a") as scope:
        channel = Channel[int]()

        def send_and_close(*_: Any) -> None:
            channel.send_nowait(1)
            channel.close()

        if how == "a job's end":
            job: Any = scope.spawn(turns, 1)
            job.add_done_callback(send_and_close)
        else:
            loop.call_soon(send_and_close)
        assert [item async for item in channel] == [1]


async def test_closing_twice_is_harmless() -> None:
    """A second close changes nothing."""
    async with Scope("a"):
        channel = Channel[int]()
        channel.close()
        channel.close()
        channel.close(immediate=True)
        assert channel.closed
        assert channel.undelivered == ()


@pytest.mark.backends("asyncio", "uvloop")
async def test_tasks_made_for_one_read_may_follow_each_other() -> None:
    """The end of such a task, as `asyncio.wait_for` makes them on 3.11, gives nothing up."""
    async with Scope("a"):
        channel = filled()
        assert await asyncio.create_task(channel.receive()) == 0
        channel.close()
        await turns(20)
        assert [await asyncio.wait_for(channel.receive(), 1) for _ in range(2)] == [1, 2]
