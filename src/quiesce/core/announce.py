"""What a server's operator is told of a drain: by logging, if that is configured, else on standard error.

Servers configure their own loggers and no other. An INFO record of ours would be dropped, and an operator
who sees no report could not tell a clean drain from a process that was killed.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import logging

__all__: list[str] = []


def say(logger: logging.Logger, level: int, text: str, more: str = "") -> None:
    """Write something once: to a logger, with `more`, if it has a handler; else to standard error."""
    if logger.hasHandlers():
        logger.log(level, "%s", f"{text}\n{more}" if more else text)
    elif sys.stderr is not None:  # it is None in programs without a console
        sys.stderr.write(f"quiesce: {text}\n")
        sys.stderr.flush()
