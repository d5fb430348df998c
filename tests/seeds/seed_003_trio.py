"""Seed 003 on trio: there a close under the lock hangs as well, and the nursery with it."""

from __future__ import annotations

import trio


class Registry:
    """Keeps one producer for each request."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.nursery = nursery
        self.lock = trio.Lock()
        self.sink, self.source = trio.open_memory_channel[str](1)
        self.active: dict[str, tuple[trio.CancelScope, trio.Event]] = {}

    async def produce(self, name: str, scope: trio.CancelScope, done: trio.Event) -> None:
        """Write events until there is no room, and wait for a reader."""
        try:
            with scope:
                while True:
                    await self.sink.send(name)
        finally:
            with trio.CancelScope(shield=True):
                async with self.lock:
                    self.active.pop(name, None)
            done.set()

    def start(self, name: str) -> None:
        """Start a producer."""
        scope, done = trio.CancelScope(), trio.Event()
        self.active[name] = scope, done
        self.nursery.start_soon(self.produce, name, scope, done)

    async def close_buggy(self) -> None:
        """Wait, under the lock, for tasks that wait for the lock."""
        async with self.lock:
            for scope, done in list(self.active.values()):
                scope.cancel()
                await done.wait()  # HANGS

    async def close_fixed(self) -> None:
        """Decide under the lock, and wait outside of it."""
        async with self.lock:
            active = list(self.active.values())
        for scope, _ in active:
            scope.cancel()
        for _, done in active:
            await done.wait()


async def swept_buggy() -> None:
    """Never return."""
    async with trio.open_nursery() as nursery:
        registry = Registry(nursery)
        registry.start("producer")
        await trio.lowlevel.checkpoint()
        await registry.close_buggy()


async def swept_fixed() -> None:
    """Return, and leave nothing behind, cancelled or not."""
    async with trio.open_nursery() as nursery:
        registry = Registry(nursery)
        registry.start("producer")
        await trio.lowlevel.checkpoint()
        await registry.close_fixed()
