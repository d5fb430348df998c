"""The transports over which an agent is served: a pair of streams, or standard input and output.

A transport carries whole JSON-RPC messages as bytes and does not look into them. One task receives,
another sends; each may be cancelled while it waits. The sending task calls `close()` once, when no
message is received or sent any more.
"""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from quiesce.errors import ArgumentError
from quiesce.integrations.acp.json_lines import MESSAGE_BYTES_MAX, StreamLines

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__: list[str] = []

_CLOSE_SECONDS = 1.0  # how long the close of an aborted or flushed stream may take


class AgentTransport(Protocol):
    """The interface of a transport: a pair of streams, or a WebSocket."""

    decoded: ClassVar[bool]
    """Whether the transport carries decoded messages (`dict`) rather than JSON in bytes."""

    async def receive(self) -> Any | None:
        """Return the next message, or None when the peer sends no more.

        *Cancel safety*: if cancelled, no message is lost.

        *Raises*: `OSError` or `EOFError` if the peer is lost; this counts as the end.
        """

    async def send(self, messages: Sequence[Any]) -> None:
        """Send messages in this order; return when the peer's system has them.

        *Cancel safety*: if cancelled, some may have been sent, and one in part; only `close()` may follow.

        *Raises*: any `Exception` if they cannot be sent; after that, no messages are sent any more.
        """

    async def close(self) -> None:
        """End both directions at once, even if messages are under way. Has a time limit. Idempotent.

        *Cancel safety*: if cancelled, the transport is closed nevertheless: all necessary steps come
        before the first `await`.
        """


class StreamTransport:
    """Newline-delimited messages over a pair of asyncio streams; the transport owns the streams."""

    decoded: ClassVar[bool] = False

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        message_bytes_max: int = MESSAGE_BYTES_MAX,
    ) -> None:
        """Own the streams; unsent messages wait in the outbox, not in the writer's buffer."""
        self._writer = writer
        self.receive: Any = StreamLines(reader, message_bytes_max).next_line
        self._sending = False
        with suppress(AttributeError, NotImplementedError):  # the writer's transport is a stand-in
            writer.transport.set_write_buffer_limits(high=0)

    async def send(self, messages: Sequence[bytes]) -> None:
        self._sending = True
        self._writer.write(b"\n".join((*messages, b"")))
        await self._writer.drain()
        self._sending = False

    async def close(self) -> None:
        with suppress(Exception):  # asyncio's pipes raise if they have already ended
            if self._sending:  # a send was cancelled: the peer does not read
                self._writer.transport.abort()
            else:
                self._writer.close()
        with suppress(Exception):  # the stream has ended; the error does not matter
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self._writer.wait_closed()


class StdioTransport(StreamTransport):
    """The standard input and output of this process; the files stay open for other code."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        reading: asyncio.ReadTransport,
        *,
        message_bytes_max: int = MESSAGE_BYTES_MAX,
    ) -> None:
        """Own the streams, which use copies of the two files."""
        super().__init__(reader, writer, message_bytes_max=message_bytes_max)
        self._reading = reading

    async def close(self) -> None:
        """Close the copies, and make the original files blocking again."""
        self._reading.close()
        try:
            await super().close()
        finally:
            for file in (sys.__stdin__, sys.__stdout__):
                with suppress(OSError, ValueError, AttributeError):
                    os.set_blocking(file.fileno(), True)  # type: ignore[union-attr]  # may be None


class _Pipe(asyncio.streams.FlowControlMixin):
    """The protocol that a `StreamWriter` needs for a pipe: it reports free room, and the end."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop=loop)
        self._closed: asyncio.Future[None] = loop.create_future()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if not self._closed.done():
            self._closed.set_result(None)

    def _get_close_waiter(self, stream: object) -> asyncio.Future[None]:  # noqa: ARG002 - a hook
        return self._closed


async def stdio_transport(*, message_bytes_max: int = MESSAGE_BYTES_MAX) -> StdioTransport:
    """Return a transport over the standard input and output.

    *Raises*: `ArgumentError` if one of them is an ordinary file, which an event loop cannot watch.
    """
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(loop=loop)
    source = os.fdopen(os.dup(sys.stdin.fileno()), "rb", buffering=0)
    target = os.fdopen(os.dup(sys.stdout.fileno()), "wb", buffering=0)
    reading: asyncio.ReadTransport | None = None
    try:
        reading, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader, loop=loop), source
        )
        writing, protocol = await loop.connect_write_pipe(lambda: _Pipe(loop), target)
    except BaseException as error:
        target.close()
        source.close() if reading is None else reading.close()
        if isinstance(error, ValueError):
            message = "standard input and output must be pipes, sockets or terminals, not files"
            raise ArgumentError(message) from error
        raise
    writer = asyncio.StreamWriter(writing, protocol, None, loop)
    return StdioTransport(reader, writer, reading, message_bytes_max=message_bytes_max)
