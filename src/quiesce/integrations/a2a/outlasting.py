"""Waiting until a future is done, although the waiting task is cancelled.

The outbox, the queues and the shutdown use this for steps that must not stop halfway.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TypeVar

import anyio

__all__: list[str] = []

T = TypeVar("T")


async def outlast(done: asyncio.Future[T]) -> T:
    """Wait for a future or a task, and return its result.

    *Cancel safety*: if cancelled, this raises the cancellation only after the future is done.
    """
    try:
        return await asyncio.shield(done)
    except asyncio.CancelledError:
        with anyio.CancelScope(shield=True):  # anyio repeats its cancellation until then
            while not done.done():
                with suppress(asyncio.CancelledError):  # the first cancellation is raised below
                    await asyncio.wait([done])
        if not done.cancelled():
            done.exception()  # marks it as retrieved: no caller reads it
        raise
