"""Ways in which people write workers: the verdict waits for the work on each item, and not for longer."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.stress import turns
from tests.unit.mesh.meshing import until
from tests.unit.mesh.routes.queueing import Case, is_open, run, settles
from tests.unit.mesh.routes.working import Job, work

if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.backends("asyncio", "uvloop")


# One item after the other.


async def plain(jobs: asyncio.Queue[Job]) -> None:
    """Nothing but a loop."""
    while True:
        job = await jobs.get()
        await work(job)


async def says_done(jobs: asyncio.Queue[Job]) -> None:
    """As the documentation of Python has it."""
    while True:
        job = await jobs.get()
        try:
            await work(job)
        finally:
            jobs.task_done()


async def says_done_too_early(jobs: asyncio.Queue[Job]) -> None:
    """`task_done()` before the work."""
    while True:
        job = await jobs.get()
        jobs.task_done()
        await work(job)


async def logs_failures(jobs: asyncio.Queue[Job]) -> None:
    """The item is read where something failed."""
    while True:
        job = None
        try:
            job = await jobs.get()
            await work(job)
        except ValueError:
            print(job)  # noqa: T201 - as people do


async def keeps_a_record(jobs: asyncio.Queue[Job]) -> None:
    """A list of what was done."""
    done = []
    names: dict[str, Job] = {}
    while True:
        job = await jobs.get()
        await work(job)
        done.append(job)
        names[job.name] = job


async def with_a_limit(jobs: asyncio.Queue[Job]) -> None:
    """It looks at times whether it is told to stop."""
    while True:
        try:
            job = await asyncio.wait_for(jobs.get(), 0.01)
        except TimeoutError:
            continue
        await work(job)


async def with_a_timeout(jobs: asyncio.Queue[Job]) -> None:
    """A limit, in a block."""
    while True:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.01):
                job = await jobs.get()
            await work(job)


async def with_a_stop(jobs: asyncio.Queue[Job]) -> None:
    """A task that gets the item, beside another one."""
    loop = asyncio.get_running_loop()
    stop = loop.create_task(asyncio.Event().wait())
    try:
        while True:
            getting = loop.create_task(jobs.get())
            await asyncio.wait({getting, stop}, return_when=asyncio.FIRST_COMPLETED)
            await work(getting.result())
    finally:
        stop.cancel()
        getting.cancel()


async def in_a_task(jobs: asyncio.Queue[Job]) -> None:
    """A task that gets the item, alone."""
    while True:
        job = await asyncio.get_running_loop().create_task(jobs.get())
        await work(job)


async def with_a_helper(jobs: asyncio.Queue[Job]) -> None:
    """A function that gets the item."""

    async def following() -> Job:
        return await jobs.get()

    while True:
        await work(await asyncio.wait_for(following(), None))


async def with_two_queues(jobs: asyncio.Queue[Job]) -> None:
    """It takes a permit before each item."""
    permits: asyncio.Queue[int] = asyncio.Queue()
    permits.put_nowait(1)
    while True:
        permit = await permits.get()
        job = await jobs.get()
        await work(job)
        permits.put_nowait(permit)


class Served:
    """A worker that is an object."""

    def __init__(self, jobs: asyncio.Queue[Job]) -> None:
        self.jobs = jobs
        self.results: dict[str, str] = {}
        self.history: list[str] = []

    async def serve(self) -> None:
        """Keep results and a history."""
        while True:
            job = await self.jobs.get()
            await work(job)
            self.results[job.name] = "done"
            self.history.append(job.name)


async def an_object(jobs: asyncio.Queue[Job]) -> None:
    """A worker that is an object."""
    await Served(jobs).serve()


ONE_BY_ONE = [
    plain, says_done, says_done_too_early, logs_failures, keeps_a_record, with_a_limit, with_a_timeout, with_a_stop,
    in_a_task, with_a_helper, with_two_queues, an_object,
]  # fmt: skip


@pytest.mark.parametrize("worker", ONE_BY_ONE)
async def test_a_worker_holds_each_hop_until_its_item_is_done(tmp_path: Path, worker: Any) -> None:
    """And not for longer: it waits for more items then."""

    async def scenario(case: Case) -> None:
        jobs: asyncio.Queue[Job] = asyncio.Queue()
        first, second = Job("1"), Job("2")
        case.app.spawn(worker, jobs, service=True)
        await turns(5)
        one = await case.cascade(lambda: jobs.put_nowait(first))
        two = await case.cascade(lambda: jobs.put_nowait(second))
        await until(lambda: first.is_begun)
        assert await is_open(one)
        assert await is_open(two)
        first.gate.set()
        await settles(one)
        await until(lambda: second.is_begun)
        assert await is_open(two)
        second.gate.set()
        await settles(two)
        if sys.version_info >= (3, 12) or worker not in {with_a_stop, in_a_task}:
            assert first.hop is not second.hop
            assert first.hop is not None

    await run(tmp_path, scenario)


# Tasks for each item.


async def dispatches(jobs: asyncio.Queue[Job]) -> None:
    """A set keeps the tasks alive."""
    tasks = set()
    while True:
        job = await jobs.get()
        task = asyncio.get_running_loop().create_task(work(job))
        tasks.add(task)
        task.add_done_callback(tasks.discard)


async def dispatches_and_counts(jobs: asyncio.Queue[Job]) -> None:
    """The tasks say when they are done."""
    tasks = set()

    async def one(job: Job) -> None:
        try:
            await work(job)
        finally:
            jobs.task_done()

    while True:
        job = await jobs.get()
        task = asyncio.get_running_loop().create_task(one(job))
        tasks.add(task)
        task.add_done_callback(tasks.discard)


async def in_a_group(jobs: asyncio.Queue[Job]) -> None:
    """A task group for all items."""
    async with asyncio.TaskGroup() as group:
        while True:
            group.create_task(work(await jobs.get()))


@pytest.mark.parametrize("worker", [dispatches, dispatches_and_counts, in_a_group])
async def test_a_dispatcher_holds_no_hop_for_longer_than_its_task(
    tmp_path: Path, worker: Any
) -> None:
    """The second item may be done before the first."""

    async def scenario(case: Case) -> None:
        jobs: asyncio.Queue[Job] = asyncio.Queue()
        first, second = Job("1"), Job("2")
        case.app.spawn(worker, jobs, service=True)
        await turns(5)
        one = await case.cascade(lambda: jobs.put_nowait(first))
        two = await case.cascade(lambda: jobs.put_nowait(second))
        await until(lambda: second.is_begun)
        second.gate.set()
        await settles(two)
        assert await is_open(one)
        first.gate.set()
        await settles(one)

    await run(tmp_path, scenario)
