"""Messages to a server's operator: by logging, if that is configured, else on standard error.

Servers configure only their own loggers. Then logging drops our INFO records, and an operator who sees no report
cannot tell a clean drain from a killed process. `logging.lastResort` writes our warnings, but without their source.
So the logger `quiesce` has a handler, which writes only if no other handler gets the record. Each line that quiesce
writes begins with `quiesce:`.
"""

from __future__ import annotations

import logging
import sys
from contextlib import suppress

from quiesce.core.harmless_text import harmless

__all__: list[str] = []

LOGGER = "quiesce"
_PREFIX = "quiesce: "


def say(logger: logging.Logger, level: int, text: str, more: str = "") -> None:
    """Write `text` and `more` to the logger if it has a handler; else only `text`, to standard error."""
    if _is_configured(logger):
        logger.log(level, "%s", f"{text}\n{more}" if more else text)
    else:
        write_stderr(text)


def write_stderr(text: str) -> None:
    """Write a text to standard error; each line begins with `quiesce:`."""
    if sys.stderr is not None:  # it is None in programs without a console
        lines = [f"{_PREFIX}{line}".rstrip() for line in _lines(text)]
        with suppress(OSError, ValueError):  # raised if it is closed; the drain goes on
            sys.stderr.write("\n".join([*lines, ""]))
            sys.stderr.flush()


def _lines(text: str) -> list[str]:
    """Return the lines of a text, without control characters that a terminal would obey."""
    return [harmless(line) for line in text.expandtabs().removesuffix("\n").split("\n")]


class LastResort(logging.Handler):
    """Writes warnings and errors of quiesce to standard error, if no other handler gets them."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record that `logging.lastResort` would write."""
        last = logging.lastResort
        if last is None or record.levelno < last.level:
            return
        if not _is_configured(logging.getLogger(record.name)):
            write_stderr(self.format(record))


def _is_configured(logger: logging.Logger) -> bool:
    """Return whether a logger has a handler that is not ours."""
    here: logging.Logger | None = logger
    while here is not None:
        if any(not isinstance(handler, LastResort) for handler in here.handlers):
            return True
        here = here.parent if here.propagate else None
    return False


logging.getLogger(LOGGER).addHandler(LastResort())
