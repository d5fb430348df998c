"""Names the threads that keep a process from exiting after a drain.

The interpreter waits for every thread that is not a daemon, without a message and without a limit. A clean drain would
then look like one that hangs. So these threads are named once the main thread has ended.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from quiesce.core import callsites, libraries
from quiesce.core.python_private import thread_frames

if TYPE_CHECKING:
    from types import CodeType

__all__: list[str] = []

_SOON_SECONDS = 1.0  # for threads to end after the main thread
_LOOK_SECONDS = 0.02  # between two checks: an idle worker of a pool does not end
_POOLS = frozenset({"anyio", "concurrent"})
_watching = False


def watch_exit_threads() -> None:
    """Arrange that the threads which keep this process from exiting are named when the main thread ends. Idempotent."""
    global _watching  # noqa: PLW0603 - a process exits once
    # `atexit` functions run after these threads have ended.
    register: Any = getattr(threading, "_register_atexit", None)
    if _watching or register is None:
        return
    with suppress(RuntimeError):  # the interpreter exits already
        register(_at_exit)
        _watching = True


def _at_exit() -> None:
    """Wait a moment for threads that are about to end, then name the others.

    This runs in the main thread, because Python 3.12 does not start threads while it exits.
    """
    until = time.monotonic() + _SOON_SECONDS
    while (found := _staying()) and time.monotonic() < until:
        found[0].join(_LOOK_SECONDS)
    names = [_described(one) for one in found]
    if names and sys.stderr is not None:
        text = (
            f"quiesce: the process does not exit, because Python waits for {'; for '.join(names)}. "
            f"{_advice(found)}\n"
        )
        # Write to the file descriptor, because the stream's buffer may be locked at the exit.
        with suppress(AttributeError, OSError, ValueError):
            os.write(sys.stderr.fileno(), text.encode(errors="replace"))


def _staying() -> list[threading.Thread]:
    """Return the threads for which Python waits at its exit, without idle workers of pools."""
    frames = thread_frames()
    return [
        one
        for one in threading.enumerate()
        if one is not threading.main_thread()
        and one.is_alive()
        and not one.daemon
        and not _is_idle(one, frames)
    ]


def _is_idle(thread: threading.Thread, frames: dict[int, Any]) -> bool:
    """Return whether a thread is an idle worker of a pool. The pool ends its idle workers at the exit."""
    if _made_by(thread) not in _POOLS:
        return False
    return libraries.starting_frame(frames.get(thread.ident or 0)) is None


def _made_by(thread: threading.Thread) -> str:
    """Return the package that has made a thread; for a `threading.Thread`, that of its function."""
    module = getattr(getattr(thread, "_target", None), "__module__", type(thread).__module__)
    return libraries.package_of(module)


def _advice(found: list[threading.Thread]) -> str:
    """Return advice about threads that do not end. Plain `daemon=True` would be wrong: the exit would cut their work."""
    makers = set(map(_made_by, found))
    text = f"Have {'this function' if len(found) == 1 else 'these functions'} end when the program shuts down"
    if "concurrent" in makers:
        text += ". A pool drops calls that it has not begun by `pool.shutdown(cancel_futures=True)`"
    if makers - _POOLS:
        text += ". Start a thread with daemon=True only if what it does is not work: the exit cuts such a thread"
    return text


def _described(thread: threading.Thread) -> str:
    """Describe a thread: its name, its function (of a pool's worker: the function given to the pool), and its current line."""
    fn: Any = getattr(thread, "_target", None) or getattr(thread, "function", None) or thread.run
    while isinstance(fn, partial):
        fn = fn.func
    given = _given(thread) if _made_by(thread) in _POOLS else None
    code = given or getattr(fn, "__code__", None)
    where = "" if code is None else f", {code.co_filename}:{code.co_firstlineno}"
    name = given.co_qualname if given else getattr(fn, "__qualname__", type(fn).__qualname__)
    now = callsites.waiting_on(callsites.thread_chain(thread.ident))
    return f"thread {thread.name!r} ({name}{where})" + (f", which is at {now}" if now else "")


def _given(thread: threading.Thread) -> CodeType | None:
    """Return the code that a worker of a pool runs: its outermost frame outside of event loops and threads."""
    frame = thread_frames().get(thread.ident or 0)
    found: CodeType | None = None
    while frame is not None:
        if libraries.package_of(frame.f_globals.get("__name__")) not in libraries.PLUMBING:
            found = frame.f_code
        frame = frame.f_back
    return found
