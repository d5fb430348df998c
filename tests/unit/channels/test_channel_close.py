"""Closing a channel: what is refused, what is still delivered, and that it never hangs."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from quiesce import Channel, ChannelClosed, Scope
from tests.stress import failing, turns

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine


def filled(count: int = 3, maxsize: int | None = 100) -> Channel[int]:
    """Make a channel with some items in it."""
    channel = Channel[int](maxsize)
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
        closing = channel.close()
        assert channel.closed
        with pytest.raises(ChannelClosed, match="closed: it takes nothing more"):
            channel.send_nowait(9)
        with pytest.raises(ChannelClosed):
            await channel.send(9)
        got.extend([item async for item in channel])
        assert await closing == []
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
        assert await channel.close(immediate=immediate) == [0]
        await scope.idle()
    assert sorted(raised) == [7, 8]


async def test_an_immediate_close_ends_the_readers_and_gives_the_items() -> None:
    """Nothing more is delivered; the items are returned, in order, and kept for the asking."""
    async with Scope("a") as scope:
        channel = filled()
        assert await channel.close(immediate=True) == [0, 1, 2]
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
        assert await channel.close(immediate=True) == [1]
        assert await reader


async def ended_by_the_close(channel: Channel[int]) -> bool:
    """Return whether reading met the end."""
    try:
        await channel.receive()
    except ChannelClosed:
        return True
    return False


async def test_close_does_not_hang_when_nobody_ever_read() -> None:
    """Seed 003's trap: with no reader, a graceful close returns, and the items are undelivered."""
    async with Scope("a"):
        channel = filled()
        with anyio.fail_after(0.5):
            assert await channel.close() == [0, 1, 2]
        assert channel.undelivered == (0, 1, 2)


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
@pytest.mark.parametrize("late", [False, True])
async def test_close_does_not_hang_on_a_dead_reader(*, late: bool, how: str) -> None:
    """The last reader dies before the close, or during it: it returns, with what was not read."""
    go = anyio.Event()
    async with Scope("a", on_error=lambda *_: None) as scope:
        channel = filled()
        reader = scope.spawn(dying, channel, how, go)
        await turns()

        def kill() -> None:
            go.set()
            if how == "is cancelled":
                reader.cancel()

        if late:
            closer = scope.spawn(wait_for_the_close, channel)
            await turns()
            assert not closer.done()
            kill()
            assert await closer == [1, 2]
        else:
            kill()
            await turns()
            with anyio.fail_after(0.5):
                assert await channel.close() == [1, 2]


async def wait_for_the_close(channel: Channel[int]) -> list[int]:
    """Close gracefully, in a job of its own."""
    return await channel.close()


@pytest.mark.parametrize("loop", [False, True])
@pytest.mark.parametrize("fails", [False, True])
async def test_close_does_not_hang_on_a_dead_reader_that_is_no_job(
    *, fails: bool, loop: bool
) -> None:
    """The end of a task in somebody else's task group is noticed as well, on every backend."""

    async def read() -> None:
        if loop:
            async for _ in channel:
                break
        else:
            await channel.receive()
        if fails:
            raise KeyError

    kept = None
    async with Scope("a"):
        channel = filled()
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(read)
        except ExceptionGroup as error:
            kept = error  # and with it the frames
        with anyio.fail_after(0.5):
            assert await channel.close() == [1, 2]
    assert (kept is not None) == fails


async def test_a_reader_that_begins_late_is_waited_for_if_it_was_announced() -> None:
    """`read_by` counts a job that has not begun to read."""
    got = []
    go = anyio.Event()

    async def read() -> None:
        await go.wait()
        got.extend([item async for item in channel])

    async with Scope("a") as scope:
        channel = filled()
        channel.read_by(scope.spawn(read))
        closer = scope.spawn(wait_for_the_close, channel)
        await turns(20)
        assert not closer.done()
        go.set()
        assert await closer == []
    assert got == [0, 1, 2]


async def test_read_by_a_job_that_has_ended_is_no_reader() -> None:
    """Announcing a reader that is gone does not make the close wait."""
    async with Scope("a") as scope:
        channel = filled(1)
        job = scope.spawn(turns, 1)
        await job
        channel.read_by(job)
        with anyio.fail_after(0.5):
            assert await channel.close() == [0]


