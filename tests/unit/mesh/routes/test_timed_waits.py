"""Loops that wait for a queue or an event with a timeout: verdicts name those that do something when the time is up."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from contextlib import suppress
from queue import Empty
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from tests.foreign_private import is_waited_for
from tests.stress import turns
from tests.unit.mesh.meshing import until
from tests.unit.mesh.routes.queueing import Case, run
from tests.unit.mesh.routes.test_bystanders import nothing, settle, start

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

on_asyncio = pytest.mark.backends("asyncio", "uvloop")
LONG = 3600


class Tasks:
    """Ways of tasks to wait with a timeout. What looks into the table has `look` in its name, what only waits has not."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.hints: asyncio.Queue[int] = asyncio.Queue()
        self.table: list[int] = []
        self.done: list[int] = []
        self.in_thread = False

    def flush(self) -> None:
        """Do what is there."""
        while self.table:
            self.done.append(self.table.pop())

    async def look_by_suppress(self) -> None:
        """Sleep, or stop."""
        while not self.stop.is_set():
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self.stop.wait(), LONG)
            while self.table:
                self.done.append(self.table.pop())

    async def look_by_except(self) -> None:
        """Look in the handler of the timeout."""
        while True:
            try:
                self.done.append(await asyncio.wait_for(self.hints.get(), LONG))
            except TimeoutError:
                self.flush()

    async def look_by_block(self) -> None:
        """Wait in a block with a timeout."""
        while True:
            try:
                async with asyncio.timeout(LONG):
                    await self.stop.wait()
            except TimeoutError:
                self.done.append(0)
            else:
                break
            self.flush()

    async def look_by_scope(self) -> None:
        """Wait in a scope of anyio."""
        while not self.stop.is_set():
            with anyio.move_on_after(LONG):
                await self.stop.wait()
            self.flush()

    async def look_by_fail_after(self) -> None:
        """Wait in a scope of anyio that raises."""
        while not self.stop.is_set():
            with suppress(TimeoutError):
                with anyio.fail_after(LONG):
                    await self.hints.get()
            self.flush()

    async def look_by_another(self) -> None:
        """Wait in a function of its own."""
        while (await self.next_or_none()) is None:
            self.flush()

    async def next_or_none(self) -> int | None:
        """Return a hint, or None."""
        try:
            return await asyncio.wait_for(self.hints.get(), LONG)
        except TimeoutError:
            return None

    async def look_in_another(self) -> None:
        """Wait and look in a function of its own."""
        while True:
            await self.hint_or_look()

    async def hint_or_look(self) -> None:
        """Look if no hint comes."""
        try:
            self.done.append(await asyncio.wait_for(self.hints.get(), LONG))
        except TimeoutError:
            self.flush()

    async def look_around(self) -> None:
        """Stop a function with no timeout of its own."""
        while True:
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self.take(), LONG)
            self.flush()

    async def in_thread_look(self) -> None:
        """Take from a queue of threads."""
        jobs: queue.Queue[int] = queue.Queue()
        self.in_thread = True
        while not self.stop.is_set():
            with suppress(Empty):
                await asyncio.to_thread(jobs.get, timeout=0.05)
            self.flush()

    async def take(self) -> None:
        """Take one, without a timeout."""
        self.done.append(await self.hints.get())

    async def goes_round(self) -> None:
        """Take items."""
        while not self.stop.is_set():
            try:
                item = await asyncio.wait_for(self.hints.get(), LONG)
            except (KeyError, TimeoutError):
                continue
            self.done.append(item)

    async def goes_round_in_block(self) -> None:
        """Take items in a block with a timeout."""
        while True:
            try:
                async with asyncio.timeout(LONG):
                    item = await self.hints.get()
            except TimeoutError:
                continue
            except Exception:
                self.flush()
                raise
            self.done.append(item)

    async def goes_round_with_work_inside(self) -> None:
        """Work where the timeout is passed over."""
        while True:
            with suppress(TimeoutError):
                self.done.append(await asyncio.wait_for(self.hints.get(), LONG))
                self.flush()

    async def goes_round_in_scope(self) -> None:
        """Work in the scope."""
        while True:
            with anyio.move_on_after(LONG):
                self.done.append(await self.hints.get())
                self.flush()

    async def ends(self) -> None:
        """Stop when nothing comes for long."""
        while True:
            try:
                self.done.append(await asyncio.wait_for(self.hints.get(), LONG))
            except TimeoutError:
                break
        self.flush()

    async def has_a_limit(self) -> None:
        """Wait with a timeout around the loop."""
        async with asyncio.timeout(LONG):
            while True:
                self.done.append(await self.hints.get())


