"""Items of queues: whose they are, and who has them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from quiesce import Channel, detached
from quiesce.core import libraries
from quiesce.mesh import current_hop
from tests.stress import turns
from tests.unit.mesh.meshing import until
from tests.unit.mesh.routes.queueing import Case, is_open, run, settles
from tests.unit.mesh.routes.working import Job, work

if TYPE_CHECKING:
    from pathlib import Path

    from quiesce.mesh import Hop

pytestmark = pytest.mark.backends("asyncio", "uvloop")


async def test_items_without_a_hop_are_told_apart_from_equal_ones(tmp_path: Path) -> None:
    """The same object, put by a hop and by other code, before it and after it."""

    async def scenario(case: Case) -> None:
        jobs: asyncio.Queue[str] = asyncio.Queue()
        hops: list[Hop | None] = []
        permits = asyncio.Semaphore(0)

        async def worker() -> None:
            while True:
                await jobs.get()
                hops.append(current_hop())
                await permits.acquire()

        jobs.put_nowait("go")
        jobs.put_nowait("go")
        one = await case.cascade(lambda: jobs.put_nowait("go"))
        jobs.put_nowait("go")
        two = await case.cascade(lambda: jobs.put_nowait("go"))
        case.app.spawn(worker, service=True)
        for begun in range(1, 6):
            await until(lambda begun=begun: len(hops) == begun)  # type: ignore[misc]  # a default
            if begun < 4:
                assert await is_open(one)
            else:
                await settles(one)
            assert await is_open(two)
            permits.release()
        await settles(two)
        assert [hop is None for hop in hops] == [True, True, False, True, False]

    await run(tmp_path, scenario)


async def test_task_done_of_one_worker_is_not_for_the_item_of_another(tmp_path: Path) -> None:
    """The other worker has an item of a hop, and this one has one of nobody."""

    async def scenario(case: Case) -> None:
        jobs: asyncio.Queue[Job] = asyncio.Queue()

        async def worker() -> None:
            while True:
                job = await jobs.get()
                await work(job)
                jobs.task_done()

        for _ in range(2):
            case.app.spawn(worker, service=True)
        await turns(5)
        hopped, free = Job("1"), Job("2")
        one = await case.cascade(lambda: jobs.put_nowait(hopped))
        with detached():
            jobs.put_nowait(free)
        await until(lambda: free.is_begun and hopped.is_begun)
        free.gate.set()
        await turns(20)
        assert await is_open(one)
        hopped.gate.set()
        await settles(one)

    await run(tmp_path, scenario)


async def test_a_worker_that_asks_ahead_holds_what_it_works_on(tmp_path: Path) -> None:
    """It has the next item got before it works on this one."""

    async def scenario(case: Case) -> None:
        jobs: asyncio.Queue[Job] = asyncio.Queue()

        async def worker() -> None:
            loop = asyncio.get_running_loop()
            ahead = loop.create_task(jobs.get())
            try:
                while True:
                    job = await ahead
                    ahead = loop.create_task(jobs.get())
                    await work(job)
            finally:
                ahead.cancel()

        case.app.spawn(worker, service=True)
        await turns(5)
        made = [Job("1"), Job("2"), Job("3")]
        cascades = [await case.cascade(lambda job=job: jobs.put_nowait(job)) for job in made]  # type: ignore[misc]  # a default
        await until(lambda: made[0].is_begun)
        assert [await is_open(one) for one in cascades] == [True, True, True]
        made[0].gate.set()
        await until(lambda: made[1].is_begun)
        await settles(cascades[0])
        assert [await is_open(one) for one in cascades[1:]] == [True, True]
        made[1].gate.set()
        await until(lambda: made[2].is_begun)
        await settles(cascades[1])
        assert await is_open(cascades[2])
        made[2].gate.set()

    await run(tmp_path, scenario)


async def test_an_item_that_a_task_returns_is_untracked(tmp_path: Path) -> None:
    """Whose task works on it is not known."""

    async def scenario(case: Case) -> None:
        jobs: asyncio.Queue[Job] = asyncio.Queue()

        async def following() -> Job:
            return await jobs.get()

        async def worker() -> None:
            while True:
                await work(await asyncio.get_running_loop().create_task(following()))

        case.app.spawn(worker, service=True)
        await turns(5)
        job = Job("1")
        cascade = await case.cascade(lambda: jobs.put_nowait(job))
        await until(lambda: job.is_begun)
        verdict = await cascade.settled(5)
        assert "taken by a task that returned the item" in str(verdict)
        assert not verdict.ok
        job.gate.set()

    await run(tmp_path, scenario)


async def test_a_callback_that_takes_an_item_holds_the_hop_for_what_it_starts(
    tmp_path: Path,
) -> None:
    """A callback of the event loop is over when it returns, and its task is a part of the hop."""

    async def scenario(case: Case) -> None:
        jobs: asyncio.Queue[Job] = asyncio.Queue()
        loop = asyncio.get_running_loop()
        tasks = []

        def take() -> None:
            tasks.append(loop.create_task(work(jobs.get_nowait())))

        job = Job("1")
        cascade = await case.cascade(lambda: jobs.put_nowait(job))
        assert await is_open(cascade)
        with detached():
            loop.call_soon(take)
        await until(lambda: job.is_begun)
        await turns(20)
        assert await is_open(cascade)
        job.gate.set()
        await settles(cascade)

    await run(tmp_path, scenario)


async def test_what_is_given_back_to_a_pool_is_not_work(tmp_path: Path) -> None:
    """A pool of connections on a queue: the hop that used one last is over."""

    async def scenario(case: Case) -> None:
        class Connection:
            pass

        pool: asyncio.Queue[Connection] = asyncio.Queue()
        pool.put_nowait(Connection())

        async def use() -> None:
            connection = await pool.get()
            try:
                await turns(2)
            finally:
                pool.put_nowait(connection)

        for _ in range(2):
            await settles(await case.cascade(use))

    await run(tmp_path, scenario)


async def test_a_job_that_is_put_back_to_be_tried_again_is_work(tmp_path: Path) -> None:
    """It is the same object, and the hop waits for it still."""

    async def scenario(case: Case) -> None:
        jobs: asyncio.Queue[Job] = asyncio.Queue()
        tries = []

        async def worker() -> None:
            while True:
                job = await jobs.get()
                tries.append(job)
                if len(tries) == 1:
                    await turns(2)
                    jobs.put_nowait(job)
                else:
                    await work(job)

        case.app.spawn(worker, service=True)
        await turns(5)
        job = Job("1")
        cascade = await case.cascade(lambda: jobs.put_nowait(job))
        await until(lambda: job.is_begun)
        await turns(20)
        assert await is_open(cascade)
        job.gate.set()
        await settles(cascade)

    await run(tmp_path, scenario)


@pytest.mark.parametrize("how", ["directly", "task", "gather"])
async def test_a_worker_survives_the_cancellation_of_its_item(tmp_path: Path, how: str) -> None:
    """The hop ends when the worker has done it, and the worker goes on with the next item."""

    async def scenario(case: Case) -> None:
        jobs: asyncio.Queue[Job] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        async def worker() -> None:
            while True:
                job = await jobs.get()
                if how == "directly":
                    await work(job)
                elif how == "task":
                    await loop.create_task(work(job))
                else:
                    await asyncio.gather(work(job), turns(1))

        task = loop.create_task(worker())
        await turns(5)
        first, second = Job("1"), Job("2")
        one = await case.cascade(lambda: jobs.put_nowait(first))
        await until(lambda: first.is_begun)
        await one.cancel()
        await turns(20)
        assert not task.done()
        assert await is_open(one)
        first.gate.set()
        assert not (await one.settled(5)).ok  # it was cancelled
        two = await case.cascade(lambda: jobs.put_nowait(second))
        await until(lambda: second.is_begun)
        second.gate.set()
        await settles(two)
        task.cancel()
        await asyncio.wait([task])

    await run(tmp_path, scenario)


@pytest.mark.parametrize("says", [False, True])
async def test_a_worker_that_is_cancelled_has_not_done_its_item(
    tmp_path: Path, *, says: bool
) -> None:
    """Also if its `finally` says so."""

    async def scenario(case: Case) -> None:
        jobs: asyncio.Queue[Job] = asyncio.Queue()

        async def worker() -> None:
            while True:
                job = await jobs.get()
                try:
                    await work(job)
                finally:
                    if says:
                        jobs.task_done()

        task = asyncio.get_running_loop().create_task(worker())
        await turns(5)
        job = Job("1")
        cascade = await case.cascade(lambda: jobs.put_nowait(job))
        await until(lambda: job.is_begun)
        task.cancel()
        await asyncio.wait([task])
        verdict = await cascade.settled(5)
        assert not verdict.ok
        assert "cancelled" in str(verdict)

    await run(tmp_path, scenario)


def _in_a_task(put: Any, job: Job) -> object:
    return asyncio.get_running_loop().create_task(put(job))


def _in_a_callback(put: Any, job: Job) -> object:
    asyncio.get_running_loop().call_soon(put.__self__.put_nowait, job)
    return None


def _in_a_lambda(put: Any, job: Job) -> object:
    asyncio.get_running_loop().call_soon(lambda: put.__self__.put_nowait(job))
    return None


def _later(put: Any, job: Job) -> object:
    asyncio.get_running_loop().call_later(0.001, put.__self__.put_nowait, job)
    return None


@pytest.mark.parametrize("how", [_in_a_task, _in_a_callback, _in_a_lambda, _later])
async def test_a_bare_put_is_the_hops_own(tmp_path: Path, how: Any) -> None:
    """A task or a callback that is nothing but the put, far below a server that is a known library."""

    async def scenario(case: Case) -> None:
        jobs: asyncio.Queue[Job] = asyncio.Queue()

        async def worker() -> None:
            while True:
                await work(await jobs.get())

        case.app.spawn(worker, service=True)
        await turns(5)
        job = Job("1")
        monkeypatch = pytest.MonkeyPatch()
        monkeypatch.setattr(libraries, "package_of", _as_in_a_server(libraries.package_of))
        try:
            cascade = await case.cascade(lambda: how(jobs.put, job))
            await until(lambda: job.is_begun)
        finally:
            monkeypatch.undo()
        await turns(20)
        assert await is_open(cascade)
        job.gate.set()
        await settles(cascade)

    await run(tmp_path, scenario)


def _as_in_a_server(package_of: Any) -> Any:
    """Return a look-up by which a server's code runs the event loop, as in a program with uvicorn."""

    def found(module: str | None) -> str:
        return "uvicorn" if module == "tests.loops" else package_of(module)

    return found


