"""Which threads run."""

from __future__ import annotations

import concurrent.futures.thread
import linecache
import re
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from quiesce.core.threads import by_thread
from quiesce.testing.leaks.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from quiesce.testing.leaks.births import Birth

_NUMBERED = re.compile(r"Thread-\d+(?: \((?P<target>.*)\))?")
_POOLED = re.compile(r"(?P<pool>ThreadPoolExecutor)-\d+_\d+|(?P<prefix>.*)_\d+")
# Modules whose threads wait for work, and are kept for the next one who has some.
_ANYIO = "anyio._backends._asyncio"
_TRIO = "trio._core._thread_cache"
_POOL = "concurrent.futures.thread"
_POOL_LOOP = concurrent.futures.thread._worker.__code__
_TO_THREAD = "run_in_thread.<locals>.call"
_RETURNED = object()
_PAUSE_SECONDS = 0.001
_PAUSES_MAX = 5_000  # to begin takes a moment, or seconds on a busy machine


def present_threads() -> dict[threading.Thread, threading.Thread]:
    """Return the threads that run, but for those that nobody has to end."""
    return {thread: thread for thread in threading.enumerate() if not _is_kept(thread)}


def _is_kept(thread: threading.Thread) -> bool:
    """Return whether a thread is not its starter's to end."""
    target: Any = getattr(thread, "_target", _RETURNED)
    if isinstance(thread, threading._DummyThread) or target is _RETURNED:
        # It was not started by Python; or its function has returned, and it is all but gone.
        return True
    module = getattr(getattr(target, "__func__", target), "__module__", None)
    if module == "asyncio.unix_events":
        return True  # it waits for a process, and ends with it: the process is what is left
    if type(thread).__module__ == _ANYIO:
        return _is_idle_in_anyio(thread) or _has_done_its_work(thread)
    if module == _POOL:
        return _is_idle_in_pool(thread) or _belongs_to_loop(thread)
    if module == _TRIO:
        return _is_idle_in_trio(thread, target.__self__) or _has_done_its_work(thread)
    return _belongs_to_loop(thread)


def _belongs_to_loop(thread: threading.Thread) -> bool:
    """Return whether a thread is one of the default executor of a loop that is not closed."""
    loop = getattr(thread, "_quiesce_loop", None)
    return loop is not None and not loop.is_closed()


def _is_idle_in_pool(thread: threading.Thread) -> bool:
    """Return whether a thread of a `ThreadPoolExecutor` waits for work.

    Then its own loop is the innermost frame: the queue it waits for is written in C. The pool ends
    its threads when it is shut down or collected, and at the latest when Python exits.
    """
    frame = next(_frames(thread), None)
    return frame is None or frame.f_code is _POOL_LOOP


def _is_idle_in_anyio(thread: threading.Thread) -> bool:
    """Return whether a thread of anyio is outside of the line that calls the user's function.

    What is on its stack does not tell: the function may be one without a frame, or one in which
    the thread waits for work itself.
    """
    for frame in _frames(thread):
        if frame.f_code.co_qualname == "WorkerThread.run":
            line = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
            return "context.run(" not in line
    return True  # it begins, or ends


def _is_idle_in_trio(thread: threading.Thread, worker: Any) -> bool:
    """Return whether a thread of trio's has no work, or only tells of what it has done.

    One that has not begun is let begin: what a scope's caller does not want any more, it does not do.
    """
    for _ in range(_PAUSES_MAX):
        if worker._job is None:
            break
        time.sleep(_PAUSE_SECONDS)
    handles = any(
        # It has a result: the function has returned, and trio tidies up after it.
        frame.f_code.co_name == "_handle_job" and "result" not in frame.f_locals
        for frame in _frames(thread)
    )
    return worker._job is None and not handles


def _has_done_its_work(thread: threading.Thread) -> bool:
    """Return whether a thread of a scope's has nothing to do any more but to tell the scope."""
    names = (frame.f_code.co_qualname for frame in _frames(thread))
    return thread.ident not in by_thread and _TO_THREAD in names


def _frames(thread: threading.Thread) -> Iterator[FrameType]:
    """Return what is on the stack of a thread, the innermost first."""
    frame = sys._current_frames().get(thread.ident or 0)
    while frame is not None:
        yield frame
        frame = frame.f_back


def thread_finding(thread: threading.Thread) -> Finding:
    """Describe a thread that was left."""
    name = thread.name
    if numbered := _NUMBERED.fullmatch(name):
        name = numbered["target"] or type(thread).__name__
    elif pooled := _POOLED.fullmatch(name):
        name = pooled["pool"] or pooled["prefix"]
    birth: Birth | None = getattr(thread, "_quiesce_birth", None)
    details = ["daemon" if thread.daemon else ""]
    frame = sys._current_frames().get(thread.ident or 0)
    if frame is not None:
        details.append(f"is at {frame.f_code.co_filename}:{frame.f_lineno}")
    where = None if birth is None else birth.where
    starter = None if birth is None else birth.thread
    return Finding("thread", name, where, "; ".join(filter(None, details)), thread=starter)
