"""The exit code: 1 if work was lost, whatever the server's own would be.

No server hands an app's verdict on to the process: uvicorn and granian do nothing with
`lifespan.shutdown.failed`, and what an app raises there is only logged. So the last word is said when
the interpreter ends, by a function that is registered when this module is imported. What was registered
later has run by then; what was registered before (`logging` is made up for) is left out if work was lost.
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
    """Return whether this process is to exit with 1."""
    return _lost


@atexit.register
def exit_process() -> None:
    """Exit with 1 if work was lost; else let the interpreter end as it would."""
    if not _lost:
        return
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # closed, or not there at all
            stream.flush()
    os._exit(_EXIT_LOST)
