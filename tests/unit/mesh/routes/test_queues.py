"""An item that a hop puts into a queue carries the hop to the task that works on it."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections import deque
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from quiesce import Channel
from quiesce.mesh import current_hop
from tests.stress import turns
from tests.unit.mesh.meshing import World, here, nothing, until
from tests.unit.mesh.routes.queueing import Case, Job, is_open, run, settles

if TYPE_CHECKING:
    from pathlib import Path

    from quiesce.mesh import Hop

on_asyncio = pytest.mark.backends("asyncio", "uvloop")
QUEUES = [asyncio.Queue, asyncio.LifoQueue, asyncio.PriorityQueue]


@on_asyncio
@pytest.mark.parametrize("kind", QUEUES)
async def test_a_worker_works_for_the_hop_until_it_asks_for_the_next_item(
    tmp_path: Path, kind: Any
) -> None:
    """The most common pattern of all: a queue, and a worker that was started with the app."""

    async def scenario(case: Case) -> None:
        jobs = kind()

        async def worker() -> None:
            while True:
                job = await jobs.get()
                await job.work()

        case.app.spawn(worker, service=True)
        first, second = Job("1"), Job("2")
        one = await case.cascade(lambda: jobs.put_nowait(first))
        two = await case.cascade(lambda: jobs.put(second))
        assert await is_open(one)
        assert await is_open(two)  # it waits in the queue
        first.gate.set()
        await settles(one)
        assert await is_open(two)
        second.gate.set()
        await settles(two)
        assert first.hops != second.hops
        assert None not in (*first.hops, *second.hops)

    await run(tmp_path, scenario)


@pytest.mark.parametrize("size", [0, 10])
async def test_a_memory_stream_carries_the_hop(tmp_path: Path, size: int) -> None:
    """Whether the receiver waits for the item, or the sender for the receiver."""

    async def scenario(case: Case) -> None:
        send, receive = anyio.create_memory_object_stream[Job](size)

        async def worker() -> None:
            async for job in receive:
                await job.work()

        first, second = Job("1"), Job("2")
        case.app.spawn(worker, service=True)
        await turns(3)
        async with send, receive:
            one = await case.cascade(lambda: send.send(first))
            assert await is_open(one)
            assert first.hops[0] is not None

            async def sends() -> None:
                await send.send(second)

            def leaves() -> None:
                here().spawn(sends)

            two = await case.cascade(leaves)
            assert await is_open(two)
            first.gate.set()
            await settles(one)
            assert await is_open(two)
            second.gate.set()
            await settles(two)

    await run(tmp_path, scenario)


@pytest.mark.real_time
async def test_a_thread_works_for_the_hop_until_it_asks_for_the_next_item(tmp_path: Path) -> None:
    """`queue.Queue` to a thread that was started with the app."""

    async def scenario(case: Case) -> None:
        jobs: queue.Queue[threading.Event | None] = queue.Queue()
        hops: list[Hop | None] = []

        def worker() -> None:
            while (gate := jobs.get()) is not None:
                hops.append(current_hop())
                gate.wait(30)

        thread = threading.Thread(target=worker)
        thread.start()
        gate = threading.Event()
        try:
            cascade = await case.cascade(lambda: jobs.put(gate))
            await until(lambda: hops)
            assert await is_open(cascade)
            gate.set()
            await settles(cascade)
            assert hops[0] is not None
        finally:
            gate.set()
            jobs.put(None)
            thread.join()

    await run(tmp_path, scenario)


@pytest.mark.real_time
async def test_a_thread_that_ends_has_finished_its_item(tmp_path: Path) -> None:
    """It asks for nothing more."""

    async def scenario(case: Case) -> None:
        jobs: queue.Queue[threading.Event] = queue.Queue()
        thread = threading.Thread(target=lambda: jobs.get().wait(30))
        thread.start()
        gate = threading.Event()
        try:
            cascade = await case.cascade(lambda: jobs.put(gate))
            assert await is_open(cascade)
        finally:
            gate.set()
            thread.join()
        await settles(cascade)

    await run(tmp_path, scenario)


@on_asyncio
async def test_what_the_worker_sends_is_sent_for_the_hop(tmp_path: Path) -> None:
    """An edge of the hop whose item it works on."""

    async def scenario(case: Case) -> None:
        jobs: asyncio.Queue[str] = asyncio.Queue()

        async def worker() -> None:
            while True:
                await jobs.get()
                await turns(3)
                await case.world.hand("c", nothing)

        case.app.spawn(worker, service=True)
        cascade = await case.cascade(lambda: jobs.put_nowait("job"))
        await settles(cascade)
        assert (await cascade.settled(5)).receipt.hops == 3

    await run(tmp_path, scenario)


@on_asyncio
async def test_after_an_item_the_worker_works_for_no_hop(tmp_path: Path) -> None:
    """What it starts then is not the hop's."""

    async def scenario(case: Case) -> None:
        jobs: asyncio.Queue[Job | None] = asyncio.Queue()
        after: list[Hop | None] = []

        async def worker() -> None:
            while True:
                job = await jobs.get()
                if job is None:
                    after.append(current_hop())
                else:
                    await job.work()

        case.app.spawn(worker, service=True)
        job = Job()
        job.gate.set()
        await settles(await case.cascade(lambda: jobs.put_nowait(job)))
        jobs.put_nowait(None)
        await turns(5)
        assert after == [None]
        assert job.hops[0] is not None

    await run(tmp_path, scenario)


