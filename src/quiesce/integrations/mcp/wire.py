"""The pipes of a server process, as the two streams that an MCP session reads and writes.

What holds:

1. A message is written whole or not at all, whoever is cancelled: a send puts it in line in one
   step, and the event loop writes the rest when the pipe takes it.
2. What was sent is bounded: with `_QUEUED_BYTES_MAX` in line, those who send have to wait.
3. What was read is bounded: with `_READ_BYTES_MAX` unread by the session, the server has to wait.
4. The end is seen once everything that came before it was read.

The session reads the lines itself: there is no task in between.
"""

from __future__ import annotations

import os
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

import anyio

from quiesce.core.node import logger
from quiesce.integrations.mcp import versions
from quiesce.resources import reaping

if TYPE_CHECKING:
    from collections.abc import Callable

    from quiesce.core.backends import Waiter
    from quiesce.resources.process import Process

__all__: list[str] = []

MESSAGE_BYTES_MAX = 64 * 1024 * 1024
_CHUNK_BYTES = 64 * 1024
_READ_BYTES_MAX = 1024 * 1024
_QUEUED_BYTES_MAX = 1024 * 1024
_LAST_BYTES = 4 * 1024 * 1024  # read after the exit: a grandchild elsewhere may write for ever


class Wire:
    """The standard input and output of a process: bytes in lines.

    It takes the place of what `Process` would keep of the output, which is cut into lines of text
    of a bounded length. `Process` closes it, as it would that.
    """

    def __init__(self, process: Process, ended: Callable[[], None]) -> None:
        """Read from now on; in the step that has started the process."""
        self._process = process
        self._backend = process._backend
        self._ended = ended  # called once, when the last line was taken
        self._lines: deque[bytes] = deque()
        self._bytes = 0
        self._part: list[bytes] = []  # of a line that has not ended
        self._part_bytes = 0
        self._reader: Waiter | None = None
        self._senders: list[Waiter] = []
        self._queue: deque[memoryview] = deque()
        self._queued_bytes = 0
        self._unwatch: Callable[[], None] | None = None
        self.over: bool = False
        """Whether there is nothing more to read than the lines that are here."""
        self._deaf = False
        kept = process._outputs.stdout
        kept._pause()
        self._fd, kept._fd = kept._fd, None
        process._outputs.stdout = self  # type: ignore[assignment]  # which finishes it
        self._resume()

    @property
    def deaf(self) -> bool:
        """Whether the server takes nothing any more, or would answer nothing."""
        ended = self.over and not self._lines  # the session may not have seen it yet
        return self._deaf or ended or self._process._child.stdin is None

    # Reading.

    async def next_line(self) -> bytes | None:
        """Take the next line; None at the end.

        *Cancel safety*: a line is taken in the step that returns it.
        """
        while not self._lines:
            if self.over:
                self._deaf = True  # an answer could not be read
                self._ended()
                return None
            self._reader = self._backend.waiter()
            try:
                await self._reader
            finally:
                self._reader = None
        line = self._lines.popleft()
        self._bytes -= len(line)
        if self._unwatch is None and self._bytes < _READ_BYTES_MAX:
            self._resume()
        return line

    def _resume(self) -> None:
        if self._fd is not None and self._unwatch is None:
            self._unwatch = reaping.watch_readable(self._backend, self._fd, self._on_readable)

    def _pause(self) -> None:
        if self._unwatch is not None:
            self._unwatch()
            self._unwatch = None

    def _on_readable(self) -> None:
        if self._read() and self._bytes >= _READ_BYTES_MAX:
            self._pause()

    def _read(self) -> bool:
        """Take in what is there; False if there was nothing, or it has ended."""
        if self._fd is None:
            return False
        try:
            data = os.read(self._fd, _CHUNK_BYTES)
        except BlockingIOError:
            return False
        except OSError as error:
            logger.warning("cannot read from %r: %s", self._process, error)
            data = b""
        if not data:
            self.close()
            return False
        first, *rest = data.split(b"\n")
        self._part.append(first)
        self._part_bytes += len(first)
        for piece in rest:
            line = b"".join(self._part)
            self._lines.append(line)
            self._bytes += len(line)
            self._part, self._part_bytes = [piece], len(piece)
        if self._part_bytes > MESSAGE_BYTES_MAX:
            logger.error("%r sent more than %d bytes in one line", self._process, MESSAGE_BYTES_MAX)
            self.close()
            return False
        self._wake()
        return True

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def close(self) -> None:
        """End the reading; what was read before can be taken. Idempotent."""
        self._pause()
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
        self.over = True
        self._wake()

    # As an output of the process.

    def finish(self) -> None:
        """Take what is in the pipe, and no more: somebody else may hold its other end."""
        rest = _LAST_BYTES
        while rest > 0 and self._read():
            rest -= _CHUNK_BYTES
        self.close()

    def tail(self) -> tuple[str, ...]:
        """Give nothing: messages tell nobody why a process has ended."""
        return ()

    # Writing.

    async def send(self, line: bytes) -> None:
        """Write a line, and wait while too much is in line.

        *Cancel safety*: the line is in the pipe, or in line for it, before there is any wait.

        *Raises*: `anyio.ClosedResourceError` if the server takes nothing any more.
        """
        self.post(line)
        while self._queued_bytes > _QUEUED_BYTES_MAX and not self.deaf:
            waiter = self._backend.waiter()
            self._senders.append(waiter)
            try:
                await waiter
            finally:
                with suppress(ValueError):  # woken
                    self._senders.remove(waiter)

    def post(self, line: bytes) -> None:
        """Write a line, or put it in line; in one step.

        *Raises*: as `send`.
        """
        if self.deaf:
            raise anyio.ClosedResourceError
        rest = memoryview(line)
        if not self._queue:
            rest = self._push(rest)
        if self._deaf:
            raise anyio.ClosedResourceError  # it was not sent, so nobody would answer
        if rest:
            self._queue.append(rest)
            self._queued_bytes += len(rest)
            if self._process._stop_sending is None:
                self._watch_writes()

    def _push(self, data: memoryview) -> memoryview:
        """Write as much as the pipe takes; gives the rest."""
        fd = self._process._child.stdin
        try:
            while data and fd is not None:
                data = data[os.write(fd, data) :]
        except BlockingIOError:
            pass
        except OSError:  # it has closed its end
            self.stop_writing()
        return data

    def _watch_writes(self) -> None:
        fd = self._process._child.stdin
        if fd is not None:
            # The process calls this before it closes the pipe.
            unwatch = reaping.watch_writable(self._backend, fd, self._flush)
            self._process._stop_sending = lambda: self._unwatch_writes(unwatch)

    def _unwatch_writes(self, unwatch: Callable[[], None]) -> None:
        self._process._stop_sending = None
        unwatch()
        if self._process._child.stdin is None:
            self._wake_senders()

    def _flush(self) -> None:
        while self._queue:
            before = self._queue[0]
            rest = self._push(before)
            if self.deaf:
                return
            self._queued_bytes -= len(before) - len(rest)
            if rest:
                self._queue[0] = rest
                break
            self._queue.popleft()
        if self._queued_bytes <= _QUEUED_BYTES_MAX:
            self._wake_senders()
        if not self._queue and self._process._stop_sending is not None:
            self._process._stop_sending()

    def stop_writing(self) -> None:
        """Write nothing more, and let everyone go who waits for that. Idempotent."""
        self._deaf = True
        self._queue.clear()
        self._queued_bytes = 0
        if self._process._stop_sending is not None:
            self._process._stop_sending()
        self._wake_senders()

    def _wake_senders(self) -> None:
        senders, self._senders = self._senders, []
        for waiter in senders:
            if not waiter.done():
                waiter.set_result(None)


