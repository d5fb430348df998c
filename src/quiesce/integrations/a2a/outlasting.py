"""Waiting for something to its end, although the one that waits is cancelled."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TypeVar

import anyio

__all__: list[str] = []

T = TypeVar("T")


async def outlast(done: asyncio.Future[T]) -> T:
    """Wait for a future or a task, and return its result.

    *Cancel safety*: a cancellation is passed on when the future is done, and not before.
    """
    try:
        return await asyncio.shield(done)
    except asyncio.CancelledError:
        with anyio.CancelScope(shield=True):  # from what anyio delivers over and over
            while not done.done():
                with suppress(asyncio.CancelledError):  # the first one is passed on
                    await asyncio.wait([done])
        if not done.cancelled():
            done.exception()  # no caller asks for it any more
        raise