@on_asyncio
async def test_task_done_ends_the_work_on_an_item(tmp_path: Path) -> None:
    """Also while the worker does something else before it asks for the next one."""

    async def scenario(case: Case) -> None:
        jobs: asyncio.Queue[Job] = asyncio.Queue()
        other = anyio.Event()

        async def worker() -> None:
            job = await jobs.get()
            await job.work()
            jobs.task_done()
            await other.wait()

        case.app.spawn(worker, service=True)
        job = Job()
        cascade = await case.cascade(lambda: jobs.put_nowait(job))
        assert await is_open(cascade)
        job.gate.set()
        await settles(cascade)
        other.set()

    await run(tmp_path, scenario)


@on_asyncio
async def test_a_deque_and_an_event_are_a_queue(tmp_path: Path) -> None:
    """A worker that is woken by a hop works for it, also if it was busy at that moment."""

    async def scenario(case: Case) -> None:
        jobs: deque[Job] = deque()
        wake = asyncio.Event()

        async def worker() -> None:
            while True:
                await wake.wait()
                wake.clear()
                while jobs:
                    await jobs.popleft().work()

        def put(job: Job) -> None:
            jobs.append(job)
            wake.set()

        case.app.spawn(worker, service=True)
        await turns(3)
        first, second = Job(), Job()
        one = await case.cascade(lambda: put(first))
        two = await case.cascade(lambda: put(second))
        assert await is_open(one)
        first.gate.set()
        await turns(10)
        assert await is_open(two)
        second.gate.set()
        await settles(one)
        await settles(two)
        assert None not in (*first.hops, *second.hops)

    await run(tmp_path, scenario)


@on_asyncio
async def test_an_event_that_is_waited_for_once_is_a_signal(tmp_path: Path) -> None:
    """A test that waits for its handler does not become work of the hop."""

    async def scenario(case: Case) -> None:
        begun = asyncio.Event()
        waiting = case.app.spawn(begun.wait)
        cascade = await case.cascade(begun.set)
        await waiting
        await settles(cascade)

    await run(tmp_path, scenario)


@on_asyncio
async def test_an_event_after_other_code_is_a_signal(tmp_path: Path) -> None:
    """Blocks, handlers and loops before the place and behind it are not loops around it."""

    async def scenario(case: Case) -> None:
        first, begun = asyncio.Event(), asyncio.Event()

        async def waits() -> None:
            try:
                await first.wait()
            except ValueError:
                first.clear()
            for _ in range(2):
                await turns(1)
            with memoryview(b""):
                await begun.wait()
            while first.is_set():
                await turns(1)
                first.clear()

        first.set()
        waiting = case.app.spawn(waits)
        cascade = await case.cascade(begun.set)
        await waiting
        await settles(cascade)

    await run(tmp_path, scenario)


