"""Seed 002: `break` out of a generator that has a task group open, and another task finalizes it.

The group's `__aenter__` and `__aexit__` are called by hand. When the reader breaks off, Python has
the generator closed by a task of the event loop's; a cancel scope has to be left by the task that
has entered it, so that raises, and the reader may be cancelled by what is none of its business.
"""

from __future__ import annotations

import math
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream


async def read_messages(sink: MemoryObjectSendStream[str]) -> None:
    """Pass on what the command-line program writes, and wait for more."""
    async with sink:
        for message in ("hello", "result"):
            await sink.send(message)
        await anyio.Event().wait()


async def query_buggy() -> AsyncGenerator[str, None]:
    """Return the messages; whoever closes this had better be the one who reads it."""
    sink, source = anyio.create_memory_object_stream[str](math.inf)
    group = anyio.create_task_group()
    await group.__aenter__()
    try:
        group.start_soon(read_messages, sink)
        async for message in source:
            yield message
    finally:
        group.cancel_scope.cancel()
        await group.__aexit__(None, None, None)
        source.close()


@asynccontextmanager
async def query_fixed() -> AsyncIterator[MemoryObjectReceiveStream[str]]:
    """Return the messages for the time of a block, which one task enters and leaves."""
    sink, source = anyio.create_memory_object_stream[str](math.inf)
    async with source, anyio.create_task_group() as group:
        group.start_soon(read_messages, sink)
        yield source
        group.cancel_scope.cancel()


async def buggy() -> None:
    """Break off, and go on."""
    async for message in query_buggy():  # LEFT
        if message == "result":
            break
    for _ in range(5):
        await anyio.lowlevel.checkpoint()


async def fixed() -> None:
    """Break off, leave the block, and go on."""
    async with query_fixed() as messages:
        async for message in messages:
            if message == "result":
                break
    for _ in range(5):
        await anyio.lowlevel.checkpoint()


swept_buggy, swept_fixed = buggy, fixed
