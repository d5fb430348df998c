"""A one-time event that any number of tasks may wait for."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quiesce.core.backends import Backend, Waiter


class Latch:
    """An event that happens once: shut until `open()` is called, then open for ever."""

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
        """Wait until the latch is open. If cancelled, raise at once."""
        if self.is_open:
            return
        waiter = self._backend.waiter()
        self._waiters[waiter] = None
        try:
            await waiter
        finally:
            del self._waiters[waiter]

    async def outlast(self) -> None:
        """Wait until the latch is open. If cancelled, raise only when it is open."""
        try:
            await self.wait()
        except self._backend.cancelled:
            await self.wait_shielded()
            raise

    async def wait_shielded(self) -> None:
        """Wait until the latch is open, and ignore cancellation.

        The caller was cancelled before, and raises that cancellation again afterwards. anyio and trio deliver a
        cancellation over and over; the shield keeps it out, so that the loop here does not spin.
        """
        import anyio  # noqa: PLC0415 - slow to import, and most waits are not cancelled

        with anyio.CancelScope(shield=True):
            while not self.is_open:
                with suppress(self._backend.cancelled):  # the shield does not stop `Task.cancel()`
                    await self.wait()
