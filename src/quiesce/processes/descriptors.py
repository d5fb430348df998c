"""Waits until a file descriptor can be read or written, on every backend."""

from __future__ import annotations

import asyncio
import os
from typing import Literal

import anyio.lowlevel

from quiesce.core.backends import running_backend

__all__ = ["beyond_standard", "readable", "writable"]

STANDARD_MAX = 2


def beyond_standard(fd: int) -> int:
    """Return a descriptor above 2 for a child to inherit; move `fd` if its number is 0, 1 or 2.

    If a program's own standard input or output is closed, the next file it opens gets one of these
    numbers. In the child they are the standard input and outputs.
    """
    if fd > STANDARD_MAX:
        return fd
    import fcntl  # noqa: PLC0415 - Windows lacks it, but can import this package

    moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, STANDARD_MAX + 1)
    os.close(fd)
    return moved


async def readable(fd: int) -> None:
    """Wait until `fd` can be read without blocking. If the other end is closed, it can.

    *Cancel safety*: if cancelled, nothing was read, and the loop no longer watches the descriptor.
    """
    await _wait_to("read", fd)


async def writable(fd: int) -> None:
    """Wait until `fd` can be written without blocking. It can once a connection is made or has failed.

    *Cancel safety*: if cancelled, nothing was written, and the loop no longer watches the descriptor.
    """
    await _wait_to("write", fd)


async def _wait_to(act: Literal["read", "write"], fd: int) -> None:
    if running_backend().name == "trio":
        from trio import lowlevel  # noqa: PLC0415 - trio is optional

        await (lowlevel.wait_readable if act == "read" else lowlevel.wait_writable)(fd)
        return
    # anyio delivers a cancellation by a later callback; a ready descriptor would win against it.
    await anyio.lowlevel.checkpoint_if_cancelled()
    loop = asyncio.get_running_loop()
    woken = loop.create_future()

    def wake() -> None:
        if not woken.done():  # the loop calls `wake` repeatedly until the waiting task runs
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
