"""Other queues between tasks: asyncio's own, and those of other libraries.

All queues are measured in the same way: one task puts items in, another takes them out, one by one.
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from benchmarks._packages import Package
from benchmarks._subjects import now

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine

ITEM = object()  # the same item every time, so that making items is not measured
END = object()


@dataclass(frozen=True)
class Ends:
    """The two ends of a queue."""

    put: Callable[[object], Awaitable[object]]
    get: Callable[[], Awaitable[object]]
    put_nowait: Callable[[object], object]
    aclose: Callable[[], Awaitable[object]] | None = (
        None  # if the queue warns when it is not closed
    )


@dataclass(frozen=True)
class QueuePeer(Package):
    """Another library that has a queue for tasks."""

    make: Callable[[int], Ends]  # 0: room for any number


async def together(*mains: Coroutine[Any, Any, None]) -> float:
    """Run tasks to their end; return the seconds."""
    begin = now()
    tasks = [asyncio.create_task(main) for main in mains]
    for task in tasks:
        await task
    return now() - begin


async def queue_asyncio(maxsize: int, count: int) -> float:
    """Send items through an asyncio.Queue; return seconds an item."""
    queue: asyncio.Queue[object] = asyncio.Queue(maxsize)

    async def produce() -> None:
        for _ in range(count):
            await queue.put(ITEM)

    async def read() -> None:
        for _ in range(count):
            await queue.get()

    return await together(produce(), read()) / count


async def queue_drained(maxsize: int, count: int) -> float:
    """Do the same, but take all queued items with get_nowait() after each get()."""
    queue: asyncio.Queue[object] = asyncio.Queue(maxsize)

    async def produce() -> None:
        for _ in range(count):
            await queue.put(ITEM)

    async def read() -> None:
        received = 0
        while received < count:
            items = [await queue.get()]
            while not queue.empty():
                items.append(queue.get_nowait())
            received += len(items)

    return await together(produce(), read()) / count


async def queue_peer(peer: QueuePeer, maxsize: int, count: int) -> float:
    """Send items through the queue of another library; return seconds an item."""
    ends = peer.make(maxsize)

    async def produce() -> None:
        put = ends.put
        for _ in range(count):
            await put(ITEM)

    async def read() -> None:
        get = ends.get
        for _ in range(count):
            await get()

    seconds = await together(produce(), read())
    if ends.aclose is not None:
        await ends.aclose()
    return seconds / count


async def generate(count: int) -> AsyncIterator[object]:
    """Yield the items that are read; the generator never waits."""
    for _ in range(count):
        yield ITEM


async def generator_alone(count: int) -> float:
    """Read a generator without a queue; return seconds an item."""
    begin = now()
    received = 0
    async for _ in generate(count):
        received += 1
    assert received == count
    return (now() - begin) / count


async def generator_queue(maxsize: int, count: int) -> float:
    """Send a generator's items to another task through an asyncio.Queue; return seconds an item."""
    queue: asyncio.Queue[object] = asyncio.Queue(maxsize)

    async def pump() -> None:
        async for item in generate(count):
            await queue.put(item)
        await queue.put(END)

    async def read() -> None:
        received = 0
        while await queue.get() is not END:
            received += 1
        assert received == count

    return await together(pump(), read()) / count


async def generator_peer(peer: QueuePeer, maxsize: int, count: int) -> float:
    """Send a generator's items to another task through the queue of another library; return seconds an item."""
    ends = peer.make(maxsize)

    async def pump() -> None:
        put = ends.put
        async for item in generate(count):
            await put(item)
        await put(END)

    async def read() -> None:
        get = ends.get
        while await get() is not END:
            pass

    seconds = await together(pump(), read())
    if ends.aclose is not None:
        await ends.aclose()
    return seconds / count


def _make_asyncio(maxsize: int) -> Ends:
    queue: asyncio.Queue[object] = asyncio.Queue(maxsize)
    return Ends(queue.put, queue.get, queue.put_nowait)


def _make_aiochannel(maxsize: int) -> Ends:
    channel = import_module("aiochannel").Channel(maxsize)
    return Ends(channel.put, channel.get, channel.put_nowait)


def _make_culsans(maxsize: int) -> Ends:
    queue = import_module("culsans").Queue(maxsize).async_q
    return Ends(queue.put, queue.get, queue.put_nowait)


def _make_janus(maxsize: int) -> Ends:
    queue = import_module("janus").Queue(maxsize)
    ends = queue.async_q
    return Ends(ends.put, ends.get, ends.put_nowait, queue.aclose)


def _make_anyio(maxsize: int) -> Ends:
    make = import_module("anyio").create_memory_object_stream
    sending, receiving = make(maxsize or math.inf)

    async def aclose() -> None:
        await sending.aclose()
        await receiving.aclose()

    return Ends(sending.send, receiving.receive, sending.send_nowait, aclose)


QUEUE = QueuePeer("asyncio.Queue", "asyncio", _make_asyncio)
QUEUE_PEERS = (
    QueuePeer("aiochannel", "aiochannel", _make_aiochannel),
    QueuePeer("culsans async_q", "culsans", _make_culsans),
    QueuePeer("janus async_q", "janus", _make_janus),
    QueuePeer("anyio memory stream", "anyio", _make_anyio),
)
