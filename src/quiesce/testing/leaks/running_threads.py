"""Find running threads that no library keeps for later work."""

from __future__ import annotations

import concurrent.futures.thread
import linecache
import re
import threading
import time
from typing import TYPE_CHECKING, Any

from quiesce.core.python_private import is_unknown_thread, pool_loop, thread_frames
from quiesce.core.threads import by_thread
from quiesce.testing.leaks.findings import Finding
from quiesce.testing.trio_private import is_worker_free

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from quiesce.testing.leaks.births import Birth

_NUMBERED = re.compile(r"Thread-\d+(?: \((?P<target>.*)\))?")
_POOLED = re.compile(r"(?P<pool>ThreadPoolExecutor)-\d+_\d+|(?P<prefix>.*)_\d+")
# Modules whose threads wait for work, and stay for the next work.
_ANYIO = "anyio._backends._asyncio"
_TRIO = "trio._core._thread_cache"
_POOL = "concurrent.futures.thread"
_POOL_LOOP = pool_loop(concurrent.futures.thread)
_TO_THREAD = "run_in_thread.<locals>.call"
_RETURNED = object()
_PAUSE_SECONDS = 0.001
_PAUSES_MAX = 5_000  # a thread takes a moment to begin, or seconds on a busy machine


def present_threads() -> dict[threading.Thread, threading.Thread]:
    """Return the running threads, except those that no code has to end."""
    return {thread: thread for thread in threading.enumerate() if not _is_kept(thread)}


def _is_kept(thread: threading.Thread) -> bool:
    """Return whether the code that started a thread does not have to end it."""
    target: Any = getattr(thread, "_target", _RETURNED)
    if is_unknown_thread(thread) or target is _RETURNED:
        # Python did not start the thread, or the thread's function has returned and it is all but gone.
        return True
    module = getattr(getattr(target, "__func__", target), "__module__", None)
    if module == "asyncio.unix_events":
        return True  # it waits for a process and ends with it; the process itself is reported
    if type(thread).__module__ == _ANYIO:
        return _is_idle_in_anyio(thread) or _has_done_its_work(thread)
    if module == _POOL:
        return _is_idle_in_pool(thread) or _belongs_to_loop(thread)
    if module == _TRIO:
        return _is_idle_in_trio(thread, target.__self__) or _has_done_its_work(thread)
    return _belongs_to_loop(thread)


def _belongs_to_loop(thread: threading.Thread) -> bool:
    """Return whether a thread belongs to the default executor of a loop that is not closed."""
    loop = getattr(thread, "_quiesce_loop", None)
    return loop is not None and not loop.is_closed()


def _is_idle_in_pool(thread: threading.Thread) -> bool:
    """Return whether a thread of a `ThreadPoolExecutor` waits for work.

    Its own loop is then the innermost frame, because the queue that it waits for is written in C. The
    pool ends its threads when it is shut down or collected, and at the latest when Python exits.
    """
    frame = next(_frames(thread), None)
    return frame is None or frame.f_code is _POOL_LOOP


def _is_idle_in_anyio(thread: threading.Thread) -> bool:
    """Return whether a thread of anyio is not in the line that calls the user's function.

    The rest of the stack is not enough: the function may have no frame, or may be the one in which
    the thread waits for work.
    """
    for frame in _frames(thread):
        if frame.f_code.co_qualname == "WorkerThread.run":
            line = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
            return "context.run(" not in line
    return True  # the thread begins or ends


def _is_idle_in_trio(thread: threading.Thread, worker: Any) -> bool:
    """Return whether a thread of trio has no work, or only reports the result of its work.

    A thread that has not begun gets time to begin: a call that its scope no longer wants is skipped.
    """
    for _ in range(_PAUSES_MAX):
        if is_worker_free(worker):
            break
        time.sleep(_PAUSE_SECONDS)
    handles = any(
        # With a result, the function has returned and trio is cleaning up.
        frame.f_code.co_name == "_handle_job" and "result" not in frame.f_locals
        for frame in _frames(thread)
    )
    return is_worker_free(worker) and not handles


def _has_done_its_work(thread: threading.Thread) -> bool:
    """Return whether a scope's thread only has to notify the scope of its end."""
    names = (frame.f_code.co_qualname for frame in _frames(thread))
    return thread.ident not in by_thread and _TO_THREAD in names


def _frames(thread: threading.Thread) -> Iterator[FrameType]:
    """Return the frames of a thread's stack, innermost first."""
    frame = thread_frames().get(thread.ident or 0)
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
    birth: Birth | None = getattr(thread, "quiesce_birth", None)
    details = ["daemon" if thread.daemon else ""]
    frame = thread_frames().get(thread.ident or 0)
    if frame is not None:
        details.append(f"is at {frame.f_code.co_filename}:{frame.f_lineno}")
    where = None if birth is None else birth.where
    starter = None if birth is None else birth.thread
    return Finding("thread", name, where, "; ".join(filter(None, details)), thread=starter)
