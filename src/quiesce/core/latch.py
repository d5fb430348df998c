"""A one-time event that any number of tasks may wait for."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    from quiesce.core.backends import Backend, Waiter


class Latch:
    """Shut until `open()`, then open for ever."""

    __slots__ = ("_backend", "_waiters", "is_open")

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._waiters: dict[Waiter, None] = {}
        self.is_open: bool = False

    def open(self) -> None:
        """Wake all waiting tasks; tasks that come later do not wait. Idempotent."""
        self.is_open = True
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def wait(self) -> None:
        """Wait until it is open. If cancelled, raise at once."""
        if self.is_open:
            return
        waiter = self._backend.waiter()
        self._waiters[waiter] = None
        try:
            await waiter
        finally:
            del self._waiters[waiter]

    async def outlast(self) -> None:
        """Wait until it is open. If cancelled, raise only then."""
        try:
            await self.wait()
        except self._backend.cancelled:
            await self.wait_shielded()
            raise

    async def wait_shielded(self) -> None:
        """Wait until it is open, and ignore cancellation.

        The caller was cancelled before, and raises that again afterwards. A shield keeps out the
        cancellation that anyio and trio deliver over and over, so this does not spin.
        """
        with anyio.CancelScope(shield=True):
            while not self.is_open:
                with suppress(self._backend.cancelled):  # asyncio's own passes the shield
                    await self.wait()