@dataclass
class Plain(asyncio.Queue[Job]):
    """A queue that is not hashable."""

    name: str = "jobs"

    def __post_init__(self) -> None:
        super().__init__()


async def test_a_queue_need_not_be_hashable(tmp_path: Path) -> None:
    """A dataclass is not."""

    async def scenario(case: Case) -> None:
        jobs = Plain()

        async def worker() -> None:
            while True:
                await work(await jobs.get())

        case.app.spawn(worker, service=True)
        await turns(5)
        job = Job("1")
        cascade = await case.cascade(lambda: jobs.put_nowait(job))
        await until(lambda: job.is_begun)
        assert await is_open(cascade)
        job.gate.set()
        await settles(cascade)

    await run(tmp_path, scenario)


async def test_a_timer_that_another_hop_cancels_is_untracked(tmp_path: Path) -> None:
    """A debounce: the second hop puts off what the first has asked for, and does it for both."""

    async def scenario(case: Case) -> None:
        loop = asyncio.get_running_loop()
        timers: list[asyncio.TimerHandle] = []
        done: list[int] = []

        def debounce() -> None:
            for timer in timers:
                timer.cancel()
            timers.append(loop.call_later(0.02, done.append, 1))

        one = await case.cascade(debounce)
        two = await case.cascade(debounce)
        verdict = await one.settled(5)
        assert not verdict.ok
        assert "which may do it in its place" in str(verdict)
        await settles(two)
        assert done == [1]

    await run(tmp_path, scenario)


@pytest.mark.parametrize("fan_out", [False, True])
async def test_what_taps_of_a_channel_get_is_untracked(tmp_path: Path, *, fan_out: bool) -> None:
    """Readers of a tap are not followed, and the verdict says so."""

    async def scenario(case: Case) -> None:
        channel: Channel[str] = Channel(scope=case.app, name="news", fan_out=fan_out)
        tap = channel.tap()
        cascade = await case.cascade(lambda: channel.send_nowait("an item"))
        assert await tap.receive() == "an item"
        if not fan_out:

            async def reader() -> None:
                await channel.receive()

            await case.app.spawn(reader)
        verdict = await cascade.settled(5)
        assert not verdict.ok
        assert "news, whose taps are not followed" in str(verdict)

    await run(tmp_path, scenario)
