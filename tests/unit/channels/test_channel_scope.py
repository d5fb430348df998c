"""Channels in their scope: what is in one is in flight, and is reported if nobody reads it."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING

import anyio
import pytest

from quiesce import Channel, ChannelClosed, Report, Scope
from tests.stress import turns

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable


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


async def test_the_scope_is_busy_while_there_are_items() -> None:
    """`idle()` waits for the last item to be taken."""
    async with Scope("a") as scope:
        await scope.idle()
        channel = filled(scope, 2)
        waiting = anyio.Event()

        async def wait() -> None:
            await scope.idle()
            waiting.set()

        async with anyio.create_task_group() as group:
            group.start_soon(wait)
            await turns()
            assert await channel.receive() == 0
            await turns()
            assert not waiting.is_set()
            assert await channel.receive() == 1
            await waiting.wait()
        channel.send_nowait(3)
        assert scope.frontier()
        assert await channel.receive() == 3
        assert not scope.frontier()
        await channel.send(4)
        assert scope.frontier()
        assert await channel.receive() == 4


@pytest.mark.parametrize("how", ["async for", "batches"])
async def test_an_item_in_hand_is_in_flight(how: str) -> None:
    """While a service handles an item, the scope is not idle; when it comes back, it is."""
    go = anyio.Event()
    handled: list[object] = []

    async def handle(reader: AsyncIterator[object]) -> None:
        async for item in reader:
            await go.wait()
            handled.append(item)

    async with Scope("a") as scope:
        channel = filled(scope, 1)
        scope.spawn(
            handle, aiter(channel) if how == "async for" else channel.batches(), service=True
        )
        await turns()
        (entry,) = scope.frontier().in_flight
        assert entry.details == {"depth": 0, "in hand": 1}
        go.set()
        await scope.idle()
        assert len(handled) == 1
        await channel.send(2)  # and once more, from idle
        await scope.idle()
        assert len(handled) == 2


async def test_what_was_sent_while_an_item_is_in_hand_is_in_flight_too() -> None:
    """The quick way in, for a busy channel, and the way out of it keep the count."""
    go = anyio.Event()

    async def handle() -> None:
        async for _ in channel:
            await go.wait()

    async with Scope("a") as scope:
        channel = filled(scope, 1)
        scope.spawn(handle, service=True)
        await turns()
        for item in range(5):
            await channel.send(item)
        (entry,) = scope.frontier().in_flight
        assert entry.details == {"depth": 5, "oldest": "0", "in hand": 1}
        go.set()
        await scope.idle()
        assert len(channel) == 0
        await channel.send(9)
        assert scope.frontier()


@pytest.mark.parametrize("how", ["break", "raise", "cancel"])
async def test_an_item_in_hand_is_no_longer_when_the_loop_ends(how: str) -> None:
    """However the body ends, the item is its own affair from then on."""

    async def read() -> None:
        async for _ in channel:
            if how == "raise":
                raise KeyError
            if how == "break":
                break
            await anyio.sleep_forever()

    async with Scope("a", on_error=lambda *_: None) as scope:
        channel = filled(scope, 1)
        job = scope.spawn(read)
        await turns()
        job.cancel()
        await scope.idle()


async def test_an_iterator_may_change_hands() -> None:
    """Whoever uses the iterator now is the reader: the end of who used it before says nothing."""
    go = anyio.Event()
    got: list[int] = []

    async def one() -> int:
        return await anext(reader)

    async def rest() -> None:
        got.append(await anext(reader))
        await go.wait()
        got.extend([await anext(reader) for _ in range(2)])

    scope = await Scope.open("a")
    channel = filled(scope, 4)
    reader = aiter(channel)
    assert await scope.spawn(one) == 0
    scope.spawn(rest)
    await turns()
    async with anyio.create_task_group() as group:
        group.start_soon(scope.drain, 0.2)
        await turns()
        go.set()
    assert got == [1, 2, 3]
    assert items(scope.report) == []


async def test_the_frontier_names_the_channel() -> None:
    """It says how deep it is, what is oldest, and since when."""
    async with Scope("a") as scope:
        channel = filled(scope)
        (entry,) = scope.frontier().in_flight
        assert (entry.kind, entry.name) == ("channel", "mail")
        assert entry.where is not None
        assert entry.where.split(":")[0].endswith("test_channel_scope.py")
        assert entry.details == {"depth": 3, "oldest": "0"}
        await channel.receive()
        (entry,) = scope.frontier().in_flight
        assert entry.details == {"depth": 2, "oldest": "1"}
        assert "depth=2 · oldest=1" in str(scope.frontier())
        await channel.batch()


async def test_the_report_lists_what_was_not_read() -> None:
    """Each item, with its channel and the item itself; a reason for the report not to be ok."""
    scope = await Scope.open("a")
    channel = filled(scope)
    report = await scope.aclose()
    assert items(report) == [0, 1, 2]
    assert report.undelivered[0].name == "0 in channel mail"
    assert report.undelivered[0].details["channel"] == "mail"
    assert not report.ok
    assert channel.undelivered == (0, 1, 2)
    assert json.loads(report.to_json())["undelivered"][2]["details"]["item"] == 2
    assert "3 undelivered" in str(report)


async def test_an_item_that_cannot_be_shown_does_not_break_the_report() -> None:
    """Whatever is in the channel, its frontier and its report can be written."""

    class Broken:
        def __repr__(self) -> str:
            raise ValueError

    scope = await Scope.open("a")
    channel = Channel[Broken](scope=scope)
    channel.send_nowait(Broken())
    assert "Broken" in str(scope.frontier())
    assert "Broken" in scope.frontier().to_json()
    report = await scope.aclose()
    assert "Broken" in str(report)
    assert "Broken" in report.to_json()


async def test_a_close_ends_the_readers_that_wait() -> None:
    """A service that reads in a loop ends with the scope; who comes later sees the end."""
    ends: list[str] = []

    async def serve() -> None:
        try:
            async for _ in channel:
                pass
            ends.append("ended")
        except BaseException:
            ends.append("cancelled")
            raise

    async with Scope("a") as scope:
        channel = Channel[int]()
        for _ in range(3):
            scope.spawn(serve, service=True)
        await turns()
    assert len(ends) == 3
    assert channel.closed
    with pytest.raises(ChannelClosed):
        await channel.receive()
    with pytest.raises(ChannelClosed):
        channel.tap()


async def test_a_reader_that_is_stuck_meets_the_deadline() -> None:
    """Alive, but not reading: the scope's deadline ends it, and the items are reported."""
    scope = await Scope.open("a")
    channel = filled(scope)

    async def read() -> None:
        async for _ in channel:
            await anyio.sleep_forever()

    scope.spawn(read)
    await turns()
    report = await scope.drain(grace=0.05)
    assert items(report) == [1, 2]
    assert len(report.cancelled) == 1


