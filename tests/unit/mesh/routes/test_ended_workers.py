"""Workers of events and conditions that end, and code that waits for one and is not a worker."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from typing import TYPE_CHECKING

import pytest

from quiesce.mesh import Settled, Unknown
from quiesce.mesh.clients.strays import plain_request
from tests.stress import turns
from tests.unit.mesh.meshing import until
from tests.unit.mesh.routes.queueing import Case, is_open, run, settles
from tests.unit.mesh.routes.working import Job, work

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.backends("asyncio", "uvloop")


class Worker:
    """A worker that does what is left, and then ends."""

    def __init__(self, how: str) -> None:
        self.how = how
        self.left: deque[Job] = deque()
        self.wake, self.condition = asyncio.Event(), asyncio.Condition()
        self.is_over = False

    async def run(self) -> None:
        """Work until it is over."""
        while not self.is_over:
            if self.how == "condition":
                async with self.condition:
                    while not self.left:
                        await self.condition.wait()
            else:
                await self.wake.wait()
                self.wake.clear()
            while self.left:
                await work(self.left.popleft())
            if self.how == "fails":
                raise ValueError(self.how)

    async def put(self, job: Job) -> None:
        """Leave a job."""
        self.left.append(job)
        self.wake.set()
        async with self.condition:
            self.condition.notify()


@pytest.mark.parametrize("how", ["event", "condition"])
async def test_a_worker_that_ends_does_not_hold_a_hop(tmp_path: Path, how: str) -> None:
    """It wakes, does the job and ends; the verdict names what it assumes."""

    async def scenario(case: Case) -> None:
        worker = Worker(how)
        task = asyncio.get_running_loop().create_task(worker.run())
        await turns(5)
        job = Job("1")
        cascade = await case.cascade(lambda: worker.put(job))
        await until(lambda: job.is_begun)
        assert await is_open(cascade)
        worker.is_over = True
        job.gate.set()
        await task
        verdict = await cascade.settled(5)
        assert isinstance(verdict, Settled)
        assert "had done all jobs when it ended" in str(verdict)

    await run(tmp_path, scenario)


async def test_a_worker_that_ends_beside_one_that_waits_does_not_hold_a_hop(tmp_path: Path) -> None:
    """The other one finds nothing to do, and waits on."""

    async def scenario(case: Case) -> None:
        worker = Worker("condition")
        tasks = [asyncio.get_running_loop().create_task(worker.run()) for _ in range(2)]
        await turns(5)
        job = Job("1")
        cascade = await case.cascade(lambda: worker.put(job))
        await until(lambda: job.is_begun)
        assert await is_open(cascade)
        worker.is_over = True
        job.gate.set()
        await until(lambda: any(task.done() for task in tasks))
        assert isinstance(await cascade.settled(5), Settled)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    await run(tmp_path, scenario)


async def test_a_worker_that_fails_tells_the_hop_and_does_not_hold_it(tmp_path: Path) -> None:
    """The hop that it worked for has failed."""

    async def scenario(case: Case) -> None:
        worker = Worker("fails")
        task = asyncio.get_running_loop().create_task(worker.run())
        await turns(5)
        job = Job("1")
        cascade = await case.cascade(lambda: worker.put(job))
        await until(lambda: job.is_begun)
        job.gate.set()
        with pytest.raises(ValueError, match="fails"):
            await task
        verdict = await cascade.settled(5)
        assert isinstance(verdict, Settled)
        assert not verdict.ok

    await run(tmp_path, scenario)


async def test_a_worker_that_ends_without_a_look_leaves_a_job_that_is_not_known(
    tmp_path: Path,
) -> None:
    """A hop sets the event after the worker has taken its last job."""

    async def scenario(case: Case) -> None:
        worker = Worker("event")
        task = asyncio.get_running_loop().create_task(worker.run())
        await turns(5)
        plain = Job("plain")
        await worker.put(plain)
        await until(lambda: plain.is_begun)

        def late() -> None:
            worker.wake.set()

        cascade = await case.cascade(late)
        assert await is_open(cascade)
        worker.is_over = True
        plain.gate.set()
        await task
        verdict = await cascade.settled(5)
        assert isinstance(verdict, Unknown)
        assert "has ended and may have left a job undone" in str(verdict)

    await run(tmp_path, scenario)


@pytest.mark.real_time
async def test_a_thread_that_ends_does_not_hold_a_hop(tmp_path: Path) -> None:
    """It wakes, does the job and ends."""

    async def scenario(case: Case) -> None:
        left: deque[threading.Event] = deque()
        condition = threading.Condition()
        begun, waits = threading.Event(), threading.Event()
        is_over = False

        def worker() -> None:
            while not is_over:
                with condition:
                    while not left:
                        waits.set()
                        condition.wait()
                    gate = left.popleft()
                begun.set()
                gate.wait(30)

        def put(gate: threading.Event) -> None:
            with condition:
                left.append(gate)
                condition.notify()

        thread = threading.Thread(target=worker)
        thread.start()
        gate = threading.Event()
        try:
            await until(waits.is_set)
            cascade = await case.cascade(lambda: put(gate))
            await until(begun.is_set)
            assert await is_open(cascade)
            is_over = True
        finally:
            gate.set()
            thread.join(30)
        assert isinstance(await cascade.settled(5), Settled)

    await run(tmp_path, scenario)


@pytest.mark.parametrize("how", ["pool", "flight", "in time", "request"])
async def test_code_that_waits_for_something_to_be_free_is_not_a_worker(
    tmp_path: Path, how: str
) -> None:
    """A hop gives a connection back, or ends what others wait for: that is not work for them."""

    async def scenario(case: Case) -> None:
        free: list[str] = []
        jobs: deque[str] = deque()
        condition, flights = asyncio.Condition(), {"prices": asyncio.Event()}
        rest = Job("rest")

        async def acquires() -> str:
            async with condition:
                while not free:
                    await condition.wait()
                return free.pop()

        async def joins() -> None:
            while "prices" in flights:
                await flights["prices"].wait()

        async def in_time() -> None:
            while "prices" in flights:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(flights["prices"].wait(), 60)

        async def streams() -> None:
            event = flights["prices"]
            serving = [True]
            plain_request.set(serving)
            while not jobs:
                await event.wait()
                event.clear()
                free.clear()

        waits = {"pool": acquires, "flight": joins, "in time": in_time}

        async def request() -> None:
            await waits.get(how, streams)()
            await work(rest)

        async def handler() -> None:
            free.append("connection")
            jobs.append("job")
            flights.pop("prices").set()
            async with condition:
                condition.notify()

        task = asyncio.get_running_loop().create_task(request())
        await turns(5)
        cascade = await case.cascade(handler)
        await until(lambda: rest.is_begun)
        assert rest.hop is None
        await settles(cascade)
        rest.gate.set()
        await task

    await run(tmp_path, scenario)


@pytest.mark.parametrize("how", ["breaks", "suppresses", "looks and breaks"])
async def test_a_loop_that_comes_round_by_an_exception_is_a_workers(
    tmp_path: Path, how: str
) -> None:
    """It finds nothing more to do, and leaves its inner loop by `IndexError`."""

    async def scenario(case: Case) -> None:
        left: deque[Job] = deque()
        wake = asyncio.Event()

        async def breaks() -> None:
            while True:
                await wake.wait()
                wake.clear()
                while True:
                    try:
                        job = left.popleft()
                    except IndexError:
                        break
                    await work(job)

        async def suppresses() -> None:
            while True:
                await wake.wait()
                wake.clear()
                with contextlib.suppress(IndexError):
                    while True:
                        await work(left.popleft())

        async def looks_and_breaks() -> None:
            while True:
                while not wake.is_set():
                    await wake.wait()
                try:
                    while True:
                        await work(left.popleft())
                except IndexError:
                    wake.clear()

        def put(job: Job) -> None:
            left.append(job)
            wake.set()

        ways = {"breaks": breaks, "suppresses": suppresses, "looks and breaks": looks_and_breaks}
        case.app.spawn(ways[how], service=True)
        await turns(5)
        job = Job("1")
        cascade = await case.cascade(lambda: put(job))
        await until(lambda: job.is_begun)
        assert job.hop is not None
        assert await is_open(cascade)
        job.gate.set()
        await settles(cascade)

    await run(tmp_path, scenario)
