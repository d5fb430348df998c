"""Threads: what a handler gives to an executor or to a thread of its own is the hop's work.

A hop waits for calls in executors, and for threads that the interpreter would wait for as well. It does not wait
for daemon threads, which often live as long as the process: if one is alive when the hop ends, it is untracked.
In a thread that works for a hop, the hop is the current one.
"""

from __future__ import annotations

from functools import partial
from sys import _getframe
from threading import Timer as ThreadTimer
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakKeyDictionary

from quiesce.core import libraries
from quiesce.core.callsites import thread_chain
from quiesce.core.hold import Hold
from quiesce.core.tree import current
from quiesce.mesh.routes.call_futures import Call
from quiesce.mesh.routes.following import (
    Followed,
    Later,
    calling_frame,
    declaration_of,
    frame_place,
    function_name,
    handed,
    hop_now,
    is_declared,
    is_declared_service,
    target_of,
)
from quiesce.mesh.routes.takers import call_returns

if TYPE_CHECKING:
    from collections.abc import Callable
    from threading import Thread
    from types import FrameType

    from quiesce.core.callsites import Frame
    from quiesce.core.hold import Fate
    from quiesce.mesh.runtime.hop import Hop

__all__: list[str] = []

_timers: WeakKeyDictionary[ThreadTimer, Callable[[], None]] = WeakKeyDictionary()
"""Timers of hops that are not due, each with what to call when it is cancelled."""


class _Daemon(Hold):
    """A daemon thread of a hop. Nothing waits for it; the report of a drain names it while it is alive."""

    __slots__ = ("_thread",)

    _fate: ClassVar[Fate] = "stuck"

    def __init__(
        self, hop: Hop, name: str, frame: FrameType | None, thread: Thread, line: str
    ) -> None:
        details = {"declare": f"{line} if it lives as long as the process"}
        place = (None, 0) if frame is None else (frame.f_code, frame.f_lasti)
        super().__init__(hop, "daemon thread", name, details, *place)
        self._thread = thread

    def _chain(self) -> list[Frame]:
        return thread_chain(self._thread.ident)


def by_executor(submit: Callable[..., Any]) -> Callable[..., Any]:
    """Return what stands in for `submit` of an executor of threads."""

    def submitted(self: Any, fn: Any, /, *args: Any, **options: Any) -> Any:
        hop = hop_now()
        node = current.get()
        holds: list[Call] = []

        def call() -> Any:
            token = current.set(current.get() if hop is None else node)
            handed.hold = holds[0] if holds else None
            result = None
            try:
                result = fn(*args, **options)
                return result
            finally:
                call_returns(result)
                handed.hold = None
                current.reset(token)

        if hop is None:
            return submit(self, call)
        return _followed(hop, "thread", fn, holds, submit, self, call)

    return submitted


def by_process_executor(submit: Callable[..., Any]) -> Callable[..., Any]:
    """Return what stands in for `submit` of an executor of processes."""

    def submitted(self: Any, fn: Any, /, *args: Any, **options: Any) -> Any:
        hop = hop_now()
        if hop is None:
            return submit(self, fn, *args, **options)
        return _followed(hop, "process", fn, [], submit, self, fn, *args, **options)

    return submitted


def _followed(
    hop: Hop,
    kind: str,
    fn: Any,
    holds: list[Call],
    submit: Callable[..., Any],
    *args: Any,
    **options: Any,
) -> Any:
    """Submit a call, add its hold to a list before, and release that when the call has ended, or was never begun.

    What the pool itself starts for it, its threads and processes, is the pool's and not the hop's.
    """
    frame, target = calling_frame(), target_of(fn)
    is_work = not is_declared_service(hop, frame, target, function_name(fn))
    hold = Call(hop, kind, function_name(fn), frame, target=target) if is_work else None
    if hold is not None:
        holds.append(hold)
    token = current.set(None)
    try:
        future = submit(*args, **options)
    except BaseException:
        if hold is not None:
            hold.release()
        raise
    finally:
        current.reset(token)
    if hold is not None:
        hold.follow(future)
    return future


