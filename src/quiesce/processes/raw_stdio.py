"""The standard input and output of a process as bytes, for programs that speak a protocol over them.

Invariants:

1. Sent data is written whole and in order, even if a sender is cancelled: a send queues its data in one
   step, and the event loop writes it when the pipe has room.
2. Data that no task has received yet is bounded. At the bound the process has to wait.
3. A reader sees the end of the output after it has received all data.
"""

from __future__ import annotations

import os
from collections import deque
from typing import TYPE_CHECKING

import anyio

from quiesce.errors import LineTooLong
from quiesce.processes import exit_watch
from quiesce.processes.output_pipe import CHUNK_BYTES, OutputPipe, Waiters

if TYPE_CHECKING:
    from collections.abc import Callable

    from quiesce.core.backends import Backend

__all__ = ["RawOutput"]

LINE_BYTES_MAX = 64 * 1024 * 1024
_UNREAD_BYTES_MAX = 256 * 1024
_UNSENT_BYTES_MAX = 1024 * 1024


class RawOutput(OutputPipe):
    """The standard output of a process as bytes, if it was started with `stdout="bytes"`.

    It has the methods of an anyio byte stream, `receive()` and `aclose()`, and also `line()`. Only one
    task may read at a time. If 256 KiB are unread, the process has to wait for a reader. Call `aclose()`
    if you will not read any more.
    """

    def __init__(self, backend: Backend, fd: int | None) -> None:
        """Own a pipe; None if the output is not read as bytes."""
        super().__init__("stdout", backend, fd)
        self._buffer = bytearray()
        self._taken = 0  # number of bytes at the beginning of the buffer that a reader has received
        self._wanted = True

    # For its reader.

    async def receive(self, max_bytes: int = CHUNK_BYTES) -> bytes:
        """Wait for data, and return at most `max_bytes` of it.

        *Cancel safety*: if cancelled, no data is lost.

        *Raises*: `anyio.EndOfStream` at the end of the output.
        """
        while self._taken == len(self._buffer):
            if self._fd is None:
                raise anyio.EndOfStream
            await self.waiters.wait()
        return self._take(min(len(self._buffer), self._taken + max_bytes))

    async def line(self, max_bytes: int = LINE_BYTES_MAX) -> bytes:
        """Wait for a line, and return it without its line end. The last line may lack a line end.

        *Cancel safety*: if cancelled, no data is lost.

        *Raises*: `anyio.EndOfStream` at the end of the output; `LineTooLong`, which also closes this stream.
        """
        searched = self._taken
        while (end := self._buffer.find(b"\n", searched)) < 0:
            if len(self._buffer) - self._taken > max_bytes:
                await self.aclose()
                message = (
                    f"a process wrote a line of more than {max_bytes} bytes, so its output was closed: "
                    "if such lines are expected, pass a larger max_bytes"
                )
                raise LineTooLong(message)
            if self._fd is None:
                return await self.receive(len(self._buffer) + 1)
            searched = len(self._buffer)
            self._resume()  # read the rest of a long line, even beyond the bound of unread data
            await self.waiters.wait()
        return self._take(end, skip=1)

    def _take(self, end: int, skip: int = 0) -> bytes:
        """Return the unread data before `end`, and drop `skip` bytes after it."""
        data = bytes(memoryview(self._buffer)[self._taken : end])
        self._taken = end + skip
        if self._taken == len(self._buffer) or self._taken > CHUNK_BYTES:
            del self._buffer[: self._taken]  # not for each line: a chunk may have many
            self._taken = 0
        if not self._is_full():
            self._resume()
        return data

    async def aclose(self) -> None:
        """Stop reading. Later output is dropped, so that the process does not have to wait."""
        self._wanted = False
        self._buffer.clear()
        self._taken = 0
        self._resume()
        self.waiters.wake()

    # For the event loop.

    def _take_in(self, data: bytes) -> None:
        if self._wanted:
            self._buffer += data

    def _is_full(self) -> bool:
        return len(self._buffer) - self._taken >= _UNREAD_BYTES_MAX


class Input:
    """The standard input of a process: the queue of data to write, and the tasks that wait for it."""

    def __init__(self, backend: Backend, fd: int | None) -> None:
        """Own a pipe; None if the input is not a pipe."""
        self._backend = backend
        self._fd: int | None = fd
        self._line: deque[memoryview] = deque()
        self._posted = 0  # number of bytes posted so far
        self._written = 0  # number of posted bytes that are written
        self._senders = Waiters(backend)
        self._unwatch: Callable[[], None] | None = None
        self._ended = False  # whether `finish()` was called
        self.broken: bool = False
        """Whether the process has closed its end."""

    @property
    def is_open(self) -> bool:
        """Whether data may be posted."""
        return not self._ended and self._is_written()

    def _is_written(self) -> bool:
        """Return whether queued data can still be written."""
        return self._fd is not None and not self.broken

    def post(self, data: bytes) -> int:
        """Write the data, and queue the part that the pipe has no room for, in one step.

        Return the mark to pass to `written()`. The input must be open.
        """
        self._posted += len(data)
        rest = memoryview(data)
        if not self._line:
            rest = self._write(rest)
        if rest and self.is_open:
            self._line.append(rest)
            self._watch()
        return self._posted

    async def written(self, mark: int) -> bool:
        """Wait until the data posted up to `mark` is in the pipe; return False if it cannot be written.

        *Cancel safety*: if cancelled, the data is written all the same.
        """
        while self._written < mark and self._is_written():
            await self._senders.wait()
        return self._written >= mark

    async def room(self) -> None:
        """Wait while more than 1 MiB is queued.

        *Cancel safety*: may be cancelled at any time.
        """
        while self._is_written() and self._posted - self._written > _UNSENT_BYTES_MAX:
            await self._senders.wait()

    def finish(self) -> None:
        """Refuse new data, and close the pipe when the queue is written. Idempotent."""
        self._ended = True
        if not self._line:
            self.close()

    def close(self) -> None:
        """Close the pipe, and drop the queued data. Idempotent."""
        self._stop()
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
        self._senders.wake()

    def _watch(self) -> None:
        if self._unwatch is None and self._fd is not None:
            self._unwatch = exit_watch.watch_writable(self._backend, self._fd, self._on_writable)

    def _stop(self) -> None:
        self._line.clear()
        if self._unwatch is not None:
            self._unwatch()
            self._unwatch = None

    def _write(self, data: memoryview) -> memoryview:
        """Write as much as the pipe takes; return the rest."""
        assert self._fd is not None  # noqa: S101 - the caller has checked
        try:
            while data:
                count = os.write(self._fd, data)
                self._written += count
                data = data[count:]
        except BlockingIOError:
            pass
        except OSError:  # the process has closed its end
            self.broken = True
            self._stop()
        return data

    def _on_writable(self) -> None:
        while self._line:
            rest = self._write(self._line[0])
            if self.broken:
                break
            if rest:
                self._line[0] = rest
                break
            self._line.popleft()
        if not self._line:
            self._stop()
            if self._ended:
                self.close()
        self._senders.wake()
