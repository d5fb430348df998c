"""What a handler starts inside of `with detached():` belongs to no hop, by whatever way it leaves."""

from __future__ import annotations

import asyncio
import queue
import socket
import subprocess
import sys
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from quiesce import Channel, Scope, detached
from quiesce.mesh import Settled, Unknown, current_hop
from tests.stress import turns
from tests.unit.mesh.meshing import World

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from quiesce.mesh import Hop

on_asyncio = pytest.mark.backends("asyncio", "uvloop")
real_time = pytest.mark.real_time  # threads and processes do not know of any other
WAITS = "import sys; sys.stdin.read()"


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Make what threads wait for; it is set in the end, whatever happens."""
    made = threading.Event()
    yield made
    made.set()


async def belongs_to_no_hop(folder: Path, put: Callable[[], object]) -> None:
    """See that a verdict does not wait for what a function starts in a handler, and is full."""

    async def handler(_: Hop) -> None:
        with detached():
            put()

    async with World(folder) as world:
        await world.add("a")
        await world.add("b")
        async with world.nodes["a"].cascade("c") as cascade:
            await world.hand("b", handler)
        assert isinstance(await cascade.settled(5), Settled)


@on_asyncio
async def test_a_task(tmp_path: Path) -> None:
    """It goes on for as long as it likes."""
    tasks: list[asyncio.Task[Any]] = []
    await belongs_to_no_hop(
        tmp_path, lambda: tasks.append(asyncio.create_task(anyio.sleep_forever()))
    )
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_job_of_another_scope(tmp_path: Path) -> None:
    """It belongs to that scope alone."""
    app = await Scope.open("app")
    try:
        await belongs_to_no_hop(tmp_path, lambda: app.spawn(anyio.sleep_forever))
    finally:
        await app.aclose(1)


@real_time
@pytest.mark.parametrize("kind", ["thread", "daemon thread", "timer"])
async def test_a_thread(tmp_path: Path, gate: threading.Event, kind: str) -> None:
    """A daemon thread is not named, either."""
    threads: list[threading.Thread] = []

    def start() -> None:
        if kind == "timer":
            threads.append(threading.Timer(0, gate.wait))
        else:
            threads.append(threading.Thread(target=gate.wait, daemon=kind == "daemon thread"))
        threads[-1].start()

    await belongs_to_no_hop(tmp_path, start)
    gate.set()
    for thread in threads:
        thread.join()


@real_time
async def test_a_call_in_an_executor(tmp_path: Path, gate: threading.Event) -> None:
    """And the call itself works for no hop."""
    hops: list[Hop | None] = []

    def call() -> None:
        hops.append(current_hop())
        gate.wait()

    with ThreadPoolExecutor(2) as pool:
        await belongs_to_no_hop(tmp_path, lambda: pool.submit(call))
        gate.set()
    assert hops == [None]


@on_asyncio
async def test_a_timer(tmp_path: Path) -> None:
    """And what it calls works for no hop."""
    handles: list[asyncio.TimerHandle] = []
    loop = asyncio.get_running_loop()
    await belongs_to_no_hop(tmp_path, lambda: handles.append(loop.call_later(3600, int)))
    for handle in handles:
        handle.cancel()


@real_time
async def test_a_child_process(tmp_path: Path) -> None:
    """It is left running."""
    children: list[subprocess.Popen[bytes]] = []
    await belongs_to_no_hop(
        tmp_path,
        lambda: children.append(
            subprocess.Popen([sys.executable, "-c", WAITS], stdin=subprocess.PIPE)
        ),
    )
    for child in children:
        child.communicate()


@on_asyncio
async def test_an_item_in_a_queue_of_asyncio(tmp_path: Path) -> None:
    """Which nobody ever takes."""
    items: asyncio.Queue[int] = asyncio.Queue()
    await belongs_to_no_hop(tmp_path, lambda: items.put_nowait(1))


async def test_an_item_in_a_queue_of_threads(tmp_path: Path) -> None:
    """Likewise."""
    items: queue.Queue[int] = queue.Queue()
    await belongs_to_no_hop(tmp_path, lambda: items.put(1))


async def test_an_item_in_a_memory_object_stream(tmp_path: Path) -> None:
    """Likewise."""
    send, receive = anyio.create_memory_object_stream[int](9)
    with send, receive:
        await belongs_to_no_hop(tmp_path, lambda: send.send_nowait(1))


async def test_an_item_in_a_channel(tmp_path: Path) -> None:
    """Likewise."""
    app = await Scope.open("app")
    try:
        channel: Channel[int] = Channel(9, scope=app)
        await belongs_to_no_hop(tmp_path, lambda: channel.send_nowait(1))
    finally:
        await app.aclose(1)


@on_asyncio
async def test_an_event_that_a_worker_waits_for(tmp_path: Path) -> None:
    """The worker that it wakes works for no hop."""
    event, gate = asyncio.Event(), asyncio.Event()
    jobs: deque[int] = deque()
    hops: list[Hop | None] = []

    async def work() -> None:
        while True:
            await event.wait()
            event.clear()
            hops.append(current_hop())
            await gate.wait()

    worker = asyncio.create_task(work())
    await turns()

    def put() -> None:
        jobs.append(1)
        event.set()

    await belongs_to_no_hop(tmp_path, put)
    worker.cancel()
    await asyncio.gather(worker, return_exceptions=True)
    assert hops == [None]


@real_time
async def test_a_connection_to_a_peer(tmp_path: Path) -> None:
    """It is not named."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()

        async def handler(_: Hop) -> None:
            with detached():
                socket.create_connection(address).close()

        async def named(_: Hop) -> None:
            socket.create_connection(address).close()

        async with World(tmp_path) as world:
            await world.add("a")
            await world.add("b", peers=[f"http://127.0.0.1:{address[1]}"])
            for handle, kind in ((handler, Settled), (named, Unknown)):
                async with world.nodes["a"].cascade("c") as cascade:
                    await world.hand("b", handle)
                assert isinstance(await cascade.settled(5), kind)
