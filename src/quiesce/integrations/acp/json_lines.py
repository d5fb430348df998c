"""Messages as lines: cut a byte stream into lines, and parse a line."""

from __future__ import annotations

import json
from collections import deque
from typing import TYPE_CHECKING, Any

from quiesce.core.tree import logger

if TYPE_CHECKING:
    import asyncio

__all__: list[str] = []

MESSAGE_BYTES_MAX = 50 * 1024 * 1024  # the SDK's limit for stdin
_CHUNK_BYTES = 1 << 18

Message = dict[str, Any]


def parsed(data: str | bytes) -> Message | None:
    """Return the message in a line or frame; log a warning and return None if there is none."""
    if not data.strip():
        return None
    try:
        message = json.loads(data)
    except (ValueError, RecursionError):
        message = None
    if isinstance(message, dict):
        return message
    logger.warning("the peer has sent a line that is not a message; it is ignored: %.200r", data)
    return None


class StreamLines:
    """The lines of an asyncio stream, with a maximum length."""

    def __init__(self, reader: asyncio.StreamReader, bytes_max: int) -> None:
        """Read a stream that other code opens and closes."""
        self._reader = reader
        self._bytes_max = bytes_max
        self._lines: deque[bytes] = deque()
        self._part = bytearray()  # the part of a line that has not ended

    async def next_line(self) -> bytes | None:
        """Return the next line; None at the end.

        *Cancel safety*: if cancelled, no line is lost.

        *Raises*: `ConnectionError` for a line that is too long; the errors of the stream.
        """
        while not self._lines:
            chunk = await self._reader.read(_CHUNK_BYTES)
            if not chunk:
                last, self._part = bytes(self._part), bytearray()
                return last or None
            self._take(chunk)
        return self._lines.popleft()

    def _take(self, chunk: bytes) -> None:
        head, newline, rest = chunk.partition(b"\n")
        self._part += head
        if len(self._part) > self._bytes_max:
            message = f"it sent a message of more than {self._bytes_max} bytes, the limit"
            raise ConnectionError(message)
        if newline:
            *lines, last = rest.split(b"\n")
            self._lines += [bytes(self._part), *lines]
            self._part = bytearray(last)
