"""Taps: fan-out, and what becomes of a tap that is slow, left or dropped."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from quiesce import Channel, ChannelClosed, ChannelFull, Scope, TapOverflow, UsageError
from tests.stress import turns

if TYPE_CHECKING:
    from quiesce import Tap


async def test_a_tap_sees_every_item_sent_after_it_was_opened() -> None:
    """Two taps and the channel's own reader each get everything, from their beginning on."""
    async with Scope("a"):
        channel = Channel[int]()
        await channel.send(0)
        first = channel.tap()
        await channel.send(1)
        second = channel.tap()
        await channel.send(2)
        assert await first.batch() == [1, 2]
        assert await second.batch() == [2]
        assert await channel.batch() == [0, 1, 2]


@pytest.mark.parametrize("how", ["receive", "batch", "async for", "batches"])
async def test_a_tap_is_read_as_a_channel_is(how: str) -> None:
    """It waits for what comes, and ends with the channel."""
    got: list[int] = []

    async def read(tap: Tap[int]) -> None:
        if how == "async for":
            got.extend([item async for item in tap])
        elif how == "batches":
            got.extend([item async for items in tap.batches(2) for item in items])
        else:
            await read_on(tap)

    async def read_on(tap: Tap[int]) -> None:
        try:
            while True:
                got.extend([await tap.receive()] if how == "receive" else await tap.batch(2))
        except ChannelClosed as end:
            assert "tap" in str(end)  # noqa: PT017 - it comes in the end

    async with Scope("a") as scope:
        channel = Channel[int](fan_out=True)
        scope.spawn(read, channel.tap())
        await turns()
        for item in range(4):
            await channel.send(item)
        channel.close()
    assert got == [0, 1, 2, 3]


async def test_a_slow_tap_that_waits_holds_up_the_senders() -> None:
    """The bound of the smallest tap is the sender's; taking an item lets it go on."""
    async with Scope("a") as scope:
        channel = Channel[int](100, fan_out=True)
        tap = channel.tap(1, slow="wait")
        await channel.send(0)
        with pytest.raises(ChannelFull):
            channel.send_nowait(1)
        sender = scope.spawn(channel.send, 1)
        await turns()
        assert not sender.done()
        assert await tap.receive() == 0
        await sender
        assert await tap.receive() == 1


async def test_a_slow_tap_that_drops_keeps_the_newest() -> None:
    """Nobody waits; the oldest items are let go, and counted."""
    async with Scope("a"):
        channel = Channel[int](fan_out=True)
        tap = channel.tap(2, slow="drop")
        for item in range(5):
            await channel.send(item)
        assert (tap.stats.dropped, tap.stats.sent) == (3, 5)
        assert await tap.batch() == [3, 4]


async def test_a_tap_that_drops_wakes_no_reader_for_what_is_gone() -> None:
    """Two readers wait, two items come, one is dropped: one reader gets one, the other waits on."""
    got: list[int] = []

    async def read() -> None:
        got.append(await tap.receive())

    async with Scope("a") as scope:
        channel = Channel[int](fan_out=True)
        tap = channel.tap(1, slow="drop")
        scope.spawn(read)
        scope.spawn(read)
        await turns()
        channel.send_nowait(1)
        channel.send_nowait(2)
        await turns()
        assert got == [2]
        channel.send_nowait(3)
        await turns()
        assert got == [2, 3]
        assert tap.stats.dropped == 1


async def test_a_slow_tap_that_fails_tells_its_reader_alone() -> None:
    """The tap ends with `TapOverflow`; the sender and the other taps do not notice."""
    async with Scope("a") as scope:
        channel = Channel[int](fan_out=True)
        slow, other = channel.tap(2, slow="fail"), channel.tap()
        for item in range(3):
            await channel.send(item)
        assert slow.closed
        assert slow.stats.dropped == 2
        for _ in range(2):
            with pytest.raises(TapOverflow, match="too slow: more than 2"):
                await slow.receive()
        with pytest.raises(TapOverflow):
            async for _ in slow:
                pass
        assert channel.stats.taps == 1
        assert await other.batch() == [0, 1, 2]
        assert not scope.frontier()


@pytest.mark.parametrize("how", ["close", "with", "del", "cycle", "del after the close"])
async def test_a_tap_that_is_left_holds_nobody_up(how: str) -> None:
    """Closed, left, dropped or collected: its items are dropped, its senders go on."""
    async with Scope("a") as scope:
        channel = Channel[int](fan_out=True)
        tap: Any = channel.tap(1)
        channel.send_nowait(0)
        sender = scope.spawn(channel.send, 1)
        await turns()
        if how == "close":
            tap.close()
        elif how == "with":
            with tap:
                pass
        elif how == "cycle":
            reader = aiter(tap)
            reader.keeps = [reader, tap]
            del reader, tap
            gc.collect()
        else:
            if how == "del after the close":
                sender.cancel()
                channel.close()
            del tap
        await turns()
        assert sender.done()
        assert channel.stats.taps == 0
        assert not scope.frontier()
    assert scope.report is not None
    assert scope.report.ok


