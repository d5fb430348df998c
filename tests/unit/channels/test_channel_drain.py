"""Channels and the drain of their scope: what is waited for, and what is given up."""

from __future__ import annotations

import anyio
import pytest

from quiesce import Channel, ChannelClosed, Report, Scope, WorkLost
from tests.stress import turns
from tests.sweeping import WakeUps

SOON_SECONDS = 5  # sooner than a drain without a deadline looks by itself


def filled(scope: Scope, count: int = 3, maxsize: int | None = 100) -> Channel[int]:
    """Make a channel with some items in it."""
    channel = Channel[int](maxsize, scope=scope, name="mail")
    for item in range(count):
        channel.send_nowait(item)
    return channel


async def take(channel: Channel[int], count: int = 1) -> list[int]:
    """Read some items, and end."""
    return [await channel.receive() for _ in range(count)]


def items(report: Report | None) -> list[object]:
    """Return the items that a report lists as undelivered."""
    assert report is not None
    return [ended.details["item"] for ended in report.undelivered]


async def test_a_drain_waits_for_the_items() -> None:
    """Work that is in flight is read to the end, also what it sends meanwhile."""
    got: list[int] = []
    go = anyio.Event()

    async def read() -> None:
        got.append(await channel.receive())
        await go.wait()
        got.extend(await take(channel, 3))

    async def send() -> None:
        await go.wait()
        await channel.send(3)

    scope = await Scope.open("a")
    channel = filled(scope)
    scope.spawn(read)
    scope.spawn(send)
    await turns()
    async with anyio.create_task_group() as group:
        group.start_soon(scope.drain, 1)
        await turns()
        with pytest.raises(ChannelClosed, match="draining"):  # nobody else brings new work
            channel.send_nowait(9)
        with pytest.raises(ChannelClosed, match="draining"):
            await channel.send(9)
        go.set()
    assert got == [0, 1, 2, 3]
    assert scope.report is not None
    assert scope.report.ok


async def test_a_block_gives_up_a_channel_that_nobody_will_read() -> None:
    """The end of a block without a deadline does not wait for ever, and says what was lost."""
    with pytest.raises(ExceptionGroup) as caught:
        async with Scope("a") as scope:
            filled(scope)
    assert caught.group_contains(WorkLost)
    assert items(scope.report) == [0, 1, 2]


async def test_a_drain_gives_up_when_the_last_reader_goes() -> None:
    """A reader that leaves while the scope drains leaves its blocked senders free."""
    go = anyio.Event()

    async def read() -> None:
        await channel.receive()
        await go.wait()

    scope = await Scope.open("a")
    channel = filled(scope, 1, maxsize=1)
    scope.spawn(read)
    await turns()
    senders = [scope.spawn(channel.send, item) for item in (1, 2)]
    await turns()
    async with anyio.create_task_group() as group:
        group.start_soon(scope.drain, None)
        await turns()
        go.set()
    assert scope.report is not None
    assert len(items(scope.report)) == 1
    assert len(scope.report.failed) == 1
    assert isinstance(scope.report.failed[0].error, ChannelClosed)
    assert sum(sender.outcome is not None for sender in senders) == 2


@pytest.mark.parametrize("count", [1, 5])
async def test_a_drain_notices_at_once_that_work_sends_to_nobody(count: int) -> None:
    """The reader is long gone, the channel was empty; then work fills it, and may wait for room."""
    go = anyio.Event()

    async def send() -> None:
        await go.wait()
        for item in range(count):
            await channel.send(item)

    scope = await Scope.open("a")
    channel = filled(scope, 1, maxsize=1)
    assert await scope.spawn(take, channel) == [0]
    sender = scope.spawn(send)
    async with anyio.create_task_group() as group:
        group.start_soon(scope.drain, None)
        await turns()
        begin = anyio.current_time()
        go.set()
    assert anyio.current_time() - begin < SOON_SECONDS
    assert items(scope.report) == [0]
    assert sender.outcome is not None
    assert isinstance(sender.outcome.error, ChannelClosed) == (count > 1)


