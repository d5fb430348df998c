"""The lease: one use of a pool's runner, or the wait for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

from quiesce.core.hold import Hold
from quiesce.errors import UsageError
from quiesce.pool.slot import Runner, Stage

if TYPE_CHECKING:
    from collections.abc import Hashable
    from types import CodeType, FrameType, TracebackType

    from quiesce.core.backends import Waiter
    from quiesce.pool.pool import RunnerPool
    from quiesce.pool.slot import Slot

R = TypeVar("R", bound=Runner)


class Lease(Generic[R]):
    """One use of a runner: `async with pool.lease(key) as runner`."""

    __slots__ = (
        "_code",
        "_error",
        "_hold",
        "_key",
        "_offset",
        "_pool",
        "_slot",
        "_task",
        "_waiter",
    )

    def __init__(self, pool: RunnerPool[Any, R], key: Hashable, frame: FrameType) -> None:
        self._pool = pool
        self._key = key
        self._code: CodeType = frame.f_code
        self._offset: int = frame.f_lasti
        self._hold: Hold | None = None
        self._slot: Slot[R] | None = None
        self._task: object = None
        self._waiter: Waiter | None = None
        self._error: BaseException | None = None

    async def __aenter__(self) -> R:
        """Wait for the runner."""
        node = self._pool._node
        if self._hold is not None:
            message = f"this lease of {self._key!r} was used before: call lease() again"
            raise UsageError(message)
        node._admit()
        details: dict[str, object] = {"state": "waiting"}
        place = (self._code, self._offset)
        self._task = node._backend.task()
        self._hold = Hold(node, "lease", str(self._key), details, *place, self._revoke)
        node._insert(self._hold, self._hold)
        self._pool._leases[self] = None
        try:
            runner = await self._obtain()
        except BaseException:
            self._end()
            raise
        details["state"] = "held"
        return runner

    async def _obtain(self) -> R:
        while True:
            slot = self._slot = self._pool._join(self, self._code, self._offset)
            if self not in slot.leases:
                self._waiter = slot.waiting[self] = self._pool._node._backend.waiter()
                try:
                    await self._waiter
                finally:
                    self._waiter = None
            if self._error is not None:
                raise self._error
            runner = slot.runner
            if slot.stage is Stage.READY and runner is not None and runner.returncode is None:
                return runner
            self._pool._leave(self, slot)  # it has ended since: ask for another

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Return the runner back; there is nothing to wait for."""
        self._end()

    def _end(self) -> None:
        self._pool._leases.pop(self, None)
        if self._slot is not None:
            self._pool._leave(self, self._slot)
        if self._hold is not None:
            self._hold.release()

    def _tell(self, error: BaseException) -> None:
        """Wake the one who waits, with an error."""
        if self._waiter is not None and not self._waiter.done():
            self._error = error
            self._waiter.set_result(None)

    def _defer(self) -> None:
        """Report the close at its end: work of the scope itself is cancelled before."""
        self._error = self._pool._closed_error()
        self._pool._revoked.append(self)

    def _revoke(self) -> None:
        """Record that the scope is being closed: what was leased is cut short."""
        if self._waiter is not None:
            self._defer()
        elif self._hold is not None:
            self._pool._node._job_cancelled(self._hold, service=False)
        self._end()
