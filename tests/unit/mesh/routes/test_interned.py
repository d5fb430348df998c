"""Items whose identity says nothing: another variable of the worker may have the same number, word or constant."""

from __future__ import annotations

import asyncio
import enum
import queue
import threading
from typing import TYPE_CHECKING, Any

import pytest

from quiesce import detached
from tests.stress import turns
from tests.unit.mesh.meshing import until
from tests.unit.mesh.routes.queueing import Case, is_open, run

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Jobs = asyncio.Queue[Any]
    Work = Callable[[Any], Any]

pytestmark = pytest.mark.backends("asyncio", "uvloop")


class Colour(enum.Enum):
    """A constant."""

    RED = 1


class Config:
    """Something that code shares."""


SHARED = Config()


async def an_argument(jobs: Jobs, work: Work, own: Any) -> None:
    """The worker reads a variable that has always had the value."""
    while True:
        job = await jobs.get()
        await work(job)
        str(own)


async def a_default(jobs: Jobs, work: Work, own: Any) -> None:
    """The worker reads it in the line in which it takes the item."""
    while True:
        job = await jobs.get() or own
        await work(job)


async def a_condition(jobs: Jobs, work: Work, own: Any) -> None:
    """The worker drops the item, and reads another variable in its loop."""
    while own is not jobs:
        await work(await jobs.get())


async def in_a_time(jobs: Jobs, work: Work, own: Any) -> None:
    """The function around it gives the item on."""
    while own is not jobs:
        job = await asyncio.wait_for(jobs.get(), None)
        await work(job)


async def a_result(jobs: Jobs, work: Work, own: Any) -> None:
    """A variable comes to have the value after the item was taken."""
    last = None
    while last is not jobs:
        job = await jobs.get()
        await work(job)
        last = (own,)[0]


ITEMS = [1, "refresh", None, (1, "a"), Colour.RED, Config, SHARED]


def _id(item: object) -> str:
    return type(item).__name__


@pytest.mark.parametrize("worker", [an_argument, a_default, a_condition, in_a_time])
@pytest.mark.parametrize("item", ITEMS, ids=_id)
async def test_a_variable_of_the_same_value_does_not_keep_an_item(
    tmp_path: Path, worker: Any, item: Any
) -> None:
    """The hop is over when the worker asks for more, and says that it assumes so."""
    await _is_over(tmp_path, worker, item)


@pytest.mark.parametrize("item", ITEMS[:-1], ids=_id)
async def test_a_variable_that_comes_to_the_value_does_not_keep_an_item(
    tmp_path: Path, item: Any
) -> None:
    """A counter, or a state."""
    await _is_over(tmp_path, a_result, item)


async def _is_over(tmp_path: Path, worker: Any, item: Any) -> None:
    async def scenario(case: Case) -> None:
        jobs: Jobs = asyncio.Queue()
        gate, begun = asyncio.Event(), []

        async def work(job: Any) -> None:
            begun.append(job)
            await gate.wait()

        case.app.spawn(worker, jobs, work, item, service=True)
        await turns(5)
        cascade = await case.cascade(lambda: jobs.put_nowait(item))
        await until(lambda: begun)
        assert await is_open(cascade)
        gate.set()
        verdict = await cascade.settled(5)
        assert verdict.ok, str(verdict)
        assert "when it asked for more at" in verdict.assumptions[0]

    await run(tmp_path, scenario)


@pytest.mark.real_time
async def test_a_variable_of_a_thread_does_not_keep_an_item(tmp_path: Path) -> None:
    """So it is with a queue between threads."""

    async def scenario(case: Case) -> None:
        jobs: queue.Queue[Any] = queue.Queue()
        gate = threading.Event()
        ends: list[int] = []

        def worker(stop: Any = None) -> None:
            while not stop:
                jobs.get()
                if ends:
                    return
                gate.wait(30)

        thread = threading.Thread(target=worker)
        thread.start()
        try:
            cascade = await case.cascade(lambda: jobs.put(None))
            assert await is_open(cascade)
            with detached():
                gate.set()
            verdict = await cascade.settled(5)
            assert verdict.ok, str(verdict)
        finally:
            with detached():
                gate.set()
                ends.append(1)
                jobs.put(None)
            thread.join()

    await run(tmp_path, scenario)


async def one_by_one(jobs: Jobs, work: Work) -> None:
    """Two items in two variables."""
    while True:
        first = await jobs.get()
        second = await jobs.get()
        await work((first, second))


async def in_a_condition(jobs: Jobs, work: Work) -> None:
    """The item is assigned and looked at in one."""
    while True:
        if (first := await jobs.get()) is not jobs:
            second = await jobs.get()
            await work((first, second))


async def by_a_helper(jobs: Jobs, work: Work) -> None:
    """Another function takes it."""

    async def take() -> Any:
        return await jobs.get()

    while True:
        first = await take()
        second = await take()
        await work((first, second))


async def by_a_generator(jobs: Jobs, work: Work) -> None:
    """Another function gives them one by one."""

    async def items() -> Any:
        while True:
            yield await jobs.get()

    async for first in items():
        second = await jobs.get()
        await work((first, second))


async def by_tasks(jobs: Jobs, work: Work) -> None:
    """Another task takes it."""
    while True:
        first = await asyncio.create_task(jobs.get())
        second = await asyncio.wait_for(jobs.get(), None)
        await work((first, second))


@pytest.mark.parametrize(
    "worker", [one_by_one, in_a_condition, by_a_helper, by_a_generator, by_tasks]
)
@pytest.mark.parametrize("item", [1, None, SHARED], ids=_id)
async def test_the_variable_to_which_an_item_was_assigned_keeps_it(
    tmp_path: Path, worker: Any, item: Any
) -> None:
    """Also in the next round, when the variable still has the value of the last one."""

    async def scenario(case: Case) -> None:
        jobs: Jobs = asyncio.Queue()
        rounds: list[asyncio.Event] = []

        async def work(_: Any) -> None:
            rounds.append(asyncio.Event())
            await rounds[-1].wait()

        case.app.spawn(worker, jobs, work, service=True)
        await turns(5)
        for number in range(2):
            one = await case.cascade(lambda: jobs.put_nowait(item))
            assert await is_open(one)  # it is kept
            two = await case.cascade(lambda: jobs.put_nowait(item))
            await until(lambda number=number: len(rounds) > number)  # type: ignore[misc]  # a default
            assert await is_open(one)
            rounds[-1].set()
            for cascade in (one, two):
                verdict = await cascade.settled(5)
                assert verdict.ok, str(verdict)

    await run(tmp_path, scenario)
