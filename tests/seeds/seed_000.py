"""Seed 000: an agent's connection is cancelled while it listens, and its loops are orphaned.

A connection starts a sender and a dispatcher. Whoever runs the agent listens, and closes when the
listening has ended; but nothing closes when it is cancelled.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

Source = asyncio.Queue[str | None]


class Connection:
    """One end of a wire, with two loops that serve it."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.requests: asyncio.Queue[str] = asyncio.Queue()
        self.answers: asyncio.Queue[str] = asyncio.Queue()
        self.sent: list[str] = []
        self.loops = [
            asyncio.create_task(self.send(), name="sender"),  # LEFT
            asyncio.create_task(self.dispatch(), name="dispatcher"),
        ]

    async def send(self) -> None:
        """Write one answer after the other."""
        while True:
            self.sent.append(await self.answers.get())

    async def dispatch(self) -> None:
        """Answer one request after the other."""
        while True:
            await self.answers.put(f"answer to {await self.requests.get()}")

    async def listen(self) -> None:
        """Take requests until the other end says goodbye."""
        while (request := await self.source.get()) is not None:
            await self.requests.put(request)

    async def close(self) -> None:
        """End the loops, and wait for them."""
        for loop in self.loops:
            loop.cancel()
        await asyncio.gather(*self.loops, return_exceptions=True)


async def run_buggy(source: Source) -> None:
    """Serve a connection, as long as nobody cancels it."""
    connection = Connection(source)
    await connection.listen()
    await connection.close()


async def run_fixed(source: Source) -> None:
    """Serve a connection, and close it however that ends."""
    connection = Connection(source)
    try:
        await connection.listen()
    finally:
        await connection.close()


async def health_check(run: Callable[[Source], Coroutine[None, None, None]]) -> None:
    """Connect, say hello, and hang up: the bridge cancels the agent."""
    source: Source = asyncio.Queue()
    await source.put("initialize")
    agent = asyncio.create_task(run(source))
    while not source.empty():  # noqa: ASYNC110 - until the agent has taken it, no longer
        await asyncio.sleep(0)
    agent.cancel()
    with suppress(asyncio.CancelledError):
        await agent


async def conversation(run: Callable[[Source], Coroutine[None, None, None]]) -> None:
    """Say something, then goodbye: the agent ends by itself."""
    source: Source = asyncio.Queue()
    later = asyncio.get_running_loop().call_soon
    later(source.put_nowait, "initialize")
    later(later, source.put_nowait, None)
    await run(source)


async def buggy() -> None:
    """Leave the two loops behind."""
    await health_check(run_buggy)


async def fixed() -> None:
    """Leave nothing behind."""
    await health_check(run_fixed)


async def swept_buggy() -> None:
    """Run the buggy version, which is right unless it is cancelled."""
    await conversation(run_buggy)


async def swept_fixed() -> None:
    """Run the fixed version, which is right also if it is cancelled."""
    await conversation(run_fixed)
