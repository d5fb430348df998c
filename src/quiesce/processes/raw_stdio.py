"""The standard input and output of a process as bytes, for programs that speak a protocol over them.

What holds:

1. What is sent is written whole and in its turn, whoever is cancelled: a send puts it in line in one
   step, and the event loop writes it when the pipe takes it.
2. What was read and nobody has taken is bounded: beyond that the process has to wait.
3. The end is seen once everything that came before it was taken.
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
    """What a process writes, as bytes, each given once; made by `start_process(stdout="bytes")`.

    It has what anyio's byte streams have, `receive()` and `aclose()`, and `line()`. One task reads at
    a time. While nobody does, and 256 KiB are unread, the process has to wait; `aclose()` says that
    nobody will.
    """

    def __init__(self, backend: Backend, fd: int | None) -> None:
        """Own a pipe; None: there is nothing to read."""
        super().__init__("stdout", backend, fd)
        self._buffer = bytearray()
        self._taken = 0  # of the buffer, from its beginning
        self._wanted = True

    # For its reader.

    async def receive(self, max_bytes: int = CHUNK_BYTES) -> bytes:
        """Wait for some bytes.

        *Cancel safety*: they are taken in the step that returns them.

        *Raises*: `anyio.EndOfStream`.
        """
        while self._taken == len(self._buffer):
            if self._fd is None:
                raise anyio.EndOfStream
            await self.waiters.wait()
        return self._take(min(len(self._buffer), self._taken + max_bytes))

    async def line(self, max_bytes: int = LINE_BYTES_MAX) -> bytes:
        """Wait for a whole line, and give it without its end; the last one may have none.

        *Cancel safety*: it is taken in the step that returns it.

        *Raises*: `anyio.EndOfStream`; `LineTooLong`, and nothing more can be read then.
        """
        searched = self._taken
        while (end := self._buffer.find(b"\n", searched)) < 0:
            if len(self._buffer) - self._taken > max_bytes:
                await self.aclose()
                message = f"a process has written a line of more than {max_bytes} bytes"
                raise LineTooLong(message)
            if self._fd is None:
                return await self.receive(len(self._buffer) + 1)
            searched = len(self._buffer)
            self._resume()  # the rest of a long line has to come, however much is unread
            await self.waiters.wait()
        return self._take(end, skip=1)

    def _take(self, end: int, skip: int = 0) -> bytes:
        """Take what is before `end`, and throw away so much after it."""
        data = bytes(memoryview(self._buffer)[self._taken : end])
        self._taken = end + skip
        if self._taken == len(self._buffer) or self._taken > CHUNK_BYTES:
            del self._buffer[: self._taken]  # not each time: a chunk may have many lines
            self._taken = 0
        if not self._is_full():
            self._resume()
        return data

    async def aclose(self) -> None:
        """Want no more: what comes is thrown away, so that the process can go on, and end."""
        self._wanted = False
        self._buffer.clear()
        self._taken = 0
        self._resume()
        self.waiters.wake()

    # As it comes in.

    def _take_in(self, data: bytes) -> None:
        if self._wanted:
            self._buffer += data

    def _is_full(self) -> bool:
        return len(self._buffer) - self._taken >= _UNREAD_BYTES_MAX


class Input:
    """The standard input of a process: what is in line for it, and who waits for that."""

    def __init__(self, backend: Backend, fd: int | None) -> None:
        """Own a pipe; None: there is none."""
        self._backend = backend
        self._fd: int | None = fd
        self._line: deque[memoryview] = deque()
        self._posted = 0  # bytes, in all
        self._written = 0  # of them
        self._senders = Waiters(backend)
        self._unwatch: Callable[[], None] | None = None
        self._ended = False  # nothing more is to come
        self.broken: bool = False
        """Whether the process has closed its end."""

    @property
    def is_open(self) -> bool:
        """Whether it takes anything."""
        return not self._ended and self._is_written()

    def _is_written(self) -> bool:
        """Return whether what is in line will be written."""
        return self._fd is not None and not self.broken

    def post(self, data: bytes) -> int:
        """Write, or put in line what the pipe does not take now, in one step; return when that was.

        It must be open.
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
        """Wait until what was posted up to `mark` is in the pipe; False if it never will be.

        *Cancel safety*: it is written all the same.
        """
        while self._written < mark and self._is_written():
            await self._senders.wait()
        return self._written >= mark

    async def room(self) -> None:
        """Wait while a lot is in line.

        *Cancel safety*: may be cancelled at any time.
        """
        while self._is_written() and self._posted - self._written > _UNSENT_BYTES_MAX:
            await self._senders.wait()

    def finish(self) -> None:
        """Take nothing more, and close when all that is in line is written. Idempotent."""
        self._ended = True
        if not self._line:
            self.close()

    def close(self) -> None:
        """Close it; what is in line is thrown away. Idempotent."""
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
        assert self._fd is not None  # noqa: S101 - open, or there would be nothing to write
        try:
            while data:
                count = os.write(self._fd, data)
                self._written += count
                data = data[count:]
        except BlockingIOError:
            pass
        except OSError:  # it has closed its end
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