async def test_a_tap_lives_as_long_as_it_is_read() -> None:
    """A tap that only its reader has is not taken for dropped."""
    got: list[int] = []

    async def loop() -> None:
        async for item in channel.tap():
            got.append(item)
            gc.collect()
            await turns(2)

    async def receive() -> None:
        got.append(await channel.tap().receive())

    async with Scope("a") as scope:
        channel = Channel[int](fan_out=True)
        scope.spawn(loop)
        scope.spawn(receive)
        await turns()
        gc.collect()
        await turns()
        assert channel.stats.taps == 2
        for item in range(3):
            await channel.send(item)
        await turns()
        channel.close()
    assert sorted(got) == [0, 0, 1, 2]


async def test_taps_come_and_go_while_items_are_sent() -> None:
    """A reader that ends its own tap, or opens another, between two items disturbs nobody."""
    got: list[int] = []

    async def short_lived(count: int) -> None:
        with channel.tap(1) as tap:
            got.extend([await tap.receive() for _ in range(count)])

    async with Scope("a") as scope:
        channel = Channel[int](1, fan_out=True)
        steady = channel.tap(None)
        for count in (1, 2, 3):
            scope.spawn(short_lived, count)
        await turns()
        for item in range(6):
            await channel.send(item)
            await turns(2)
        assert await steady.batch() == list(range(6))
        assert sorted(got) == [0, 0, 0, 1, 1, 2]
        assert channel.stats.taps == 1


async def test_what_is_in_a_tap_is_in_flight() -> None:
    """The scope is busy with it, the frontier names it, and a close reports it."""
    scope = await Scope.open("a")
    channel = Channel[int](scope=scope, fan_out=True, name="mail")
    tap = channel.tap(name="log")
    await channel.send(1)
    (entry,) = scope.frontier().in_flight
    assert (entry.kind, entry.name, entry.details["depth"]) == ("tap", "log", 1)
    report = await scope.aclose()
    assert [ended.name for ended in report.undelivered] == ["1 in tap log"]
    assert tap.undelivered == (1,)
    assert tap.closed
    assert repr(tap) == "<Tap 'log' closed, 0 queued>"


@pytest.mark.parametrize("immediate", [False, True])
async def test_a_close_of_the_channel_closes_the_taps(*, immediate: bool) -> None:
    """Graceful, a tap's reader gets the rest first; immediate, the rest is the tap's undelivered."""
    got: list[int] = []

    async def read() -> None:
        async for item in tap:
            got.append(item)
            await turns(2)

    async with Scope("a") as scope:
        channel = Channel[int](fan_out=True)
        tap = channel.tap()
        scope.spawn(read)
        await turns()
        for item in range(3):
            await channel.send(item)
        channel.close(immediate=immediate)
        assert tap.closed
    assert [*got, *tap.undelivered] == [0, 1, 2]
    assert len(got) == (0 if immediate else 3)


async def test_a_drain_does_not_hang_on_a_tap_that_nobody_reads() -> None:
    """A tap without a reader is given up as the channel is."""
    scope = await Scope.open("a")
    channel = Channel[int](fan_out=True, scope=scope)
    tap = channel.tap()
    await channel.send(1)
    channel.close()
    await scope.drain(None)
    assert tap.undelivered == (1,)


async def test_a_fan_out_channel_is_read_through_taps_alone() -> None:
    """Reading the channel itself is refused each time, and nothing is kept for it."""
    async with Scope("a") as scope:
        channel = Channel[int](1, fan_out=True)
        for item in range(3):
            await channel.send(item)
        assert channel.stats.dropped == 3
        reader = aiter(channel)
        for read in (channel.receive, channel.batch, reader.__anext__, reader.__anext__):
            with pytest.raises(UsageError, match="only by its taps"), anyio.fail_after(0.5):
                await read()
        assert not scope.frontier()


async def test_a_fan_out_channel_counts_what_was_sent() -> None:
    """What went to the taps was sent, although nothing was kept."""
    async with Scope("a"):
        channel = Channel[int](fan_out=True)
        await channel.send(0)
        with channel.tap() as tap:
            await channel.send(1)
            assert await tap.receive() == 1
        numbers = channel.stats
        assert (numbers.sent, numbers.dropped, numbers.depth) == (2, 1, 0)


async def test_a_tap_reader_that_goes_in_a_drain_is_given_up() -> None:
    """The tap's items are undelivered, and the senders go on."""
    go = anyio.Event()

    async def read() -> None:
        await tap.receive()
        await go.wait()

    async def send() -> None:
        for item in range(4):
            await channel.send(item)

    scope = await Scope.open("a")
    channel = Channel[int](scope=scope, fan_out=True)
    tap = channel.tap(1)
    scope.spawn(read)
    sender = scope.spawn(send)
    await turns()
    assert not sender.done()
    async with anyio.create_task_group() as group:
        group.start_soon(scope.drain, 5)
        await turns()
        go.set()
    assert tap.undelivered
    assert scope.report is not None
    assert scope.report.completed == 2


async def test_no_tap_on_a_closed_channel() -> None:
    """There is nothing more to see."""
    async with Scope("a"):
        channel = Channel[int]()
        channel.close()
        with pytest.raises(ChannelClosed):
            channel.tap()
