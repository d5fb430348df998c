"""Pools of connections on queues: a connection that comes back is not work, and a job that does is."""

from __future__ import annotations

import asyncio
import queue
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from tests.stress import turns
from tests.unit.mesh.meshing import until
from tests.unit.mesh.routes.queueing import Case, is_open, run, settles

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.backends("asyncio", "uvloop")
KINDS = [asyncio.Queue, asyncio.LifoQueue, queue.Queue, queue.LifoQueue]


class Connection:
    """What a pool has."""


@pytest.mark.parametrize("kind", KINDS)
async def test_another_task_of_the_hop_gives_a_connection_back(tmp_path: Path, kind: Any) -> None:
    """The handler takes it, and its background task has it until then."""
    gate = asyncio.Event()

    async def scenario(case: Case) -> None:
        pool = kind()
        pool.put_nowait(Connection())

        async def later(connection: Connection) -> None:
            await gate.wait()
            pool.put_nowait(connection)

        async def use() -> None:
            case.app.spawn(later, pool.get_nowait())

        cascade = await case.cascade(use)
        assert await is_open(cascade)
        gate.set()
        await settles(cascade)
        await settles(await case.cascade(use))

    await run(tmp_path, scenario)


@pytest.mark.real_time
async def test_another_thread_gives_a_connection_back(tmp_path: Path) -> None:
    """A sync dependency of FastAPI is entered in one thread and left in another; it may have no weak references."""
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as other:

        async def scenario(case: Case) -> None:
            pool: queue.Queue[sqlite3.Connection] = queue.Queue()
            connection = sqlite3.connect(":memory:")
            pool.put(connection)

            async def use() -> None:
                loop = asyncio.get_running_loop()
                taken = await loop.run_in_executor(one, pool.get)
                await loop.run_in_executor(other, pool.put, taken)

            for _ in range(2):
                await settles(await case.cascade(use))
            connection.close()

        await run(tmp_path, scenario)


async def test_a_hop_gives_many_connections_back(tmp_path: Path) -> None:
    """It has taken all of them at once."""

    async def scenario(case: Case) -> None:
        pool: asyncio.Queue[Connection] = asyncio.Queue()
        for _ in range(40):
            pool.put_nowait(Connection())

        def use() -> None:
            for connection in [pool.get_nowait() for _ in range(40)]:
                pool.put_nowait(connection)

        await settles(await case.cascade(use))

    await run(tmp_path, scenario)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_pool_that_is_filled_lazily_is_known_when_a_connection_comes_back(
    tmp_path: Path, kind: Any
) -> None:
    """The first connection may be a job, for all that is known, until another hop takes it and gives it back."""

    async def scenario(case: Case) -> None:
        pool = kind()

        def take() -> Connection:
            try:
                return pool.get_nowait()  # type: ignore[no-any-return]  # of any kind
            except (asyncio.QueueEmpty, queue.Empty):
                return Connection()

        first = await case.cascade(lambda: pool.put_nowait(take()))
        assert await is_open(first)
        second = await case.cascade(lambda: pool.put_nowait(take()))
        await settles(second)
        await settles(first)

        def use_both() -> None:
            for connection in [take(), take()]:
                pool.put_nowait(connection)

        await settles(await case.cascade(use_both))  # the second one is new

    await run(tmp_path, scenario)


async def test_a_job_that_another_hop_takes_and_puts_back_is_work(tmp_path: Path) -> None:
    """A handler works on the jobs of others, and has failed: the hop that has left the job has not looked for one."""

    async def scenario(case: Case) -> None:
        jobs: asyncio.Queue[Connection] = asyncio.Queue()
        first = await case.cascade(lambda: jobs.put_nowait(Connection()))
        second = await case.cascade(lambda: jobs.put_nowait(jobs.get_nowait()))
        await settles(first)  # the second hop has its job
        third = await case.cascade(lambda: jobs.put_nowait(Connection()))
        for cascade in (second, third):
            assert await is_open(cascade)
            await jobs.get()
            await turns(2)
            jobs.task_done()
            await settles(cascade)

    await run(tmp_path, scenario)


async def test_a_job_that_a_handler_puts_instead_of_an_old_one_is_work(tmp_path: Path) -> None:
    """The handler empties the queue first: its own job is the newest, and a worker takes it."""
    gate = asyncio.Event()
    seen: list[object] = []

    async def scenario(case: Case) -> None:
        jobs: asyncio.Queue[object] = asyncio.Queue()

        async def worker() -> None:
            while True:
                seen.append(await jobs.get())
                await gate.wait()

        def replace() -> None:
            while True:
                try:
                    jobs.get_nowait()
                except asyncio.QueueEmpty:
                    break
            jobs.put_nowait(Connection())

        first = await case.cascade(replace)
        second = await case.cascade(replace)
        await settles(first)
        assert await is_open(second)
        case.app.spawn(worker, service=True)
        await until(lambda: seen)
        await turns(5)
        assert await is_open(second)
        gate.set()
        await settles(second)

    await run(tmp_path, scenario)
