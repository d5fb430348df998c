"""Timers: a callback that a program schedules for later holds the hop until the callback has been called.

This covers `loop.call_later`, `loop.call_at` and `sched.scheduler`. Timers that event loops set for a sleep or a timeout
belong to tasks, for which the hop waits already. Timers of known libraries are housekeeping.
"""

from __future__ import annotations

import asyncio
import sched
from typing import TYPE_CHECKING, Any

from quiesce.core.libraries import frame_behind_call
from quiesce.core.python_private import get_frame
from quiesce.core.tree import current
from quiesce.mesh.routes.following import (
    Followed,
    Later,
    function_name,
    hop_now,
    is_declared,
    target_of,
)
from quiesce.mesh.routes.takers import after

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

__all__: list[str] = []

_CALL_LATER = asyncio.BaseEventLoop.call_later.__code__
_ENTER = sched.scheduler.enter.__code__
_OWN = frozenset({"asyncio.tasks", "asyncio.timeouts", "anyio._backends._asyncio"})  # most of them
_ASKS = frozenset({"call_later", "call_at"})


class Timer(asyncio.TimerHandle):
    """The handle of a callback that a hop waits for."""

    __slots__ = ("_hold", "_inner")

    def __init__(self, hold: Followed, inner: asyncio.TimerHandle, loop: Any) -> None:
        # uvloop returns a handle without a time if the callback is due at once.
        when = inner.when() if hasattr(inner, "when") else loop.time()
        super().__init__(when, hold.release, (), loop)
        self._hold = hold
        self._inner = inner

    def cancel(self) -> None:
        """Cancel the callback and release the hop.

        Another hop that cancels the callback may do its work later for both (a debounce), so the first hop records that.
        If code outside of all hops cancels the callback, the hop counts as cancelled.
        """
        hop = hop_now()
        if hop is None:
            self._hold.cut()
        elif hop is not self._hold.hop and not self._hold.released:
            place = f"{self._hold.name}, cancelled by {hop.name}, which may do it in its place"
            self._hold.hop.untracked("timer", place)
        self.end()

    def end(self) -> None:
        """Cancel the callback on behalf of a drain, which reports it."""
        self._inner.cancel()
        asyncio.Handle.cancel(self)  # not TimerHandle.cancel: the loop knows only the inner handle
        self._hold.release()


def by_time(call: Callable[..., Any], loop: Any) -> Callable[..., Any]:
    """Return the replacement of `call_at` or `call_later`."""
    get = current.get

    def timed(when: float, callback: Any, *args: Any, context: Any = None) -> Any:
        if get() is None:
            if context is None:  # the fast path: a server sets a timer for each request
                return call(when, callback, *args)
            return call(when, callback, *args, context=context)
        caller: FrameType | None = get_frame(1)
        if caller is not None and caller.f_code is _CALL_LATER:
            caller = caller.f_back
        # uvloop's `call_at` calls `call_later`.
        if caller is None or caller.f_code is timed.__code__ or _is_own(caller, callback):
            return call(when, callback, *args, context=context)
        hop = hop_now()
        if hop is None:
            return call(when, callback, *args, context=context)
        frame = frame_behind_call(caller, *_ASKS)
        outside = after(callback, args, caller) if context is None else None
        name, target = function_name(callback), target_of(callback)
        if outside is not None or is_declared(hop, frame, target, name):
            context = context if outside is None else outside
            return call(when, callback, *args, context=context)
        hold = Followed(hop, "timer", name, frame, target=target)

        def fire(*given: Any) -> None:
            try:
                callback(*given)
            except BaseException as error:
                hold.fail(error)  # the event loop reports it
                raise
            finally:
                hold.release()

        fire.__qualname__ = name  # the event loop reports a failure under this name
        handle = Timer(hold, call(when, fire, *args, context=context), loop)
        hold.stop_call = handle.end
        return handle

    return timed


def _is_own(caller: FrameType, callback: Any) -> bool:
    """Return whether an event loop sets a timer for itself: for a sleep, a timeout or a TLS handshake.

    Functions of uvloop do not have frames. A callback that is defined inside a function of uvloop shows them instead.
    """
    if caller.f_globals.get("__name__") in _OWN:
        return not _ASKS.isdisjoint(caller.f_code.co_names)
    is_of_uvloop = getattr(callback, "__module__", None) == "uvloop.loop"
    return is_of_uvloop and "<locals>" in callback.__qualname__


def by_enter(enter: Callable[..., Any]) -> Callable[..., Any]:
    """Return the replacement of `sched.scheduler.enterabs`, which `enter` uses, too."""

    def entered(
        self: Any, time: float, priority: Any, action: Any, *args: Any, **options: Any
    ) -> Any:
        hop = hop_now()
        frame: FrameType | None = None if hop is None else get_frame(1)
        if frame is not None and frame.f_code is _ENTER:
            frame = frame.f_back
        frame = frame_behind_call(frame, "enter", "enterabs")
        if hop is not None and not is_declared(
            hop, frame, target_of(action), function_name(action)
        ):
            action = Later(action, hop, "timer", frame)
        return enter(self, time, priority, action, *args, **options)

    return entered


def by_cancel(cancel: Callable[..., Any]) -> Callable[..., Any]:
    """Return the replacement of `sched.scheduler.cancel`."""

    def cancelled(self: Any, event: Any) -> None:
        cancel(self, event)
        if isinstance(event.action, Later):
            event.action.drop()

    return cancelled
