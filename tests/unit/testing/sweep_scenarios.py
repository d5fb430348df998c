"""Small scenarios that do not stand being cancelled, each beside one that does.

A comment `# here: …` marks a line that a finding has to name.
"""

from __future__ import annotations

import asyncio
import functools
import os
import subprocess
import sys
import threading
import time
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import trio
from anyio import from_thread, to_thread
from anyio.lowlevel import checkpoint as turn

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine

    Scenario = Callable[[], Coroutine[Any, Any, None]]

LINES = Path(__file__).read_text(encoding="utf-8").splitlines()
CHILD = [sys.executable, "-S", "-c", "import signal; signal.alarm(60); signal.pause()"]


def line(tag: str) -> str:
    """Return the file and line that carries a tag."""
    (number,) = [n for n, text in enumerate(LINES, start=1) if text.endswith(f"# here: {tag}")]
    return f"{__file__}:{number}"


child = functools.partial(subprocess.Popen[bytes], CHILD)
"""Starts a process that stays until it is killed."""


# --- leaks --------------------------------------------------------------------------------------

kept: set[Any] = set()
"""What would be collected otherwise: that is another bug."""


async def task_without_owner() -> None:
    """Start a task, and forget it if cancelled."""
    task = asyncio.create_task(anyio.sleep_forever())  # here: task
    kept.add(task)
    task.add_done_callback(kept.discard)
    await turn()  # here: task await
    task.cancel()
    await asyncio.wait([task])


async def task_with_owner() -> None:
    """Start a task in a group."""
    async with anyio.create_task_group() as group:
        group.start_soon(anyio.sleep_forever)
        await turn()
        group.cancel_scope.cancel()


async def system_task() -> None:
    """Start a system task of trio's, and forget it if cancelled."""
    stop = trio.Event()

    async def wait() -> None:
        with suppress(trio.Cancelled):
            await stop.wait()
        stopped.set()

    stopped = trio.Event()
    trio.lowlevel.spawn_system_task(wait)  # here: system task
    await turn()  # here: system task await
    stop.set()
    with trio.CancelScope(shield=True):
        await stopped.wait()
        await turn()


async def process_between_spawn_and_registry() -> None:
    """Start a process, and register it only once it is ready (seed 004)."""
    process = child()  # here: process
    await turn()  # here: process await
    process.kill()
    process.wait()


async def process_owned() -> None:
    """Start a process, and end it whatever happens."""
    process = child()
    try:
        await turn()
    finally:
        process.kill()
        process.wait()


async def thread_left() -> None:
    """Start a thread, and stop it unless cancelled."""
    stop = threading.Event()
    ends.append(stop)
    thread = threading.Thread(target=stop.wait, name="ticker", daemon=True)
    thread.start()  # here: thread
    await turn()  # here: thread await
    stop.set()
    thread.join()


ends: list[threading.Event] = []
"""What stops the threads that were left, after a test."""


async def thread_stopped() -> None:
    """Start a thread, and stop it whatever happens."""
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    try:
        await turn()
    finally:
        stop.set()
        thread.join()


async def file_left() -> None:
    """Open a file, and close it unless cancelled."""
    number = os.open(__file__, os.O_RDONLY)
    opened.append(number)
    await turn()  # here: file await
    opened.remove(number)
    os.close(number)


opened: list[int] = []
"""Files that were left, to be closed after a test."""


def clean_up() -> None:
    """End what scenarios have left."""
    while ends:
        ends.pop().set()
    while opened:
        os.close(opened.pop())


async def file_closed() -> None:
    """Open a file, and close it whatever happens."""
    number = os.open(__file__, os.O_RDONLY)
    try:
        await turn()
    finally:
        os.close(number)


async def numbers() -> AsyncGenerator[int, None]:
    """Count, and take a step to clean up."""
    try:
        for number in range(3):
            yield number
    finally:
        with anyio.CancelScope(shield=True):
            await turn()


async def generator_half_read() -> None:
    """Read an async generator, and leave it to the collector if cancelled."""
    async for _ in numbers():  # here: generator
        await turn()  # here: generator await


async def generator_closed() -> None:
    """Read an async generator, and close it whatever happens."""
    async with aclosing(numbers()) as items:
        async for _ in items:
            await turn()


# --- other ways to be wrong ---------------------------------------------------------------------


