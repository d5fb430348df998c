"""The peers that carry a client's messages: byte streams, a process's pipes, or another transport."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, Protocol

import anyio

from quiesce.errors import LineTooLong, ProcessLost, UsageError
from quiesce.integrations.acp.json_lines import StreamLines, parsed

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from quiesce.integrations.acp.json_lines import Message
    from quiesce.processes.process import Process

__all__: list[str] = []


class ClientPeer(Protocol):
    """An object that carries messages to an agent and back."""

    async def send(self, message: Message) -> None:
        """Send a message completely, or raise an error."""

    async def receive(self) -> Message | None:
        """Wait for a message; return None at the end."""

    async def close(self) -> None:
        """Release the stream."""


class LinePeer:
    """An agent that exchanges messages as lines: one message in each line."""

    def __init__(self, *, receive_timeout: float | None, message_bytes_max: int) -> None:
        """Set the limits.

        Args:
            receive_timeout: how many seconds the agent may be silent; None: without a limit.
            message_bytes_max: the longest message that is accepted.
        """
        self._receive_timeout = receive_timeout
        self._message_bytes_max = message_bytes_max
        self.line: bytes = b""
        """The last received message, as bytes."""

    # The methods that differ between subclasses.

    @property
    def has_room(self) -> bool:
        """Whether the agent has certainly read everything that was written before."""
        raise NotImplementedError

    async def room(self) -> None:
        """Wait until the agent has read most of what was written before."""
        raise NotImplementedError

    def _put(self, data: bytes) -> bool:
        """Write in one step without waiting for room; return False if the agent no longer reads."""
        raise NotImplementedError

    async def _next_line(self) -> bytes | None:
        """Wait for the next line; return None at the end."""
        raise NotImplementedError

    # The methods that all subclasses share.

    async def send(self, message: Message) -> None:
        self.write(message)

    def write(self, message: Message) -> None:
        """Write a message in one step without waiting for room; raise if the agent does not read."""
        if not self._put(json.dumps(message, separators=(",", ":")).encode() + b"\n"):
            error = "it does not read its input any more"
            raise ConnectionResetError(error)

    async def receive(self) -> Message | None:
        """Wait for the next line that contains a message."""
        while True:
            if self._receive_timeout is None:
                line = await self._next_line()
            else:
                async with asyncio.timeout(self._receive_timeout):
                    line = await self._next_line()
            if line is None:
                return None
            message = parsed(line)
            if message is not None:
                self.line = line
                return message

    async def close(self) -> None:
        """Do nothing: the code that opened the streams closes them."""


class StreamPeer(LinePeer):
    """An agent at the other end of two asyncio streams."""

    def __init__(
        self, writer: asyncio.StreamWriter, reader: asyncio.StreamReader, **limits: Any
    ) -> None:
        """Use streams that other code opens and closes; `limits` are those of `LinePeer`."""
        super().__init__(**limits)
        self._writer = writer
        self._lines = StreamLines(reader, self._message_bytes_max)

    @property
    def has_room(self) -> bool:
        """Whether everything that was written before has left the buffer."""
        try:
            return not self._writer.transport.get_write_buffer_size()
        except (AttributeError, NotImplementedError):  # the writer's transport is a stand-in
            return False

    async def room(self) -> None:
        """Wait until most of the buffer has been sent."""
        await self._writer.drain()

    def _put(self, data: bytes) -> bool:
        self._writer.write(data)
        return not self._writer.transport.is_closing()

    def _next_line(self) -> Coroutine[Any, Any, bytes | None]:
        return self._lines.next_line()


class ProcessPeer(LinePeer):
    """An agent that is a child process, at the other end of its pipes."""

    has_room = False  # never certain: only `room()` can tell

    def __init__(self, process: Process, exit_seconds: float, **limits: Any) -> None:
        """Use a process that was started with `stdin="pipe", stdout="bytes"`.

        Args:
            process: the agent.
            exit_seconds: how long to wait for the process's exit after the end of its output.
            limits: the limits of `LinePeer`.
        """
        super().__init__(**limits)
        self._process = process
        self._exit_seconds = exit_seconds

    async def room(self) -> None:
        """Wait while the process has a lot of unread input."""
        await self._process.room()

    def _put(self, data: bytes) -> bool:
        try:
            self._process.post(data)
        except (ProcessLost, UsageError):  # the process is gone, or its input is closed
            return False
        return True

    async def _next_line(self) -> bytes | None:
        try:
            return await self._process.raw.line(self._message_bytes_max)
        except LineTooLong as error:
            message = f"it sent a message of more than {self._message_bytes_max} bytes, the limit"
            raise ConnectionError(message) from error
        except anyio.EndOfStream:
            with anyio.move_on_after(self._exit_seconds):
                await self._process.wait()
            return None

    async def finish(self, seconds: float) -> None:
        """Close the process's input when all of it is written, then wait for the exit, for `seconds` in all."""
        with anyio.move_on_after(seconds):
            await self._process.raw.aclose()  # its further output is not needed
            self._process.close_stdin()
            await self._process.wait()
