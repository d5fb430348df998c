"""A sweep says nothing about code of others that does stand being cancelled."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

import anyio
import pytest
from anyio import to_thread

from quiesce.testing import sweep

if TYPE_CHECKING:
    from pathlib import Path

    from quiesce.testing.clock import Backend
    from tests.unit.testing.sweep_scenarios import Scenario

ALL: tuple[Backend, ...] = ("asyncio", "uvloop", "trio")


async def queue_in_a_task_group() -> None:
    """Pass items through a queue of one."""
    queue = asyncio.Queue[int | None](1)

    async def produce() -> None:
        for item in (1, 2, None):
            await queue.put(item)

    async with asyncio.TaskGroup() as group:
        group.create_task(produce())
        while await queue.get() is not None:
            pass


async def timeouts() -> None:
    """Run into two timeouts."""
    with suppress(TimeoutError):
        async with asyncio.timeout(0.002):
            await asyncio.Event().wait()
    with suppress(TimeoutError):
        await asyncio.wait_for(asyncio.Event().wait(), 0.002)


async def gathering() -> None:
    """Wait for several at once."""
    await asyncio.gather(asyncio.sleep(0), asyncio.sleep(0))


async def executor() -> None:
    """Call something quick in a thread."""
    await asyncio.to_thread(int)


async def memory_stream() -> None:
    """Pass items through a stream of anyio's."""
    sender, receiver = anyio.create_memory_object_stream[int](1)

    async def produce() -> None:
        async with sender:
            for number in range(3):
                await sender.send(number)

    async with anyio.create_task_group() as group, receiver:
        group.start_soon(produce)
        async for _ in receiver:
            pass


async def worker_thread() -> None:
    """Call something quick in a thread of anyio's, or of trio's."""
    await to_thread.run_sync(int)


@pytest.mark.parametrize("backend", ["asyncio", "uvloop"])
@pytest.mark.parametrize("scenario", [queue_in_a_task_group, timeouts, gathering, executor])
def test_asyncio_is_in_order(scenario: Scenario, backend: Backend) -> None:
    """Task groups, timeouts and the default executor are found to leave nothing."""
    # To cancel only the producer would leave the reader waiting, and rightly so.
    result = sweep(scenario, backend=backend, where="all", depth=2, cancel=("native", "scope"))
    assert result.ok, str(result)


@pytest.mark.parametrize("backend", ALL)
@pytest.mark.parametrize("scenario", [memory_stream, worker_thread])
def test_anyio_is_in_order(scenario: Scenario, backend: Backend) -> None:
    """Task groups, streams and worker threads are found to leave nothing."""
    result = sweep(scenario, backend=backend, where="all", depth=2)
    assert result.ok, str(result)


@pytest.mark.parametrize("backend", ALL)
def test_a_listener_is_in_order(backend: Backend, tmp_path: Path) -> None:
    """A unix socket that is closed, and its file, are not found."""
    path = tmp_path / "socket"

    async def listening() -> None:
        async with await anyio.create_unix_listener(path):
            await anyio.lowlevel.checkpoint()

    result = sweep(listening, backend=backend, where="all", allow=["socket:*"])
    assert result.ok, str(result)
