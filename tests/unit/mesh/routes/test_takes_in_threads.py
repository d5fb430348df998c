"""Items that a call in an executor takes: the task that asked for the call has them, or nothing is known of them."""

from __future__ import annotations

import asyncio
import queue
import threading
from typing import TYPE_CHECKING, Any

import anyio.to_thread
import pytest

from quiesce import detached
from quiesce.mesh import Unknown, current_hop
from quiesce.mesh.routes.takers import Taker
from tests.stress import turns
from tests.unit.mesh.meshing import until
from tests.unit.mesh.routes.queueing import Case, is_open, run, settles
from tests.unit.mesh.routes.working import Job, work

if TYPE_CHECKING:
    from pathlib import Path

    from quiesce.mesh import Hop

pytestmark = [pytest.mark.backends("asyncio", "uvloop"), pytest.mark.real_time]


@pytest.mark.parametrize("how", ["in line", "task"])
async def test_a_task_has_what_a_thread_takes_for_it(tmp_path: Path, how: str) -> None:
    """Two workers, each with a job; the hop of the first waits for the first alone."""

    async def scenario(case: Case) -> None:
        jobs: queue.Queue[Job | None] = queue.Queue()
        tasks: list[asyncio.Task[None]] = []

        async def worker() -> None:
            while (job := await asyncio.to_thread(jobs.get)) is not None:
                if how == "task":
                    tasks.append(asyncio.create_task(work(job)))
                else:
                    await work(job)

        workers = [asyncio.create_task(worker()) for _ in range(2)]
        both = [Job("1"), Job("2")]
        cascades = []
        try:
            for job in both:
                cascades.append(await case.cascade(lambda job=job: jobs.put(job)))  # type: ignore[misc]  # a default
                await until(lambda job=job: job.is_begun)  # type: ignore[misc]  # a default
            for cascade, job in zip(cascades, both, strict=True):
                assert job.hop is not None
                assert await is_open(cascade)
                job.gate.set()
                await settles(cascade)
        finally:
            for job in both:
                job.gate.set()
                jobs.put(None)  # or its thread stays
            await asyncio.gather(*workers, *tasks)

    await run(tmp_path, scenario)


@pytest.mark.parametrize("how", ["given on", "dropped"])
async def test_what_a_call_takes_is_not_held_for_longer_than_the_call(
    tmp_path: Path, how: str
) -> None:
    """If the call returns the item, the work on it comes later, and nothing is known of it."""

    async def scenario(case: Case) -> None:
        jobs: queue.Queue[Job] = queue.Queue()

        def take() -> Any:
            job = jobs.get()
            return job if how == "given on" else None

        cascade = await case.cascade(lambda: jobs.put(Job("1")))
        assert await is_open(cascade)
        await asyncio.to_thread(take)
        if how == "dropped":
            await settles(cascade)
        else:
            verdict = await cascade.settled(5)
            assert isinstance(verdict, Unknown)
            assert "taken by a call in a thread that returned the item" in str(verdict)

    await run(tmp_path, scenario)


async def test_another_thread_that_says_done_does_not_disturb_the_task_that_has_the_item(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event loop can run the task meanwhile: no other thread is in its context."""
    begun, gone_on, gate = threading.Event(), threading.Event(), asyncio.Event()
    loop_thread = threading.current_thread()
    sets_scope = Taker.work

    def work_slowly(self: Taker) -> None:
        if threading.current_thread() is not loop_thread:
            begun.set()
            gone_on.wait(5)
        sets_scope(self)

    async def scenario(case: Case) -> None:
        jobs: queue.Queue[int] = queue.Queue()
        hops: list[Hop | None] = []

        async def worker() -> None:
            await asyncio.to_thread(jobs.get)
            hops.append(current_hop())
            await gate.wait()
            hops.append(current_hop())
            gone_on.set()

        case.app.spawn(worker, service=True)
        await turns(5)
        cascade = await case.cascade(lambda: jobs.put(1))
        await until(lambda: hops)
        assert await is_open(cascade)
        monkeypatch.setattr(Taker, "work", work_slowly)
        thread = threading.Thread(target=jobs.task_done)
        with detached():
            thread.start()
        try:
            await until(lambda: begun.is_set() or not thread.is_alive())
            gate.set()
            await until(gone_on.is_set)
        finally:
            gone_on.set()
            thread.join()
        assert hops[0] is not None
        assert hops[1] is None
        await settles(cascade)

    await run(tmp_path, scenario)


async def test_a_task_has_what_a_thread_of_anyio_takes_for_it(tmp_path: Path) -> None:
    """The assumption names the line of the task, and not an unknown place."""

    async def scenario(case: Case) -> None:
        jobs: queue.Queue[Job | None] = queue.Queue()

        async def worker() -> None:
            while (
                job := await anyio.to_thread.run_sync(jobs.get, True, 30, abandon_on_cancel=True)  # noqa: FBT003 - its own
            ) is not None:
                await work(job)

        task = asyncio.get_running_loop().create_task(worker())
        job = Job("1")
        try:
            cascade = await case.cascade(lambda: jobs.put(job))
            await until(lambda: job.is_begun)
            assert job.hop is not None
            assert await is_open(cascade)
            job.gate.set()
            verdict = await cascade.settled(5)
            assert verdict.ok, str(verdict)
            (told,) = verdict.assumptions
            assert f"when it asked for more at {__file__}:" in told
        finally:
            job.gate.set()
            jobs.put(None)
            await task

    await run(tmp_path, scenario)
