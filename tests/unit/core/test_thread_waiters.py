"""A task that waits for a thread cannot be stopped before the thread has returned."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import anyio.to_thread
import pytest

from quiesce import Scope
from tests.stress import turns

pytestmark = [pytest.mark.backends("asyncio", "uvloop"), pytest.mark.real_time]

WAYS = {"asyncio": asyncio.to_thread, "anyio": anyio.to_thread.run_sync}


@pytest.mark.parametrize("nested", [True, False])
@pytest.mark.parametrize("way", WAYS)
async def test_a_task_whose_thread_runs_on_is_stuck(way: str, *, nested: bool) -> None:
    """At the deadline it is named as stuck, not as cancelled: its thread may do anything yet."""
    gate, begun = threading.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def pay() -> None:
        loop.call_soon_threadsafe(begun.set)
        gate.wait()

    async def endpoint() -> None:
        run: Any = WAYS[way]
        await (asyncio.create_task(run(pay)) if nested else run(pay))

    scope = await Scope.open("a", adopt=True)
    job = scope.spawn(endpoint, name="endpoint")
    await begun.wait()
    report = await scope.aclose(within=0.05)
    names = [item.name for item in report.stuck]
    assert ("endpoint" in names, len(report.cancelled)) == (True, 0), str(report)
    gate.set()
    while not job.done():
        await turns()


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
    closing = asyncio.create_task(scope.aclose(within=60))
    await turns()
    assert not closing.done()
    gate.set()
    report = await closing
    assert (len(report.cancelled), report.stuck, went_on) == (1, (), [])
