"""Seed 003: a registry that cancels and awaits its tasks under the lock which these need to end.

Each producer blocks on a queue that nobody reads any more. Its last act is to leave the registry,
under the lock; the close holds the lock, and waits for it. A second bug hides behind the fix: a
late `start()` finds the lock free again, and puts a new producer into a registry that is closed.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress


class Registry:
    """Keeps one producer for each request."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.events: asyncio.Queue[str] = asyncio.Queue(1)
        self.active: dict[str, asyncio.Task[None]] = {}
        self.finished = False

    async def produce(self, name: str) -> None:
        """Write events until there is no room, and wait for a reader."""
        try:
            while True:
                await self.events.put(name)
        finally:
            async with self.lock:
                self.active.pop(name, None)

    async def start_buggy(self, name: str) -> None:
        """Start a producer, be the registry closed or not."""
        async with self.lock:
            self.active[name] = asyncio.create_task(self.produce(name), name=name)  # LEFT

    async def start_fixed(self, name: str) -> None:
        """Start a producer, unless the registry is closed."""
        async with self.lock:
            if self.finished:
                message = "the registry is closed"
                raise RuntimeError(message)
            self.active[name] = asyncio.create_task(self.produce(name), name=name)

    async def close_buggy(self) -> None:
        """Wait, under the lock, for tasks that wait for the lock."""
        async with self.lock:
            tasks = list(self.active.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)  # HANGS

    async def close_fixed(self) -> None:
        """Decide under the lock, and wait outside of it."""
        async with self.lock:
            self.finished = True
            tasks = list(self.active.values())
        for task in tasks:
            task.cancel()
        try:
            await asyncio.gather(*tasks, return_exceptions=True)
        except asyncio.CancelledError:
            await asyncio.wait(tasks)  # gather has cancelled them, and does not wait
            raise


async def buggy() -> None:
    """Shut down; when that takes too long, end all the same, as programs do."""
    registry = Registry()
    await registry.start_buggy("producer")
    await asyncio.sleep(0)
    closing = asyncio.create_task(registry.close_buggy(), name="shutdown")
    await asyncio.wait({closing}, timeout=0.01)


async def fixed() -> None:
    """Shut down in time."""
    registry = Registry()
    await registry.start_fixed("producer")
    await asyncio.sleep(0)
    closing = asyncio.create_task(registry.close_fixed(), name="shutdown")
    await closing
    assert not registry.active


async def buggy_late() -> None:
    """Start something while the close waits; it is running when that has returned."""
    registry = Registry()
    await registry.start_buggy("producer")
    await asyncio.sleep(0)
    closing = asyncio.create_task(registry.close_fixed())
    await asyncio.sleep(0)
    await registry.start_buggy("late")
    await closing


async def fixed_late() -> None:
    """Start something while the close waits; the registry refuses it."""
    registry = Registry()
    await registry.start_fixed("producer")
    await asyncio.sleep(0)
    closing = asyncio.create_task(registry.close_fixed())
    await asyncio.sleep(0)
    with suppress(RuntimeError):
        await registry.start_fixed("late")
    await closing
    assert not registry.active


async def swept_buggy() -> None:
    """Never return."""
    registry = Registry()
    await registry.start_buggy("producer")
    await asyncio.sleep(0)
    await registry.close_buggy()


async def swept_fixed() -> None:
    """Return, and leave nothing behind, cancelled or not."""
    registry = Registry()
    try:
        await registry.start_fixed("producer")
        await asyncio.sleep(0)
    finally:
        await registry.close_fixed()