async def test_a_reader_that_was_just_spawned_is_waited_for() -> None:
    """A job that was started before the close, and begins at once, gets everything."""
    got = []

    async def read() -> None:
        got.extend([item async for item in channel])

    async with Scope("a") as scope:
        channel = filled()
        scope.spawn(read)
        assert await channel.close() == []
    assert got == [0, 1, 2]


@pytest.mark.parametrize("first", ["receive", "batch"])
async def test_a_reader_may_close_what_it_reads(first: str) -> None:
    """Who awaits the close does not read meanwhile: it must not wait for itself."""
    async with Scope("a"):
        channel = filled()
        await (channel.receive() if first == "receive" else channel.batch(1))
        with anyio.fail_after(0.5):
            assert await channel.close() == [1, 2]


async def test_a_reader_may_close_inside_its_loop() -> None:
    """The same from the body of an `async for`, which then ends."""
    got = []
    async with Scope("a") as scope:
        channel = filled()
        with anyio.fail_after(0.5):
            async for item in channel:
                got.append(item)
                assert await channel.close() == [1, 2]
        assert not scope.frontier()
    assert got == [0]


async def test_a_reader_closes_in_its_finally() -> None:
    """A reader that fails, and closes on its way out, gets out."""

    async def read() -> list[int]:
        try:
            await channel.receive()
            raise KeyError
        except KeyError:
            return await channel.close()

    async with Scope("a") as scope:
        channel = filled()
        job = scope.spawn(read)
        channel.read_by(job)
        with anyio.fail_after(0.5):
            assert await job == [1, 2]


async def test_while_one_reader_closes_the_other_reads_on() -> None:
    """Only the closing task is left out: what the other reads is delivered."""
    got = []
    go = anyio.Event()

    async def read() -> None:
        got.append(await channel.receive())
        await go.wait()
        got.extend([item async for item in channel])

    async with Scope("a") as scope:
        channel = filled()
        scope.spawn(read)
        await turns()
        assert await channel.receive() == 1
        closer = scope.spawn(wait_for_the_close, channel)
        await turns()
        go.set()
        assert await closer == []
    assert got == [0, 2]


async def test_a_close_that_nobody_awaits_gives_up_with_the_last_reader() -> None:
    """After a plain `close()`, a reader's end leaves nothing that keeps the scope busy."""
    go = anyio.Event()
    async with Scope("a") as scope:
        channel = filled()
        scope.spawn(dying, channel, "returns", go)
        await turns()
        channel.close()
        go.set()
        with anyio.fail_after(0.5):
            await scope.idle()
        assert channel.undelivered == (1, 2)


async def test_immediate_ends_what_a_graceful_close_waits_for() -> None:
    """A second, immediate close lets the first one go, and both give the items."""
    go = anyio.Event()
    async with Scope("a") as scope:
        channel = filled()
        scope.spawn(dying, channel, "returns", go)
        await turns()
        closer = scope.spawn(wait_for_the_close, channel)
        await turns()
        assert not closer.done()
        assert await channel.close(immediate=True) == [1, 2]
        assert await closer == [1, 2]
        assert await channel.close() == [1, 2]
        go.set()


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
        assert await channel.close() == []
        assert await channel.close() == []
        assert await channel.close(immediate=True) == []


READS: list[Callable[[Channel[int]], Coroutine[Any, Any, object]]] = [
    Channel.receive,
    lambda channel: channel.batch(1),
    lambda channel: anext(aiter(channel)),
]


@pytest.mark.backends("asyncio", "uvloop")
@pytest.mark.parametrize("read", READS)
async def test_a_task_made_for_one_read_is_not_taken_for_the_reader(
    read: Callable[[Channel[int]], Coroutine[Any, Any, object]],
) -> None:
    """Its end says nothing of who made it, so the channel is not given up."""
    got: list[object] = []
    async with Scope("a") as scope:
        channel = filled()
        await asyncio.create_task(read(channel))
        closer = scope.spawn(wait_for_the_close, channel)
        await turns(20)
        assert not closer.done()
        got.extend([await asyncio.wait_for(channel.receive(), 1) for _ in range(2)])
        assert await closer == []
    assert got == [1, 2]