async def cancelled_and_not_awaited() -> None:
    """Cancel a task, and do not wait until it has ended."""
    task = asyncio.create_task(careful())  # here: late
    try:
        await turn()  # here: late await
    except BaseException:
        task.cancel()
        raise
    task.cancel()
    await asyncio.wait([task])


async def careful() -> None:
    """Wait to be cancelled, then take a step to clean up."""
    try:
        await anyio.sleep_forever()
    finally:
        await turn()


async def swallowing() -> None:
    """Catch everything, the cancellation too."""
    with suppress(BaseException):
        await turn()  # here: swallowed


async def passing_on() -> None:
    """Catch errors, and pass the cancellation on."""
    with suppress(Exception):
        await turn()


async def translating() -> None:
    """Turn the cancellation into an error."""
    try:
        await turn()  # here: translated
    except BaseException as error:
        message = "the connection is gone"
        raise ConnectionError(message) from error


@dataclass
class Registry:
    """Workers that need the registry's lock in order to end (seed 003)."""

    lock: anyio.Lock = field(default_factory=anyio.Lock)
    closing: anyio.Event = field(default_factory=anyio.Event)
    ended: anyio.Event = field(default_factory=anyio.Event)

    async def work(self) -> None:
        """Work until the registry is closing, then strike oneself off."""
        with anyio.CancelScope(shield=True):
            await self.closing.wait()
            async with self.lock:
                self.ended.set()

    async def close_under_lock(self) -> None:
        """Close, and wait for the worker with the lock in hand."""
        with anyio.CancelScope(shield=True):
            async with self.lock:
                self.closing.set()
                await self.ended.wait()  # here: hang


async def closing_a_registry(*, under_lock: bool) -> None:
    """Start a worker, and close its registry if cancelled; otherwise all is well."""
    registry = Registry()
    async with anyio.create_task_group() as group:
        group.start_soon(registry.work)
        try:
            await turn()  # here: hang await
        except BaseException:
            if under_lock:
                await registry.close_under_lock()
            raise
        finally:
            registry.closing.set()


async def closing_under_the_lock() -> None:
    """Hold the lock that the worker needs, and wait for the worker."""
    await closing_a_registry(under_lock=True)


async def closing_without_the_lock() -> None:
    """Ask the worker to end, and wait for it without the lock."""
    await closing_a_registry(under_lock=False)


async def stubborn() -> None:
    """Never end, however often it is cancelled."""
    while True:
        with suppress(BaseException):
            await anyio.sleep_forever()


async def cleanup_cut_short() -> None:
    """Clean up in two steps: a second cancellation in the first one leaves out the other."""
    process = child()  # here: second
    try:
        await turn()  # here: second await
    except BaseException:
        await turn()  # here: second cleanup
        process.kill()
        process.wait()
        raise
    process.kill()
    process.wait()


def work(begun: Callable[[], object], stop: threading.Event) -> None:
    """Work in a thread until told to stop."""
    begun()
    stop.wait()


async def work_in_a_thread(*, abandon: bool) -> None:
    """Run work in a thread, and leave without it if cancelled, or not."""
    stop, begun = threading.Event(), anyio.Event()
    ends.append(stop)
    async with anyio.create_task_group() as group:

        async def let_go() -> None:
            try:
                await begun.wait()
                await turn()
            except BaseException:
                if not abandon:
                    stop.set()
                raise
            stop.set()

        group.start_soon(let_go)
        run = functools.partial(work, lambda: from_thread.run_sync(begun.set), stop)
        await to_thread.run_sync(run, abandon_on_cancel=abandon)  # here: in a thread


async def work_in_the_default_executor() -> None:
    """Run work in a thread of asyncio's, and leave without it if cancelled."""
    loop, stop, begun = asyncio.get_running_loop(), threading.Event(), asyncio.Event()
    ends.append(stop)
    tell = functools.partial(loop.call_soon_threadsafe, begun.set)
    future = loop.run_in_executor(None, work, tell, stop)  # here: executor
    await begun.wait()
    timer = loop.call_later(0.05, stop.set)  # later than a busy machine takes to cancel it
    try:
        await future  # here: executor await
    finally:
        timer.cancel()


def hold_up(seconds: float) -> None:
    """Let nothing run for a while, as a machine does that has other things to do."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass
