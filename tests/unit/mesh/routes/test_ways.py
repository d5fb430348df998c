"""Timers, executors, threads and child processes that a handler leaves behind hold its hop, or are named."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import subprocess
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio.to_process
import pytest

from quiesce.mesh import Settled, Unknown, current_hop
from tests.foreign_private import stop_resource_tracker
from tests.stress import turns
from tests.unit.mesh.meshing import World, here, is_held_by, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from quiesce.mesh import Cascade, Hop

on_asyncio = pytest.mark.backends("asyncio", "uvloop")
real_time = pytest.mark.real_time  # threads and processes do not know of any other
WAITS = "import sys; sys.stdin.read()"


class Gate:
    """Is opened in the loop, and waited for in a thread."""

    def __init__(self) -> None:
        self.event = threading.Event()
        self.hops: list[Hop | None] = []

    def wait(self) -> None:
        """Work until it is opened."""
        self.hops.append(current_hop())
        self.event.wait(30)


@pytest.fixture
def gate() -> Iterator[Gate]:
    """Make one that is open in the end, whatever happens."""
    made = Gate()
    yield made
    made.event.set()


async def cascade_of(world: World, put: Callable[[], object]) -> Cascade:
    """Hand a message to an agent whose handler calls a function."""

    async def handler(_: Hop) -> None:
        put()

    async with world.nodes["a"].cascade("c") as cascade:
        await world.hand("b", handler)
    await turns(10)
    return cascade


async def is_held_until(folder: Path, put: Callable[[], object], end: Callable[[], object]) -> None:
    """See that the verdict waits for what a handler left."""
    async with World(folder) as world:
        await world.add("a")
        await world.add("b")
        cascade = await cascade_of(world, put)
        assert isinstance(await cascade.settled(within=0), Unknown)
        end()
        assert isinstance(await cascade.settled(5), Settled)


# Timers.


@on_asyncio
@pytest.mark.parametrize("at", [False, True])
async def test_a_callback_that_is_due_later_holds_the_hop(*, at: bool) -> None:
    """And what it starts is the hop's."""
    tasks: list[asyncio.Task[None]] = []

    def start(hop: Hop, gate: anyio.Event) -> None:
        loop = asyncio.get_running_loop()

        def later() -> None:
            assert current_hop() is hop
            tasks.append(loop.create_task(gate.wait()))

        if at:
            loop.call_at(loop.time() + 0.001, later)
        else:
            loop.call_later(0.001, partial(later))

    await is_held_by(start)


@on_asyncio
async def test_a_cancelled_timer_holds_nothing(tmp_path: Path) -> None:
    """It will not be called."""
    handles: list[asyncio.TimerHandle] = []

    def put() -> None:
        handle = asyncio.get_running_loop().call_later(3600, print, "never")
        assert handle.when() > asyncio.get_running_loop().time()
        handles.append(handle)

    def end() -> None:
        handles[0].cancel()

    await is_held_until(tmp_path, put, end)
    assert handles[0].cancelled()


@on_asyncio
async def test_a_timer_is_cancelled_with_its_cascade(tmp_path: Path) -> None:
    """Nobody waits an hour for it."""
    async with World(tmp_path) as world:
        await world.add("a")
        await world.add("b")
        cascade = await cascade_of(
            world, lambda: asyncio.get_running_loop().call_later(3600, print, "never")
        )
        await cascade.cancel()
        assert isinstance(await cascade.settled(5), Settled)


@real_time
async def test_a_timer_of_threads_is_cancelled_with_its_cascade(tmp_path: Path) -> None:
    """Neither the verdict nor the end of the process waits an hour for it."""
    timers: list[threading.Timer] = []

    def put() -> None:
        timers.append(threading.Timer(3600, print, ["never"]))
        timers[0].start()

    try:
        async with World(tmp_path) as world:
            await world.add("a")
            await world.add("b")
            cascade = await cascade_of(world, put)
            await cascade.cancel()
            verdict = await cascade.settled(5)
            assert isinstance(verdict, Settled)
            assert verdict.receipt.cancelled == 1
            timers[0].join(60)
            assert not timers[0].is_alive()
    finally:
        timers[0].cancel()


@real_time
async def test_a_timer_of_threads_is_freed_without_the_collector(tmp_path: Path) -> None:
    """When it is cancelled, what its function has in hand is let go of, as without a hop."""
    freed: list[weakref.ref[object]] = []
    timers: list[threading.Timer] = []

    class Thing:
        def use(self) -> None:
            """Do nothing."""

    def put() -> None:
        thing = Thing()
        freed.append(weakref.ref(thing))
        timers.append(threading.Timer(3600, thing.use))
        timers[0].start()

    async with World(tmp_path) as world:
        await world.add("a")
        await world.add("b")
        gc.disable()
        try:
            cascade = await cascade_of(world, put)
            await cascade.cancel()
            assert isinstance(await cascade.settled(5), Settled)
            timers.pop().join(60)
            await until(lambda: freed[0]() is None)
        finally:
            gc.enable()


@real_time
async def test_a_timer_of_threads_that_is_due_is_not_cancelled(tmp_path: Path, gate: Gate) -> None:
    """Its function runs: the hop waits until it has ended, as for any thread."""
    async with World(tmp_path) as world:
        await world.add("a")
        await world.add("b")
        cascade = await cascade_of(world, threading.Timer(0, gate.wait).start)
        await until(lambda: bool(gate.hops))
        await cascade.cancel()
        assert not isinstance(await cascade.settled(0.1), Settled)
        gate.event.set()
        assert isinstance(await cascade.settled(5), Settled)


@on_asyncio
async def test_the_timer_of_a_known_library_holds_nothing(tmp_path: Path) -> None:
    """A connection that is closed when it was idle for long."""
    library: dict[str, Any] = {"__name__": "uvicorn.protocols"}
    exec("def keep(loop): return loop.call_later(3600, keep, loop)", library)  # noqa: S102 - another module's code
    handles: list[asyncio.TimerHandle] = []
    async with World(tmp_path) as world:
        await world.add("a")
        await world.add("b")
        cascade = await cascade_of(
            world, lambda: handles.append(library["keep"](asyncio.get_running_loop()))
        )
        assert isinstance(await cascade.settled(5), Settled)
        handles[0].cancel()


# Threads.


@real_time
async def test_a_call_in_an_executor_holds_the_hop(tmp_path: Path, gate: Gate) -> None:
    """And it works for the hop."""
    with ThreadPoolExecutor(1) as pool:
        await is_held_until(tmp_path, lambda: pool.submit(gate.wait), gate.event.set)
    assert gate.hops[0] is not None


@real_time
@on_asyncio
async def test_a_call_in_the_executor_of_the_loop_holds_the_hop(tmp_path: Path, gate: Gate) -> None:
    """`run_in_executor`, whose future nobody awaits."""
    futures: list[asyncio.Future[None]] = []

    def put() -> None:
        futures.append(asyncio.get_running_loop().run_in_executor(None, gate.wait))

    await is_held_until(tmp_path, put, gate.event.set)
    await asyncio.get_running_loop().shutdown_default_executor()


