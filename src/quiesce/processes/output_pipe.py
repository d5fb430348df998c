"""What a process writes, as it comes in: the event loop itself reads the pipe, while there is room.

What becomes of the bytes is for two kinds to say: output.py makes lines of them, for many readers,
and raw.py gives them as they are, to one.
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
_LAST_BYTES = 4 * 1024 * 1024  # read after the exit: a grandchild elsewhere may write for ever


class Waiters:
    """Those who wait for one thing."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._waiting: list[Waiter] = []

    async def wait(self, *others: Waiters) -> None:
        """Wait to be woken, here or among others."""
        waiter = self._backend.waiter()
        places = (self, *others)
        for place in places:
            place._waiting.append(waiter)
        try:
            await waiter
        finally:
            for place in places:
                with suppress(ValueError):  # woken, and taken out by who woke it
                    place._waiting.remove(waiter)

    def wake(self) -> None:
        """Wake all of them."""
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)


class OutputPipe:
    """One pipe that a process writes to."""

    def __init__(self, name: str, backend: Backend, fd: int | None) -> None:
        """Own a pipe; None: there is nothing to read."""
        self.name: str = name
        self._backend = backend
        self._fd: int | None = fd
        self._unwatch: Callable[[], None] | None = None
        self.waiters: Waiters = Waiters(backend)

    # What the kinds have of their own.

    def _take_in(self, data: bytes) -> None:
        """Keep what has come, or throw it away."""
        raise NotImplementedError

    def _is_full(self) -> bool:
        """Return whether the process has to wait for a reader."""
        raise NotImplementedError

    # For the loop, and for the owner of the process.

    def begin(self) -> None:
        """Read from now on."""
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
        """Take in what is there; False if there was nothing, or it has ended."""
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
        """Take what is in the pipe, and no more: somebody else may hold its other end."""
        rest = _LAST_BYTES
        while rest > 0 and self._read():
            rest -= CHUNK_BYTES
        self.close()

    def close(self) -> None:
        """End: the readers get what was taken in. Idempotent."""
        self._pause()
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
        self.waiters.wake()
