"""Work that a function of a library starts for a handler: a loop, a pool or an `ExitStack` calls `call_later` or `start`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import logging.handlers
import os
import queue
import sched
import sys
import threading
import types
from collections import deque
from concurrent.futures import Future
from functools import partial
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any

import pytest

from quiesce.core import libraries
from quiesce.mesh import Settled
from tests.foreign_private import is_waited_for, stop_resource_tracker
from tests.stress import turns
from tests.unit.mesh.meshing import until
from tests.unit.mesh.routes.library_ways import (
    IN_LOOP,
    IN_THREADS,
    by_map,
    exit_stack,
    in_thread,
    on_done,
    soon,
)
from tests.unit.mesh.routes.queueing import Case, is_open, run, settles
from tests.unit.mesh.routes.test_other_ways import Other
from tests.unit.mesh.routes.test_ways import WAITS, Gate

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.backends("asyncio", "uvloop"), pytest.mark.real_time]


@pytest.fixture
def gate() -> Iterator[Gate]:
    """Make one that is open in the end, whatever happens."""
    made = Gate()
    yield made
    made.event.set()


ways = partial(pytest.mark.parametrize, "way", ids=lambda way: way.__name__)


@ways([*IN_LOOP, on_done])
async def test_a_timer_that_is_set_through_a_library_holds_the_hop(
    tmp_path: Path, way: Any
) -> None:
    """Each way has the loop, anyio or contextlib call `call_later`; from a thread there is no other."""

    async def scenario(case: Case) -> None:
        later = asyncio.get_running_loop().call_later
        left: dict[str, Any] = {}

        async def put() -> None:
            await way(later, 3600, print)
            await way(left.setdefault, "left")

        cascade = await case.cascade(put)
        await until(lambda: left)
        await turns(20)
        assert await is_open(cascade)
        await cascade.cancel()
        assert isinstance(await cascade.settled(5), Settled)

    await run(tmp_path, scenario)


@ways([*IN_LOOP, *IN_THREADS])
async def test_a_thread_that_is_started_through_a_library_holds_the_hop(
    tmp_path: Path, gate: Gate, way: Any
) -> None:
    """Also a thread of a pool only calls `start` for the handler."""

    async def scenario(case: Case) -> None:
        thread = threading.Thread(target=gate.wait)
        cascade = await case.cascade(lambda: way(thread.start))
        await until(lambda: gate.hops)
        assert gate.hops[0] is not None
        assert await is_open(cascade)
        gate.event.set()
        await settles(cascade)
        await asyncio.to_thread(thread.join)

    await run(tmp_path, scenario)


async def test_a_thread_that_a_map_of_a_pool_starts_holds_the_hop(
    tmp_path: Path, gate: Gate
) -> None:
    """`pool.map(Thread.start, threads)`."""

    async def scenario(case: Case) -> None:
        thread = threading.Thread(target=gate.wait)
        cascade = await case.cascade(lambda: by_map(threading.Thread.start, thread))
        await until(lambda: gate.hops)
        assert gate.hops[0] is not None
        assert await is_open(cascade)
        gate.event.set()
        await settles(cascade)
        await asyncio.to_thread(thread.join)

    await run(tmp_path, scenario)


async def test_a_daemon_thread_that_is_started_through_a_library_is_named(
    tmp_path: Path, gate: Gate
) -> None:
    """It has no line of the handler, and no function of the user's: `detached()` declares it."""

    async def scenario(case: Case) -> None:
        thread = threading.Thread(target=gate.event.wait, daemon=True, name="watcher")
        cascade = await case.cascade(lambda: in_thread(thread.start))
        found = await cascade.settled(5)
        assert not isinstance(found, Settled)
        assert "declare it: `with quiesce.detached():` around the code" in str(found)
        gate.event.set()
        await asyncio.to_thread(thread.join)

    await run(tmp_path, scenario)


@ways([in_thread, soon])
async def test_a_process_that_is_started_through_a_library_holds_the_hop(
    tmp_path: Path, way: Any
) -> None:
    """Until it has exited."""

    async def scenario(case: Case) -> None:
        context = get_context("spawn")
        ours, theirs = context.Pipe()
        made = context.Process(target=theirs.recv)
        try:
            cascade = await case.cascade(lambda: way(made.start))
            await until(lambda: made.pid)
            await turns(20)
            assert await is_open(cascade)
        finally:
            ours.send(None)
        await settles(cascade)
        made.join()
        made.close()
        ours.close()
        theirs.close()

    await run(tmp_path, scenario)
    stop_resource_tracker()


