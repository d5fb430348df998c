"""Channels beside asyncio.Queue: the time for an item, and the memory of a queued item."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import quiesce
from benchmarks._harness import OURS, Result, Samples, compare, interleave, run_fresh
from benchmarks._queues import (
    ITEM,
    QUEUE,
    QUEUE_PEERS,
    QueuePeer,
    queue_asyncio,
    queue_drained,
    queue_peer,
)
from benchmarks._subjects import Memory, now

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

    from benchmarks._sizes import ResourceSizes
    from benchmarks._subjects import Marks

    Channel = quiesce.Channel[object]
    Way = Callable[[int, int], Coroutine[Any, Any, float]]
    Fill = Callable[[int, Marks], Coroutine[Any, Any, None]]

CAPACITY = 100
RECEIVE, ASYNC_FOR = "quiesce receive()", "quiesce async for"
BATCH, BATCHES = "quiesce batch()", "quiesce batches()"
DRAINED = "asyncio.Queue, get_nowait()"


async def through_channel(
    read: Callable[[Channel, int], Coroutine[Any, Any, None]], maxsize: int, count: int
) -> float:
    """Send items through a channel, from one job to another; return seconds an item."""
    async with quiesce.Scope("benchmark") as scope:
        channel = quiesce.Channel[object](maxsize)

        async def produce() -> None:
            for _ in range(count):
                await channel.send(ITEM)
            channel.close()

        begin = now()
        jobs = scope.spawn(produce), scope.spawn(read, channel, count)
        for job in jobs:
            await job
        seconds = now() - begin
        assert channel.stats.received == count
    return seconds / count


async def read_receive(channel: Channel, count: int) -> None:
    """Receive one item at a time."""
    for _ in range(count):
        await channel.receive()


async def read_async_for(channel: Channel, count: int) -> None:
    """Receive one item at a time, until the channel is closed."""
    received = 0
    async for _ in channel:
        received += 1
    assert received == count


async def read_batch(channel: Channel, count: int) -> None:
    """Receive all queued items at a time."""
    received = 0
    while received < count:
        received += len(await channel.batch())


async def read_batches(channel: Channel, count: int) -> None:
    """Receive all queued items at a time, until the channel is closed."""
    received = 0
    async for items in channel.batches():
        received += len(items)
    assert received == count


WAYS: dict[str, Way] = {
    QUEUE.name: queue_asyncio,
    RECEIVE: partial(through_channel, read_receive),
    ASYNC_FOR: partial(through_channel, read_async_for),
    BATCH: partial(through_channel, read_batch),
    BATCHES: partial(through_channel, read_batches),
    DRAINED: queue_drained,
}


def channel(backend: str, sizes: ResourceSizes) -> list[Result]:
    """Compare the time for an item from one producer to one reader."""

    def piece(way: Way, count: int) -> float:
        return run_fresh(backend, partial(way, CAPACITY, count)) * 1e6

    pieces = {name: partial(piece, way, sizes.items) for name, way in WAYS.items()}
    peers = {
        peer.name: partial(piece, partial(queue_peer, peer), sizes.items_peers)
        for peer in QUEUE_PEERS
        if peer.found
    }
    found = interleave(
        f"{backend}: channel",
        pieces | peers,
        sizes.rounds,
        seldom=peers.keys(),
        rounds_seldom=sizes.rounds_peers,
    )
    about = f"{sizes.items:,} items, one producer, one reader, room for {CAPACITY}"
    by_one = (QUEUE.name, RECEIVE, ASYNC_FOR, *peers)
    return [
        _speed("channel_vs_asyncio_queue", f"{about}; receive()", found, by_one, RECEIVE, 1.0),
        _speed("channel_async_for", f"{about}; async for", found, by_one[:3], ASYNC_FOR, 1.0),
        _speed(
            "channel_batch",
            f"{about}; batch(), against get() one by one",
            found,
            (QUEUE.name, DRAINED, BATCH, BATCHES),
            BATCH,
            3.0,
            against=(DRAINED,),
        ),
    ]


def _speed(
    name: str,
    about: str,
    found: dict[str, Samples],
    shown: tuple[str, ...],
    ours: str,
    limit: float,
    *,
    against: tuple[str, ...] = (),
) -> Result:
    return compare(
        name,
        about,
        {label: found[label] for label in shown},
        unit="us an item",
        limit=limit,
        ours=ours,
        base=QUEUE.name,
        against=against,
        at_least=True,
    )


async def fill_channel(count: int, marks: Marks) -> None:
    """Put items into a channel, and leave them there until it is closed."""
    async with quiesce.Scope("benchmark"):
        marks.empty()
        channel = quiesce.Channel[object](None)
        for _ in range(count):
            channel.send_nowait(ITEM)
        marks.live()
        channel.close(immediate=True)
        assert len(channel.undelivered) == count
        marks.closed()


async def fill_peer(peer: QueuePeer, count: int, marks: Marks) -> None:
    """Put items into the queue of another library."""
    marks.empty()
    ends = peer.make(0)
    for _ in range(count):
        ends.put_nowait(ITEM)
    marks.live()
    if ends.aclose is not None:
        await ends.aclose()
    marks.closed()


def channel_memory(backend: str, sizes: ResourceSizes) -> list[Result]:
    """Measure the queue's own memory for an item, by tracemalloc."""

    def piece(fill: Fill) -> float:
        marks = Memory()
        run_fresh(backend, partial(fill, sizes.queued, marks))
        return marks.bytes_live / sizes.queued

    everyone: dict[str, Fill] = {QUEUE.name: partial(fill_peer, QUEUE), OURS: fill_channel}
    everyone |= {peer.name: partial(fill_peer, peer) for peer in QUEUE_PEERS if peer.found}
    found = interleave(
        f"{backend}: channel_memory",
        {name: partial(piece, fill) for name, fill in everyone.items()},
        min(sizes.rounds, 2),  # allocations hardly vary
    )
    about = f"{sizes.queued:,} items in a queue with room for any number, without the items"
    return [
        compare(
            "channel_memory",
            about,
            found,
            unit="bytes an item",
            limit=1.3,
            base=QUEUE.name,
        )
    ]
