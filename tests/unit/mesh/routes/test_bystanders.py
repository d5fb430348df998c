"""Loops outside of all hops that look into a list, or are woken in a way that is not followed: verdicts name them."""

from __future__ import annotations

import asyncio
import threading
from types import FunctionType
from typing import TYPE_CHECKING, Any

import anyio
import pytest
import trio

from quiesce import Scope
from quiesce.mesh.routes import bystanders
from tests.stress import turns
from tests.unit.mesh.meshing import World, until
from tests.unit.mesh.routes.queueing import Case, run
from tests.unit.mesh.serving import Life

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path

on_asyncio = pytest.mark.backends("asyncio", "uvloop")


class Loops:
    """Ways to look for jobs that a handler has left in a list."""

    def __init__(self) -> None:
        self.jobs: list[int] = []
        self.done: list[int] = []
        self.free = asyncio.Semaphore(0)
        self.waits: list[asyncio.Future[None]] = []
        self.send, self.receive = trio.open_memory_channel[int](9)

    def put(self) -> None:
        """Leave a job."""
        self.jobs.append(1)

    def flush(self) -> None:
        """Do what is there."""
        while self.jobs:
            self.done.append(self.jobs.pop())

    async def poll(self) -> None:
        """Look now and then."""
        while True:
            await anyio.sleep(3600)
            self.flush()

    async def calls_poll(self) -> None:
        """Call a function that looks now and then."""
        await self.poll()

    async def poll_by_another(self) -> None:
        """Look now and then, with a wait in a function of its own."""
        while True:
            await self.pause()
            self.flush()

    async def pause(self) -> None:
        """Wait."""
        while not self.done:  # noqa: ASYNC110 - on purpose
            await anyio.sleep(3600)

    async def by_semaphore(self) -> None:
        """Wait for a semaphore."""
        while True:
            await self.free.acquire()
            self.flush()

    async def by_future(self) -> None:
        """Wait for a new future each time."""
        while True:
            wait = asyncio.get_running_loop().create_future()
            self.waits.append(wait)
            await wait
            self.flush()

    async def by_channel(self) -> None:
        """Wait for a channel of trio itself."""
        async for job in self.receive:
            self.done.append(job)

    async def only_sleeps(self) -> None:
        """Keep a program alive."""
        while True:  # noqa: ASYNC110 - on purpose
            await anyio.sleep(3600)

    async def once(self) -> None:
        """Do something that takes a while."""
        await anyio.sleep(3600)
        self.flush()


async def settle(case: Case, put: Callable[[], object]) -> tuple[str, ...]:
    """Settle a cascade whose handler calls a function, and return what the verdict assumes of its hop."""
    verdict = await (await case.cascade(put)).settled(5)
    assert verdict.ok, str(verdict)
    return tuple(one for one in verdict.assumptions if one.startswith("b "))


def nothing() -> None:
    """Leave nothing."""


async def leave_nothing(_: object) -> None:
    """Leave nothing, as a handler."""


