"""Waiting until a file descriptor can be read or written, on every backend."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import anyio.lowlevel

from quiesce.core.backends import running_backend

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["readable", "writable"]


async def readable(fd: int) -> None:
    """Wait until something can be read, or the other end is closed.

    *Cancel safety*: nothing is read, and nobody listens to the descriptor any more.
    """
    if running_backend().name == "trio":
        import trio  # noqa: PLC0415 - trio is optional

        await trio.lowlevel.wait_readable(fd)
        return
    # A cancel scope's cancellation comes by a callback: a descriptor that is ready would be first.
    await anyio.lowlevel.checkpoint_if_cancelled()
    loop = asyncio.get_running_loop()
    woken = loop.create_future()
    loop.add_reader(fd, _waker(woken))
    try:
        await woken
    finally:
        loop.remove_reader(fd)


async def writable(fd: int) -> None:
    """Wait until something can be written, or a connection was made, or could not be made.

    *Cancel safety*: nothing is written, and nobody listens to the descriptor any more.
    """
    if running_backend().name == "trio":
        import trio  # noqa: PLC0415 - trio is optional

        await trio.lowlevel.wait_writable(fd)
        return
    await anyio.lowlevel.checkpoint_if_cancelled()
    loop = asyncio.get_running_loop()
    woken = loop.create_future()
    loop.add_writer(fd, _waker(woken))
    try:
        await woken
    finally:
        loop.remove_writer(fd)


def _waker(woken: asyncio.Future[None]) -> Callable[[], None]:
    def wake() -> None:
        if not woken.done():  # the loop calls again for as long as the waiter has not run
            woken.set_result(None)

    return wake
