"""Workers without `task_done()` whose work is over, although they keep the item, or never ask by `get()`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from quiesce.mesh import current_hop
from tests.stress import turns
from tests.unit.mesh.meshing import until
from tests.unit.mesh.routes.queueing import Case, is_open, run, settles

if TYPE_CHECKING:
    from pathlib import Path

    from quiesce.mesh import Hop

pytestmark = pytest.mark.backends("asyncio", "uvloop")

Jobs = asyncio.Queue[dict[str, Any]]


class Desk:
    """Where the work is done: it goes on until the gate is open."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.begun = 0
        self.job: dict[str, Any] | None = None
        self.hops: list[Hop | None] = []

    async def work(self, _job: object) -> None:
        """Work until the gate is open."""
        self.begun += 1
        self.hops.append(current_hop())
        await self.gate.wait()

    def note(self, batch: list[dict[str, Any]]) -> None:
        """Do it at once."""
        self.begun += len(batch)

    async def current(self, jobs: Jobs) -> None:
        """The job is an attribute, and may be cleared."""
        while True:
            self.job = await jobs.get()
            await self.work(self.job)

    async def finish(self) -> None:
        """Forget the job."""
        self.job = None

    async def skips_repeats(self, jobs: Jobs) -> None:
        """It keeps the last one to compare it with the next."""
        last = None
        while True:
            job = await jobs.get()
            if job != last:
                await self.work(job)
            last = job

    async def polls(self, jobs: Jobs) -> None:
        """It asks whether there is one."""
        while True:
            while not jobs.empty():
                await self.work(jobs.get_nowait())
            await turns(1)

    async def counts(self, jobs: Jobs) -> None:
        """It asks how many there are."""
        while True:
            if jobs.qsize() > 0:
                await self.work(jobs.get_nowait())
            await turns(1)

    async def flushes(self, jobs: Jobs) -> None:
        """It takes as many as there are."""
        while True:
            await turns(1)
            batch = [jobs.get_nowait() for _ in range(jobs.qsize())]
            if batch:
                await self.work(batch)


@pytest.mark.parametrize("how", ["current", "skips_repeats", "polls", "counts", "flushes"])
async def test_a_worker_that_is_done_does_not_hold_the_hop(tmp_path: Path, how: str) -> None:
    """The hop waits for the work, and not for longer; the verdict says what it assumes."""

    async def scenario(case: Case) -> None:
        desk = Desk()
        jobs: Jobs = asyncio.Queue()
        case.app.spawn(getattr(desk, how), jobs, service=True)
        await turns(5)
        cascade = await case.cascade(lambda: jobs.put_nowait({"order": 1}))
        await until(lambda: desk.begun == 1)
        await turns(20)
        assert await is_open(cascade)
        desk.gate.set()
        await settles(cascade)
        assert (await cascade.settled(0)).assumptions
        assert all(desk.hops)

    await run(tmp_path, scenario)


async def test_a_batch_that_was_made_does_not_hold_the_hop(tmp_path: Path) -> None:
    """It is a comprehension, and the work on it does not wait for anything."""

    async def scenario(case: Case) -> None:
        desk = Desk()
        jobs: Jobs = asyncio.Queue()

        async def worker() -> None:
            while True:
                batch = [await jobs.get() for _ in range(2)]
                desk.note(batch)

        case.app.spawn(worker, service=True)
        await turns(5)
        one = await case.cascade(lambda: jobs.put_nowait({"order": 1}))
        assert await is_open(one)
        two = await case.cascade(lambda: jobs.put_nowait({"order": 2}))
        await settles(one)
        await settles(two)
        assert desk.begun == 2

    await run(tmp_path, scenario)


async def test_a_look_in_the_course_of_the_work_does_not_end_it(tmp_path: Path) -> None:
    """The worker tells how many are left, and goes on with what it has made of the item."""

    async def scenario(case: Case) -> None:
        desk = Desk()
        jobs: Jobs = asyncio.Queue()
        sizes: list[int] = []

        async def look(order: int) -> int:
            if jobs.empty():
                sizes.append(0)
            return order

        async def worker() -> None:
            while True:
                job = await jobs.get()
                order = await look(job["order"])
                sizes.append(jobs.qsize())
                await desk.work(order)

        case.app.spawn(worker, service=True)
        await turns(5)
        cascade = await case.cascade(lambda: jobs.put_nowait({"order": 1}))
        await until(lambda: desk.begun == 1)
        await turns(20)
        assert await is_open(cascade)
        desk.gate.set()
        await settles(cascade)
        assert sizes == [0, 0]

    await run(tmp_path, scenario)


async def test_a_none_that_ends_a_worker_is_done(tmp_path: Path) -> None:
    """The worker returns None, which is not the item."""

    async def scenario(case: Case) -> None:
        jobs: asyncio.Queue[str | None] = asyncio.Queue()

        async def worker() -> None:
            while await jobs.get() is not None:
                pass

        task = asyncio.get_running_loop().create_task(worker())
        await turns(5)
        cascade = await case.cascade(lambda: jobs.put_nowait(None))
        await task
        await settles(cascade)

    await run(tmp_path, scenario)


@pytest.mark.parametrize("kind", [lambda: None, object])
async def test_a_token_that_is_given_back_is_not_work(tmp_path: Path, kind: Any) -> None:
    """Also if it is another one: it carries nothing."""

    async def scenario(case: Case) -> None:
        tokens: asyncio.Queue[object] = asyncio.Queue()
        for _ in range(2):
            tokens.put_nowait(kind())

        async def handler() -> None:
            for _ in range(2):
                await tokens.get()
            for _ in range(2):
                tokens.put_nowait(kind())

        await settles(await case.cascade(handler))
        await settles(await case.cascade(handler))

    await run(tmp_path, scenario)
