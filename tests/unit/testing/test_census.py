"""What the guard tells apart: an idle thread from a busy one, a leak from what stays for all."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import os
import queue
import signal
import socket
import subprocess
import threading
import weakref
from contextlib import aclosing
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import anyio
import pytest
import trio
from anyio.lowlevel import checkpoint

from quiesce import Scope, stream
from quiesce.core.threads import ThreadHold
from quiesce.errors import LeakError
from quiesce.processes import watchdog
from quiesce.testing import guard
from quiesce.testing.leaks import child_processes_left, running_threads
from quiesce.testing.leaks.births import Birth
from tests.foreign_private import delay_trio_jobs, end_late, is_waited_for

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path


async def numbers() -> AsyncIterator[int]:
    """Return two numbers."""
    yield 1
    yield 2


# --- threads --------------------------------------------------------------------------------------


class Waits:
    """Something to wait for in a thread; `wait` is a function of Python's own."""

    def __init__(self, what: str) -> None:
        self.begun: Callable[[], bool]
        self.wait: Callable[[], Any]
        self.end: Callable[[], Any]
        if what == "queue":
            items: queue.Queue[None] = queue.Queue()
            self.begun = lambda: is_waited_for(items.not_empty)
            self.wait, self.end = items.get, partial(items.put, None)
        else:
            event = threading.Event()
            self.begun = lambda: is_waited_for(event)
            self.wait, self.end = event.wait, event.set


@pytest.mark.real_time
@pytest.mark.parametrize("what", ["queue", "event"])
async def test_a_worker_that_waits_in_pythons_own_code_is_found(what: str) -> None:
    """What a worker thread waits for is somebody's, also if all the code on its stack is Python's."""
    waits = Waits(what)
    before = running_threads.present_threads().keys()
    try:
        with pytest.raises(LeakError) as caught:  # noqa: PT012 - the block is what is guarded
            async with guard(kinds=["thread"], settle=0), anyio.create_task_group() as group:
                group.start_soon(
                    partial(anyio.to_thread.run_sync, waits.wait, abandon_on_cancel=True)
                )
                while not waits.begun():
                    await anyio.to_thread.run_sync(os.getpid)
                group.cancel_scope.cancel()
    finally:
        waits.end()
    while running_threads.present_threads().keys() - before:
        await checkpoint()
    assert [finding.kind for finding in caught.value.findings] == ["thread"]


@pytest.mark.real_time
async def test_a_worker_in_a_function_without_frames_is_found() -> None:
    """A function that is not written in Python leaves nothing on the stack, and is found as well."""
    held = threading.Lock()
    held.acquire()
    before = set(running_threads.present_threads())
    async with anyio.create_task_group() as group:
        group.start_soon(partial(anyio.to_thread.run_sync, held.acquire))
        while set(running_threads.present_threads()) == before:
            await anyio.to_thread.run_sync(os.getpid)
        assert len(set(running_threads.present_threads()) - before) == 1
        held.release()
    assert set(running_threads.present_threads()) <= before


def test_a_thread_whose_function_has_returned_is_not_left() -> None:
    """It is still on Python's list for a moment, as one of trio's is that had no work for long, and ends."""
    is_seen, is_listed = threading.Event(), threading.Event()
    thread = threading.Thread(target=bool)

    def hold() -> None:
        is_listed.set()
        is_seen.wait()

    end_late(thread, hold)
    thread.start()
    is_listed.wait()
    try:
        assert thread in threading.enumerate()
        assert thread not in running_threads.present_threads()
    finally:
        is_seen.set()
        thread.join()


def test_a_worker_of_trio_that_tells_its_result_is_idle() -> None:
    """A thread of trio's that has done its work, and still wakes the event loop, is not left."""
    told, go_on = threading.Event(), threading.Event()

    def deliver(_: Any) -> None:
        told.set()
        go_on.wait()

    with guard(kinds=["thread"], settle=0):
        trio.lowlevel.start_thread_soon(os.getpid, deliver)
        told.wait()
    go_on.set()


@pytest.mark.parametrize("looks", [1, 500])
def test_a_worker_of_trio_is_let_begin(monkeypatch: pytest.MonkeyPatch, looks: int) -> None:
    """On a busy machine it begins after hundreds of looks; then it is seen what its work is: perhaps nothing."""
    go_on, told = threading.Event(), threading.Event()
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == looks:
            go_on.set()
            told.wait()

    before = running_threads.present_threads().keys()
    with monkeypatch.context() as patched:
        delay_trio_jobs(patched, go_on.wait)
        patched.setattr(running_threads, "time", SimpleNamespace(sleep=pause))
        trio.lowlevel.start_thread_soon(os.getpid, lambda _: told.set())
        new = running_threads.present_threads().keys() - before
    go_on.set()
    assert not new
    assert len(pauses) == looks


