"""Ways to have a function of a library call something for a handler."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from anyio import from_thread, to_thread


async def soon(fn: Any, *args: Any) -> None:
    """Let the loop call it in its next turn."""
    asyncio.get_running_loop().call_soon(fn, *args)


async def later(fn: Any, *args: Any) -> None:
    """Let a timer of the loop call it."""
    asyncio.get_running_loop().call_later(0.001, fn, *args)


async def soon_from_a_thread(fn: Any, *args: Any) -> None:
    """Let the loop call it, as a thread asks for."""
    await asyncio.to_thread(asyncio.get_running_loop().call_soon_threadsafe, fn, *args)


async def of_anyio_from_a_thread(fn: Any, *args: Any) -> None:
    """Let anyio call it in the loop, as a thread asks for."""
    await to_thread.run_sync(from_thread.run_sync, fn, *args)


async def on_done(fn: Any, *args: Any) -> None:
    """Let a future call it, which gives itself as the last argument."""
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    future.set_result(None)
    future.add_done_callback(partial(fn, *args))


async def exit_stack(fn: Any, *args: Any) -> None:
    """Let the end of an `ExitStack` call it."""
    with contextlib.ExitStack() as stack:
        stack.callback(fn, *args)


async def in_thread(fn: Any, *args: Any) -> None:
    """Let a thread call it."""
    await asyncio.to_thread(fn, *args)


async def in_thread_of_anyio(fn: Any, *args: Any) -> None:
    """Let a thread of anyio call it."""
    await to_thread.run_sync(fn, *args)


async def submit(fn: Any, *args: Any) -> None:
    """Let a thread of a pool call it."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(fn, *args)


async def by_map(fn: Any, *args: Any) -> None:
    """Let a pool call it with each of some arguments."""
    with ThreadPoolExecutor(1) as pool:
        pool.map(fn, args)


async def timer(fn: Any, *args: Any) -> None:
    """Let a timer in a thread of its own call it."""
    threading.Timer(0.001, fn, args).start()


IN_LOOP = [soon, later, soon_from_a_thread, of_anyio_from_a_thread, exit_stack]
IN_THREADS = [in_thread, in_thread_of_anyio, submit, timer]
