"""Workers that collect several items before they work on them."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import defaultdict, deque
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from tests.stress import turns
from tests.unit.mesh.meshing import until
from tests.unit.mesh.routes.queueing import Case, is_open, run, settles
from tests.unit.mesh.routes.working import Job, work

if TYPE_CHECKING:
    from pathlib import Path

    from quiesce.mesh import Hop

pytestmark = pytest.mark.backends("asyncio", "uvloop")


async def pairs(jobs: asyncio.Queue[Job]) -> None:
    """Two at a time."""
    while True:
        one = await jobs.get()
        other = await jobs.get()
        await work(one, other)


async def pairs_in_a_line(jobs: asyncio.Queue[Job]) -> None:
    """Two at a time, which no variable has."""
    while True:
        await work(await jobs.get(), await jobs.get())


async def comprehends(jobs: asyncio.Queue[Job]) -> None:
    """A list that is being made."""
    while True:
        batch = [await jobs.get() for _ in range(2)]
        await work(*batch)


async def gathers(jobs: asyncio.Queue[Job]) -> None:
    """Several tasks that get items."""
    while True:
        await work(*await asyncio.gather(jobs.get(), jobs.get()))


async def derives(jobs: asyncio.Queue[Job]) -> None:
    """It keeps something that it has made of the items."""
    while True:
        rows: list[tuple[Job]] = []
        while len(rows) < 2:
            rows.append((await jobs.get(),)[0:1])
        await work(*(job for row in rows for job in row))


async def waits_between(jobs: asyncio.Queue[Job]) -> None:
    """It waits for something else before it has all of the batch."""
    batch: list[tuple[Job]] = []
    while True:
        job = await jobs.get()
        await turns(3)
        batch.append((job,))
        if len(batch) == 2:
            await work(*(job for (job,) in batch))
            batch.clear()


async def lingers(jobs: asyncio.Queue[Job]) -> None:
    """It waits for a while whether there is more, and parses what it gets."""
    while True:
        batch = [(await jobs.get(),)]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.05):
                while True:
                    job = await jobs.get()
                    await turns(2)
                    batch.append((job,))
        await work(*(job for (job,) in batch))


class Batcher:
    """Collects items in attributes."""

    def __init__(self) -> None:
        self.rows: list[tuple[Job]] = []
        self.groups: defaultdict[str, list[tuple[Job]]] = defaultdict(list)

    async def flush(self) -> None:
        """Work on all."""
        rows, self.rows = self.rows, []
        rows += [row for group in self.groups.values() for row in group]
        self.groups.clear()
        await work(*(job for (job,) in rows))


async def has_a_batcher(jobs: asyncio.Queue[Job]) -> None:
    """Another object collects."""
    batcher = Batcher()
    while True:
        job = await jobs.get()
        await turns(2)
        batcher.rows.append((job,))
        if len(batcher.rows) == 2:
            await batcher.flush()


async def groups(jobs: asyncio.Queue[Job]) -> None:
    """By a key."""
    batcher = Batcher()
    while True:
        job = await jobs.get()
        batcher.groups["all"].append((job,))
        if len(batcher.groups["all"]) == 2:
            await batcher.flush()


async def saves_up(jobs: asyncio.Queue[Job]) -> None:
    """A deque that it takes the items out of, one after the other."""
    left: deque[tuple[Job]] = deque()
    while True:
        left.append((await jobs.get(),))
        if len(left) == 2:
            both = left.popleft() + left.popleft()
            await work(*both)


async def counts_batches(jobs: asyncio.Queue[Job]) -> None:
    """`task_done()` for each item, after all of it."""
    while True:
        batch = [(await jobs.get(),), (await jobs.get(),)]
        await work(*(job for (job,) in batch))
        for _ in batch:
            jobs.task_done()


BATCHES = [
    pairs, pairs_in_a_line, comprehends, gathers, derives, waits_between, lingers, has_a_batcher, groups, saves_up,
    counts_batches,
]  # fmt: skip


@pytest.mark.parametrize("worker", BATCHES)
async def test_a_batch_holds_all_its_hops(tmp_path: Path, worker: Any) -> None:
    """Until the work on it is over, and not for longer."""

    async def scenario(case: Case) -> None:
        jobs: asyncio.Queue[Job] = asyncio.Queue()
        first, second = Job("1"), Job("2")
        case.app.spawn(worker, jobs, service=True)
        await turns(5)
        one = await case.cascade(lambda: jobs.put_nowait(first))
        await turns(20)
        assert await is_open(one)  # it is collected
        two = await case.cascade(lambda: jobs.put_nowait(second))
        await until(lambda: second.is_begun)
        assert await is_open(one)
        assert await is_open(two)
        first.gate.set()
        await turns(20)
        assert await is_open(one)  # of one work on both
        second.gate.set()
        await settles(one)
        await settles(two)

    await run(tmp_path, scenario)


class Register:
    """What goes on, by name."""

    def __init__(self) -> None:
        self.at_work: dict[str, Job] = {}
        self.waiting: list[Job] = []

    async def one(self, job: Job) -> None:
        """Take out a certain job when it is done."""
        await work(job)
        del self.at_work[job.name]
        self.waiting.remove(job)

    def forget(self) -> None:
        """Take all out."""
        self.at_work.clear()
        self.waiting.clear()


async def test_a_register_is_not_a_batch(tmp_path: Path) -> None:
    """The worker starts a task for each item, and keeps both in a register."""

    async def scenario(case: Case) -> None:
        jobs: asyncio.Queue[Job] = asyncio.Queue()
        register = Register()
        tasks = []

        async def worker() -> None:
            while True:
                job = await jobs.get()
                register.at_work[job.name] = job
                register.waiting.append(job)
                tasks.append(asyncio.get_running_loop().create_task(register.one(job)))

        case.app.spawn(worker, service=True)
        await turns(5)
        job = Job("1")
        cascade = await case.cascade(lambda: jobs.put_nowait(job))
        await until(lambda: job.is_begun)
        job.gate.set()
        await settles(cascade)

    await run(tmp_path, scenario)


async def test_a_message_of_a_batch_is_waited_for_by_all_its_hops(tmp_path: Path) -> None:
    """It is an edge of one of them."""

    async def scenario(case: Case) -> None:
        jobs: asyncio.Queue[Job] = asyncio.Queue()
        free = anyio.Event()

        async def below(hop: Hop) -> None:
            hop.spawn(free.wait)

        async def worker() -> None:
            while True:
                one, other = await jobs.get(), await jobs.get()
                await case.world.hand("c", below)
                await work(one, other)

        case.app.spawn(worker, service=True)
        await turns(5)
        first, second = Job("1"), Job("2")
        one = await case.cascade(lambda: jobs.put_nowait(first))
        two = await case.cascade(lambda: jobs.put_nowait(second))
        await until(lambda: first.is_begun)
        first.gate.set()
        second.gate.set()
        await turns(30)
        assert await is_open(two)
        assert await is_open(one)
        free.set()
        await settles(two)
        await settles(one)

    await run(tmp_path, scenario)


@pytest.mark.real_time
@pytest.mark.parametrize("how", ["task", "executor", "queue"])
async def test_what_is_started_for_a_batch_is_untracked_in_all_hops_but_one(
    tmp_path: Path, how: str
) -> None:
    """It is a part of one of them, and goes on after the worker has asked for more."""

    async def scenario(case: Case) -> None:
        jobs: asyncio.Queue[Job] = asyncio.Queue()
        on: asyncio.Queue[list[Job]] = asyncio.Queue()
        gate = threading.Event()
        started: list[object] = []
        loop = asyncio.get_running_loop()

        def waits(batch: list[Job]) -> None:
            batch[0].is_begun = True
            gate.wait(30)

        def hand_on(batch: list[Job]) -> object:
            if how == "task":
                return loop.create_task(work(*batch))
            if how == "executor":
                return loop.run_in_executor(None, waits, batch)
            on.put_nowait(batch)
            return None

        async def worker() -> None:
            while True:
                one, other = await jobs.get(), await jobs.get()
                started.append(hand_on([one, other]))
                jobs.task_done()
                jobs.task_done()

        async def second_worker() -> None:
            while True:
                await work(*await on.get())

        case.app.spawn(second_worker, service=True)
        case.app.spawn(worker, service=True)
        await turns(5)
        first, second = Job("1"), Job("2")
        one = await case.cascade(lambda: jobs.put_nowait(first))
        two = await case.cascade(lambda: jobs.put_nowait(second))
        try:
            await until(lambda: first.is_begun)
            verdict = await one.settled(5)
            assert not verdict.ok
            assert "started by the taker of several items" in str(verdict)
            assert await is_open(two)
        finally:
            first.gate.set()
            second.gate.set()
            gate.set()
        await settles(two)

    await run(tmp_path, scenario)


class Office:
    """Two workers of one object, each with something of its own to wait for."""

    def __init__(self) -> None:
        self.jobs: asyncio.Queue[Job] = asyncio.Queue()
        self.letters: deque[Job] = deque()
        self.is_there = asyncio.Event()

    async def take(self) -> None:
        """Work on one job after the other."""
        while True:
            await work(await self.jobs.get())

    async def read(self) -> None:
        """Work on all letters, when there are any."""
        while True:
            await self.is_there.wait()
            self.is_there.clear()
            while self.letters:
                await work(self.letters.popleft())


async def test_what_other_code_collects_is_not_a_workers_batch(tmp_path: Path) -> None:
    """A container of the worker's object has grown meanwhile, which the worker never uses."""
    office = Office()
    job, first, second = Job("job"), Job("1"), Job("2")

    def post() -> None:
        office.letters.extend([first, second])
        office.is_there.set()

    async def scenario(case: Case) -> None:
        case.app.spawn(office.read, service=True)
        case.app.spawn(office.take, service=True)
        await turns(5)
        one = await case.cascade(lambda: office.jobs.put_nowait(job))
        await until(lambda: job.is_begun)
        two = await case.cascade(post)
        await until(lambda: first.is_begun)
        job.gate.set()
        await settles(one)  # while a letter is left
        first.gate.set()
        second.gate.set()
        await settles(two)

    await run(tmp_path, scenario)


async def test_a_record_that_is_filled_by_what_is_awaited_is_not_given_away(tmp_path: Path) -> None:
    """`seen.append(await jobs.get())`: the list is not an argument of what is awaited."""
    seen: list[Job] = []

    async def scenario(case: Case) -> None:
        jobs: asyncio.Queue[Job] = asyncio.Queue()

        async def worker() -> None:
            while True:
                seen.append(await jobs.get())
                await work(seen[-1])

        case.app.spawn(worker, service=True)
        await turns(5)
        job = Job("1")
        cascade = await case.cascade(lambda: jobs.put_nowait(job))
        job.gate.set()
        await settles(cascade)

    await run(tmp_path, scenario)
