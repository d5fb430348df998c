"""Workers that a hop has started, and handlers, that take what other hops have put."""

from __future__ import annotations

import asyncio
import queue
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from quiesce.mesh import Settled
from tests.stress import turns
from tests.unit.mesh.meshing import until
from tests.unit.mesh.routes.queueing import Case, is_open, run
from tests.unit.mesh.routes.working import Job, work

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from quiesce.mesh import Cascade, Hop

# Threads do not know of any other time.
pytestmark = [pytest.mark.backends("asyncio", "uvloop"), pytest.mark.real_time]


class LazyJob(Job):
    """A job that can be ended by every way."""

    timer: asyncio.TimerHandle | None = None
    task: asyncio.Task[None] | None = None

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.free = threading.Event()

    def end(self) -> None:
        """End the work on it."""
        self.gate.set()
        self.free.set()
        if self.timer is not None:
            self.timer.cancel()


class Lazy:
    """A worker that the first message starts, and that starts something for each item."""

    def __init__(self, how: str) -> None:
        self.how = how
        self.jobs: asyncio.Queue[LazyJob | None] = asyncio.Queue()
        self.seconds: asyncio.Queue[Job] = asyncio.Queue()
        self.task: asyncio.Task[None] | None = None
        self.send: Callable[[LazyJob], Any] | None = None

    async def run(self) -> None:
        """Start something for each item, until there is a None."""
        loop = asyncio.get_running_loop()
        while (job := await self.jobs.get()) is not None:
            if self.how == "task":
                job.task = loop.create_task(work(job))
            elif self.how == "timer":
                job.timer = loop.call_later(3600, print)
                job.is_begun = True
            elif self.how == "executor":
                loop.run_in_executor(None, job.free.wait)
                job.is_begun = True
            elif self.how == "queue":
                self.seconds.put_nowait(job)
            elif self.send is not None:
                await self.send(job)
            self.jobs.task_done()

    async def second(self) -> None:
        """Work on what is in the second queue."""
        while True:
            await work(await self.seconds.get())
            self.seconds.task_done()

    def put(self, job: LazyJob) -> None:
        """Leave a job, and start the worker if there is none."""
        self.jobs.put_nowait(job)
        if self.task is None:
            self.task = asyncio.get_running_loop().create_task(self.run())


async def _settled(cascade: Cascade) -> Settled:
    verdict = await cascade.settled(30)
    assert isinstance(verdict, Settled), verdict
    return verdict


@pytest.mark.parametrize("how", ["task", "executor", "queue"])
async def test_what_a_lazy_worker_starts_is_for_the_hop_of_the_item(
    tmp_path: Path, how: str
) -> None:
    """Each of the later hops waits for its own; the first one waits for the worker, and says what it assumes."""

    async def scenario(case: Case) -> None:
        worker = Lazy(how)
        case.app.spawn(worker.second, service=True)
        jobs = [LazyJob(name) for name in "abc"]
        try:
            cascades = [await case.cascade(partial(worker.put, job)) for job in jobs]
            await until(lambda: jobs[0].is_begun)
            jobs[0].end()
            for job, cascade in zip(jobs[1:], cascades[1:], strict=True):
                await until(partial(getattr, job, "is_begun"))
                await turns(20)
                assert await is_open(cascade)
                job.end()
                assert not (await _settled(cascade)).assumptions
            assert await is_open(cascades[0])
            worker.jobs.put_nowait(None)
            (told,) = (await _settled(cascades[0])).assumptions
            assert "has started or sent is not work for this message" in told
            assert "from asyncio.Queue that was taken at" in told
        finally:
            for job in jobs:
                job.end()

    await run(tmp_path, scenario)


async def test_a_timer_of_a_lazy_worker_is_for_the_hop_of_the_item(tmp_path: Path) -> None:
    """The second hop waits for its timer; other code cancels it."""

    async def scenario(case: Case) -> None:
        worker = Lazy("timer")
        jobs = [LazyJob(name) for name in "ab"]
        await case.cascade(lambda: worker.put(jobs[0]))
        cascade = await case.cascade(lambda: worker.put(jobs[1]))
        await until(lambda: jobs[1].is_begun)
        await turns(20)
        assert await is_open(cascade)
        for job in jobs:
            job.end()
        assert not (await _settled(cascade)).ok
        worker.jobs.put_nowait(None)

    await run(tmp_path, scenario)


