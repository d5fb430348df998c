"""The pipes of a server process, as the two streams that an MCP session reads and writes.

The session reads the lines itself: there is no task in between. That a message is written whole, and
that what waits is bounded, is for the process to keep: see `quiesce.processes.raw_stdio`.
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
    """A `ReadStream` of the SDK: what a session, or a server, reads messages from."""

    async def receive(self) -> Any:
        """Take the next message.

        *Raises*: `anyio.EndOfStream` at the end.
        """
        raise NotImplementedError

    async def aclose(self) -> None:
        """Close it."""

    def __aiter__(self) -> Self:
        """Return itself."""
        return self

    async def __anext__(self) -> Any:
        """Take the next message, until the end."""
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def __aenter__(self) -> Self:
        """Return itself."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close it."""
        await self.aclose()


class StdioWire(ReadStream):
    """The standard input and output of a server, a message a line; the process closes its pipes."""

    def __init__(
        self, process: Process, encoding: str, errors: str, ended: Callable[[], None]
    ) -> None:
        """Use a process that was started with pipes for both; `ended` is called after the last line."""
        self._process = process
        self._coding = (encoding, errors)
        # UTF-8 is what the parser reads by itself.
        plain = encoding.lower().replace("_", "-") in {"utf-8", "utf8"} and errors == "strict"
        self._must_decode = not plain
        self._ended = ended
        self._closed = False

    @property
    def deaf(self) -> bool:
        """Whether the server takes nothing any more, or its answer could not be read."""
        return self._closed or not self._process.reads

    async def receive(self) -> Any:
        """Take the next message, or what was wrong with it.

        *Cancel safety*: a line is taken in the step that returns it.

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
            logger.error("%r is not listened to any more: %s", self._process, error)
        except anyio.EndOfStream:
            pass
        self._closed = True
        self._ended()
        raise anyio.EndOfStream

    async def send(self, item: Any) -> None:
        """Write a message, and wait while too much is in line.

        *Cancel safety*: the line is in the pipe, or in line for it, before there is any wait.

        *Raises*: `anyio.ClosedResourceError` if the server takes nothing any more.
        """
        self.post(item)
        await self._process.room()

    def post(self, item: Any) -> None:
        """Write a message, or put it in line; in one step.

        *Raises*: as `send`.
        """
        if self._closed:
            raise anyio.ClosedResourceError
        try:
            self._process.post(versions.written(item).encode(*self._coding) + b"\n")
        except (ProcessLost, UsageError) as error:
            raise anyio.ClosedResourceError from error

    async def stop_writing(self) -> None:
        """Write nothing more. Idempotent."""
        self._closed = True


class WireWriting:
    """What the session writes: the SDK's `WriteStream`, by two functions."""

    def __init__(self, send: Callable[[Any], Any], close: Callable[[], Any]) -> None:
        """Wrap an async function that sends, and another that closes."""
        self._send = send
        self._close = close

    async def send(self, item: Any) -> None:
        """Send a message."""
        await self._send(item)

    async def aclose(self) -> None:
        """Close."""
        await self._close()

    async def __aenter__(self) -> Self:
        """Return itself."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close."""
        await self._close()