def by_callback(add: Callable[..., Any]) -> Callable[..., Any]:
    """Return what stands in for `Future.add_done_callback` of `concurrent.futures`."""

    def added(self: Any, fn: Any) -> Any:
        hop = hop_now()
        if hop is None:
            return add(self, fn)
        # Asyncio adds callbacks that wake its own futures.
        frame = libraries.frame_behind_call(_getframe(1), "add_done_callback")
        if is_declared(hop, frame, target_of(fn), function_name(fn)):
            return add(self, fn)
        return add(self, Later(fn, hop, "callback", frame))

    return added


def by_thread(start: Callable[..., Any]) -> Callable[..., Any]:
    """Return what stands in for `Thread.start`."""

    def started(self: Any) -> None:
        hop = hop_now()
        if hop is None:
            start(self)
            return
        # Pools start threads for all calls; it is the calls that are followed.
        frame = libraries.frame_behind_call(_getframe(1), "start")
        fn = getattr(self, "_target", None) or getattr(self, "function", None) or self.run
        name, target = function_name(fn), target_of(fn)
        if is_declared(hop, frame, target, name, self.name):
            start(self)
            return
        run, node = self.run, current.get()
        if self.daemon:
            line = declaration_of(target)
            place = f"{name} started at {frame_place(frame)}. If it lives as long as the process, declare it: {line}"
            hop.untracked("daemon thread", place, thing=self)
            threads = hop._mesh._threads
            held: Hold = _Daemon(hop, name, frame, self, line)
            threads[self] = held
            ended: Callable[[], object] = partial(_daemon_ended, hop, threads, self)
            failed: Callable[[BaseException], object] = partial(_fail_daemon, hop)
        else:
            held = hold = Followed(hop, "thread", name, frame, self, target=target)
            ended, failed = hold.release, hold.fail
        if isinstance(self, ThreadTimer):
            _timers[self] = partial(_put_off, hop, None if self.daemon else hold, name)
            self.function = partial(_due, self, self.function)

        def followed() -> None:
            del self.run
            current.set(node)
            handed.hold = held
            try:
                run()
            except SystemExit:  # a way to end a thread
                raise
            except BaseException as error:
                failed(error)
                raise
            finally:
                ended()

        self.run = followed
        try:
            start(self)
        except BaseException:
            del self.run
            ended()
            raise

    return started


def by_timer_cancel(cancel: Callable[[ThreadTimer], None]) -> Callable[[ThreadTimer], None]:
    """Return what stands in for `threading.Timer.cancel`."""

    def cancelling(self: ThreadTimer) -> None:
        put_off = _timers.pop(self, None)
        if put_off is not None:
            put_off()
        cancel(self)

    return cancelling


def _due(timer: ThreadTimer, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Call the function of a timer, which cannot be cancelled any more."""
    _timers.pop(timer, None)
    return function(*args, **options)


def _put_off(hop: Hop, hold: Followed | None, name: str) -> None:
    """Record in a hop that the running code cancels its timer: as `timers.Timer.cancel` does."""
    other = hop_now()
    if other is None and hold is not None:
        hold.cut()
    elif other is not hop:
        by = "code of no hop" if other is None else other.name
        hop.untracked("timer", f"{name}, cancelled by {by}, which may do it in its place")


def _daemon_ended(hop: Hop, threads: dict[Thread, Hold], thread: Thread) -> None:
    """Record that a daemon thread has ended; from that thread."""
    threads.pop(thread, None)
    hop.tracked(thread)


def _fail_daemon(hop: Hop, error: BaseException) -> None:
    """Record that a daemon thread failed, for which the hop does not wait: at once, or the hop could end before."""
    hop._fail(error)
    hop._backend.post(hop._fail_unheard, error, hop)
