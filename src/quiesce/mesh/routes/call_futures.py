"""The futures of calls that hops have given to executors: how each call ended, and whether code has read its failure.

The code that reads a call's failure, by `result()`, `exception()` or `await`, is responsible for it. If no code has read
the failure when the hop is about to end, the hop has failed. A future of `concurrent.futures` does not record that its
result was read. So `Call.follow` gives the future of a hop's call a class that records it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import ref

from quiesce.core import callsites
from quiesce.core import report as reports
from quiesce.core.python_private import exception_of, get_frame, is_unread, lock_of
from quiesce.mesh.routes.following import Followed

if TYPE_CHECKING:
    from collections.abc import Callable
    from threading import Thread
    from types import FrameType

    from quiesce.mesh.runtime.hop import Hop

__all__: list[str] = []


class Call(Followed):
    """A call in an executor that a hop waits for. The scope reads its failure in the way it reads a failed task's."""

    __slots__ = ("_error", "_future", "readers", "runs_in", "wrapped")

    def __init__(
        self, hop: Hop, kind: str, name: str, frame: FrameType | None, *, target: str | None
    ) -> None:
        self._error: BaseException | None = None
        self._future: Callable[[], Any] = _nothing  # weak: the future refers to this hold
        self.runs_in: Thread | None = None  # while a thread runs the call
        self.readers: int = 0  # calls that have read the failure, or wait for the end
        self.wrapped: list[Any] = []  # the futures of event loops that get its result
        super().__init__(hop, kind, name, frame, target=target)

    @property
    def _log_traceback(self) -> bool:
        """Whether the call failed and no code has read the failure. Futures of asyncio have this attribute, too."""
        return (
            self._error is not None
            and not self.readers
            and all(not one.done() or is_unread(one) for one in self.wrapped)
        )

    def exception(self) -> BaseException | None:
        """Return the call's failure to the scope, which then reports it."""
        # The event loop reports the unread failures of these futures when they are dropped.
        self.hop.backend.soon(self.wrapped.clear)
        return self._error

    def follow(self, future: Any) -> None:
        """Release the hop once the call behind a future has ended and the future's callbacks have run."""
        self._future = ref(future)
        # A future that is not done here ends with the methods of the new class.
        with lock_of(future):
            future.quiesce_call = self
            future.__class__ = _read_kind(type(future))
            is_over = future.done()
        if is_over:
            self.end(exception_of(future))

    def list_frames(self) -> list[callsites.Frame]:
        """Return the frames of the thread that runs the call."""
        thread = self.runs_in
        return [] if thread is None else callsites.thread_chain(thread.ident)

    def request_stop(self, *, force: bool = False) -> None:  # noqa: ARG002 - for tasks
        """Cancel the call if no thread has begun it. Nothing can stop a call that runs."""
        future = self._future()
        if future is None or future.running() or future.done():
            return
        self.hop.note_cut_short()
        if future.cancel():
            self.owner_node.note_cancelled(self, service=False)

    def end(self, error: BaseException | None) -> None:
        """Record that the call has ended. Idempotent, and safe to call from any thread."""
        if not self.owner_node.backend.here():
            self.owner_node.backend.post(self.end, error)
            return
        if error is not None and not self.released:
            self._error = error
            hop = self.hop
            described = reports.report_entry(self, hop.name, hop.backend.clock())
            hop.unasked_failures.append((lambda: self, described))
        else:
            self.wrapped.clear()
        self.release()


def _nothing() -> None:
    """Return None: a placeholder for the reference to a future that is not made yet."""


class _Read:
    """The methods that the future of a hop's call gets in addition to its class."""

    quiesce_call: Call

    def result(self: Any, timeout: float | None = None) -> Any:
        return _read(self, super().result, timeout, get_frame(1))  # type: ignore[misc]  # of the future

    def exception(self: Any, timeout: float | None = None) -> Any:
        return _read(self, super().exception, timeout, get_frame(1))  # type: ignore[misc]  # the same

    def _invoke_callbacks(self: Any) -> None:
        if self.cancelled():  # the running code has just cancelled the future
            self.quiesce_call.cut()
        super()._invoke_callbacks()  # type: ignore[misc]  # the same
        self.quiesce_call.end(self._exception)  # after the callbacks that pass the failure on


def _read(
    future: Any, read: Callable[..., Any], timeout: float | None, frame: FrameType | None
) -> Any:
    """Read a future and record the reader, also while the reader waits: otherwise the hop could end first."""
    try:
        if frame is not None and frame.f_globals.get("__name__") == "asyncio.futures":
            return read(timeout)  # asyncio passes the result on to another future: see `by_chain`
        future.quiesce_call.readers += 1
        try:
            return read(timeout)
        except TimeoutError:
            if not future.done():
                future.quiesce_call.readers -= 1
            raise
    finally:
        del future, read, frame  # otherwise the failure and these would keep each other alive


def _read_kind(kind: type[Any]) -> type[Any]:
    if kind not in _kinds:
        _kinds[kind] = type(kind.__name__, (_Read, kind), {"__module__": kind.__module__})
    return _kinds[kind]


_kinds: dict[type[Any], type[Any]] = {}


def by_chain(chain: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    """Return the replacement of the function by which asyncio passes a future's result on to another future."""

    def chained(source: Any, destination: Any) -> None:
        call = getattr(source, "quiesce_call", None)
        if call is not None:
            call.wrapped.append(destination)
        chain(source, destination)

    return chained
