"""Threads: a call that a handler gives to an executor, and a thread that it starts, are the hop's work.

A hop waits for calls in executors, and for threads that the interpreter waits for at exit. It does not wait for daemon
threads, which often live as long as the process: a daemon thread that is alive when the hop ends is recorded as
untracked. In a thread that works for a hop, the hop is the current scope.
"""

from __future__ import annotations

import threading
from functools import partial
from threading import Timer as ThreadTimer
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakKeyDictionary

from quiesce.core import libraries
from quiesce.core.callsites import thread_chain
from quiesce.core.hold import Hold
from quiesce.core.python_private import get_frame
from quiesce.core.tree import current
from quiesce.mesh.routes.bystanders import threads_of_hops
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
"""Timers of hops that are not due, each with the function to call when the timer is cancelled."""


class _Daemon(Hold):
    """A daemon thread of a hop. The hop does not wait for the thread; a drain report names it while it is alive."""

    __slots__ = ("_thread",)

    fate: ClassVar[Fate] = "stuck"

    def __init__(
        self, hop: Hop, name: str, frame: FrameType | None, thread: Thread, line: str
    ) -> None:
        details = {"declare": f"{line} if it lives as long as the process"}
        place = (None, 0) if frame is None else (frame.f_code, frame.f_lasti)
        super().__init__(hop, "daemon thread", name, details, *place)
        self._thread = thread

    def list_frames(self) -> list[Frame]:
        return thread_chain(self._thread.ident)


def by_executor(submit: Callable[..., Any]) -> Callable[..., Any]:
    """Return the replacement of `ThreadPoolExecutor.submit`."""

    def submitted(self: Any, fn: Any, /, *args: Any, **options: Any) -> Any:
        hop = hop_now()
        node = current.get()
        holds: list[Call] = []

        def call() -> Any:
            token = current.set(current.get() if hop is None else node)
            handed.hold = held = holds[0] if holds else None
            if held is not None:
                held.runs_in = threading.current_thread()  # the report has its stack
            result = None
            try:
                result = fn(*args, **options)
                return result
            finally:
                call_returns(result)
                if held is not None:
                    held.runs_in = None
                handed.hold = None
                current.reset(token)

        if hop is None:
            return submit(self, call)
        return _followed(hop, "thread", fn, holds, submit, self, call)

    return submitted


def by_process_executor(submit: Callable[..., Any]) -> Callable[..., Any]:
    """Return the replacement of `ProcessPoolExecutor.submit`."""

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
    """Submit a call and hold the hop until the call has ended or was refused.

    The hold is added to `holds` before the call is submitted. Threads and processes that the pool starts are not work of
    the hop.
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
    """Return the replacement of `Future.add_done_callback` of `concurrent.futures`."""

    def added(self: Any, fn: Any) -> Any:
        hop = hop_now()
        if hop is None:
            return add(self, fn)
        # Asyncio adds callbacks that wake its own futures.
        frame = libraries.frame_behind_call(get_frame(1), "add_done_callback")
        if is_declared(hop, frame, target_of(fn), function_name(fn)):
            return add(self, fn)
        return add(self, Later(fn, hop, "callback", frame))

    return added


def by_thread(start: Callable[..., Any]) -> Callable[..., Any]:
    """Return the replacement of `Thread.start`."""

    def started(self: Any) -> None:
        hop = hop_now()
        if hop is None:
            start(self)
            return
        # A pool starts threads for all its calls. Only the calls are followed.
        frame = libraries.frame_behind_call(get_frame(1), "start")
        fn = getattr(self, "_target", None) or getattr(self, "function", None) or self.run
        name, target = function_name(fn), target_of(fn)
        if is_declared(hop, frame, target, name, self.name):
            start(self)
            return
        run, node = self.run, current.get()
        threads_of_hops.add(self)
        if self.daemon:
            line = declaration_of(target)
            place = f"{name} started at {frame_place(frame)}. If it lives as long as the process, declare it: {line}"
            hop.untracked("daemon thread", place, thing=self)
            threads = hop.opened.hop_threads
            held: Hold = _Daemon(hop, name, frame, self, line)
            threads[self] = held
            ended: Callable[[], object] = partial(_daemon_ended, hop, threads, self)
            failed: Callable[[BaseException], object] = partial(_fail_daemon, hop)
        else:
            held = Followed(hop, "thread", name, frame, self, target=target)
            ended, failed = held.release, held.fail
        if isinstance(self, ThreadTimer):
            _follow_timer(self, hop, held, name)

        def followed() -> None:
            del self.run
            current.set(node)
            handed.hold = held
            try:
                run()
            except SystemExit:  # an ordinary way to end a thread
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
    """Return the replacement of `threading.Timer.cancel`."""

    def cancelling(self: ThreadTimer) -> None:
        put_off = _unfollow_timer(self)
        if put_off is not None:
            put_off()
        cancel(self)

    return cancelling


def _follow_timer(timer: ThreadTimer, hop: Hop, held: Hold, name: str) -> None:
    """Follow a timer: a cancel of it is recorded, and a stop of the hold cancels it."""
    hold = held if isinstance(held, Followed) else None
    _timers[timer] = partial(_put_off, hop, hold, name)
    if hold is not None:
        hold.stop_call = partial(_stop_timer, timer)
    timer.function = partial(_due, timer, held, timer.function)


def _due(
    timer: ThreadTimer, held: Hold, function: Callable[..., Any], *args: Any, **options: Any
) -> Any:
    """Call the function of a timer that is due. The timer cannot be cancelled any more."""
    held.stop_call = None
    _unfollow_timer(timer)
    return function(*args, **options)


def _unfollow_timer(timer: ThreadTimer) -> Callable[[], None] | None:
    """Return what records a cancel of a timer. The timer gets its own function back, so it is freed without the collector."""
    function = timer.function
    if isinstance(function, partial) and function.func is _due:
        timer.function = function.args[-1]
    return _timers.pop(timer, None)


def _stop_timer(timer: ThreadTimer) -> None:
    """Cancel a timer that is not due, on behalf of a drain, which reports it, or of a cancel of its cascade."""
    if _unfollow_timer(timer) is not None:
        timer.cancel()


def _put_off(hop: Hop, hold: Followed | None, name: str) -> None:
    """Record in a hop that the running code cancels one of its timers, as `timers.Timer.cancel` does."""
    other = hop_now()
    if other is None and hold is not None:
        hold.cut()
    elif other is not hop:
        by = "code of no hop" if other is None else other.name
        hop.untracked("timer", f"{name}, cancelled by {by}, which may do it in its place")


def _daemon_ended(hop: Hop, threads: dict[Thread, Hold], thread: Thread) -> None:
    """Record that a daemon thread has ended. Runs in that thread."""
    threads.pop(thread, None)
    hop.tracked(thread)


def _fail_daemon(hop: Hop, error: BaseException) -> None:
    """Record that a daemon thread failed: at once, because the hop does not wait for the thread and may end first."""
    hop.work_failed(error)
    hop.backend.post(hop.note_failed_unheard, error, hop)
