"""`escapes()` finds the ways that a server does not notice, and does not cry wolf."""

from __future__ import annotations

import _thread
import asyncio
import http.client
import multiprocessing
import os
import queue
import socket
import sqlite3
import subprocess
import sys
import threading
from collections import deque
from os import fork
from typing import TYPE_CHECKING, Any

import anyio
import pytest
import trio

from quiesce import Scope, detached
from quiesce.mesh import Memory, Node
from quiesce.testing import escapes
from tests.foreign_private import is_waited_for
from tests.stress import turns
from tests.unit.testing.leaving import here, on_asyncio, places, real_time

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


async def found_at(put: Callable[[], object], **options: Any) -> list[tuple[str, str]]:
    """Return what is found if a handler calls a function."""
    async with escapes(**options) as found:
        put()
    return places(found)


class Worker:
    """A task that works for no hop, and waits in a loop."""

    def __init__(self, wait: Callable[[], Any]) -> None:
        """Wait by this function."""
        self._wait = wait

    async def run(self) -> None:
        """Do what there is to do, again and again."""
        while True:
            await self._wait()

    async def __aenter__(self) -> None:
        """Begin to wait."""
        self._scope = await Scope.open("app")
        self._scope.spawn(self.run, service=True)
        await turns()

    async def __aexit__(self, *_: object) -> None:
        """End."""
        await self._scope.aclose(1)


# Wake-ups.


async def test_a_semaphore_hands_work_over() -> None:
    """With the line of the release, and the function of the worker."""
    semaphore = anyio.Semaphore(0)
    async with Worker(semaphore.acquire), escapes() as found:
        semaphore.release()
    (one,) = found.untracked
    assert (one.fate, one.route) == ("unseen", "wakes the task")
    assert one.name.endswith(("run", "run_trio_job"))
    assert one.function.endswith("test_a_semaphore_hands_work_over")
    assert "asyncio.Queue" in one.instead


async def test_a_worker_may_wait_in_the_head_of_its_loop() -> None:
    """Python waits there the first time before the loop begins."""
    semaphore = anyio.Semaphore(0)

    async def work() -> None:
        while not await taken():
            pass

    async def taken() -> bool:
        await semaphore.acquire()
        return False

    async with Scope("app") as app:
        app.spawn(work, service=True)
        await turns()
        assert await found_at(semaphore.release) == [("unseen", "wakes the task")]


@on_asyncio
async def test_a_future_hands_work_over() -> None:
    """Like one that a library's own queue is made of."""
    waiters: deque[asyncio.Future[None]] = deque()

    async def wait() -> None:
        waiters.append(asyncio.get_running_loop().create_future())
        await waiters[-1]

    async with Worker(wait):
        assert await found_at(lambda: waiters.popleft().set_result(None)) == [
            ("unseen", "wakes the task")
        ]


@pytest.mark.backends("trio")
async def test_things_of_trio_hand_work_over() -> None:
    """Its channels and its events."""
    send, receive = trio.open_memory_channel[int](1)
    async with Worker(receive.receive):
        assert await found_at(lambda: send.send_nowait(1)) == [("unseen", "wakes the task")]
    events = [trio.Event()]

    async def wait() -> None:
        await events[-1].wait()
        events.append(trio.Event())

    async with Worker(wait):
        assert await found_at(events[0].set) == [("unseen", "wakes the task")]


async def test_a_signal_is_no_work() -> None:
    """A task that waits once, and not in a loop: it is listed, and no error."""
    event = anyio.Event()

    async def once() -> None:
        await event.wait()

    async with Scope("test") as scope:
        scope.spawn(once)
        await turns()
        async with escapes() as found:
            event.set()
    assert places(found) == [("possible", "wakes the task")]
    found.raise_if_any()


async def test_who_lets_go_hands_nothing_over() -> None:
    """A lock that is released, an item that is taken, a task that is cancelled."""
    lock = anyio.Lock()
    send, receive = anyio.create_memory_object_stream[int](0)
    with send, receive:
        async with Worker(lambda: send.send(1)):
            async with escapes() as found:
                assert await receive.receive() == 1
            assert list(found) == []
        async with escapes() as found, lock:
            with detached():
                locker = await Scope.open("locker")
                job = locker.spawn(take, lock)
            await turns()
        await job
        await locker.aclose(1)
        assert list(found) == []
        async with Worker(anyio.sleep_forever) as _, Scope("b") as scope:
            job = scope.spawn(Worker(anyio.sleep_forever).run, service=True)
            await turns()
            async with escapes() as found:
                job.cancel()
            assert list(found) == []


async def take(lock: anyio.Lock) -> None:
    """Wait for a lock in a loop."""
    for _ in range(2):
        async with lock:
            await turns(1)


async def test_what_a_hop_wakes_of_its_own_is_no_escape() -> None:
    """A task of the same hop."""
    events = [anyio.Event()]

    async def wait() -> None:
        for _ in range(2):
            await events[0].wait()

    async with escapes() as found:
        job = here().spawn(wait)
        await turns()
        events[0].set()
        await job
    assert list(found) == []