@pytest.mark.backends("asyncio")
@pytest.mark.real_time
async def test_a_worker_of_anyio_that_tells_its_result_is_idle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A thread of anyio's that has done its work, and still wakes the event loop, is not left."""
    go_on = threading.Event()
    loop = asyncio.get_running_loop()
    wake = loop.call_soon_threadsafe

    def slow(*args: Any) -> None:
        wake(*args)
        go_on.wait()

    async with guard(kinds=["thread"], settle=0):
        with monkeypatch.context() as patched:
            patched.setattr(loop, "call_soon_threadsafe", slow)
            await anyio.to_thread.run_sync(os.getpid)
    go_on.set()


@pytest.mark.real_time
async def test_a_worker_of_a_scope_that_tells_of_its_end_is_idle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A thread of a scope's that has done its work, and still tells the scope, is not left."""
    told, go_on = threading.Event(), threading.Event()
    release = ThreadHold.release

    def slow(hold: ThreadHold) -> None:
        release(hold)
        if threading.current_thread() is not threading.main_thread():  # else it is what was told
            told.set()
            go_on.wait()

    monkeypatch.setattr(ThreadHold, "release", slow)
    before = running_threads.present_threads().keys()
    async with Scope("app") as scope:
        scope.spawn(scope.to_thread, os.getpid)
        while not told.is_set():
            await checkpoint()
        new = running_threads.present_threads().keys() - before
        go_on.set()
    assert not new


# --- of quiesce's own -----------------------------------------------------------------------------


async def test_a_job_is_found_with_the_line_that_spawned_it() -> None:
    """A job that is left is found beside its scope, and whoever asked for it is named."""
    with pytest.raises(LeakError) as caught:  # noqa: PT012 - the block is what is guarded
        async with guard(settle=0):
            scope = await Scope.open("left")
            scope.spawn(anyio.sleep_forever)
            await checkpoint()
    await scope.aclose()
    found = {finding.kind: finding for finding in caught.value.findings}
    assert found.keys() == {"scope", "task"}
    assert str(found["task"].where).startswith(__file__)


@pytest.mark.backends("asyncio", "uvloop")  # trio does not tell who started a task
async def test_jobs_of_others_are_not_the_blocks() -> None:
    """A job that another task spawns meanwhile is not blamed on the block."""
    go = anyio.Event()

    async def other(scope: Scope) -> None:
        await go.wait()
        scope.spawn(anyio.sleep_forever)

    async with Scope("theirs") as scope:
        scope.spawn(other, scope)
        await checkpoint()
        async with guard(settle=0):
            go.set()
            await checkpoint()
            await checkpoint()
            assert len(scope.frontier()) == 1
        await scope.aclose()


async def test_what_a_stream_closes_for_its_generator_is_not_left() -> None:
    """A generator that another one leaves half-read is closed by the stream around them."""

    async def outer() -> AsyncIterator[int]:
        async for number in numbers():
            yield number

    async with guard(), Scope("reader"), aclosing(stream(outer)) as source:
        assert await anext(source) == 1


def test_the_notes_of_processes_are_not_kept_for_ever() -> None:
    """Who started a process is forgotten when it is gone; of those that run it is known."""
    births: dict[int, Birth] = {}
    notes = [(os.getpid(), Birth(0, None)), *((2**22 + n, Birth(n, None)) for n in range(1, 1000))]
    for pid, birth in notes:  # Linux gives no number above 2 ** 22
        child_processes_left.note_child(births, pid, birth)
    assert births[os.getpid()] is notes[0][1]
    assert len(births) < 100


@pytest.mark.skipif(not child_processes_left.has_proc(), reason="there is no /proc to do without")
def test_processes_are_found_where_the_kernel_lists_no_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A child, one that is not reaped, and a child's child are found by what each has for a parent."""
    script = "sleep 60 & echo $!; exec sleep 60"
    with (
        subprocess.Popen(["/bin/sh", "-c", script], stdout=subprocess.PIPE) as parent,
        subprocess.Popen(["/bin/true"]) as dead,
    ):
        assert parent.stdout is not None
        grandchild = int(parent.stdout.readline())
        os.waitid(os.P_PID, dead.pid, os.WEXITED | os.WNOWAIT)
        family = {parent.pid, dead.pid, grandchild}
        (tmp_path / "self" / "task" / str(threading.get_native_id())).mkdir(parents=True)
        for pid in (*family, os.getpid(), os.getppid()):
            (tmp_path / str(pid)).mkdir()
            (tmp_path / str(pid) / "stat").symlink_to(f"/proc/{pid}/stat")
        monkeypatch.setattr(child_processes_left, "_PROC", str(tmp_path))
        found = child_processes_left.present_children(())
        os.kill(grandchild, signal.SIGKILL)
        while (
            state := child_processes_left.state_of(grandchild)
        ) is not None and state.letter != "Z":
            pass  # dying takes a moment, and the guard sees who has not died
        parent.kill()
    assert {process.pid for process in found} == family


