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
from typing import Any

from quiesce.core import callsites, libraries

__all__: list[str] = []

_SOON_SECONDS = 1.0  # for threads to end after the main thread
_LOOK_SECONDS = 0.02  # between two checks: an idle worker of a pool does not end
_POOLS = frozenset({"anyio", "concurrent"})
_watching = False


def watch_exit_threads() -> None:
    """Name the threads that keep this process from exiting, when the main thread has ended. Idempotent."""
    global _watching  # noqa: PLW0603 - a process exits once
    register: Any = getattr(
        threading, "_register_atexit", None
    )  # `atexit` functions run after these threads have ended
    if _watching or register is None:
        return
    with suppress(RuntimeError):  # the interpreter exits already
        register(_at_exit)
        _watching = True


def _at_exit() -> None:
    """Wait a moment for threads that are about to end, then name the others.

    It runs in the main thread: Python 3.12 starts no threads at its exit.
    """
    until = time.monotonic() + _SOON_SECONDS
    while (found := _staying()) and time.monotonic() < until:
        found[0].join(_LOOK_SECONDS)
    told = [_told(one) for one in found]
    if told and sys.stderr is not None:
        text = (
            f"quiesce: the process does not exit, because Python waits for {'; for '.join(told)}. Stop it when "
            "the program shuts down, or start it with daemon=True\n"
        )
        with suppress(
            AttributeError, OSError, ValueError
        ):  # the stream's buffer may be locked at the exit, so write to the file itself
            os.write(sys.stderr.fileno(), text.encode(errors="replace"))


def _staying() -> list[threading.Thread]:
    """Return the threads that Python will wait for, without idle workers of pools."""
    frames = sys._current_frames()
    return [
        one
        for one in threading.enumerate()
        if one is not threading.main_thread()
        and one.is_alive()
        and not one.daemon
        and not _is_idle(one, frames)
    ]


def _is_idle(thread: threading.Thread, frames: dict[int, Any]) -> bool:
    """Return whether a thread is an idle worker of a pool: its pool ends it at the exit."""
    made_by = getattr(getattr(thread, "_target", None), "__module__", type(thread).__module__)
    if libraries.package_of(made_by) not in _POOLS:
        return False
    return libraries.starting_frame(frames.get(thread.ident or 0)) is None


def _told(thread: threading.Thread) -> str:
    """Return the name of a thread, its function, and the line it is at."""
    fn: Any = getattr(thread, "_target", None) or getattr(thread, "function", None) or thread.run
    while hasattr(fn, "func"):
        fn = fn.func
    code = getattr(fn, "__code__", None)
    where = "" if code is None else f", {code.co_filename}:{code.co_firstlineno}"
    name = getattr(fn, "__qualname__", type(fn).__qualname__)
    now = callsites.waiting_on(callsites.thread_chain(thread.ident))
    return f"thread {thread.name!r} ({name}{where})" + (f", which is at {now}" if now else "")
