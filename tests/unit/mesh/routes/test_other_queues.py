"""A worker that uses queues of its own while it works on an item, and queues that nobody has any more."""

from __future__ import annotations

import asyncio
import gc
from typing import TYPE_CHECKING

import anyio
import pytest

from quiesce import detached
from quiesce.mesh import Settled, Unknown
from tests.unit.mesh.meshing import World, here

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from quiesce.mesh import Hop

pytestmark = pytest.mark.backends("asyncio", "uvloop")


async def verdicts(
    world: World, handler: Callable[[Hop], Awaitable[None]], free: anyio.Event
) -> list[str]:
    """Return the verdict on one message before its work is let end, and after."""
    root = world.nodes["a"]
    async with root.cascade("c") as cascade:
        await world.hand("b", handler)
    found = [type(await cascade.settled(0.05)).__name__]
    free.set()
    return [*found, type(await cascade.settled(5)).__name__]


async def test_the_last_item_of_an_inner_queue_does_not_hold_the_hop(tmp_path: Path) -> None:
    """A worker of fasta2a reads the events of a run from a stream of its own, and leaves that at the last one."""
    free = anyio.Event()
    outer: asyncio.Queue[str] = asyncio.Queue()

    async def worker() -> None:
        while True:
            await outer.get()
            send, receive = anyio.create_memory_object_stream[str](1)
            async with send, receive:
                await send.send("an event")
                await receive.receive()
            await free.wait()

    async def handler(_: Hop) -> None:
        outer.put_nowait("an item")

    async with World(tmp_path) as world:
        await world.add("a"), await world.add("b")
        with detached():
            task = asyncio.create_task(worker())
        assert await verdicts(world, handler, free) == [Unknown.__name__, Settled.__name__]
        task.cancel()
        await asyncio.wait([task])


async def test_a_task_of_the_hop_that_takes_an_item_of_it_holds_the_hop(tmp_path: Path) -> None:
    """It is the task that is waited for, and not a queue that it does not ask again."""
    free = anyio.Event()
    queue: asyncio.Queue[str] = asyncio.Queue()
    tasks: list[asyncio.Task[None]] = []

    async def reader() -> None:
        await queue.get()
        await free.wait()

    async def handler(_: Hop) -> None:
        queue.put_nowait("an item")
        tasks.append(asyncio.create_task(reader()))

    async with World(tmp_path) as world:
        await world.add("a"), await world.add("b")
        assert await verdicts(world, handler, free) == [Unknown.__name__, Settled.__name__]


async def test_a_handler_that_takes_an_item_of_its_own_hop_holds_it_no_longer(
    tmp_path: Path,
) -> None:
    """Its task may go on after the hop, and never asks the queue again."""
    queue: asyncio.Queue[str] = asyncio.Queue()

    async def handler(_: Hop) -> None:
        queue.put_nowait("an item")
        await queue.get()

    async with World(tmp_path) as world:
        await world.add("a"), await world.add("b")
        async with world.nodes["a"].cascade("c") as cascade:
            with here().delegate("http://b") as handing:
                header = handing.header
                with detached():
                    handing.answered(await world.serve("b", header, handler))  # in this very task
        assert isinstance(await cascade.settled(5), Settled)


@pytest.mark.parametrize("helped", [False, True])
async def test_items_of_a_batch_are_held_until_the_last_is_done(
    tmp_path: Path, *, helped: bool
) -> None:
    """Two items of one hop, from one queue: after the first is done, the second holds the hop, whoever got it."""
    free = anyio.Event()
    queue: asyncio.Queue[str] = asyncio.Queue()

    async def worker() -> None:
        batch = [await queue.get()]
        batch.append(await (asyncio.create_task(queue.get()) if helped else queue.get()))
        queue.task_done()
        await free.wait()
        queue.task_done()
        await anyio.sleep_forever()

    async def handler(_: Hop) -> None:
        queue.put_nowait("the first")
        queue.put_nowait("the second")

    async with World(tmp_path) as world:
        await world.add("a"), await world.add("b")
        with detached():
            task = asyncio.create_task(worker())
        assert await verdicts(world, handler, free) == [Unknown.__name__, Settled.__name__]
        task.cancel()
        await asyncio.wait([task])


async def test_what_is_left_in_a_queue_that_is_gone_holds_nothing(tmp_path: Path) -> None:
    """Nobody can take it any more."""

    async def handler(_: Hop) -> None:
        asyncio.Queue[str]().put_nowait("an item")

    async with World(tmp_path) as world:
        await world.add("a"), await world.add("b")
        async with world.nodes["a"].cascade("c") as cascade:
            await world.hand("b", handler)
        gc.collect()
        assert isinstance(await cascade.settled(5), Settled)
