"""Ways to cancel a reader, for tests of streams. Each returns what a program may keep: a task, an exception."""

from __future__ import annotations

import asyncio
import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from tests.stress import CANCELLED, failing, turns

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, Iterator


@contextmanager
def uncollected() -> Iterator[None]:
    """Run the block without garbage collection, so that its code cannot rely on one."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


async def consume(source: AsyncIterable[object], reading: anyio.Event) -> None:
    """Read items until cancelled."""
    async for _ in source:
        reading.set()


async def cancel_a_task(body: Any, reading: anyio.Event) -> object:
    """Cancel the reader's task, and return the task."""
    task = asyncio.ensure_future(body)
    await reading.wait()
    await turns()
    task.cancel()
    await asyncio.wait({task})
    return task


async def cancel_a_task_again(body: Any, reading: anyio.Event) -> object:
    """Cancel the reader's task in each of a few turns of the loop, and return the task."""
    task = asyncio.ensure_future(body)
    await reading.wait()
    while not task.done():
        await turns(1)
        task.cancel()
    return task


async def wait_for(body: Any, reading: anyio.Event) -> object:
    """Call `wait_for` with a timeout that passes, and return the exception."""
    with pytest.raises(TimeoutError) as raised:
        await asyncio.wait_for(body, 0.1)
    assert reading.is_set()
    return raised


async def timeout(body: Any, reading: anyio.Event) -> object:
    """Read in an `asyncio.timeout` that passes, and return the exception."""
    with pytest.raises(TimeoutError) as raised:
        async with asyncio.timeout(0.1):
            await body
    assert reading.is_set()
    return raised


async def failing_sibling(body: Any, reading: anyio.Event) -> object:
    """Read in a task group in which another task fails, and return task and exception."""
    with pytest.raises(ExceptionGroup) as raised:  # noqa: PT012 - the group raises it
        async with asyncio.TaskGroup() as group:
            task = group.create_task(body)
            await reading.wait()
            await turns()
            group.create_task(failing(KeyError("sibling")))
    return task, raised


async def cancel_scope(body: Any, reading: anyio.Event) -> object:
    """Read in a cancel scope whose deadline passes, and return the exception."""
    found: list[BaseException] = []
    with anyio.move_on_after(0.1):
        try:
            await body
        except CANCELLED as error:
            found.append(error)
            raise
    assert reading.is_set()
    return found


async def failing_nursery(body: Any, reading: anyio.Event) -> object:
    """Read in an anyio task group in which another task fails, and return the exception."""

    async def read() -> None:
        await body

    with pytest.raises(ExceptionGroup) as raised:  # noqa: PT012 - the group raises it
        async with anyio.create_task_group() as group:
            group.start_soon(read)
            await reading.wait()
            await turns()
            group.start_soon(failing, KeyError("sibling"))
    return raised


ON_ASYNCIO = [cancel_a_task, cancel_a_task_again, wait_for, timeout, failing_sibling]
ANYWHERE = [cancel_scope, failing_nursery]
