"""Channels: items go through, in order, once, and within the bound; and what it says of itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import pytest

from quiesce import (
    ArgumentError,
    Channel,
    ChannelClosed,
    ChannelFull,
    Scope,
    ScopeClosed,
    UsageError,
)
from tests.stress import turns
from tests.sweeping import WakeUps

if TYPE_CHECKING:
    from collections.abc import Callable

    from quiesce import Job


async def test_items_come_out_once_and_in_order() -> None:
    """What is sent is received, first in first out, through a bound far smaller than the lot."""
    got: list[int] = []

    async def send() -> None:
        for item in range(50):
            await channel.send(item)
        channel.close()

    async with Scope("a") as scope:
        channel = Channel[int](3)
        scope.spawn(send)
        async for item in channel:
            got.append(item)
            assert len(channel) <= 3
    assert got == list(range(50))


@pytest.mark.parametrize("how", ["receive", "batch", "async for", "batches"])
async def test_every_way_to_read_waits_and_then_ends(how: str) -> None:
    """Each way to read gets what comes later, and the end of the channel after that."""
    got: list[int] = []

    async def read() -> None:
        if how == "async for":
            got.extend([item async for item in channel])
        elif how == "batches":
            got.extend([item async for items in channel.batches(2) for item in items])
        else:
            await read_on()

    async def read_on() -> None:
        try:
            while True:
                got.extend([await channel.receive()] if how == "receive" else await channel.batch())
        except ChannelClosed as end:
            assert "all its items have been read" in str(end)  # noqa: PT017 - it comes in the end

    async with Scope("a") as scope:
        channel = Channel[int]()
        reader = scope.spawn(read)
        await turns()
        for item in range(3):
            channel.send_nowait(item)
        await turns()
        assert len(channel) == 0
        assert not reader.done()
        channel.close()
        await reader
    assert got == [0, 1, 2]


@pytest.mark.parametrize(
    ("at_most", "wanted"), [(None, [0, 1, 2, 3]), (3, [0, 1, 2]), (9, [0, 1, 2, 3])]
)
async def test_a_batch_takes_what_is_there(at_most: int | None, wanted: list[int]) -> None:
    """A batch is everything that is there, or the first so many."""
    async with Scope("a"):
        channel = Channel[int]()
        for item in range(4):
            await channel.send(item)
        assert await channel.batch(at_most) == wanted
        channel.close(immediate=True)


async def test_a_batch_makes_room_for_as_many_senders() -> None:
    """Taking three items at once wakes three senders."""
    async with Scope("a") as scope:
        channel = Channel[int](3)
        senders = [scope.spawn(channel.send, item) for item in range(6)]
        await turns()
        assert channel.stats.senders_waiting == 3
        first = await channel.batch()
        await turns()
        assert all(sender.done() for sender in senders)
        assert sorted(first + await channel.batch()) == list(range(6))


async def test_a_batch_leaves_what_another_reader_was_woken_for() -> None:
    """Who has waited, and was woken, gets an item, whoever comes in between."""
    async with Scope("a") as scope:
        channel = Channel[int]()
        reader = scope.spawn(channel.receive)
        await turns()
        channel.send_nowait(1)
        channel.send_nowait(2)
        assert await channel.batch() == [1]
        assert await reader == 2


async def test_senders_are_let_in_in_the_order_in_which_they_came() -> None:
    """The one who has waited longest for room goes first."""
    async with Scope("a") as scope:
        channel = Channel[int](1)
        for item in range(5):
            scope.spawn(channel.send, item)
            await turns(2)
        got = []
        for _ in range(5):
            got.append(await channel.receive())
            await turns(2)
    assert got == list(range(5))


async def test_readers_are_served_in_the_order_in_which_they_came() -> None:
    """The one who has waited longest for an item gets the first."""
    got: list[tuple[int, int]] = []

    async def read(number: int) -> None:
        got.append((number, await channel.receive()))

    async with Scope("a") as scope:
        channel = Channel[int]()
        for number in range(4):
            scope.spawn(read, number)
            await turns(2)
        assert channel.stats.readers_waiting == 4
        for item in range(4):
            await channel.send(item)
            await turns(2)
    assert got == [(n, n) for n in range(4)]


async def test_send_nowait_does_not_overtake_those_who_wait() -> None:
    """A channel is full for those who do not wait, while others wait for room."""
    async with Scope("a") as scope:
        channel = Channel[int](1)
        channel.send_nowait(0)
        with pytest.raises(ChannelFull, match="1 items"):
            channel.send_nowait(1)
        sender = scope.spawn(channel.send, 2)
        await turns()
        assert await channel.receive() == 0  # the room is the sender's, who has not run yet
        with pytest.raises(ChannelFull):
            channel.send_nowait(3)
        await sender
        assert await channel.receive() == 2


async def test_what_need_not_wait_is_no_checkpoint() -> None:
    """A send that finds room, and a receive that finds an item, let nobody else run."""
    ran: list[str] = []

    async def other() -> None:
        ran.append("other")

    async with Scope("a") as scope:
        channel = Channel[int](10)
        scope.spawn(other)
        for item in range(10):
            await channel.send(item)
        assert await channel.receive() == 0
        assert await channel.batch(3) == [1, 2, 3]
        assert not ran
        channel.close(immediate=True)


async def test_waiting_wakes_nobody(backend: str) -> None:
    """Readers and senders that wait do not spin."""
    async with Scope("a") as scope:
        empty, full = Channel[int](name="empty"), Channel[int](1, name="full")
        full.send_nowait(0)
        waiting: list[Job[Any]] = [scope.spawn(empty.receive) for _ in range(20)]
        waiting += [scope.spawn(full.send, 1) for _ in range(20)]
        await turns()
        count = WakeUps()
        with count.counted(backend):
            await turns(50)
        assert count.count <= 120  # our own turns: on asyncio, one call each
        for job in waiting:
            job.cancel()
        assert await full.receive() == 0


async def test_one_item_wakes_one_reader(backend: str) -> None:
    """A hundred readers wait, one item comes: one of them is woken."""
    async with Scope("a") as scope:
        channel = Channel[int]()
        readers = [scope.spawn(channel.receive, name=str(n)) for n in range(100)]
        await turns()
        count = WakeUps()
        with count.counted(backend):
            channel.send_nowait(1)
            await turns(3)
        assert count.count < 20
        assert sum(reader.done() for reader in readers) == 1
        for reader in readers:
            reader.cancel()


async def test_statistics_add_up() -> None:
    """What was sent is in it, was received, or was not delivered."""
    async with Scope("a") as scope:
        channel = Channel[int](5)
        for item in range(5):
            await channel.send(item)
        scope.spawn(sends, channel)
        await turns()
        before = channel.stats
        assert (before.depth, before.maxsize, before.sent) == (5, 5, 5)
        assert (before.senders_waiting, before.taps) == (1, 0)
        await channel.receive()
        await channel.batch(2)
        await turns()
        assert (channel.stats.sent, channel.stats.received) == (6, 3)
        channel.close(immediate=True)
        assert channel.undelivered == (3, 4, 9)
        after = channel.stats
        assert (after.sent, after.received, after.undelivered, after.depth) == (6, 3, 3, 0)
        assert (after.readers_waiting, after.senders_waiting) == (0, 0)


async def sends(channel: Channel[int]) -> None:
    """Send one item."""
    await channel.send(9)


async def test_a_channel_is_true_and_has_a_length_and_a_name() -> None:
    """An empty channel is not false: `channel or default` would surprise."""
    async with Scope("a"):
        channel = Channel[int](name="mail")
        assert channel
        assert len(channel) == 0
        assert repr(channel) == "<Channel 'mail' open, 0 queued>"
        channel.close()
        assert repr(channel) == "<Channel 'mail' closed, 0 queued>"


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Channel(0), "maxsize must be a whole number of at least 1, or None, not 0"),
        (lambda: Channel(True), "not True"),  # noqa: FBT003 - the mistakes are the point
        (lambda: Channel(1.5), "not 1.5"),  # type: ignore[arg-type]  # likewise
        (lambda: Channel(name=3), "name must be a string, not 3"),  # type: ignore[arg-type]  # likewise
        (lambda: Channel().tap(0), "maxsize must be a whole number"),
        (lambda: Channel().tap(slow="ignore"), "slow must be one of"),  # type: ignore[arg-type]  # likewise
        (lambda: Channel().tap(name=3), "name must be a string, not 3"),  # type: ignore[arg-type]  # likewise
        (lambda: Channel().batches(0), "at_most must be a whole number"),
        (lambda: Channel(scope="a"), "scope must be a Scope, not 'a'"),  # type: ignore[arg-type]  # likewise
        (lambda: Channel().read_by(turns), "job must be a Job"),  # type: ignore[arg-type]  # likewise
    ],
)
async def test_bad_input_is_refused(make: Callable[[], Any], text: str) -> None:
    """Each wrong argument is named, with what was given."""
    async with Scope("a"):
        with pytest.raises(ArgumentError, match=text):
            make()


async def test_a_bad_batch_size_is_refused() -> None:
    """A batch of nothing would never end."""
    async with Scope("a"):
        channel = Channel[int]()
        with pytest.raises(ArgumentError, match="at_most"):
            await channel.batch(0)


async def test_a_channel_needs_an_open_scope() -> None:
    """Without a scope there is nobody to own it; a closed one takes nothing."""
    with pytest.raises(UsageError, match="needs a scope"):
        Channel[int]()
    async with Scope("a") as scope:
        pass
    with pytest.raises(ScopeClosed):
        Channel[int](scope=scope)
    with pytest.raises(UsageError, match="not open"):
        Channel[int](scope=Scope("b"))


@pytest.mark.real_time
async def test_another_thread_sends_by_way_of_the_scope() -> None:
    """`from_thread` is the way in for other threads, with both kinds of send."""
    async with Scope("a") as scope:
        channel = Channel[int]()

        def work() -> None:
            scope.from_thread(channel.send_nowait, 1).result(20)
            scope.from_thread(channel.send, 2).result(20)

        await scope.to_thread(work)
        assert await channel.batch() == [1, 2]


@pytest.mark.real_time
@pytest.mark.parametrize("busy", [False, True])
async def test_a_send_from_the_wrong_thread_is_refused_and_sends_nothing(*, busy: bool) -> None:
    """A send that raises has put nothing into the channel, also in another thread."""
    async with Scope("a"):
        channel = Channel[int]()
        if busy:
            channel.send_nowait(0)
        with pytest.raises(UsageError, match="from_thread"):
            await anyio.to_thread.run_sync(channel.send_nowait, 1)
        assert len(channel) == int(busy)
        channel.close(immediate=True)


@pytest.mark.real_time
async def test_a_close_from_the_wrong_thread_is_refused() -> None:
    """Only the scope's own thread closes; others go by way of the scope."""
    async with Scope("a") as scope:
        channel = Channel[int]()
        with pytest.raises(UsageError, match="another thread"):
            await anyio.to_thread.run_sync(channel.close)
        assert not channel.closed
        await scope.to_thread(lambda: scope.from_thread(channel.close).result(20))
        assert channel.closed
