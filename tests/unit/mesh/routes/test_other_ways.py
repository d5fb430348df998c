"""Other loops, schedulers, forks and simple queues; and the names by which services are declared."""

from __future__ import annotations

import asyncio
import functools
import json
import multiprocessing
import multiprocessing.managers
import os
import queue
import re
import sched
import subprocess
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from anyio.from_thread import start_blocking_portal

from quiesce import detached
from quiesce.mesh import Settled, Unknown, current_hop
from quiesce.mesh.runtime import progress
from tests.foreign_private import call_manager
from tests.stress import turns
from tests.unit.mesh.meshing import World, until
from tests.unit.mesh.routes.test_ways import WAITS, Gate, cascade_of, is_held_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from quiesce.mesh import Hop

on_asyncio = pytest.mark.backends("asyncio", "uvloop")
pytestmark = pytest.mark.real_time


@pytest.fixture
def gate() -> Iterator[Gate]:
    """Make one that is open in the end, whatever happens."""
    made = Gate()
    yield made
    made.event.set()


class Other:
    """An event loop in a thread of its own, and what a hop has it do: tasks that wait."""

    def __init__(self, kind: str) -> None:
        if kind == "uvloop":
            import uvloop  # noqa: PLC0415 - one of two

            self.loop: Any = uvloop.new_event_loop()
        else:
            self.loop = asyncio.new_event_loop()
        self.gate = asyncio.Event()
        self.hops: list[Hop | None] = []
        self.tasks: list[asyncio.Task[None]] = []
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()

    async def work(self) -> None:
        """Work until the gate opens."""
        self.hops.append(current_hop())
        await self.gate.wait()

    async def leave(self) -> None:
        """Leave a task that works."""
        self.tasks.append(asyncio.create_task(self.work()))

    def open(self) -> None:
        """Open the gate."""
        self.loop.call_soon_threadsafe(self.gate.set)

    def close(self) -> None:
        """End the loop."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


@pytest.fixture(params=["asyncio", "uvloop"])
def other(request: pytest.FixtureRequest) -> Iterator[Other]:
    """Make an event loop of another thread."""
    made = Other(request.param)
    yield made
    made.open()
    made.close()


@pytest.mark.parametrize("way", ["coroutine", "task", "callback", "timer"])
async def test_what_is_handed_to_another_loop_holds_the_hop(
    tmp_path: Path, other: Other, way: str
) -> None:
    """A coroutine, a task that one leaves, one that a callback starts, and a timer."""

    def start() -> None:
        other.tasks.append(other.loop.create_task(other.work()))

    def put() -> None:
        if way in {"coroutine", "task"}:
            made = other.work() if way == "coroutine" else other.leave()
            asyncio.run_coroutine_threadsafe(made, other.loop)
        elif way == "timer":
            other.loop.call_soon_threadsafe(other.loop.call_later, 0, start)
        else:
            other.loop.call_soon_threadsafe(start)

    async with World(tmp_path) as world:
        await world.add("a"), await world.add("b")
        cascade = await cascade_of(world, put)
        await until(lambda: other.hops)
        await turns(10)
        assert other.hops[0] is not None
        assert isinstance(await cascade.settled(within=0.1), Unknown)
        with detached():
            other.open()
        assert isinstance(await cascade.settled(5), Settled)


@pytest.mark.parametrize("way", ["create_task", "partial", "call_at", "call_later"])
async def test_a_function_of_another_loop_that_a_handler_hands_over_holds_the_hop(
    tmp_path: Path, other: Other, way: str
) -> None:
    """The handler reads it before the loop is followed, for nothing was handed to the loop yet."""

    def start() -> None:
        other.tasks.append(other.loop.create_task(other.work()))

    def put() -> None:
        loop = other.loop
        if way == "create_task":
            loop.call_soon_threadsafe(loop.create_task, other.work())
        elif way == "partial":
            loop.call_soon_threadsafe(functools.partial(loop.create_task, other.work()))
        elif way == "call_at":
            loop.call_soon_threadsafe(loop.call_at, loop.time() + 0.1, start)
        else:
            loop.call_soon_threadsafe(loop.call_later, 0.1, start)

    async with World(tmp_path) as world:
        await world.add("a"), await world.add("b")
        cascade = await cascade_of(world, put)
        await until(lambda: other.hops)
        await turns(10)
        assert other.hops[0] is not None
        assert isinstance(await cascade.settled(within=0), Unknown)
        with detached():
            other.open()
        assert isinstance(await cascade.settled(5), Settled)


async def test_callbacks_that_leave_callbacks_in_another_loop_hold_the_hop(
    tmp_path: Path, other: Other
) -> None:
    """One after the other; the last of them waits, and starts a task."""
    left = 3
    begun, go = threading.Event(), threading.Event()

    def one() -> None:
        nonlocal left
        left -= 1
        if left:
            other.loop.call_soon(one)
        else:
            begun.set()
            go.wait(30)
            other.tasks.append(other.loop.create_task(other.work()))

    async with World(tmp_path) as world:
        await world.add("a"), await world.add("b")
        cascade = await cascade_of(world, lambda: other.loop.call_soon_threadsafe(one))
        try:
            await until(begun.is_set)
            await turns(20)
            assert isinstance(await cascade.settled(within=0), Unknown)
        finally:
            with detached():
                go.set()
        await until(lambda: other.hops)
        await turns(20)
        assert isinstance(await cascade.settled(within=0), Unknown)
        with detached():
            other.open()
        assert isinstance(await cascade.settled(5), Settled)


@on_asyncio
async def test_a_coroutine_of_a_library_in_another_loop_holds_the_hop(
    tmp_path: Path, other: Other, gate: Gate
) -> None:
    """It is the handler that has handed it over: its line is named."""

    def put() -> None:
        asyncio.run_coroutine_threadsafe(anyio.to_thread.run_sync(gate.wait), other.loop)

    async with World(tmp_path) as world:
        await world.add("a"), await world.add("b")
        cascade = await cascade_of(world, put)
        await until(lambda: gate.hops)
        await turns(10)
        assert isinstance(await cascade.settled(within=0.1), Unknown)
        hop = gate.hops[0]
        assert hop is not None
        assert any("test_other_ways.py:" in (held.where or "") for held in hop.holds.values())
        gate.event.set()
        assert isinstance(await cascade.settled(5), Settled)


@on_asyncio
async def test_a_task_of_a_portal_holds_the_hop(tmp_path: Path) -> None:
    """Of anyio, whose own code makes the task."""
    doors: list[asyncio.Event] = []

    async def work() -> None:
        doors.append(asyncio.Event())
        await doors[0].wait()

    with start_blocking_portal() as portal:
        async with World(tmp_path) as world:
            await world.add("a"), await world.add("b")
            cascade = await cascade_of(world, lambda: portal.start_task_soon(work))
            await until(lambda: doors)
            await turns(10)
            assert isinstance(await cascade.settled(within=0.1), Unknown)
            with detached():
                portal.call(doors[0].set)
            assert isinstance(await cascade.settled(5), Settled)


async def test_what_a_library_hands_to_another_loop_holds_nothing(
    tmp_path: Path, other: Other
) -> None:
    """That keeps house."""
    library: dict[str, Any] = {"__name__": "httpx.loops", "asyncio": asyncio}
    code = "async def keep(gate): await gate.wait()\ndef start(loop, gate): return asyncio.run_coroutine_threadsafe(keep(gate), loop)"
    exec(code, library)  # noqa: S102 - another module's code
    futures: list[Any] = []

    def put() -> None:
        other.loop.call_soon_threadsafe(int)  # the loop is followed from now on
        futures.append(library["start"](other.loop, other.gate))

    async with World(tmp_path) as world:
        await world.add("a"), await world.add("b")
        cascade = await cascade_of(world, put)
        assert isinstance(await cascade.settled(5), Settled)
    other.open()
    futures[0].result(30)


async def test_an_item_of_a_simple_queue_carries_the_hop(tmp_path: Path) -> None:
    """To a thread that was started with the app."""
    async with World(tmp_path) as world:
        await world.add("a"), await world.add("b")
        jobs: queue.SimpleQueue[Gate | None] = queue.SimpleQueue()

        def worker() -> None:
            while (job := jobs.get()) is not None:
                job.wait()

        with detached():
            thread = threading.Thread(target=worker)
            thread.start()
        gate = Gate()
        try:
            cascade = await cascade_of(world, lambda: jobs.put(gate))
            await until(lambda: gate.hops)
            assert gate.hops[0] is not None
            assert isinstance(await cascade.settled(within=0.1), Unknown)
            gate.event.set()
            with detached():
                jobs.put_nowait(None)
            assert isinstance(await cascade.settled(5), Settled)
        finally:
            gate.event.set()
            jobs.put(None)
            thread.join()
        assert isinstance(jobs, queue.SimpleQueue)
    assert isinstance(jobs, queue.SimpleQueue)  # which is Python's own again


@pytest.mark.parametrize("way", ["run", "cancelled"])
async def test_an_event_of_a_scheduler_holds_the_hop(tmp_path: Path, way: str) -> None:
    """Until it has run, or was cancelled."""
    hops: list[Hop | None] = []
    events: list[Any] = []
    plan = sched.scheduler()

    def end() -> None:
        with detached():
            if way == "run":
                plan.run()
            else:
                plan.cancel(events[0])

    def put() -> None:
        events.append(plan.enter(0, 1, lambda: hops.append(current_hop())))

    await is_held_until(tmp_path, put, end)
    assert [hop is not None for hop in hops] == [True] * (way == "run")


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
async def test_a_fork_holds_the_hop(tmp_path: Path) -> None:
    """Until the child has exited; the child itself works for no hop."""
    read, write = os.pipe()
    children: list[int] = []

    def put() -> None:
        child = os.fork()
        if not child:
            os.close(write)
            os.read(read, 1)
            os._exit(0 if current_hop() is None else 3)
        children.append(child)

    await is_held_until(tmp_path, put, lambda: os.close(write))
    os.close(read)
    _, status = os.waitpid(children[0], 0)  # noqa: ASYNC222 - it has exited
    assert os.waitstatus_to_exitcode(status) == 0


@pytest.mark.parametrize("kind", ["SimpleQueue", "Queue", "JoinableQueue"])
async def test_an_item_for_another_process_is_named(tmp_path: Path, kind: str) -> None:
    """Nobody here can tell when it is done."""
    items: Any = getattr(multiprocessing.get_context("fork"), kind)()
    async with World(tmp_path) as world:
        await world.add("a"), await world.add("b")
        cascade = await cascade_of(world, lambda: items.put(1))
        found = await cascade.settled(5, require="participants")
        assert isinstance(found, Unknown)
        (missing,) = found.missing
        assert f"item in multiprocessing.{kind}, handed over at" in missing
        assert "test_other_ways.py:" in missing
    items.close()
    if kind != "SimpleQueue":
        items.join_thread()


@pytest.mark.parametrize("is_own", [False, True])
@pytest.mark.parametrize("name", ["send", "send_bytes"])
async def test_an_item_in_a_pipe_is_named(tmp_path: Path, name: str, *, is_own: bool) -> None:
    """If the hop has not made the pipe: else it has the child, too."""
    ends: list[Any] = [] if is_own else list(multiprocessing.Pipe())

    def put() -> None:
        ends.extend(multiprocessing.Pipe() if is_own else ())
        getattr(ends[0], name)(b"job")

    async with World(tmp_path) as world:
        await world.add("a"), await world.add("b")
        cascade = await cascade_of(world, put)
        found = await cascade.settled(5, require="participants")
        assert isinstance(found, Settled if is_own else Unknown)
        if isinstance(found, Unknown):
            (missing,) = found.missing
            assert "item in multiprocessing.Connection, handed over at" in missing
            assert "test_other_ways.py:" in missing
    for end in ends:
        end.close()


async def test_a_call_of_a_manager_that_leaves_work_is_named(tmp_path: Path) -> None:
    """An item in a queue of another process; what is asked of it meanwhile is not work that is left."""
    proxy: Any = object.__new__(multiprocessing.managers.BaseProxy)
    asked: list[str] = []

    def call(name: str) -> None:
        with suppress(AttributeError):  # it is connected to nothing
            asked.append(name)
            call_manager(proxy, name, (1,))

    async with World(tmp_path) as world:
        await world.add("a"), await world.add("b")
        found = await (await cascade_of(world, lambda: call("put"))).settled(5)
        assert isinstance(found, Unknown)
        (missing,) = found.missing
        assert "call of multiprocessing.managers.BaseProxy.put, handed over at" in missing
        assert (await (await cascade_of(world, lambda: call("qsize"))).settled(5)).ok
    assert asked == ["put", "qsize"]


@pytest.mark.skipif(sys.version_info < (3, 13), reason="queues can be shut down since 3.13")
async def test_what_a_shutdown_drops_holds_nothing(tmp_path: Path) -> None:
    """Nobody takes it."""
    items: Any = queue.Queue()
    await is_held_until(tmp_path, lambda: items.put(1), lambda: items.shutdown(immediate=True))


# Names.


async def verdict(
    folder: Path, put: Callable[[], object], end: Callable[[], object], *services: str
) -> Any:
    """Return the verdict on a message whose handler calls a function, and end what that has left."""
    folder.mkdir()  # noqa: ASYNC240 - of a test
    async with World(folder) as world:
        await world.add("a"), await world.add("b", services=services)
        try:
            cascade = await cascade_of(world, put)
            return await cascade.settled(5 if services else 0.6)
        finally:
            with detached():
                end()
            await until(lambda: not world.nodes["b"].opened.running_hops)


@pytest.mark.parametrize(
    ("way", "name"),
    [
        ("thread", "tests.unit.mesh.routes.test_ways.Gate.wait"),
        ("daemon", "tests.unit.mesh.routes.test_ways.Gate.wait"),
        ("executor", "tests.unit.mesh.routes.test_ways.Gate.wait"),
        ("program", os.path.basename(sys.executable)),  # noqa: PTH119 - its name
    ],
)
async def test_the_advice_names_what_is_started_and_not_the_handler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gate: Gate, way: str, name: str
) -> None:
    """With that line it is settled; and with that line, other things that the handler starts still count."""
    monkeypatch.setattr(progress, "_LASTING_SECONDS", 0.0)
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - for one of these

    ends: list[Callable[[], object]] = []
    pool = ThreadPoolExecutor(4)

    def put() -> None:
        gate.event.clear()
        if way == "executor":
            pool.submit(gate.wait)
        elif way == "program":
            child = subprocess.Popen([sys.executable, "-c", WAITS], stdin=subprocess.PIPE)
            ends.append(child.communicate)
        else:
            thread = threading.Thread(target=gate.wait, daemon=way == "daemon")
            thread.start()
            ends.append(thread.join)

    def end() -> None:
        gate.event.set()
        while ends:
            ends.pop()()

    other = Gate()

    def put_both() -> None:
        put()
        thread = threading.Thread(target=lambda: other.wait())  # noqa: PLW0108 - one of this function
        thread.start()

    found = await verdict(tmp_path / "unknown", put, end)
    assert isinstance(found, Unknown)
    line = re.search(r"declare it: Node\(services=(\[.*\])\)", found.missing[0])
    assert line is not None, found.missing
    assert json.loads(line[1]) == [name]
    assert isinstance(await verdict(tmp_path / "named", put, end, name), Settled)
    (tmp_path / "both").mkdir()
    async with World(tmp_path / "both") as world:
        await world.add("a"), await world.add("b", services=[name])
        cascade = await cascade_of(world, put_both)
        assert isinstance(await cascade.settled(0.1), Unknown)
        other.event.set()
        assert isinstance(await cascade.settled(5), Settled)
        end()
    pool.shutdown()


@on_asyncio
async def test_the_advice_for_a_timer_names_its_callback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not the handler that has set it."""
    monkeypatch.setattr(progress, "_LASTING_SECONDS", 0.0)
    handles: list[asyncio.TimerHandle] = []

    def remind() -> None:
        """Do nothing."""

    def put() -> None:
        handles.append(asyncio.get_running_loop().call_later(3600, remind))

    def end() -> None:
        while handles:
            handles.pop().cancel()

    found = await verdict(tmp_path / "unknown", put, end)
    name = f"{__name__}.{remind.__qualname__}"
    assert f'Node(services=["{name}"])' in found.missing[0]
    assert isinstance(await verdict(tmp_path / "named", put, end, name), Settled)