@on_asyncio
async def test_a_dispatcher_hands_its_items_on(tmp_path: Path) -> None:
    """It starts a task for each, and asks for the next one at once."""

    async def scenario(case: Case) -> None:
        jobs: asyncio.Queue[Job] = asyncio.Queue()
        tasks: list[asyncio.Task[None]] = []

        async def dispatcher() -> None:
            while True:
                job = await jobs.get()
                tasks.append(asyncio.get_running_loop().create_task(job.work()))

        case.app.spawn(dispatcher, service=True)
        job = Job()
        cascade = await case.cascade(lambda: jobs.put_nowait(job))
        assert await is_open(cascade)
        job.gate.set()
        await settles(cascade)
        assert job.hops[0] is not None

    await run(tmp_path, scenario)


async def test_a_channel_of_another_scope_carries_the_hop(tmp_path: Path) -> None:
    """Read item by item, by a job of the app."""

    async def scenario(case: Case) -> None:
        jobs: Channel[Job] = Channel(scope=case.app, name="jobs")

        async def worker() -> None:
            async for job in jobs:
                await job.work()

        case.app.spawn(worker, service=True)
        await turns(3)
        first, second = Job(), Job()
        one = await case.cascade(lambda: jobs.send(first))
        two = await case.cascade(lambda: jobs.send_nowait(second))
        assert await is_open(one)
        assert await is_open(two)
        first.gate.set()
        await settles(one)
        assert await is_open(two)
        second.gate.set()
        await settles(two)

    await run(tmp_path, scenario)


@on_asyncio
async def test_an_item_that_is_not_accepted_holds_nothing(tmp_path: Path) -> None:
    """The queue is full."""

    async def scenario(case: Case) -> None:
        jobs: asyncio.Queue[int] = asyncio.Queue(1)
        jobs.put_nowait(1)

        def put() -> None:
            with pytest.raises(asyncio.QueueFull):
                jobs.put_nowait(2)

        await settles(await case.cascade(put))

    await run(tmp_path, scenario)


@on_asyncio
async def test_an_item_between_two_tasks_of_one_hop_needs_no_worker(tmp_path: Path) -> None:
    """A pipeline within a handler ends with it."""

    async def scenario(case: Case) -> None:
        async def pipeline() -> None:
            items: asyncio.Queue[int] = asyncio.Queue()
            items.put_nowait(1)
            assert await items.get() == 1

        await settles(await case.cascade(pipeline))

    await run(tmp_path, scenario)


@on_asyncio
async def test_the_pool_of_a_known_library_holds_nothing(tmp_path: Path) -> None:
    """A connection that goes back into its pool is not work."""

    async def scenario(case: Case) -> None:
        pool: asyncio.LifoQueue[object] = asyncio.LifoQueue()
        library: dict[str, Any] = {"__name__": "asyncpg.pool"}
        exec("def give_back(pool, one): pool.put_nowait(one)", library)  # noqa: S102 - another module's code
        await settles(await case.cascade(lambda: library["give_back"](pool, object())))

    await run(tmp_path, scenario)


@on_asyncio
async def test_what_is_declared_holds_nothing(tmp_path: Path) -> None:
    """By the name of the module that puts it."""
    library: dict[str, Any] = {"__name__": "fakelib.pool"}
    exec("def give_back(pool, one): pool.put_nowait(one)", library)  # noqa: S102 - another module's code
    pool: asyncio.Queue[object] = asyncio.Queue()
    async with World(tmp_path) as world:
        root = await world.add("a")
        await world.add("b", services=["fakelib.pool.*"])

        async def handler(_: Hop) -> None:
            library["give_back"](pool, object())

        async with root.cascade("c") as cascade:
            await world.hand("b", handler)
        await settles(cascade)


@on_asyncio
async def test_nothing_is_replaced_when_no_node_is_open() -> None:
    """Python is as it was."""
    before = [vars(asyncio.Queue)["get"], vars(queue.Queue)["put"], vars(threading.Thread)["start"]]
    async with World() as world:
        await world.add("a")
        await world.add("b")
        assert vars(asyncio.Queue)["get"] is not before[0]
    after = [vars(asyncio.Queue)["get"], vars(queue.Queue)["put"], vars(threading.Thread)["start"]]
    assert after == before
    assert "call_at" not in vars(asyncio.get_running_loop())
