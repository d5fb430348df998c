"""How messages come and go: what an agent is served over, and the streams as one of these ways.

A transport moves whole JSON-RPC messages, as bytes, and knows nothing of what is in them. One task
receives, another sends; each may be cancelled while it waits. `close()` is called once, when
nothing is received or sent any more, by the task that owns the sending.
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

_CLOSE_SECONDS = 1.0  # that an aborted or flushed stream may take to be closed


class AgentTransport(Protocol):
    """A way for messages: a pair of streams, a WebSocket."""

    decoded: ClassVar[bool]
    """Whether it moves decoded messages (`dict`) rather than JSON in bytes."""

    async def receive(self) -> Any | None:
        """Return the next message, or None when the peer sends no more.

        *Cancel safety*: no message is lost.

        *Raises*: `OSError` or `EOFError` if the peer is lost; it counts as the end.
        """

    async def send(self, messages: Sequence[Any]) -> None:
        """Send some messages, in this order; return when the peer's system has them.

        *Cancel safety*: some may have been sent, and one in part; only `close()` may follow.

        *Raises*: any `Exception` if they cannot be sent; then nothing is sent any more.
        """

    async def close(self) -> None:
        """End both directions at once, whatever is still under way. Bounded, and idempotent.

        *Cancel safety*: what has to be done has been done before the first `await`.
        """


class StreamTransport:
    """Newline-delimited messages over a pair of asyncio streams, which it owns."""

    decoded: ClassVar[bool] = False

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        message_bytes_max: int = MESSAGE_BYTES_MAX,
    ) -> None:
        """Own the streams; what is written waits with us, not in the writer's buffer."""
        self._writer = writer
        self.receive: Any = StreamLines(reader, message_bytes_max).next_line
        self._sending = False
        with suppress(AttributeError, NotImplementedError):  # a stand-in for a transport
            writer.transport.set_write_buffer_limits(high=0)

    async def send(self, messages: Sequence[bytes]) -> None:
        """Write lines; see `AgentTransport`."""
        self._sending = True
        self._writer.write(b"\n".join((*messages, b"")))
        await self._writer.drain()
        self._sending = False

    async def close(self) -> None:
        """Close the streams; see `AgentTransport`."""
        with suppress(Exception):  # asyncio's pipes raise if they have ended by themselves
            if self._sending:  # and not done: nobody takes it
                self._writer.transport.abort()
            else:
                self._writer.close()
        with suppress(Exception):  # how it ended is no concern: it has
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self._writer.wait_closed()


class StdioTransport(StreamTransport):
    """The standard input and output of this process, which stay open for others."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        reading: asyncio.ReadTransport,
        *,
        message_bytes_max: int = MESSAGE_BYTES_MAX,
    ) -> None:
        """Own the streams, made of copies of the two files."""
        super().__init__(reader, writer, message_bytes_max=message_bytes_max)
        self._reading = reading

    async def close(self) -> None:
        """Close our copies, and leave the files as they were: they block."""
        self._reading.close()
        try:
            await super().close()
        finally:
            for file in (sys.__stdin__, sys.__stdout__):
                with suppress(OSError, ValueError, AttributeError):
                    os.set_blocking(file.fileno(), True)  # type: ignore[union-attr]  # may be None


class _Pipe(asyncio.streams.FlowControlMixin):
    """What a `StreamWriter` wants to know of a pipe: whether there is room, and its end."""

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
    """Make a transport of the standard input and output.

    *Raises*: `ArgumentError` if one of them is an ordinary file, which no event loop can watch.
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