async def test_a_channel_of_the_parent_is_read_in_a_child() -> None:
    """A drain of the parent knows that work of a child may read; the parent reports the rest."""
    go = anyio.Event()
    scope = await Scope.open("parent")
    channel = filled(scope)

    async def read() -> None:
        await go.wait()
        assert await take(channel, 2) == [0, 1]

    scope.child("child").spawn(read)
    async with anyio.create_task_group() as group:
        group.start_soon(scope.drain, 5)
        await turns()
        go.set()
    assert items(scope.report) == [2]
    assert scope.report is not None
    assert scope.report.completed == 1


async def test_a_channel_of_a_child_is_reported_by_the_parent_once() -> None:
    """What a child could not deliver is in the parent's report, once, under the child's name."""
    scope = await Scope.open("parent")
    filled(scope.child("child"))
    report = await scope.drain(grace=1)
    assert [(ended.scope, ended.details["item"]) for ended in report.undelivered] == [
        ("child", 0),
        ("child", 1),
        ("child", 2),
    ]


CLOSES: list[Callable[[Scope], Awaitable[Report]]] = [
    lambda scope: scope.aclose(),
    lambda scope: scope.drain(grace=0.01),
]


@pytest.mark.parametrize("close", CLOSES)
@pytest.mark.parametrize("was_read", [False, True])
async def test_leftovers_go_to_the_parent(
    *, was_read: bool, close: Callable[[Scope], Awaitable[Report]]
) -> None:
    """A channel with items outlives its scope, is the parent's, takes more, and is read there."""
    async with Scope("parent") as parent:
        child = parent.child("child", leftovers="parent")
        channel = filled(child, 4)
        if was_read:
            await child.spawn(take, channel)
        report = await close(child)
        assert items(report) == []
        assert report.handed_over == 1
        (entry,) = parent.frontier().in_flight
        assert entry.name == "mail"
        await channel.send(4)
        assert await channel.batch() == [0, 1, 2, 3, 4][was_read:]
        assert not parent.frontier()
        channel.send_nowait(5)
        channel.close(immediate=True)
        assert channel.undelivered == (5,)
    assert items(parent.report) == [5]


async def test_an_idle_channel_goes_to_the_parent_too() -> None:
    """An empty one is no hold, but it belongs to the parent from then on, and ends with it."""
    async with Scope("parent") as parent:
        child = parent.child("child", leftovers="parent")
        channel = Channel[int](scope=child)
        await child.aclose()
        await channel.send(1)
        assert await channel.receive() == 1
    assert channel.closed


@pytest.mark.real_time
@pytest.mark.parametrize("verb", ["send", "send_nowait"])
async def test_a_thread_that_is_drained_may_still_send(verb: str) -> None:
    """A thread of the scope is work as a job is: while it is waited for, it sends what it must."""
    go = threading.Event()
    got: list[int] = []
    scope = await Scope.open("a")
    channel = filled(scope, 0)

    def work() -> None:
        assert go.wait(20)
        scope.from_thread(getattr(channel, verb), 1).result(20)

    async def read() -> None:
        got.extend(await take(channel))

    async with anyio.create_task_group() as group:
        group.start_soon(scope.to_thread, work)
        scope.spawn(read)
        await turns()
        group.start_soon(scope.drain, 5)
        await turns()
        go.set()
    assert got == [1]


@pytest.mark.real_time
async def test_a_thread_that_reads_is_a_reader_that_nobody_can_watch() -> None:
    """Between two of its reads, by way of `from_thread`, the channel is not given up."""
    begun, go = anyio.Event(), threading.Event()
    got: list[int] = []
    scope = await Scope.open("a")
    channel = filled(scope)

    def work() -> None:
        got.append(scope.from_thread(channel.receive).result(20))
        scope.from_thread(begun.set).result(20)
        assert go.wait(20)
        got.extend(scope.from_thread(channel.receive).result(20) for _ in range(2))

    async with anyio.create_task_group() as group:
        group.start_soon(scope.to_thread, work)
        await begun.wait()
        group.start_soon(scope.drain, 5)
        await turns()
        go.set()
    assert got == [0, 1, 2]
    assert items(scope.report) == []
