"""When the work of a taker on an item is over, which queues do not tell."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from tests.unit.mesh.routes.queueing import Case, Job, is_open, run, settles

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


on_asyncio = pytest.mark.backends("asyncio", "uvloop")
QUEUES = [asyncio.Queue, asyncio.LifoQueue, asyncio.PriorityQueue]


async def _batch_at_two_places(jobs: asyncio.Queue[Job], work: Callable[[list[Job]], Any]) -> None:
    while True:
        batch = [await jobs.get()]
        while not jobs.empty():
            batch.append(jobs.get_nowait())
        await work(batch)


async def _batch_at_one_place(jobs: asyncio.Queue[Job], work: Callable[[list[Job]], Any]) -> None:
    batch: list[Job] = []
    while True:
        batch.append(await jobs.get())
        if len(batch) == 2:
            await work(batch)
            batch = []


async def _batch_until_empty(jobs: asyncio.Queue[Job], work: Callable[[list[Job]], Any]) -> None:
    while True:
        batch = [await jobs.get()]
        try:
            while True:
                batch.append(jobs.get_nowait())
        except asyncio.QueueEmpty:
            pass
        await work(batch)


async def _batch_until_late(jobs: asyncio.Queue[Job], work: Callable[[list[Job]], Any]) -> None:
    while True:
        batch: list[Job] = []
        try:
            while True:
                batch.append(await asyncio.wait_for(jobs.get(), 0.01))
        except TimeoutError:
            if batch:
                await work(batch)


BATCHES = [_batch_at_two_places, _batch_at_one_place, _batch_until_empty, _batch_until_late]


@on_asyncio
@pytest.mark.parametrize("worker", BATCHES)
async def test_a_batch_is_held_until_the_work_on_all_of_it_is_over(
    tmp_path: Path, worker: Any
) -> None:
    """Several hops, whose items are collected before anything is done."""

    async def scenario(case: Case) -> None:
        jobs: asyncio.Queue[Job] = asyncio.Queue()
        gate, begun = anyio.Event(), anyio.Event()

        async def work(batch: list[Job]) -> None:
            begun.set()
            await gate.wait()
            batch.clear()

        one = await case.cascade(lambda: jobs.put_nowait(Job()))
        two = await case.cascade(lambda: jobs.put_nowait(Job()))
        case.app.spawn(worker, jobs, work, service=True)
        await begun.wait()
        assert await is_open(one)
        assert await is_open(two)
        gate.set()
        await settles(one)
        await settles(two)

    await run(tmp_path, scenario)


@on_asyncio
async def test_a_worker_that_never_waits_does_not_hold_the_hop(tmp_path: Path) -> None:
    """It has done its work in one step, and nobody has the item any more."""

    async def scenario(case: Case) -> None:
        jobs: asyncio.Queue[Job] = asyncio.Queue()
        names: list[str] = []

        async def worker() -> None:
            while True:
                job = await jobs.get()
                names.append(job.name)

        case.app.spawn(worker, service=True)
        await settles(await case.cascade(lambda: jobs.put_nowait(Job())))
        assert names == ["job"]

    await run(tmp_path, scenario)


@on_asyncio
@pytest.mark.parametrize("how", ["task", "wait_for", "timeout"])
async def test_an_item_may_be_waited_for_in_other_ways(tmp_path: Path, how: str) -> None:
    """In a task of its own, and with a limit."""

    async def scenario(case: Case) -> None:
        jobs: asyncio.Queue[Job] = asyncio.Queue()

        async def take() -> Job:
            if how == "task":
                return await asyncio.get_running_loop().create_task(jobs.get())
            if how == "wait_for":
                return await asyncio.wait_for(jobs.get(), 30)
            async with asyncio.timeout(30):
                return await jobs.get()

        async def worker() -> None:
            while True:
                job = await take()
                await job.work()

        case.app.spawn(worker, service=True)
        job = Job()
        cascade = await case.cascade(lambda: jobs.put_nowait(job))
        assert await is_open(cascade)
        assert job.hops[0] is not None
        job.gate.set()
        await settles(cascade)

    await run(tmp_path, scenario)
