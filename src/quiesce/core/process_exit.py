"""Makes a server process exit with code 1 if work was lost, instead of the server's own exit code.

Servers do not turn a failed shutdown of the app into an exit code: uvicorn and granian ignore
`lifespan.shutdown.failed`, and only log what an app raises there. So an `atexit` function, registered when this
module is imported, ends the process. Functions registered later have run by then. Functions registered earlier do
not run if work was lost; `logging.shutdown` is called here in their place.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
from contextlib import suppress

__all__: list[str] = []

_EXIT_LOST = 1
_lost = False


def lost() -> None:
    """Make this process exit with 1."""
    global _lost  # noqa: PLW0603 - a process has one exit code
    _lost = True


def is_lost() -> bool:
    """Return whether `lost()` was called: the process will exit with 1."""
    return _lost


@atexit.register
def exit_process() -> None:
    """Exit with 1 if work was lost; else do nothing."""
    if not _lost:
        return
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # the stream may be closed or None
            stream.flush()
    os._exit(_EXIT_LOST)
