"""Reads one output pipe of a process in the event loop, while there is room for the data.

Two subclasses handle the bytes: output.py splits them into lines for many readers, and
raw_stdio.py passes them unchanged to one reader.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from quiesce.core.tree import logger
from quiesce.processes import exit_watch

if TYPE_CHECKING:
    from collections.abc import Callable

    from quiesce.core.backends import Backend, Waiter

__all__: list[str] = []

CHUNK_BYTES = 64 * 1024
# The most that is read after the exit: a grandchild that has the pipe may write for ever.
_LAST_BYTES = 4 * 1024 * 1024


class Waiters:
    """The tasks that wait for the same event."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.waiters: list[Waiter] = []

    async def wait(self, *others: Waiters) -> None:
        """Wait for `wake()`, of this object or of one of the others."""
        waiter = self._backend.waiter()
        places = (self, *others)
        for place in places:
            place.waiters.append(waiter)
        try:
            await waiter
        finally:
            for place in places:
                with suppress(ValueError):  # `wake()` has removed the waiter
                    place.waiters.remove(waiter)

    def wake(self) -> None:
        waiting, self.waiters = self.waiters, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)


class OutputPipe:
    """One pipe that a process writes to."""

    def __init__(self, name: str, backend: Backend, fd: int | None) -> None:
        """Own a pipe; None if the process has no such pipe."""
        self.name: str = name
        self._backend = backend
        self._fd: int | None = fd
        self._unwatch: Callable[[], None] | None = None
        self.waiters: Waiters = Waiters(backend)

    # For subclasses.

    def _take_in(self, data: bytes) -> None:
        """Handle data from the pipe."""
        raise NotImplementedError

    def _is_full(self) -> bool:
        """Return whether reading pauses, so that the process has to wait for a reader."""
        raise NotImplementedError

    # For the loop, and for the owner of the process.

    def begin(self) -> None:
        self._resume()

    def _resume(self) -> None:
        if self._fd is not None and self._unwatch is None:
            self._unwatch = exit_watch.watch_readable(self._backend, self._fd, self._on_readable)

    def _pause(self) -> None:
        if self._unwatch is not None:
            self._unwatch()
            self._unwatch = None

    def _on_readable(self) -> None:
        if self._read() and self._is_full():
            self._pause()

    def _read(self) -> bool:
        """Read once. Return False if the pipe was empty or has ended."""
        if self._fd is None:
            return False
        try:
            data = os.read(self._fd, CHUNK_BYTES)
        except BlockingIOError:
            return False
        except OSError as error:
            logger.warning("cannot read the %s of a process: %s", self.name, error)
            data = b""
        if not data:
            self.close()
            return False
        self._take_in(data)
        self.waiters.wake()
        return True

    def finish(self) -> None:
        """Read the data in the pipe, then close it, even if another process still holds the other end."""
        rest = _LAST_BYTES
        while rest > 0 and self._read():
            rest -= CHUNK_BYTES
        self.close()

    def close(self) -> None:
        """Close the pipe, and wake the readers. Idempotent."""
        self._pause()
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
        self.waiters.wake()