@on_asyncio
async def test_the_end_of_a_task_of_the_hop_hands_nothing_over() -> None:
    """Whoever waits for it, in a loop: it is the event loop that wakes, and not the program."""

    async def look(task: asyncio.Task[None]) -> None:
        for _ in range(2):
            await task

    async with Scope("app") as app:
        async with escapes() as found:
            task = asyncio.create_task(turns(5))
            with detached():
                app.spawn(look, task)
            await turns(2)
        assert places(found) == [("covered", "task")]


async def test_a_declared_place_is_no_escape() -> None:
    """By `detached()`, and by `Node(services=…)` for its module."""
    semaphore = anyio.Semaphore(0)

    def flush() -> None:
        semaphore.release()

    def declared() -> None:
        with detached():
            flush()

    async with Worker(semaphore.acquire):
        assert await found_at(flush) == [("unseen", "wakes the task")]
        await turns()
        assert await found_at(declared) == []
        await turns()
        node = Node("n", transport=Memory(), services=[f"{__name__}.*"])
        assert await found_at(flush, node=node) == []


# Threads.


async def awaited(semaphore: threading.Semaphore) -> None:
    """Return when a thread waits for a semaphore."""
    while not is_waited_for(semaphore):
        await turns(1)


@real_time
async def test_a_semaphore_of_threads_hands_work_over() -> None:
    """To a thread that waits in a loop."""
    semaphore, is_over = threading.Semaphore(0), threading.Event()

    def work() -> None:
        while not is_over.is_set():
            semaphore.acquire()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        await awaited(semaphore)
        assert await found_at(semaphore.release) == [("unseen", "wakes the thread")]
    finally:
        is_over.set()
        semaphore.release()
        thread.join()


@real_time
async def test_a_thread_of_the_hop_is_woken_by_it() -> None:
    """Which is no escape: it is held."""
    semaphore = threading.Semaphore(0)

    def work() -> None:
        for _ in range(2):
            semaphore.acquire()

    thread = threading.Thread(target=work)
    async with escapes() as found:
        thread.start()
        await awaited(semaphore)
        semaphore.release(2)
    thread.join()
    assert [one for one in found if one.fate != "covered"] == []


@real_time
async def test_a_simple_queue_hands_work_over() -> None:
    """Its type takes no attributes; its calls are seen all the same."""
    items: queue.SimpleQueue[int] = queue.SimpleQueue()
    assert await found_at(lambda: items.put(1)) == [("unseen", "queue.SimpleQueue")]
    assert await found_at(lambda: items.put_nowait(1)) == [("unseen", "queue.SimpleQueue")]
    assert await found_at(items.get_nowait) == []


class Raw:
    """A thread that is started without `threading`."""

    def __init__(self) -> None:
        """Make the events; nothing has begun."""
        self.gate, self.ended = threading.Event(), threading.Event()

    def start(self) -> None:
        """Begin."""
        _thread.start_new_thread(self.run, ())

    def run(self) -> None:
        """Wait for the end."""
        self.gate.wait(30)
        self.ended.set()

    def end(self) -> None:
        """End it."""
        self.gate.set()
        assert self.ended.wait(30)


@real_time
async def test_a_thread_without_threading_is_unseen() -> None:
    """No server follows it."""
    raw = Raw()
    found = await found_at(raw.start)
    raw.end()
    assert found == [("unseen", "_thread.start_new_thread")]


# Processes.


@real_time
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
async def test_a_fork_is_unseen() -> None:
    """Also by a name that was imported before."""

    def start() -> None:
        pid = fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)

    assert await found_at(start) == [("unseen", "fork")]


@real_time
async def test_a_pipe_of_multiprocessing_is_untracked() -> None:
    """Its other end may be anywhere, and a server says so."""
    ours, theirs = multiprocessing.Pipe()
    with ours, theirs:
        found = await found_at(lambda: ours.send(1))
        assert found == [("untracked", "item in multiprocessing.Connection")]


# Doors.


@real_time
async def test_a_connection_is_listed(tmp_path: Path) -> None:
    """To a peer it is untracked, as a server says; to others it may mean nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()

        def connect() -> None:
            socket.create_connection(address).close()

        assert await found_at(connect) == [("possible", "connection")]
        node = Node("n", transport=Memory(), peers=[f"http://127.0.0.1:{address[1]}"])
        assert await found_at(connect, node=node) == [("untracked", "raw socket")]
        client = http.client.HTTPConnection(*address)

        def request() -> None:
            client.request("POST", "/jobs?key=secret")
            client.close()

        async with escapes() as listed:
            request()
        assert places(listed) == [("possible", "request")]  # and the connection is a part of it
        assert [one.name for one in listed] == [f"POST http://127.0.0.1:{address[1]}"]
        assert await found_at(request, node=node) == [("untracked", "plain http.client")]
    path = str(tmp_path / "jobs")
    found = await found_at(lambda: sqlite3.connect(path).close())
    assert found == [("possible", "sqlite3.connect")]

    def append() -> None:
        with open(path, "a"):  # noqa: PTH123 - as programs do
            pass

    assert await found_at(append) == [("possible", "file that is appended to")]


@real_time
async def test_what_is_detached_is_not_listed() -> None:
    """Whatever it is."""
    raw = Raw()

    def start() -> None:
        with detached():
            raw.start()
            queue.SimpleQueue[int]().put(1)
            subprocess.Popen([sys.executable, "-c", ""]).wait()

    found = await found_at(start)
    raw.end()
    assert found == []
