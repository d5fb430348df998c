"""File descriptors: waiting until one can be read or written, on every backend."""

from __future__ import annotations

import asyncio
import os
from typing import Literal

import anyio.lowlevel

from quiesce.core.backends import running_backend

__all__ = ["beyond_standard", "readable", "writable"]

STANDARD_MAX = 2


def beyond_standard(fd: int) -> int:
    """Move a descriptor that a child is to inherit, if need be, and give its number.

    A program whose own standard input or output is closed gets 0, 1 or 2 for whatever it opens
    next. In a child those are its input and outputs.
    """
    if fd > STANDARD_MAX:
        return fd
    import fcntl  # noqa: PLC0415 - Windows has none, and the package can be imported there

    moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, STANDARD_MAX + 1)
    os.close(fd)
    return moved


async def readable(fd: int) -> None:
    """Wait until something can be read, or the other end is closed.

    *Cancel safety*: nothing is read, and nobody listens to the descriptor any more.
    """
    await _wait_to("read", fd)


async def writable(fd: int) -> None:
    """Wait until something can be written, or a connection was made, or could not be made.

    *Cancel safety*: nothing is written, and nobody listens to the descriptor any more.
    """
    await _wait_to("write", fd)


async def _wait_to(act: Literal["read", "write"], fd: int) -> None:
    if running_backend().name == "trio":
        from trio import lowlevel  # noqa: PLC0415 - trio is optional

        await (lowlevel.wait_readable if act == "read" else lowlevel.wait_writable)(fd)
        return
    # A cancel scope's cancellation comes by a callback: a descriptor that is ready would be first.
    await anyio.lowlevel.checkpoint_if_cancelled()
    loop = asyncio.get_running_loop()
    woken = loop.create_future()

    def wake() -> None:
        if not woken.done():  # the loop calls again for as long as the waiter has not run
            woken.set_result(None)

    if act == "read":
        watch, unwatch = loop.add_reader, loop.remove_reader
    else:
        watch, unwatch = loop.add_writer, loop.remove_writer
    watch(fd, wake)
    try:
        await woken
    finally:
        unwatch(fd)
