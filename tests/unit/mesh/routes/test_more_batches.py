"""Workers that collect items in ways that are harder to see."""

from __future__ import annotations

import asyncio
import heapq
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from tests.stress import turns
from tests.unit.mesh.meshing import until
from tests.unit.mesh.routes.queueing import Case, is_open, run, settles
from tests.unit.mesh.routes.working import Job, work

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.backends("asyncio", "uvloop")


async def a_helper_returns_the_list(jobs: asyncio.Queue[Job]) -> None:
    """Another function collects."""

    async def collect() -> list[Job]:
        found: list[Job] = []
        while len(found) < 2:
            found.append(await jobs.get())
        return found

    while True:
        await work(*await collect())


async def a_closure_empties_it(jobs: asyncio.Queue[Job]) -> None:
    """Another function works on the batch, and empties it."""
    pending: list[Job] = []

    async def flush() -> None:
        await work(*pending)
        pending.clear()

    while True:
        pending.append(await jobs.get())
        if len(pending) == 2:
            await flush()


async def an_argument_is_emptied(jobs: asyncio.Queue[Job]) -> None:
    """A function gets the batch."""

    async def flush(found: list[Job]) -> None:
        await work(*found)
        found.clear()

    batch: list[Job] = []
    while True:
        batch.append(await jobs.get())
        if len(batch) == 2:
            await flush(batch)


@dataclass
class State:
    """What a worker has."""

    rows: list[Job] = field(default_factory=list)


async def in_a_dataclass(jobs: asyncio.Queue[Job]) -> None:
    """An object without methods has the batch."""
    state = State()
    while True:
        state.rows.append(await jobs.get())
        if len(state.rows) == 2:
            await work(*state.rows)
            state.rows.clear()


async def by_key(jobs: asyncio.Queue[Job]) -> None:
    """A batch for each key, which is taken out as a whole."""
    groups: defaultdict[str, list[Job]] = defaultdict(list)
    while True:
        groups["all"].append(await jobs.get())
        if len(groups["all"]) == 2:
            await work(*groups.pop("all"))


async def on_a_heap(jobs: asyncio.Queue[Job]) -> None:
    """In an order of its own."""
    heap: list[tuple[str, Job]] = []
    while True:
        job = await jobs.get()
        heapq.heappush(heap, (job.name, job))
        if len(heap) == 2:
            await work(heapq.heappop(heap)[1], heapq.heappop(heap)[1])


async def one_by_one_out_of_a_list(jobs: asyncio.Queue[Job]) -> None:
    """Each is removed when it is done."""
    todo: list[Job] = []
    while True:
        todo.append(await jobs.get())
        if len(todo) == 2:
            await work(*todo)
            for job in list(todo):
                todo.remove(job)


async def a_first_and_the_rest(jobs: asyncio.Queue[Job]) -> None:
    """Until the queue is empty."""
    while True:
        first = await jobs.get()
        rest = []
        while not jobs.qsize():
            await turns(1)
        try:
            while True:
                rest.append(jobs.get_nowait())
        except asyncio.QueueEmpty:
            pass
        await work(first, *rest)


async def done_in_another_order(jobs: asyncio.Queue[Job]) -> None:
    """`task_done()` for the newest item first."""
    while True:
        first, second = await jobs.get(), await jobs.get()
        await turns(2)
        jobs.task_done()
        await work(first, second)
        jobs.task_done()


WORKERS = [
    a_helper_returns_the_list, a_closure_empties_it, an_argument_is_emptied, in_a_dataclass, by_key, on_a_heap,
    one_by_one_out_of_a_list, a_first_and_the_rest, done_in_another_order,
]  # fmt: skip


@pytest.mark.parametrize("worker", WORKERS)
async def test_a_batch_holds_all_its_hops_wherever_it_is(tmp_path: Path, worker: Any) -> None:
    """Until the work on it is over, and not for longer."""

    async def scenario(case: Case) -> None:
        jobs: asyncio.Queue[Job] = asyncio.Queue()
        first, second = Job("1"), Job("2")
        case.app.spawn(worker, jobs, service=True)
        await turns(5)
        one = await case.cascade(lambda: jobs.put_nowait(first))
        assert await is_open(one)  # it is collected
        two = await case.cascade(lambda: jobs.put_nowait(second))
        await until(lambda: second.is_begun)
        assert await is_open(one)
        assert await is_open(two)
        first.gate.set()
        second.gate.set()
        await settles(one)
        await settles(two)

    await run(tmp_path, scenario)
