"""Seed 001: the rest of a stream of events is consumed by a task that nobody keeps.

The server answers "working" at once; a task consumes the rest, and fires the webhook at the end.
The event loop knows tasks only weakly, so the task is collected whenever Python likes; and if it
is not, whoever shuts down does not know of it.
"""

from __future__ import annotations

import asyncio
import gc
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine


async def agent() -> AsyncIterator[str]:
    """Work for so long that nobody waits: the reply never comes in this test."""
    yield "working"
    await asyncio.get_running_loop().create_future()
    yield "completed"


async def quick_agent() -> AsyncIterator[str]:
    """Work for a moment."""
    yield "working"
    await asyncio.sleep(0)
    yield "completed"


class Server:
    """Answers at once, and calls back when the agent is done."""

    def __init__(self) -> None:
        self.webhooks: list[str] = []
        self.background: set[asyncio.Task[None]] = set()

    async def consume(self, events: AsyncIterator[str]) -> None:
        """Call back for each of the remaining events."""
        async for event in events:
            self.webhooks.append(event)

    async def send_buggy(self, events: AsyncIterator[str]) -> str:
        """Return the first event, and leave the others to a task of nobody."""
        first = await anext(events)
        asyncio.create_task(self.consume(events))  # noqa: RUF006 - the bug  # LEFT
        return first

    async def send_fixed(self, events: AsyncIterator[str]) -> str:
        """Return the first event, and keep the task for the others."""
        first = await anext(events)
        task = asyncio.create_task(self.consume(events))
        self.background.add(task)
        task.add_done_callback(self.background.discard)
        return first

    async def close(self) -> None:
        """Wait for the callbacks; told to hurry, end them."""
        tasks = list(self.background)
        try:
            await asyncio.gather(*tasks, return_exceptions=True)
        except asyncio.CancelledError:
            await asyncio.wait(tasks)  # gather has cancelled them, and does not wait
            raise


async def talk(
    server: Server, send: Callable[[AsyncIterator[str]], Coroutine[None, None, str]]
) -> None:
    """Send a message, get the first answer, and shut the server down."""
    events = quick_agent()
    try:
        assert await send(events) == "working"
    finally:
        await server.close()


async def buggy() -> None:
    """Return while the task is at work."""
    server = Server()
    assert await server.send_buggy(agent()) == "working"
    await asyncio.sleep(0)


async def buggy_collected() -> None:
    """Return after the task was collected in the middle of its work."""
    server = Server()
    assert await server.send_buggy(agent()) == "working"
    await asyncio.sleep(0)
    gc.collect()


async def fixed() -> None:
    """Wait for the task, which fires the webhook."""
    server = Server()
    await talk(server, server.send_fixed)
    assert server.webhooks == ["completed"]


async def swept_buggy() -> None:
    """Leave the task behind, cancelled or not."""
    server = Server()
    await talk(server, server.send_buggy)


async def swept_fixed() -> None:
    """Leave nothing behind, cancelled or not."""
    server = Server()
    await talk(server, server.send_fixed)
