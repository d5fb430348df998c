"""What carries a client's messages: two byte streams, or a transport of somebody else's."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from typing import TYPE_CHECKING, Any, Protocol

from quiesce.core.node import logger

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

__all__: list[str] = []

_CHUNK_BYTES = 1 << 18

Message = dict[str, Any]


class Peer(Protocol):
    """What carries messages to an agent and back."""

    async def send(self, message: Message) -> None:
        """Send a message whole, or raise."""

    async def receive(self) -> Message | None:
        """Wait for a message; None at the end."""

    async def close(self) -> None:
        """Let go of it."""


class StreamPeer:
    """An agent at the other end of two byte streams, a message a line."""

    def __init__(
        self,
        writer: asyncio.StreamWriter,
        reader: asyncio.StreamReader,
        *,
        receive_timeout: float | None,
        message_bytes_max: int,
        at_end: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        """Use streams that somebody else opens and closes.

        Args:
            writer: to the agent.
            reader: from the agent.
            receive_timeout: how many seconds the agent may be silent; None: for ever.
            message_bytes_max: the longest message that is taken.
            at_end: is awaited at the end of the stream, before anybody is told of it.
        """
        self._at_end = at_end
        self._writer = writer
        self._reader = reader
        self._receive_timeout = receive_timeout
        self._message_bytes_max = message_bytes_max
        self._lines: deque[bytes] = deque()
        self._part = bytearray()  # of a line that has not ended
        self.line: bytes = b""
        """The last message that was received, as it came."""

    @property
    def has_room(self) -> bool:
        """Whether the agent has read all that was written before."""
        try:
            return not self._writer.transport.get_write_buffer_size()
        except (AttributeError, NotImplementedError):  # a stand-in for a transport
            return False

    async def room(self) -> None:
        """Wait until the agent has read most of what was written before."""
        await self._writer.drain()

    async def send(self, message: Message) -> None:
        """Write a message; see `write`."""
        self.write(message)

    def write(self, message: Message) -> None:
        """Write the message in one step, without waiting for room; then see whether it went out."""
        self._writer.write(json.dumps(message, separators=(",", ":")).encode() + b"\n")
        if self._writer.transport.is_closing():
            error = "it does not read its input any more"
            raise ConnectionResetError(error)

    async def receive(self) -> Message | None:
        """Wait for the next line that is a message."""
        while True:
            while self._lines:
                self.line = self._lines.popleft()
                message = _parsed(self.line)
                if message is not None:
                    return message
            if not await self._read():
                if self._at_end is not None:
                    await self._at_end()
                return None

    async def _read(self) -> bool:
        """Read some lines; False at the end."""
        if self._receive_timeout is None:
            data = await self._reader.read(_CHUNK_BYTES)
        else:
            async with asyncio.timeout(self._receive_timeout):
                data = await self._reader.read(_CHUNK_BYTES)
        if not data:
            last, self._part = bytes(self._part), bytearray()
            self._lines.append(last)
            return bool(last)
        head, newline, rest = data.partition(b"\n")
        self._part += head
        if len(self._part) > self._message_bytes_max:
            message = f"it has sent a message of more than {self._message_bytes_max} bytes"
            raise ValueError(message)
        if newline:
            *lines, last = rest.split(b"\n")
            self._lines += [bytes(self._part), *lines]
            self._part = bytearray(last)
        return True

    async def close(self) -> None:
        """Do nothing: whoever has opened the streams closes them."""


def _parsed(line: bytes) -> Message | None:
    if not line.strip():
        return None
    try:
        message = json.loads(line)
    except ValueError:
        logger.warning("an agent has sent what is no JSON, which is ignored: %.200r", line)
        return None
    if not isinstance(message, dict):
        logger.warning("an agent has sent what is no message, which is ignored: %.200r", line)
        return None
    return message