class Threads:
    """Ways of threads."""

    def __init__(self) -> None:
        self.stop = threading.Event()
        self.condition = threading.Condition()
        self.hints: queue.Queue[int | None] = queue.Queue()
        self.table: list[int] = []

    def look_by_event(self) -> None:
        """Sleep, or stop."""
        while not self.stop.wait(LONG):
            while self.table:
                self.table.pop()

    def look_by_condition(self) -> None:
        """Wait for a condition."""
        with self.condition:
            while not self.stop.is_set():
                self.condition.wait(LONG)
                while self.table:
                    self.table.pop()

    def look_by_queue(self) -> None:
        """Take a hint."""
        while not self.stop.is_set():
            try:
                item = self.hints.get(timeout=LONG)
            except queue.Empty:
                item = 1
            if item is not None:
                self.table.append(item)

    def goes_round(self) -> None:
        """Take items."""
        while not self.stop.is_set():
            try:
                item = self.hints.get(timeout=LONG)
            except queue.Empty:
                continue
            if item is not None:
                self.table.append(item)

    def goes_round_by_event(self) -> None:
        """Look only when the event is set."""
        while True:
            if not self.stop.wait(LONG):
                continue
            self.table.append(1)
            return

    def end(self) -> None:
        """Wake it, for the last time."""
        self.stop.set()
        self.hints.put(None)
        with self.condition:
            self.condition.notify_all()

    def waited_for(self) -> list[object]:
        """Return what the ways wait for."""
        return [self.stop, self.condition, self.hints.not_empty]


def ways(kind: type, *, looks: bool) -> list[str]:
    """Return the ways that look, or those that do not."""
    found = [name for name in vars(kind) if name.startswith("look")]
    others = [name for name in vars(kind) if name.startswith(("goes", "ends", "has"))]
    return found if looks else others


def see(told: tuple[str, ...], how: Callable[..., Any], *, looks: bool) -> None:
    """See that a verdict names a loop, or not."""
    assert [how.__qualname__ in one for one in told] == [True] * looks, told


@on_asyncio
@pytest.mark.parametrize(
    ("how", "looks"), [(how, looks) for looks in (True, False) for how in ways(Tasks, looks=looks)]
)
async def test_a_task_that_looks_when_the_time_is_up_is_named(
    tmp_path: Path, how: str, *, looks: bool
) -> None:
    """One that only goes round, or ends, is not."""

    async def scenario(case: Case) -> None:
        tasks = Tasks()
        fn = getattr(tasks, how)
        start(case, fn)
        await turns(20)
        see(await settle(case, lambda: tasks.table.append(1)), fn, looks=looks)
        tasks.table.clear()

    await run(tmp_path, scenario)


@on_asyncio
@pytest.mark.parametrize(
    ("how", "looks"),
    [(how, looks) for looks in (True, False) for how in ways(Threads, looks=looks)],
)
async def test_a_thread_that_looks_when_the_time_is_up_is_named(
    tmp_path: Path, how: str, *, looks: bool
) -> None:
    """One that only goes round is not."""

    async def scenario(case: Case) -> None:
        threads = Threads()
        fn = getattr(threads, how)
        thread = threading.Thread(target=fn)
        thread.start()
        try:
            await until(lambda: any(map(is_waited_for, threads.waited_for())))
            see(await settle(case, nothing), fn, looks=looks)
        finally:
            threads.end()
            thread.join()

    await run(tmp_path, scenario)


@pytest.mark.real_time
@on_asyncio
async def test_a_task_that_has_a_thread_wait_is_named(tmp_path: Path) -> None:
    """By `asyncio.to_thread` with a timeout."""

    async def scenario(case: Case) -> None:
        tasks = Tasks()
        task = asyncio.create_task(tasks.in_thread_look())
        await until(lambda: tasks.in_thread)
        see(await settle(case, nothing), tasks.in_thread_look, looks=True)
        tasks.stop.set()
        await task

    await run(tmp_path, scenario)


async def test_a_stream_with_a_timeout(tmp_path: Path) -> None:
    """On all event loops, by a memory object stream."""

    async def scenario(case: Case) -> None:
        table: list[int] = []
        send, receive = anyio.create_memory_object_stream[int](1)

        async def look() -> None:
            while True:
                with anyio.move_on_after(LONG):
                    await receive.receive()
                while table:
                    table.pop()

        start(case, look)
        await turns(5)
        see(await settle(case, lambda: table.append(1)), look, looks=True)
        told = await settle(case, lambda: send.send_nowait(1))
        assert "does no work" not in "".join(told)
        send.close()
        receive.close()

    await run(tmp_path, scenario)


@on_asyncio
async def test_a_loop_that_has_had_an_item_of_the_hop_is_not_named(tmp_path: Path) -> None:
    """The hop has waited for it, and another hop has not."""

    async def scenario(case: Case) -> None:
        tasks = Tasks()
        start(case, tasks.look_by_except)
        await turns(20)
        see(await settle(case, nothing), tasks.look_by_except, looks=True)
        (told,) = await settle(case, lambda: tasks.hints.put_nowait(1))
        assert "does no work" not in told
        see(await settle(case, nothing), tasks.look_by_except, looks=True)

    await run(tmp_path, scenario)


@on_asyncio
async def test_all_loops_are_named(tmp_path: Path) -> None:
    """As many as there is room for, also beside another assumption."""

    async def scenario(case: Case) -> None:
        tasks = Tasks()
        jobs: asyncio.Queue[int] = asyncio.Queue()

        async def worker() -> None:
            while True:
                await jobs.get()

        start(case, worker)
        for how in ways(Tasks, looks=True):
            start(case, getattr(tasks, how))
        await turns(20)
        (told,) = await settle(case, nothing)
        assert (
            "assumes that these loops, which belong to no message, do no work for this one: Tasks."
            in told
        )
        assert "Node(services=[" in told
        assert "more. If that is so" in told
        (told,) = await settle(case, lambda: jobs.put_nowait(1))
        assert "was done with an item from asyncio.Queue" in told
        assert "; and assumes that these loops" in told

    await run(tmp_path, scenario)