async def test_a_child_that_is_spawned_through_a_library_holds_the_hop(tmp_path: Path) -> None:
    """`to_thread(os.posix_spawn, …)`."""

    async def scenario(case: Case) -> None:
        read, write = os.pipe()
        command = [sys.executable, "-c", WAITS]
        actions = [(os.POSIX_SPAWN_DUP2, read, 0), (os.POSIX_SPAWN_CLOSE, write)]
        spawn = partial(os.posix_spawn, file_actions=actions)
        children: list[Any] = []

        async def put() -> None:
            children.append(await asyncio.to_thread(spawn, command[0], command, os.environ))

        cascade = await case.cascade(put)
        await until(lambda: children)
        assert await is_open(cascade)
        os.close(write)
        await settles(cascade)
        os.close(read)
        os.waitpid(children[0], 0)  # noqa: ASYNC222 - it has exited

    await run(tmp_path, scenario)


@ways([in_thread, exit_stack])
async def test_what_is_entered_through_a_library_holds_the_hop(tmp_path: Path, way: Any) -> None:
    """In a `sched.scheduler`."""

    async def scenario(case: Case) -> None:
        plan = sched.scheduler()
        cascade = await case.cascade(lambda: way(plan.enter, 0, 1, str))
        await until(lambda: plan.queue)
        await turns(20)
        assert await is_open(cascade)
        plan.run()
        await settles(cascade)

    await run(tmp_path, scenario)


@ways([in_thread, exit_stack])
async def test_a_callback_that_is_added_through_a_library_holds_the_hop(
    tmp_path: Path, way: Any
) -> None:
    """To a future of `concurrent.futures`."""

    async def scenario(case: Case) -> None:
        future: Future[None] = Future()
        left: list[int] = []

        async def put() -> None:
            await way(future.add_done_callback, str)
            left.append(1)

        cascade = await case.cascade(put)
        await until(lambda: left)
        await turns(20)
        assert await is_open(cascade)
        future.set_result(None)
        await settles(cascade)

    await run(tmp_path, scenario)


@ways([in_thread, soon, exit_stack])
async def test_an_item_that_is_put_through_a_library_holds_the_hop(
    tmp_path: Path, gate: Gate, way: Any
) -> None:
    """Into a `queue.SimpleQueue`."""

    async def scenario(case: Case) -> None:
        jobs: queue.SimpleQueue[Gate | None] = queue.SimpleQueue()

        def worker() -> None:
            while (job := jobs.get()) is not None:
                job.wait()

        thread = threading.Thread(target=worker)
        thread.start()
        try:
            cascade = await case.cascade(lambda: way(jobs.put, gate))
            await until(lambda: gate.hops)
            assert gate.hops[0] is not None
            assert await is_open(cascade)
            gate.event.set()
            await settles(cascade)
        finally:
            gate.event.set()
            jobs.put(None)
            await asyncio.to_thread(thread.join)

    await run(tmp_path, scenario)


async def test_what_is_handed_to_another_loop_through_a_thread_holds_the_hop(
    tmp_path: Path, gate: Gate
) -> None:
    """`to_thread(loop.call_soon_threadsafe, call)`: it is a thread of ours that calls it, for the handler."""
    other = Other("asyncio")

    async def scenario(case: Case) -> None:
        call = other.loop.call_soon_threadsafe
        cascade = await case.cascade(lambda: in_thread(call, gate.wait))
        await until(lambda: gate.hops)
        assert gate.hops[0] is not None
        assert await is_open(cascade)
        gate.event.set()
        await settles(cascade)

    try:
        await run(tmp_path, scenario)
    finally:
        gate.event.set()
        other.close()


async def test_what_is_handed_over_through_a_callback_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also far below a server that is a known library: that has not asked for it."""
    items = get_context("fork").SimpleQueue()
    package_of = libraries.package_of

    def found(module: str | None) -> str:
        return "uvicorn" if module == "tests.loops" else package_of(module)

    async def scenario(case: Case) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(libraries, "package_of", found)
            patched.setattr(libraries, "is_housekeeping", libraries.is_housekeeping.__wrapped__)
            cascade = await case.cascade(lambda: soon(items.put, 1))
            await until(lambda: not items.empty())
            verdict = await cascade.settled(5)
        assert "item in multiprocessing.SimpleQueue" in str(verdict)

    await run(tmp_path, scenario)
    items.close()


# What plumbing and known libraries start for themselves is not the hop's.


async def test_what_plumbing_starts_for_itself_holds_nothing(tmp_path: Path) -> None:
    """A function of asyncio that calls `call_later`, as the handshake of TLS does; also if a callback calls it."""
    module: Any = types.ModuleType("asyncio.sslproto")
    exec("def shake(loop, kept): kept.append(loop.call_later(3600, print))", vars(module))  # noqa: S102 - another module's code
    handles: list[asyncio.TimerHandle] = []

    async def scenario(case: Case) -> None:
        loop = asyncio.get_running_loop()

        def put() -> None:
            module.shake(loop, handles)
            loop.call_soon(module.shake, loop, handles)

        await settles(await case.cascade(put))
        for handle in handles:
            handle.cancel()
        assert len(handles) == 2

    await run(tmp_path, scenario)


async def test_what_uvloop_starts_for_itself_holds_nothing(tmp_path: Path) -> None:
    """Its functions have no frames: a timer of a handshake is known by its callback."""
    module: Any = types.ModuleType("uvloop.loop")
    exec("def shake():\n return lambda: None", vars(module))  # noqa: S102 - another module's code

    async def scenario(case: Case) -> None:
        later = asyncio.get_running_loop().call_later
        await settles(await case.cascade(lambda: soon(later, 3600, module.shake())))

    await run(tmp_path, scenario)


async def test_what_a_library_starts_through_contextlib_holds_nothing(tmp_path: Path) -> None:
    """The first frame outside of the standard library is the known library's."""
    module: Any = types.ModuleType("httpx.idle")
    source = "def keep(stack, later, kept):\n with stack: stack.callback(later, 3600, kept)"
    exec(source, vars(module))  # noqa: S102 - another module's code

    async def scenario(case: Case) -> None:
        later = asyncio.get_running_loop().call_later
        await settles(await case.cascade(lambda: module.keep(contextlib.ExitStack(), later, print)))

    await run(tmp_path, scenario)


async def test_a_log_record_is_not_work(tmp_path: Path) -> None:
    """`QueueHandler` puts it, and a listener takes it that was started before the node."""
    records: queue.Queue[Any] = queue.Queue()
    log = logging.Logger("app")  # noqa: LOG001 - of this test alone
    log.addHandler(logging.handlers.QueueHandler(records))

    async def scenario(case: Case) -> None:
        await settles(await case.cascade(lambda: log.warning("hello")))
        assert records.qsize() == 1

    await run(tmp_path, scenario)


# Events.


@ways(IN_LOOP)
async def test_a_worker_whose_event_is_set_through_a_library_holds_the_hop(
    tmp_path: Path, way: Any
) -> None:
    """The event of a task, which a loop, anyio or contextlib sets for the handler."""

    async def scenario(case: Case) -> None:
        jobs: deque[asyncio.Event] = deque()
        wake, begun, gate = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def worker() -> None:
            while True:
                await wake.wait()
                wake.clear()
                while jobs:
                    job = jobs.popleft()
                    begun.set()
                    await job.wait()

        case.app.spawn(worker, service=True)
        await turns(5)

        async def put() -> None:
            jobs.append(gate)
            await way(wake.set)

        cascade = await case.cascade(put)
        await begun.wait()
        await turns(20)
        assert await is_open(cascade)
        gate.set()
        await settles(cascade)

    await run(tmp_path, scenario)


@ways([*IN_LOOP, *IN_THREADS])
async def test_a_thread_whose_event_is_set_through_a_library_holds_the_hop(
    tmp_path: Path, gate: Gate, way: Any
) -> None:
    """The event of a thread, which another thread may set for the handler as well."""

    async def scenario(case: Case) -> None:
        jobs: deque[Gate | None] = deque()
        wake = threading.Event()

        def worker() -> None:
            while True:
                wake.wait(30)
                wake.clear()
                while jobs:
                    job = jobs.popleft()
                    if job is None:
                        return
                    job.wait()

        thread = threading.Thread(target=worker)
        thread.start()
        try:
            await until(lambda: is_waited_for(wake))

            async def put() -> None:
                jobs.append(gate)
                await way(wake.set)

            cascade = await case.cascade(put)
            await until(lambda: gate.hops)
            assert gate.hops[0] is not None
            assert await is_open(cascade)
            gate.event.set()
            await settles(cascade)
        finally:
            gate.event.set()
            jobs.append(None)
            wake.set()
            await asyncio.to_thread(thread.join)

    await run(tmp_path, scenario)


async def test_a_worker_of_another_loop_whose_event_is_set_holds_the_hop(tmp_path: Path) -> None:
    """`loop.call_soon_threadsafe(event.set)` is the only way to set it."""
    other = Other("asyncio")
    jobs: deque[asyncio.Event] = deque()
    wake, begun = asyncio.Event(), threading.Event()
    gate = asyncio.Event()
    tasks: list[asyncio.Task[None]] = []

    async def worker() -> None:
        while True:
            await wake.wait()
            wake.clear()
            while jobs:
                job = jobs.popleft()
                begun.set()
                await job.wait()

    def start() -> None:
        tasks.append(other.loop.create_task(worker()))
        other.loop.call_soon(waits.set)

    waits = threading.Event()

    async def scenario(case: Case) -> None:
        other.loop.call_soon_threadsafe(start)
        await until(waits.is_set)

        def put() -> None:
            jobs.append(gate)
            other.loop.call_soon_threadsafe(wake.set)

        cascade = await case.cascade(put)
        await until(begun.is_set)
        await turns(20)
        assert await is_open(cascade)
        other.loop.call_soon_threadsafe(gate.set)
        await settles(cascade)

    async def end() -> None:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    try:
        await run(tmp_path, scenario)
    finally:
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(end(), other.loop))
        other.close()