async def test_what_a_lazy_worker_sends_is_for_the_hop_of_the_item(tmp_path: Path) -> None:
    """The second hop waits for the peer."""

    async def scenario(case: Case) -> None:
        worker = Lazy("message")

        async def send(job: LazyJob) -> None:
            async def handler(_: Hop) -> None:
                job.task = asyncio.get_running_loop().create_task(work(job))

            await case.world.hand("c", handler)

        worker.send = send
        jobs = [LazyJob(name) for name in "ab"]
        await case.cascade(lambda: worker.put(jobs[0]))
        cascade = await case.cascade(lambda: worker.put(jobs[1]))
        await until(lambda: jobs[1].is_begun)
        await turns(20)
        assert await is_open(cascade)
        for job in jobs:
            job.end()
        await _settled(cascade)
        worker.jobs.put_nowait(None)

    await run(tmp_path, scenario)


async def test_what_a_lazy_thread_starts_is_for_the_hop_of_the_item(tmp_path: Path) -> None:
    """The second hop waits for the thread that the worker has started for its item."""

    async def scenario(case: Case) -> None:
        items: queue.Queue[LazyJob | None] = queue.Queue()
        jobs = [LazyJob(name) for name in "ab"]
        begun = [threading.Event() for _ in jobs]

        def worker() -> None:
            while (job := items.get()) is not None:
                threading.Thread(target=job.free.wait).start()
                items.task_done()
                begun[jobs.index(job)].set()

        thread = threading.Thread(target=worker)
        try:

            def put(job: LazyJob) -> None:
                items.put(job)
                if thread.ident is None:
                    thread.start()

            await case.cascade(lambda: put(jobs[0]))
            cascade = await case.cascade(lambda: put(jobs[1]))
            await asyncio.to_thread(begun[1].wait)
            items.put(None)
            await asyncio.to_thread(thread.join)
            await turns(20)
            assert await is_open(cascade)
            jobs[1].end()
            await _settled(cascade)
        finally:
            for job in jobs:
                job.end()
            items.put(None)

    await run(tmp_path, scenario)


async def test_a_hop_says_so_whose_item_a_handler_of_another_has_taken(tmp_path: Path) -> None:
    """The handler has started a task, and it is not known for which of the two."""

    async def scenario(case: Case) -> None:
        items: asyncio.Queue[Job] = asyncio.Queue()
        job = Job("1")
        tasks: list[asyncio.Task[None]] = []

        async def takes() -> None:
            found = await items.get()
            tasks.append(asyncio.get_running_loop().create_task(work(found)))
            items.task_done()

        taking = asyncio.ensure_future(case.cascade(takes))
        await turns(20)
        cascade = await case.cascade(lambda: items.put_nowait(job))
        await until(lambda: job.is_begun)
        (told,) = (await _settled(cascade)).assumptions
        assert "is not work on an item from asyncio.Queue that was taken at" in told
        assert f"{__file__}:" in told
        assert await is_open(await taking)
        job.gate.set()
        assert not (await _settled(await taking)).assumptions

    await run(tmp_path, scenario)


async def test_a_hop_says_nothing_whose_item_was_an_answer(tmp_path: Path) -> None:
    """A handler of another hop has waited for it, and has started nothing."""

    async def scenario(case: Case) -> None:
        items: asyncio.Queue[Job] = asyncio.Queue()

        async def takes() -> None:
            await items.get()
            items.task_done()

        taking = asyncio.ensure_future(case.cascade(takes))
        await turns(20)
        cascade = await case.cascade(lambda: items.put_nowait(Job("1")))
        assert not (await _settled(cascade)).assumptions
        assert not (await _settled(await taking)).assumptions

    await run(tmp_path, scenario)
