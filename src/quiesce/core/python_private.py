"""The private names of the standard library that quiesce needs, each with the reason.

Only this module reads these names, so a new version of Python can be checked against this list:

- `get_frame` (`sys._getframe`): returns the calling frame. `inspect.stack()` would read the files of all callers.
- `thread_frames` (`sys._current_frames`): returns the frames of other threads.
- `running_loop` (`asyncio._get_running_loop`): returns None if no loop runs, without the cost of an exception.
- `exception_of` (`_exception` of futures): reads a failure. `exception()` would count as a reader of the failure,
  and asyncio would then not log it.
- `is_unread` (`_log_traceback` of futures): tells whether code has read the failure.
- `drop_silently` (`_log_destroy_pending` of tasks): stops asyncio's warning about tasks that a sweep leaves behind.
- `callback_of`, `context_of`, `is_cancelled_handle` (of the handles in a loop's queue): tell what the loop calls next.
- `mark_coroutine_function` (`asyncio.coroutines._is_coroutine`): the only such mark until Python 3.11.
- `wait_code` (`asyncio.tasks._wait`): the code in which `asyncio.wait` waits.
- `lock_of` (`_condition` of futures of threads): lets a caller test such a future and react in one atomic step.
- `request_head`, `tunnel_of` (of `http.client`): the head of a request just before the connection sends it.
- `is_unknown_thread` (`threading._DummyThread`): tells whether Python did not start a thread.
- `parent_pid` (`_parent_pid` of processes of `multiprocessing`): tells whether this process has started the child. A
  forked process lists the children of its parent as its own.
- `pool_loop` (`concurrent.futures.thread._worker`): the code that a pool's thread runs while it waits for work.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from operator import attrgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from contextvars import Context
    from types import CodeType, FrameType

__all__ = [
    "callback_of",
    "context_of",
    "drop_silently",
    "exception_of",
    "get_frame",
    "is_cancelled_handle",
    "is_unknown_thread",
    "is_unread",
    "lock_of",
    "mark_coroutine_function",
    "parent_pid",
    "pool_loop",
    "request_head",
    "running_loop",
    "thread_frames",
    "tunnel_of",
    "wait_code",
]

# These are functions written in C, without a wrapper: most are called for every task.
get_frame: Callable[..., FrameType] = sys._getframe
thread_frames: Callable[[], dict[int, FrameType]] = sys._current_frames
running_loop: Callable[[], asyncio.AbstractEventLoop | None] = asyncio._get_running_loop
exception_of: Callable[[Any], BaseException | None] = attrgetter("_exception")
is_unread: Callable[[Any], bool] = attrgetter("_log_traceback")
callback_of: Callable[[Any], Any] = attrgetter("_callback")
context_of: Callable[[Any], Context] = attrgetter("_context")
is_cancelled_handle: Callable[[Any], bool] = attrgetter("_cancelled")
lock_of: Callable[[Any], AbstractContextManager[Any]] = attrgetter("_condition")
parent_pid: Callable[[Any], int] = attrgetter("_parent_pid")


def drop_silently(task: Any) -> None:
    """Stop asyncio's warning if this task is collected before it has ended."""
    task._log_destroy_pending = False


def mark_coroutine_function(function: Any) -> None:
    """Mark a function for `asyncio.iscoroutinefunction`, on versions where `inspect` has no such mark."""
    function._is_coroutine = asyncio.coroutines._is_coroutine  # type: ignore[attr-defined]  # not in the stubs


def wait_code() -> CodeType:
    """Return the code in which a caller of `asyncio.wait` waits."""
    code: CodeType = asyncio.tasks._wait.__code__  # type: ignore[attr-defined]  # not in the stubs
    return code


def request_head(connection: Any) -> list[bytes]:
    """Return the lines of a request's head that a connection of `http.client` has not sent yet."""
    lines: list[bytes] = connection._buffer
    return lines


def tunnel_of(connection: Any) -> tuple[str, int] | None:
    """Return the host and port behind the proxy of an `http.client` connection; None without a proxy tunnel."""
    host: str | None = connection._tunnel_host
    return (host, connection._tunnel_port) if host else None


def is_unknown_thread(thread: threading.Thread) -> bool:
    """Return whether Python did not start this thread, but found it running."""
    return isinstance(thread, threading._DummyThread)


def pool_loop(thread_module: Any) -> CodeType:
    """Return the code that a thread of `concurrent.futures.thread` runs."""
    code: CodeType = thread_module._worker.__code__
    return code
