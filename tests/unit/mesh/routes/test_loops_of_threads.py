"""Event loops that other threads run: for a job that they take from a queue, or in a call that a handler makes."""

from __future__ import annotations

import asyncio
import queue
import threading
from typing import TYPE_CHECKING, Any

import pytest

from quiesce import detached
from quiesce.mesh import Settled, Unknown, current_hop
from quiesce.mesh.routes import other_loops
from tests.stress import turns
from tests.unit.mesh.meshing import World, until
from tests.unit.mesh.routes.test_ways import cascade_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from quiesce.mesh import Cascade, Hop

pytestmark = pytest.mark.real_time


def new_loop(kind: str) -> Any:
    """Make an event loop."""
    if kind == "uvloop":
        import uvloop  # noqa: PLC0415 - one of two

        return uvloop.new_event_loop()
    return asyncio.new_event_loop()


class Worker:
    """A thread with an event loop of its own, which takes jobs from a queue, and starts a task or a timer for each."""

    def __init__(self, kind: str, how: str) -> None:
        self.kind, self.how = kind, how
        self.jobs: queue.Queue[int | None] = queue.Queue()
        self.hops: list[Hop | None] = []
        self.gate = threading.Event()
        self.taken = threading.Event()
        self._tasks: list[Any] = []
        target = self._by_runner if how == "runner" else self._by_loop
        self._thread = threading.Thread(target=target)

    def start(self) -> None:
        """Start it outside of every hop."""
        self._thread.start()

    def stop(self) -> None:
        """End it."""
        self.gate.set()
        self.jobs.put(None)
        self._thread.join()

    async def work(self) -> None:
        """Work until the gate opens."""
        self.hops.append(current_hop())
        while not self.gate.is_set():
            await turns(1)

    async def leave(self) -> None:
        """Leave a task that works."""
        self._tasks.append(asyncio.create_task(self.work()))
        await asyncio.sleep(0)

    def start_task(self) -> None:
        """Start a task, from a callback."""
        self._tasks.append(asyncio.create_task(self.work()))

    async def main(self) -> None:
        """Take jobs, and say that they are done as soon as they are started."""
        while True:
            job = await asyncio.to_thread(self.jobs.get)
            if job is None:
                await asyncio.gather(*self._tasks)
                return
            if self.how == "timer":
                asyncio.get_running_loop().call_later(0, self.start_task)
            else:
                self._tasks.append(asyncio.create_task(self.work()))
            self.jobs.task_done()
            self.taken.set()

    def _by_loop(self) -> None:
        loop = new_loop(self.kind)
        try:
            loop.run_until_complete(self.main())
        finally:
            loop.run_until_complete(loop.shutdown_default_executor())
            loop.close()

    def _by_runner(self) -> None:
        with asyncio.Runner(loop_factory=lambda: new_loop(self.kind)) as runner:
            while self.jobs.get() is not None:
                runner.run(self.leave())
                self.jobs.task_done()
                self.taken.set()
                self.gate.wait(60)
                runner.run(self.work())  # in which the task that was left goes on


@pytest.fixture(params=["asyncio", "uvloop"])
def kind(request: pytest.FixtureRequest) -> str:
    """Return the kind of the thread's event loop."""
    return str(request.param)


@pytest.fixture
def worker(kind: str, request: pytest.FixtureRequest) -> Iterator[Worker]:
    """Make a worker that ends with the test."""
    made = Worker(kind, request.param)
    yield made
    made.stop()


async def see_it_held(
    folder: Path, start: Callable[[], None], put: Callable[[], object], *, taken: threading.Event, end: Callable[[], object]
) -> Cascade:  # fmt: skip
    """See that a verdict waits for what goes on in the loop of a thread after the item was said to be done."""
    async with World(folder) as world:
        await world.add("a"), await world.add("b")
        with detached():
            start()
        cascade = await cascade_of(world, put)
        await until(taken.is_set)
        assert isinstance(await cascade.settled(within=0.1), Unknown)
        with detached():
            end()
        assert isinstance(await cascade.settled(5), Settled)
        return cascade


@pytest.mark.parametrize("worker", ["task", "timer", "runner"], indirect=True)
async def test_what_a_worker_starts_in_its_own_loop_holds_the_hop(
    tmp_path: Path, worker: Worker
) -> None:
    """The item is done, and the task or the timer that was started for it is not."""
    await see_it_held(
        tmp_path,
        worker.start,
        lambda: worker.jobs.put(1),
        taken=worker.taken,
        end=worker.gate.set,
    )
    assert worker.hops[0] is not None


async def test_a_task_that_is_left_in_a_loop_that_does_not_run_holds_the_hop(
    tmp_path: Path, kind: str
) -> None:
    """A call in an executor runs a loop for a while, and leaves a task there: it goes on when the loop runs again."""
    loop = new_loop(kind)
    taken, gate = threading.Event(), threading.Event()
    left: list[asyncio.Task[None]] = []

    async def work() -> None:
        while not gate.is_set():
            await turns(1)

    async def leave() -> None:
        left.append(asyncio.create_task(work()))
        await asyncio.sleep(0)

    def call() -> None:
        loop.run_until_complete(leave())
        taken.set()

    def again() -> None:
        gate.set()
        thread = threading.Thread(target=loop.run_until_complete, args=(left[0],))
        thread.start()
        thread.join()

    def put() -> None:
        thread = threading.Thread(target=call)
        thread.start()
        thread.join()

    await see_it_held(tmp_path, lambda: None, put, taken=taken, end=again)
    assert not other_loops.late_releases.get(loop)
    loop.close()


async def test_a_loop_that_has_run_in_a_call_holds_nothing(tmp_path: Path, kind: str) -> None:
    """All tasks of it have ended, also the last one, whose callbacks the loop has no turn for."""
    loop = new_loop(kind)

    async def nothing() -> None:
        asyncio.get_running_loop().call_soon(lambda: None)

    def put() -> None:
        thread = threading.Thread(target=loop.run_until_complete, args=(nothing(),))
        thread.start()
        thread.join()

    async with World(tmp_path) as world:
        await world.add("a"), await world.add("b")
        cascade = await cascade_of(world, put)
        assert isinstance(await cascade.settled(5), Settled)
    loop.close()