def start(case: Case, fn: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Start a loop with the app."""
    case.app.spawn(fn, service=True)


@pytest.mark.parametrize("how", ["poll", "poll_by_another"])
async def test_a_loop_that_polls_is_named(tmp_path: Path, how: str) -> None:
    """The verdict says where it waits, and the line that declares it."""
    await see_it_named(tmp_path, how)


@on_asyncio
@pytest.mark.parametrize("how", ["by_semaphore", "by_future"])
async def test_a_loop_that_is_woken_otherwise_is_named(tmp_path: Path, how: str) -> None:
    """By a semaphore, or by a future."""
    await see_it_named(tmp_path, how)


@pytest.mark.backends("trio")
async def test_a_loop_that_takes_from_a_channel_of_trio_is_named(tmp_path: Path) -> None:
    """Which is not followed, as anyio's streams are."""
    await see_it_named(tmp_path, "by_channel")


async def see_it_named(folder: Path, how: str) -> None:
    """See that the verdict on a hop names a loop."""

    async def scenario(case: Case) -> None:
        loops = Loops()
        fn = getattr(loops, how)
        start(case, fn)
        await turns(5)
        (told,) = await settle(case, loops.put)
        assert f"assumes that the loop {fn.__qualname__} (test_bystanders.py:" in told
        assert f'Node(services=["{fn.__module__}.{fn.__qualname__}"])' in told
        assert loops.jobs == [1]  # it was not done when the verdict came

    await run(folder, scenario)


@pytest.mark.parametrize("how", ["only_sleeps", "once"])
async def test_what_is_not_a_loop_with_work_is_not_named(tmp_path: Path, how: str) -> None:
    """A loop that only sleeps has nothing to do, and a task without a loop does not look for more."""

    async def scenario(case: Case) -> None:
        loops = Loops()
        start(case, getattr(loops, how))
        await turns(5)
        assert await settle(case, loops.put) == ()

    await run(tmp_path, scenario)


@on_asyncio
async def test_a_worker_of_a_queue_is_followed(tmp_path: Path) -> None:
    """It is not named, before its first item and after that."""

    async def scenario(case: Case) -> None:
        jobs: asyncio.Queue[int] = asyncio.Queue()

        async def worker() -> None:
            while True:
                await jobs.get()
                jobs.task_done()

        start(case, worker)
        await turns(5)
        assert await settle(case, nothing) == ()
        assert await settle(case, lambda: jobs.put_nowait(1)) == ()
        assert await settle(case, nothing) == ()

    await run(tmp_path, scenario)


async def test_an_app_that_waits_for_its_shutdown_is_not_named(tmp_path: Path) -> None:
    """The specification of ASGI writes a lifespan as a loop."""

    async def app(_: Any, receive: Any, send: Any) -> None:
        while True:
            event = (await receive())["type"]
            await send({"type": f"{event}.complete"})
            if event == "lifespan.shutdown":
                return

    async with World(tmp_path) as world, Scope("server") as server:
        await world.add("a")
        life = Life(world.make("b").asgi(app))
        job = server.spawn(life.run)
        life.ask("startup")
        await until(lambda: life.told == ["startup.complete"])
        async with world.nodes["a"].cascade("c") as cascade:
            await world.hand("b", leave_nothing)
        verdict = await cascade.settled(5)
        assert verdict.ok
        assert verdict.assumptions == ()
        life.ask("shutdown")
        await job


async def test_a_declared_loop_is_not_named(tmp_path: Path) -> None:
    """`Node(services=…)` with the line that the verdict has suggested."""
    async with World(tmp_path) as world:
        loops = Loops()
        name = f"{Loops.poll.__module__}.{Loops.poll.__qualname__}"
        await world.add("a", services=[name])
        await world.add("b", services=[name])
        async with anyio.create_task_group() as group:
            group.start_soon(loops.poll)
            await turns(5)
            async with world.nodes["a"].cascade("c") as cascade:

                async def handler(_: object) -> None:
                    loops.put()

                await world.hand("b", handler)
            verdict = await cascade.settled(5)
            assert verdict.ok, str(verdict)
            assert verdict.assumptions == ()
            group.cancel_scope.cancel()


@on_asyncio
@pytest.mark.parametrize(
    ("how", "is_awaited"), [("poll", False), ("calls_poll", False), ("poll", True)]
)
async def test_a_loop_of_a_known_library_is_not_named(
    tmp_path: Path, how: str, *, is_awaited: bool
) -> None:
    """A server, a database and the like have loops of their own; and a request outside of cascades may be one."""

    async def scenario(case: Case) -> None:
        loops = Loops()
        fn = getattr(Loops, how)
        of_library = FunctionType(fn.__code__, {**fn.__globals__, "__name__": "uvicorn.protocols"})

        async def main() -> None:
            await of_library(loops)

        task = asyncio.create_task(main() if is_awaited else of_library(loops))
        await turns(5)
        assert await settle(case, loops.put) == ()
        task.cancel()

    await run(tmp_path, scenario)


@on_asyncio
async def test_a_task_that_begins_cascades_is_not_named(tmp_path: Path) -> None:
    """A scheduler of cascades waits for their verdicts."""

    async def scenario(case: Case) -> None:
        settled: list[tuple[str, ...]] = []

        async def drive(pause: float) -> None:
            for _ in range(3):
                settled.append(await settle(case, nothing))
                await anyio.sleep(pause)

        tasks = [asyncio.create_task(drive(pause)) for pause in (0.2, 0.3)]
        await asyncio.gather(*tasks)
        assert settled == [()] * 6

    await run(tmp_path, scenario)


@on_asyncio
async def test_a_loop_that_was_started_since_the_last_search_is_found_by_the_next_one(
    tmp_path: Path,
) -> None:
    """Searches are a tenth of a second apart, so that they cost little."""

    async def scenario(case: Case) -> None:
        loops = Loops()
        assert await settle(case, loops.put) == ()
        start(case, loops.poll)
        await anyio.sleep(0.2)
        assert len(await settle(case, loops.put)) == 1

    await run(tmp_path, scenario)


@pytest.mark.real_time
@on_asyncio
@pytest.mark.parametrize("is_users", [True, False])
async def test_a_thread_that_polls_is_named(tmp_path: Path, *, is_users: bool) -> None:
    """A thread that was started with the app; one of a hop is held, and is not named."""

    async def scenario(case: Case) -> None:
        gate, pause = threading.Event(), threading.Semaphore(0)

        def poll() -> None:
            for _ in range(2):
                gate.set()
                pause.acquire(timeout=60)

        thread = threading.Thread(target=poll)
        try:
            if is_users:
                thread.start()
                await until(gate.is_set)
                (told,) = await settle(case, nothing)
                assert f"assumes that the loop {poll.__qualname__} (test_bystanders.py:" in told
            else:
                await case.cascade(thread.start)
                await until(gate.is_set)
                assert thread in bystanders.threads_of_hops
                async with case.world.nodes["a"].cascade("another") as cascade:
                    await case.world.hand("c", leave_nothing)
                assert (await cascade.settled(5)).assumptions == ()
        finally:
            pause.release(2)
            thread.join()

    await run(tmp_path, scenario)


class Ticking:
    """Timers of threads that are set with the app."""

    def __init__(self) -> None:
        self.timer = threading.Timer(3600, nothing)

    def start(self, function: Callable[[], None]) -> None:
        """Set the timer."""
        self.timer = threading.Timer(3600, function)
        self.timer.start()

    def tick(self) -> None:
        """Do something, and set the timer again."""
        self.start(self.tick)

    def once(self) -> None:
        """Do something."""


@on_asyncio
@pytest.mark.parametrize(("how", "is_named"), [("tick", True), ("once", False)])
async def test_a_timer_that_sets_itself_again_is_named(
    tmp_path: Path, how: str, *, is_named: bool
) -> None:
    """It is a loop; one that is due once is not."""

    async def scenario(case: Case) -> None:
        ticking = Ticking()
        ticking.start(getattr(ticking, how))
        try:
            told = await settle(case, nothing)
            assert [f"the loop Ticking.{how} (test_bystanders.py:" in one for one in told] == [
                True
            ] * is_named
        finally:
            ticking.timer.cancel()
            ticking.timer.join()

    await run(tmp_path, scenario)
