"""Messages to a server's operator about a drain: by logging, if that is configured, else on standard error.

Servers configure their own loggers only. An INFO record of ours would be dropped, and an operator who sees no
report cannot tell a clean drain from a killed process.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import logging

__all__: list[str] = []


def say(logger: logging.Logger, level: int, text: str, more: str = "") -> None:
    """Write `text` and `more` to the logger if it has a handler; else only `text`, to standard error."""
    if logger.hasHandlers():
        logger.log(level, "%s", f"{text}\n{more}" if more else text)
    elif sys.stderr is not None:  # it is None in programs without a console
        sys.stderr.write(f"quiesce: {text}\n")
        sys.stderr.flush()