# --- files ----------------------------------------------------------------------------------------


def test_the_table_of_the_watcher_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """The watcher's table is kept for all."""
    with guard():
        table = watchdog.Table()
        monkeypatch.setattr(watchdog.watcher, "table", table)
    monkeypatch.undo()
    os.close(table.fd)


def test_the_pipe_of_the_watcher_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """The watcher's pipe is kept for all."""
    with guard():
        theirs, ours = os.pipe()
        monkeypatch.setattr(watchdog.watcher, "pipe", ours)
        os.close(theirs)
    monkeypatch.undo()
    os.close(ours)


async def use_a_stream() -> None:
    """Open a stream and close it."""
    ours, theirs = socket.socketpair()
    _, writer = await asyncio.open_connection(sock=ours)
    writer.close()
    await writer.wait_closed()
    theirs.close()


@pytest.mark.backends("asyncio", "uvloop")
async def test_a_stream_leaves_nothing() -> None:
    """A loop of uvloop opens a file with its first stream, and keeps it: that is not the block's."""
    async with guard():
        await use_a_stream()


@pytest.mark.backends("asyncio", "uvloop")
async def test_the_same_file_of_somebodys_own_is_found() -> None:
    """Of the files of that name, only one an event loop is uvloop's."""
    with pytest.raises(LeakError) as caught:  # noqa: PT012 - the block is what is guarded
        async with guard(settle=0):
            await use_a_stream()
            number = os.open(os.devnull, os.O_RDONLY)
    os.close(number)
    assert [finding.label for finding in caught.value.findings] == ["file:null"]


@pytest.mark.parametrize(("name", "is_found"), [("libffi.so.8", False), ("libother.so.8", True)])
def test_the_file_that_libffi_keeps_open_is_not_a_leak(
    tmp_path: Path, name: str, *, is_found: bool
) -> None:
    """Ctypes makes its first callback by it; any other file without an owner is found."""
    (tmp_path / name).touch()
    number, found = -1, False
    try:
        with guard(settle=0):
            number = os.open(tmp_path / name, os.O_RDONLY)
    except LeakError:
        found = True
    os.close(number)
    assert found is is_found


def test_files_are_found_although_a_weak_proxy_stands_for_what_is_gone() -> None:
    """Whoever asks such a proxy anything gets an exception."""

    class Gone(list[int]):
        """Something that weak references can be made to."""

    gone = Gone()
    proxies = [weakref.proxy(gone)]
    del gone
    with pytest.raises(LeakError) as caught, guard(settle=0):
        file = open("/dev/zero", "rb")  # noqa: PTH123, SIM115 - it is left
    file.close()
    assert [finding.label for finding in caught.value.findings] == ["file:zero"]
    assert len(proxies) == 1


def test_an_idle_thread_of_a_pool_is_not_left() -> None:
    """A pool of a module keeps its threads for the next one who has work; a busy one is found."""
    held = threading.Event()
    before = set(running_threads.present_threads())
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        pool.submit(os.getpid).result()
        while set(running_threads.present_threads()) - before:
            pass  # until it waits for work again
        begun = threading.Event()

        def work() -> None:
            begun.set()
            held.wait()

        future = pool.submit(work)
        begun.wait()
        assert len(set(running_threads.present_threads()) - before) == 1
        held.set()
        future.result()


# --- tasks that were collected ----------------------------------------------------------------------


@pytest.mark.quiesce(allow=["task:*.wait"])
@pytest.mark.parametrize("backend", ["asyncio", "uvloop"])
def test_what_was_collected_is_found_once(backend: str) -> None:
    """A task's clean-up can wake the task that was collected: then Python 3.14 lists it again."""

    async def wait() -> None:
        await asyncio.Queue[int]().get()  # ends its getter when it is closed

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        with pytest.raises(LeakError) as caught:  # noqa: PT012 - the block is what is guarded
            async with guard():
                asyncio.create_task(wait())  # noqa: RUF006 - the point of the test
                await asyncio.sleep(0)
                gc.collect()
        assert [each.details for each in caught.value.findings] == ["collected while it ran"]

    anyio.run(main, backend_options={"use_uvloop": backend == "uvloop"})
