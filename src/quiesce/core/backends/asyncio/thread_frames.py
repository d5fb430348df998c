"""The frames that a task waits in, and those of the thread that it waits for (asyncio)."""

from __future__ import annotations

import concurrent.futures
import queue
from concurrent.futures import Future as ThreadFuture
from itertools import dropwhile
from typing import TYPE_CHECKING, Any

from quiesce.core import callsites
from quiesce.core.backends.asyncio.swallowing import OF_ANYIO, OF_EXECUTOR, coro_of
from quiesce.core.python_private import thread_frames

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

_EXECUTORS = concurrent.futures.__file__.replace("__init__", "thread")


def chain_of(task: object) -> list[callsites.Frame]:
    """Return the frames of a task, outermost first, and then those of the function in the thread that it waits for."""
    coro = coro_of(task)
    chain = callsites.await_chain(coro)
    ident = _awaited_thread(task, callsites.innermost(coro))
    return chain if ident is None else [*chain, *_function_frames(ident)]


def _function_frames(ident: int) -> Iterator[callsites.Frame]:
    """Yield the frames of a thread from the function on that it was given.

    There are none if it has not begun: a worker then waits in a queue.
    """
    return dropwhile(
        lambda frame: frame.file == queue.__file__ or callsites.is_plumbing_file(frame.file),
        callsites.thread_chain(ident),
    )


def _awaited_thread(task: Any, frame: FrameType | None) -> int | None:
    """Return the thread that a task waits for in its innermost frame, if that can be known."""
    awaited = getattr(task, "_fut_waiter", None)
    if awaited is None or frame is None or awaited.done():
        return None
    if frame.f_code.co_name == OF_ANYIO:
        ident: int | None = getattr(frame.f_locals.get("worker"), "ident", None)
        return ident
    for callback, _ in getattr(awaited, "_callbacks", None) or ():
        if getattr(callback, "__qualname__", "") == OF_EXECUTOR:
            for cell in callback.__closure__:
                if isinstance(cell.cell_contents, ThreadFuture):
                    return _thread_of(cell.cell_contents)
    return None


def _thread_of(call: ThreadFuture[Any]) -> int | None:
    """Return the thread of an executor that runs a call."""
    for ident, innermost in thread_frames().items():
        frame: FrameType | None = innermost
        while frame is not None:
            is_worker = frame.f_code.co_filename == _EXECUTORS
            if is_worker and getattr(frame.f_locals.get("self"), "future", None) is call:
                return ident
            frame = frame.f_back
    return None
