"""A task that waits for a thread cannot be stopped before the thread has returned."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import anyio.to_thread
import pytest

from quiesce import Scope
from tests.stress import turns

if TYPE_CHECKING:
    from quiesce import Report

pytestmark = [pytest.mark.backends("asyncio", "uvloop"), pytest.mark.real_time]


async def in_group(call: Any) -> None:
    """Wait for a call in a task group."""
    async with asyncio.TaskGroup() as group:
        group.create_task(call)


async def in_executor(pay: Any) -> None:
    """Call a function in the loop's executor, together with something else."""
    loop = asyncio.get_running_loop()
    await asyncio.gather(asyncio.sleep(0), loop.run_in_executor(None, pay))


ENDPOINTS: dict[str, Any] = {
    "asyncio": asyncio.to_thread,
    "anyio": anyio.to_thread.run_sync,
    "a task": lambda pay: asyncio.create_task(asyncio.to_thread(pay)),
    "a task of anyio's call": lambda pay: asyncio.create_task(anyio.to_thread.run_sync(pay)),
    "gather": lambda pay: asyncio.gather(asyncio.sleep(0), asyncio.to_thread(pay)),
    "wait_for": lambda pay: asyncio.wait_for(asyncio.to_thread(pay), 60),
    "a task group": lambda pay: in_group(asyncio.to_thread(pay)),
    "an executor": in_executor,
}


def plain_factory(loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> asyncio.Task[Any]:
    """Make tasks as a program's own factory would."""
    return asyncio.Task(coro, loop=loop, **options)


@pytest.mark.parametrize("way", ENDPOINTS)
async def test_a_task_whose_thread_runs_on_is_stuck(way: str) -> None:
    """At the deadline the thread's task is named as stuck: the thread may do anything yet."""
    report = await close_over_a_thread(way)
    names = {item.name for item in report.stuck}
    lost = {item.name for item in report.cancelled}
    assert names & {"endpoint", "to_thread", "run_sync"}, str(report)
    assert not lost & {"to_thread", "run_sync"}, str(report)
    assert way == "wait_for" or not lost, str(report)


@pytest.mark.parametrize("way", ["asyncio", "anyio", "a task"])
async def test_a_task_of_another_factory_whose_thread_runs_on_is_stuck(way: str) -> None:
    """The program has a task factory of its own."""
    loop = asyncio.get_running_loop()
    loop.set_task_factory(plain_factory)
    try:
        report = await close_over_a_thread(way, adopted=True)
    finally:
        loop.set_task_factory(None)
    assert (len(report.stuck) >= 1, len(report.cancelled)) == (True, 0), str(report)


async def close_over_a_thread(way: str, *, adopted: bool = False) -> Report:
    """Close a scope while a thread runs that its task waits for; then let the thread return."""
    gate, begun = threading.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def pay() -> None:
        loop.call_soon_threadsafe(begun.set)
        gate.wait()

    async def endpoint() -> None:
        await ENDPOINTS[way](pay)

    async def start() -> asyncio.Task[None]:
        return asyncio.create_task(endpoint(), name="endpoint")

    scope = await Scope.open("a", adopt=True)
    task = await scope.spawn(start) if adopted else None
    job = None if adopted else scope.spawn(endpoint, name="endpoint")
    await begun.wait()
    report = await scope.aclose(cleanup=0.05)
    gate.set()
    while not (job or task).done():  # type: ignore[union-attr]  # there is one of them
        await turns()
    await loop.shutdown_default_executor()
    await turns()
    return report


async def test_a_task_that_waits_for_thread_after_thread_starts_no_more() -> None:
    """A loop of blocking calls ends when the call that runs has returned."""
    gate, begun, calls = threading.Event(), asyncio.Event(), list[int]()
    loop = asyncio.get_running_loop()

    def poll() -> None:
        calls.append(1)
        loop.call_soon_threadsafe(begun.set)
        gate.wait()

    async def consume() -> None:
        while True:
            await asyncio.to_thread(poll)

    scope = await Scope.open("a")
    scope.spawn(consume)
    await begun.wait()
    closing = asyncio.create_task(scope.aclose(cleanup=60))
    await turns()
    gate.set()
    report = await closing
    assert (len(calls), len(report.cancelled), report.stuck) == (1, 1, ())


async def test_a_task_is_cancelled_when_its_thread_has_returned() -> None:
    """The thread returns in time: the task ends there, and the report says that it was cut short."""
    gate, begun, went_on = threading.Event(), asyncio.Event(), list[str]()
    loop = asyncio.get_running_loop()

    def pay() -> None:
        loop.call_soon_threadsafe(begun.set)
        gate.wait()

    async def endpoint() -> None:
        await anyio.to_thread.run_sync(pay)
        await asyncio.Event().wait()
        went_on.append("went on")

    scope = await Scope.open("a")
    scope.spawn(endpoint)
    await begun.wait()
    closing = asyncio.create_task(scope.aclose(cleanup=60))
    await turns()
    assert not closing.done()
    gate.set()
    report = await closing
    assert (len(report.cancelled), report.stuck, went_on) == (1, (), [])
