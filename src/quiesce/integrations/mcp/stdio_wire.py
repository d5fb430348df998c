"""The pipes of a server process, as the two streams that an MCP session reads and writes.

The session reads the lines itself, without a task in between. `quiesce.processes.raw_stdio` makes sure
that each message is written whole, and that the unread data is bounded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import anyio

from quiesce.core.tree import logger
from quiesce.errors import LineTooLong, ProcessLost, UsageError
from quiesce.integrations.mcp import versions

if TYPE_CHECKING:
    from collections.abc import Callable

    from quiesce.processes.process import Process

__all__: list[str] = []

MESSAGE_BYTES_MAX = 64 * 1024 * 1024


class ReadStream:
    """A `ReadStream` as the SDK has it: a session or a server reads messages from it."""

    async def receive(self) -> Any:
        """Take the next message.

        *Raises*: `anyio.EndOfStream` at the end.
        """
        raise NotImplementedError

    async def aclose(self) -> None:
        """Do nothing; a subclass may close a stream."""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class StdioWire(ReadStream):
    """The standard input and output of a server, one message in each line. The process closes its own pipes."""

    def __init__(
        self, process: Process, encoding: str, errors: str, ended: Callable[[], None]
    ) -> None:
        """Use a process that was started with both pipes; `ended` is called after the last line."""
        self._process = process
        self._coding = (encoding, errors)
        # The parser itself reads UTF-8.
        plain = encoding.lower().replace("_", "-") in {"utf-8", "utf8"} and errors == "strict"
        self._must_decode = not plain
        self._ended = ended
        self._closed = False

    @property
    def deaf(self) -> bool:
        """Whether the server has stopped reading, or its output could not be read."""
        return self._closed or not self._process.reads

    async def receive(self) -> Any:
        """Return the next message, or the error for a line that is not a message.

        *Cancel safety*: if cancelled, no line was taken.

        *Raises*: `anyio.EndOfStream` at the end.
        """
        try:
            line = await self._process.raw.line(MESSAGE_BYTES_MAX)
            return versions.parsed_message(
                line.decode(*self._coding) if self._must_decode else line
            )
        except UnicodeDecodeError as error:
            return error
        except LineTooLong as error:
            logger.error("stopped reading the output of %r: %s", self._process, error)
        except anyio.EndOfStream:
            pass
        self._closed = True
        self._ended()
        raise anyio.EndOfStream

    async def send(self, item: Any) -> None:
        """Write a message, and wait while too much data is queued.

        *Cancel safety*: if cancelled, the message is written nevertheless.

        *Raises*: `anyio.ClosedResourceError` if the server has stopped reading.
        """
        self.post(item)
        await self._process.room()

    def post(self, item: Any) -> None:
        """Write a message or queue it, without waiting.

        *Raises*: the errors of `send`.
        """
        if self._closed:
            raise anyio.ClosedResourceError
        try:
            self._process.post(versions.written(item).encode(*self._coding) + b"\n")
        except (ProcessLost, UsageError) as error:
            raise anyio.ClosedResourceError from error

    async def stop_writing(self) -> None:
        """Refuse to write from now on. Idempotent."""
        self._closed = True


class WireWriting:
    """A `WriteStream` as the SDK has it, made of two functions: one that sends, and one that closes."""

    def __init__(self, send: Callable[[Any], Any], close: Callable[[], Any]) -> None:
        self._send = send
        self._close = close

    async def send(self, item: Any) -> None:
        await self._send(item)

    async def aclose(self) -> None:
        await self._close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._close()