class Reading:
    """What the session reads: the SDK's `ReadStream`."""

    def __init__(self, wire: Wire, encoding: str, errors: str) -> None:
        """Read the messages of a wire."""
        self._wire = wire
        # UTF-8 is what the parser reads by itself.
        plain = encoding.lower().replace("_", "-") in {"utf-8", "utf8"} and errors == "strict"
        self._coding = None if plain else (encoding, errors)

    async def receive(self) -> Any:
        """Take the next message, or what was wrong with it."""
        line: bytes | str | None = await self._wire.next_line()
        if line is None:
            raise anyio.EndOfStream
        if self._coding is not None and isinstance(line, bytes):
            try:
                line = line.decode(*self._coding)
            except UnicodeDecodeError as error:
                return error
        return versions.parsed(line)

    def close(self) -> None:
        """Do nothing: the process closes its pipes."""

    async def aclose(self) -> None:
        """Do nothing, likewise."""

    def __aiter__(self) -> Self:
        """Give itself."""
        return self

    async def __anext__(self) -> Any:
        """Take the next message, until the end."""
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def __aenter__(self) -> Self:
        """Give itself."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Do nothing, likewise."""


class Writing:
    """What the session writes: the SDK's `WriteStream`, before which somebody sees each message."""

    def __init__(self, send: Callable[[Any], Any], close: Callable[[], Any]) -> None:
        """Have an async function send, and another close."""
        self._send = send
        self._close = close

    async def send(self, item: Any) -> None:
        """Send a message."""
        await self._send(item)

    async def aclose(self) -> None:
        """Close."""
        await self._close()

    async def __aenter__(self) -> Self:
        """Give itself."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close."""
        await self._close()
