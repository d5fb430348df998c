"""Items that are put aside: by a taker that ends, and by one that says too early that it is done."""

from __future__ import annotations

import asyncio
import queue
import threading
from typing import TYPE_CHECKING, Any

import pytest

from quiesce.mesh import Settled
from tests.stress import turns
from tests.unit.mesh.meshing import until
from tests.unit.mesh.routes.queueing import Case, run

if TYPE_CHECKING:
    from pathlib import Path

# Threads do not know of any other time.
pytestmark = [pytest.mark.backends("asyncio", "uvloop"), pytest.mark.real_time]


class Desk:
    """Where an item lies that was taken, until a worker begins with it."""

    def __init__(self) -> None:
        self.jobs: asyncio.Queue[Any] = asyncio.Queue()
        self.items: queue.Queue[Any] = queue.Queue()
        self.left: list[Any] = []
        self.threads: list[threading.Thread] = []

    async def fill(self) -> None:
        """Take one, and put it aside."""
        self.left.append(await self.jobs.get())

    def fill_by_thread(self) -> None:
        """The same, in a thread."""
        self.left.append(self.items.get())

    async def task(self) -> None:
        """A task takes it."""
        await asyncio.get_running_loop().create_task(self.fill())

    async def group(self) -> None:
        """A task of a group takes it."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.fill())

    async def gather(self) -> None:
        """A task of `gather` takes it."""
        await asyncio.gather(self.fill())

    async def to_thread(self) -> None:
        """A call in a thread takes it."""
        await asyncio.to_thread(self.fill_by_thread)

    async def executor(self) -> None:
        """A call in an executor takes it."""
        await asyncio.get_running_loop().run_in_executor(None, self.fill_by_thread)

    async def thread(self) -> None:
        """A thread takes it."""
        thread = threading.Thread(target=self.fill_by_thread)
        thread.start()
        self.threads.append(thread)
        await asyncio.to_thread(thread.join)

    async def run(self, how: str) -> None:
        """Wait until an item is taken, and do not begin with it."""
        await getattr(self, how)()
        await asyncio.Event().wait()


async def _assumptions(case: Case, put: Any, taken: Any) -> tuple[str, ...]:
    cascade = await case.cascade(put)
    await until(taken)
    verdict = await cascade.settled(30)
    assert isinstance(verdict, Settled), verdict
    assert verdict.ok, str(verdict)
    return verdict.assumptions


@pytest.mark.parametrize("how", ["task", "group", "gather", "to_thread", "executor", "thread"])
async def test_an_item_that_its_taker_has_put_aside_is_an_assumption(
    tmp_path: Path, how: str
) -> None:
    """The taker has ended, and returned nothing; the verdict names where the item was taken."""

    async def scenario(case: Case) -> None:
        desk = Desk()
        case.app.spawn(desk.run, how, service=True)
        await turns(5)

        def put() -> None:
            (desk.items if "fill_by" in code.co_name else desk.jobs).put_nowait("job")

        is_thread = how in {"to_thread", "executor", "thread"}
        code = (Desk.fill_by_thread if is_thread else Desk.fill).__code__
        (told,) = await _assumptions(case, put, lambda: desk.left)
        assert "Queue that was taken at" in told
        assert f"{__file__}:{code.co_firstlineno + 2} in Desk.fill" in told
        assert told.endswith(
            "when it returned" if how in {"to_thread", "executor"} else "when it ended"
        )

    await run(tmp_path, scenario)


@pytest.mark.parametrize("item", ["job", None])
async def test_a_worker_that_ends_properly_is_not_an_assumption(
    tmp_path: Path, item: str | None
) -> None:
    """It has said that it is done, or was told to end by a None."""

    async def scenario(case: Case) -> None:
        jobs: asyncio.Queue[str | None] = asyncio.Queue()
        seen: list[str | None] = []

        async def worker() -> None:
            seen.append(await jobs.get())
            if item is not None:
                jobs.task_done()

        case.app.spawn(worker, service=True)
        await turns(5)
        assert not await _assumptions(case, lambda: jobs.put_nowait(item), lambda: seen)

    await run(tmp_path, scenario)


class Early:
    """Workers that say that they are done as soon as they have an item."""

    def __init__(self) -> None:
        self.jobs: asyncio.Queue[Any] = asyncio.Queue()
        self.begun: list[Any] = []
        self.taken = 0

    async def after(self) -> None:
        """It says so, and puts the item aside."""
        batch = []
        while True:
            job = await self.jobs.get()
            self.jobs.task_done()
            self.taken += 1
            batch.append(job)
            if len(batch) == 2:
                self.begun += batch
                batch.clear()

    async def before(self) -> None:
        """It puts the item aside, and says so."""
        batch = []
        while True:
            batch.append(await self.jobs.get())
            self.jobs.task_done()
            self.taken += 1
            if len(batch) == 2:
                self.begun += batch
                batch.clear()

    async def pair(self) -> None:
        """It has two variables."""
        while True:
            one = await self.jobs.get()
            self.jobs.task_done()
            self.taken += 1
            two = await self.jobs.get()
            self.jobs.task_done()
            self.begun += [one, two]

    async def at_once(self) -> None:
        """It does it before it says so, and remembers what it has done."""
        while True:
            job = await self.jobs.get()
            self.begun.append(job)
            self.jobs.task_done()
            self.taken += 1


@pytest.mark.parametrize("how", ["after", "before", "pair", "at_once"])
async def test_a_batch_whose_items_are_said_to_be_done_is_an_assumption(
    tmp_path: Path, how: str
) -> None:
    """The verdict names the line at which the worker asked for more; one that does not collect is not named."""

    async def scenario(case: Case) -> None:
        worker = Early()
        run_it = getattr(worker, how)
        case.app.spawn(run_it, service=True)
        await turns(5)
        found = await _assumptions(
            case, lambda: worker.jobs.put_nowait(object()), lambda: worker.taken
        )
        if how == "at_once":
            assert not found
            return
        assert not worker.begun
        (told,) = found
        assert "was done with an item from asyncio.Queue when it asked for more at" in told
        assert f"in Early.{how}" in told

    await run(tmp_path, scenario)