async def test_a_drain_does_not_hang_when_work_sends_to_a_channel_that_nobody_ever_read() -> None:
    """Whoever is blocked in `send()` will not read it either."""
    scope = await Scope.open("a")
    channel = filled(scope, 1, maxsize=1)
    sender = scope.spawn(channel.send, 1)
    report = await scope.drain(grace=None)
    assert items(report) == [0]
    assert sender.outcome is not None
    assert isinstance(sender.outcome.error, ChannelClosed)


async def test_a_reader_that_has_left_its_loop_may_come_back_in_a_drain() -> None:
    """Nothing is given up while the task lives that has read."""
    go, left = anyio.Event(), anyio.Event()
    got: list[int] = []

    async def read() -> None:
        async for item in channel:
            got.append(item)
            break
        left.set()
        await go.wait()
        got.extend(await channel.batch())

    scope = await Scope.open("a")
    channel = filled(scope, 3)
    scope.spawn(read)
    await left.wait()
    async with anyio.create_task_group() as group:
        group.start_soon(scope.drain, None)
        await turns()
        go.set()
    assert got == [0, 1, 2]
    assert scope.report is not None
    assert scope.report.ok


async def test_jobs_that_read_one_item_each_are_not_given_up_on_between_them() -> None:
    """While there is work, it may start another reader."""
    got: list[int] = []

    async def dispatch(scope: Scope) -> None:
        for _ in range(3):
            got.extend(await scope.spawn(take, channel))
            await turns(3)

    scope = await Scope.open("a")
    channel = filled(scope, 3)
    scope.spawn(dispatch, scope)
    assert (await scope.drain(grace=None)).ok
    assert got == [0, 1, 2]


async def test_the_body_of_the_block_does_not_come_back() -> None:
    """It has read, and now it waits for the end of the block: the rest is given up, not waited for."""
    with pytest.RaisesGroup(WorkLost):
        async with Scope("a") as scope:
            channel = filled(scope, 3)
            async for _ in channel:
                break
    assert items(scope.report) == [1, 2]


async def test_a_loop_that_drains_its_own_scope_is_not_waited_for() -> None:
    """It has an item in hand, and waits for the end of the scope: the rest is given up."""
    scope = await Scope.open("a")
    channel = filled(scope, 3)
    async for _ in channel:
        with anyio.fail_after(60):
            await scope.drain(grace=None)
        break
    assert items(scope.report) == [1, 2]


async def test_with_a_service_that_may_read_the_drain_waits() -> None:
    """Readers that were not named may be services: only the deadline gives the items up."""
    scope = await Scope.open("a")
    channel = filled(scope, 3)
    scope.spawn(anyio.sleep_forever, service=True)
    await turns()
    begin = anyio.current_time()
    report = await scope.drain(grace=2)
    assert anyio.current_time() - begin >= 2
    assert items(report) == [0, 1, 2]
    assert channel.closed


async def test_a_service_that_was_named_and_has_ended_is_not_waited_for() -> None:
    """The other service cannot be the reader."""
    async with Scope("a") as scope:
        scope.spawn(anyio.sleep_forever, service=True)
        channel = filled(scope, 3)
        channel.read_by(scope.spawn(take, channel, service=True))
        await turns()
        with pytest.raises(ChannelClosed):
            await channel.send(3)
    assert items(scope.report) == [1, 2]


async def test_a_drain_that_waits_for_a_reader_does_not_spin(backend: str) -> None:
    """Items that nobody reads, and a job that might: it looks again now and then, not always."""
    go = anyio.Event()
    scope = await Scope.open("a")
    channel = filled(scope)

    async def read_late() -> None:
        await go.wait()
        await take(channel, 3)

    scope.spawn(read_late)
    async with anyio.create_task_group() as group:
        group.start_soon(scope.drain, 60)
        await turns()
        count = WakeUps()
        with count.counted(backend), anyio.move_on_after(0.2):
            await anyio.sleep_forever()
        go.set()
    assert count.count < 100
    assert scope.report is not None
    assert scope.report.ok
