"""What the tests of adoption share: work that can be watched, and a look at the loop's tasks."""

from __future__ import annotations

import asyncio
from typing import Any

import anyio


class LeaveError(Exception):
    """Ends a block on purpose: the scope then cancels what is left."""


class Work:
    """Work that tells when it has begun and how it ended, and ends when `gate` is set."""

    def __init__(self) -> None:
        self.begun = anyio.Event()
        self.gate = anyio.Event()
        self.ended: list[str] = []

    async def __call__(self) -> None:
        """Begin, wait, end."""
        self.begun.set()
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.ended.append("cancelled")
            raise
        self.ended.append("completed")


def drop(work: Work) -> None:
    """Create a task and keep no reference to it: that is what adoption is for."""
    asyncio.create_task(work())  # noqa: RUF006 - see above


def others() -> set[asyncio.Task[Any]]:
    """Return every task of the loop except the one that asks."""
    me = asyncio.current_task()
    return {task for task in asyncio.all_tasks() if task is not me}