@real_time
async def test_a_call_that_is_cancelled_before_it_begins_holds_nothing(
    tmp_path: Path, gate: Gate
) -> None:
    """Its future says so."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(gate.wait)
        futures: list[Any] = []

        def end() -> None:
            futures[0].cancel()

        await is_held_until(tmp_path, lambda: futures.append(pool.submit(gate.wait)), end)
        gate.event.set()


@real_time
@pytest.mark.parametrize("kind", ["thread", "timer", "subclass"])
async def test_a_thread_holds_the_hop(tmp_path: Path, gate: Gate, kind: str) -> None:
    """As the interpreter waits for it."""

    class Worker(threading.Thread):
        def run(self) -> None:
            gate.wait()

    made: dict[str, Any] = {
        "thread": lambda: threading.Thread(target=gate.wait),
        "timer": lambda: threading.Timer(0, gate.wait),
        "subclass": Worker,
    }
    threads: list[threading.Thread] = []

    def put() -> None:
        threads.append(made[kind]())
        threads[0].start()

    await is_held_until(tmp_path, put, gate.event.set)
    threads[0].join()
    assert gate.hops[0] is not None


@real_time
async def test_a_daemon_thread_is_named(tmp_path: Path, gate: Gate) -> None:
    """Nobody waits for it: it may live as long as the process."""
    threads: list[threading.Thread] = []

    def put() -> None:
        threads.append(threading.Thread(target=gate.wait, daemon=True))
        threads[0].start()

    async with World(tmp_path) as world:
        await world.add("a")
        await world.add("b")
        cascade = await cascade_of(world, put)
        found = await cascade.settled(5, require="participants")
        assert isinstance(found, Unknown)
        (missing,) = found.missing
        assert "daemon thread, Gate.wait started at" in missing
        assert "test_ways.py:" in missing
        (left,) = (await world.nodes["b"].drain(5)).stuck
        assert (left.kind, left.name) == ("daemon thread", "Gate.wait")
        assert any("Gate.wait" in frame for frame in left.stack)
    gate.event.set()
    threads[0].join()


@real_time
async def test_a_daemon_thread_that_has_ended_is_not(tmp_path: Path) -> None:
    """Before its hop has."""

    async def handler(_: Hop) -> None:
        thread = threading.Thread(target=int, daemon=True)
        thread.start()
        thread.join()
        await turns(3)

    async with World(tmp_path) as world:
        root, _ = await world.add("a"), await world.add("b")
        async with root.cascade("c") as cascade:
            await world.hand("b", handler)
        assert isinstance(await cascade.settled(5), Settled)


# Processes.


@real_time
async def test_a_child_that_is_left_running_holds_the_hop(tmp_path: Path) -> None:
    """Until it has exited, whether or not somebody waits for it."""
    children: list[subprocess.Popen[bytes]] = []

    def put() -> None:
        children.append(subprocess.Popen([sys.executable, "-c", WAITS], stdin=subprocess.PIPE))

    def end() -> None:
        assert children[0].stdin is not None
        children[0].stdin.close()

    await is_held_until(tmp_path, put, end)
    children[0].wait()


@real_time
async def test_a_worker_process_of_anyio_holds_nothing(tmp_path: Path) -> None:
    """It lives on for the next call; the call itself is awaited by a task of the hop."""
    found: list[int] = []

    async def call() -> None:
        found.append(await anyio.to_process.run_sync(os.getpid))

    def put() -> None:
        here().spawn(call)

    async with World(tmp_path) as world:
        await world.add("a")
        await world.add("b")
        cascade = await cascade_of(world, put)
        assert isinstance(await cascade.settled(30), Settled)
        assert found


@real_time
@pytest.mark.parametrize(
    ("words", "name"),
    [
        ([sys.executable, "-X", "dev", "-u", "worker.py", "-m"], "worker.py"),
        ([sys.executable, "-m", "worker"], "worker"),
    ],
)
async def test_a_child_is_declared_by_its_script(
    tmp_path: Path, words: list[str], name: str
) -> None:
    """The name of the interpreter would declare every child."""
    (tmp_path / "worker.py").write_text(WAITS)
    children: list[subprocess.Popen[bytes]] = []

    def put() -> None:
        children.append(subprocess.Popen(words, stdin=subprocess.PIPE, cwd=tmp_path))

    try:
        async with World(tmp_path) as world:
            await world.add("a")
            await world.add("b", services=[name])
            cascade = await cascade_of(world, put)
            assert isinstance(await cascade.settled(5), Settled)
    finally:
        children[0].communicate()


@real_time
@on_asyncio
async def test_a_child_of_the_event_loop_holds_the_hop(tmp_path: Path) -> None:
    """Uvloop starts it by a way of its own."""
    children: list[asyncio.subprocess.Process] = []

    async def start() -> None:
        children.append(
            await asyncio.create_subprocess_exec(sys.executable, "-c", WAITS, stdin=subprocess.PIPE)
        )

    def put() -> None:
        here().spawn(start)

    async with World(tmp_path) as world:
        await world.add("a")
        await world.add("b")
        cascade = await cascade_of(world, put)
        await until(lambda: children)
        await turns(10)
        assert isinstance(await cascade.settled(within=0), Unknown)
        assert children[0].stdin is not None
        children[0].stdin.close()
        assert isinstance(await cascade.settled(5), Settled)
        await children[0].wait()


@real_time
async def test_a_process_of_multiprocessing_holds_the_hop(tmp_path: Path) -> None:
    """Until it has exited."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    made = context.Process(target=theirs.recv)

    def end() -> None:
        ours.send(None)

    await is_held_until(tmp_path, lambda: made.start(), end)  # noqa: PLW0108 - as it is then
    made.join()
    made.close()
    ours.close()
    theirs.close()
    stop_resource_tracker()
