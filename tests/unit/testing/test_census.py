"""What the guard tells apart: an idle thread from a busy one, a leak from what stays for all."""

from __future__ import annotations

import asyncio
import os
import queue
import socket
import threading
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import pytest
import trio
from anyio.lowlevel import checkpoint

from quiesce import Scope, stream
from quiesce.errors import LeakError
from quiesce.resources import lifeline
from quiesce.testing import guard, processes, threads
from quiesce.testing.notes import Birth

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable


async def numbers() -> AsyncIterator[int]:
    """Give two numbers."""
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
            self.begun = lambda: bool(items.not_empty._waiters)  # type: ignore[attr-defined]  # private
            self.wait, self.end = items.get, partial(items.put, None)
        else:
            event = threading.Event()
            self.begun = lambda: bool(event._cond._waiters)  # type: ignore[attr-defined]  # private
            self.wait, self.end = event.wait, event.set


@pytest.mark.real_time
@pytest.mark.parametrize("what", ["queue", "event"])
async def test_a_worker_that_waits_in_pythons_own_code_is_found(what: str) -> None:
    """What a worker thread waits for is somebody's, also if all the code on its stack is Python's."""
    waits = Waits(what)
    before = threads.present().keys()
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
    while threads.present().keys() - before:
        await checkpoint()
    assert [finding.kind for finding in caught.value.findings] == ["thread"]


@pytest.mark.real_time
async def test_a_worker_in_a_function_without_frames_is_found() -> None:
    """A function that is not written in Python leaves nothing on the stack, and is found as well."""
    held = threading.Lock()
    held.acquire()
    before = set(threads.present())
    async with anyio.create_task_group() as group:
        group.start_soon(partial(anyio.to_thread.run_sync, held.acquire))
        while set(threads.present()) == before:
            await anyio.to_thread.run_sync(os.getpid)
        assert len(set(threads.present()) - before) == 1
        held.release()
    assert set(threads.present()) <= before


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
        processes.note(births, pid, birth)
    assert births[os.getpid()] is notes[0][1]
    assert len(births) < 100


# --- files ----------------------------------------------------------------------------------------


def test_the_table_of_the_lifeline_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lifeline's table is kept for all; of its two descriptors one is known to nobody."""
    with guard():
        table = lifeline.Table()
        monkeypatch.setattr(lifeline.watcher, "table", table)
    monkeypatch.undo()
    table.close()


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
