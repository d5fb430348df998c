"""A lease: one use of a pool's runner, or the wait for it."""

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
        "_offset",
        "_pool",
        "_waiter",
        "hold",
        "key",
        "leasing_task",
        "slot",
    )

    def __init__(self, pool: RunnerPool[Any, R], key: Hashable, frame: FrameType) -> None:
        self._pool = pool
        self.key: Hashable = key
        self._code: CodeType = frame.f_code
        self._offset: int = frame.f_lasti
        self.hold: Hold | None = None
        self.slot: Slot[R] | None = None
        self.leasing_task: object = None
        self._waiter: Waiter | None = None
        self._error: BaseException | None = None

    async def __aenter__(self) -> R:
        """Wait until the runner is ready, and return it."""
        node = self._pool.own_scope
        if self.hold is not None:
            message = (
                f"this lease of {self.key!r} was used before: call pool.lease() for each block"
            )
            raise UsageError(message)
        node.check_may_start()
        details: dict[str, object] = {"state": "waiting"}
        place = (self._code, self._offset)
        self.leasing_task = node.backend.task()
        self.hold = Hold(node, "lease", str(self.key), details, *place, self._revoke)
        node.insert_hold(self.hold, self.hold)
        self._pool.leases[self] = None
        try:
            runner = await self._obtain()
        except BaseException:
            self._end()
            raise
        details["state"] = "held"
        return runner

    async def _obtain(self) -> R:
        while True:
            slot = self.slot = self._pool.join_lease(self, self._code, self._offset)
            if self not in slot.leases:
                self._waiter = slot.waiting[self] = self._pool.own_scope.backend.waiter()
                try:
                    await self._waiter
                finally:
                    self._waiter = None
            if self._error is not None:
                raise self._error
            runner = slot.runner
            if slot.stage is Stage.READY and runner is not None and runner.returncode is None:
                return runner
            self._pool.leave_lease(self, slot)  # the runner has ended since: ask for a new one

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End the lease; there is nothing to wait for."""
        self._end()

    def _end(self) -> None:
        self._pool.leases.pop(self, None)
        if self.slot is not None:
            self._pool.leave_lease(self, self.slot)
        if self.hold is not None:
            self.hold.release()

    def tell_waiter(self, error: BaseException) -> None:
        """Wake the waiting caller with an error."""
        if self._waiter is not None and not self._waiter.done():
            self._error = error
            self._waiter.set_result(None)

    def defer_close(self) -> None:
        """Notify the waiting caller when the close ends; a caller that the scope owns is cancelled before."""
        self._error = self._pool.make_closed_error()
        self._pool.revoked_leases.append(self)

    def _revoke(self) -> None:
        """End the lease because the scope closes; a lease that is in use is reported as cancelled."""
        if self._waiter is not None:
            self.defer_close()
        elif self.hold is not None:
            self._pool.own_scope.note_cancelled(self.hold, service=False)
        self._end()
