"""Makes a server process exit with code 1 if work was lost, instead of the server's own exit code.

Servers do not turn a failed shutdown of the app into an exit code: uvicorn and granian ignore
`lifespan.shutdown.failed`, and only log what an app raises there. So an `atexit` function, registered when this
module is imported, ends the process. Functions registered later have run by then. Functions registered earlier do
not run if work was lost; `logging.shutdown` is called here in their place, and daemons of `multiprocessing` are ended.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import time
from contextlib import suppress
from typing import Any

from quiesce.core.python_private import parent_pid

__all__: list[str] = []

_EXIT_LOST = 1
_CHILD_SECONDS = 1.0  # for child processes to end when they are terminated
_LOOK_SECONDS = 0.01  # between two looks at whether they have
_CHANGED = (AttributeError, OSError, ValueError)  # another thread joins or closes a child meanwhile
_lost = False


def lost() -> None:
    """Make this process exit with 1."""
    global _lost  # noqa: PLW0603 - a process has one exit code
    _lost = True


def is_lost() -> bool:
    """Return whether `lost()` was called: the process will exit with 1."""
    return _lost


def child_processes() -> list[Any]:
    """Return the children of `multiprocessing` that this process has started, such as the workers of a process pool.

    Python ends or joins them at its own exit. Left alone, they would hold the port at which the server listens.
    """
    module: Any = sys.modules.get("multiprocessing")
    own = os.getpid()  # a forked process lists the children of its parent, too
    with suppress(*_CHANGED):
        started = () if module is None else module.active_children()
        return [one for one in started if parent_pid(one) == own]
    return []


def end_processes(children: list[Any]) -> None:
    """Terminate children; kill those that have not ended after a moment."""
    for stop in ("terminate", "kill"):
        for one in children:
            with suppress(*_CHANGED):
                getattr(one, stop)()
        until = time.monotonic() + _CHILD_SECONDS
        with suppress(*_CHANGED):
            while any(one.is_alive() for one in children) and time.monotonic() < until:
                time.sleep(_LOOK_SECONDS)


@atexit.register
def exit_process() -> None:
    """Exit with 1 if work was lost; else do nothing."""
    if not _lost:
        return
    end_processes([one for one in child_processes() if one.daemon])
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # the stream may be closed or None
            stream.flush()
    os._exit(_EXIT_LOST)
