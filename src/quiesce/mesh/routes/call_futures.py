"""The futures of calls that hops have given to executors: how a call ended, and whether other code knows of its failure.

A call that fails is the business of the code that reads its failure: by `result()`, `exception()` or `await`. If no code has
done that when the hop is about to end, the hop has failed. A future of `concurrent.futures` does not record that it was
read, so that of a hop's call becomes one of a class that does.
"""

from __future__ import annotations

from sys import _getframe
from typing import TYPE_CHECKING, Any

from quiesce.core import report as reports
from quiesce.mesh.routes.following import Followed

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from quiesce.mesh.runtime.hop import Hop

__all__: list[str] = []


class Call(Followed):
    """A call in an executor that a hop waits for. Its scope asks it for its failure, as it asks a failed task."""

    __slots__ = ("_error", "_readers", "_wrapped")

    def __init__(
        self, hop: Hop, kind: str, name: str, frame: FrameType | None, *, target: str | None
    ) -> None:
        """Hold the hop."""
        self._error: BaseException | None = None
        self._readers = 0  # calls that have read the failure, or wait for the end
        self._wrapped: list[Any] = []  # the futures of event loops that get its result
        super().__init__(hop, kind, name, frame, target=target)

    @property
    def _log_traceback(self) -> bool:
        """Whether it has failed, and no code has read the failure: by the name that futures of asyncio have for it."""
        return (
            self._error is not None
            and not self._readers
            and all(not one.done() or one._log_traceback for one in self._wrapped)
        )

    def exception(self) -> BaseException | None:
        """Return how it failed, for the scope that takes the failure over."""
        self.hop._backend.soon(
            self._wrapped.clear
        )  # which the event loop reports when they are dropped
        return self._error

    def follow(self, future: Any) -> None:
        """Release the hop when the call behind a future has ended, and the future's callbacks were called."""
        with future._condition:  # if it has not ended here, it ends as one of the new class
            future._quiesce_call = self
            future.__class__ = _read_kind(type(future))
            is_over = future.done()
        if is_over:
            self.end(future._exception)

    def end(self, error: BaseException | None) -> None:
        """Record that the call has ended. Idempotent, and safe to call from any thread."""
        if not self._node._backend.here():
            self._node._backend.post(self.end, error)
            return
        if error is not None and not self.released:
            self._error = error
            hop = self.hop
            described = reports.report_entry(self, hop.name, hop._backend.clock())
            hop._unasked.append((lambda: self, described))
        else:
            self._wrapped.clear()
        self.release()


class _Read:
    """What the future of a hop's call does on top of its own class."""

    _quiesce_call: Call

    def result(self: Any, timeout: float | None = None) -> Any:
        return _read(self, super().result, timeout, _getframe(1))  # type: ignore[misc]  # of the future

    def exception(self: Any, timeout: float | None = None) -> Any:
        return _read(self, super().exception, timeout, _getframe(1))  # type: ignore[misc]  # the same

    def _invoke_callbacks(self: Any) -> None:
        if self.cancelled():  # just now, by the running code
            self._quiesce_call.cut()
        super()._invoke_callbacks()  # type: ignore[misc]  # the same
        self._quiesce_call.end(self._exception)  # after those that pass the failure on


def _read(
    future: Any, read: Callable[..., Any], timeout: float | None, frame: FrameType | None
) -> Any:
    """Read a future, and record that: also while the code waits, or the hop could end before it."""
    try:
        if frame is not None and frame.f_globals.get("__name__") == "asyncio.futures":
            return read(timeout)  # to pass it on: see `by_chain`
        future._quiesce_call._readers += 1
        try:
            return read(timeout)
        except TimeoutError:
            if not future.done():
                future._quiesce_call._readers -= 1
            raise
    finally:
        del future, read, frame  # or the failure would keep them alive, and they the failure


def _read_kind(kind: type[Any]) -> type[Any]:
    if kind not in _kinds:
        _kinds[kind] = type(kind.__name__, (_Read, kind), {"__module__": kind.__module__})
    return _kinds[kind]


_kinds: dict[type[Any], type[Any]] = {}


def by_chain(chain: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    """Return what stands in for the function by which asyncio passes the result of one future on to another."""

    def chained(source: Any, destination: Any) -> None:
        call = getattr(source, "_quiesce_call", None)
        if call is not None:
            call._wrapped.append(destination)
        chain(source, destination)

    return chained
