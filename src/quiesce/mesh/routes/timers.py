"""Timers: `loop.call_later` and `loop.call_at` of a program's own callbacks hold the hop until they were called.

Timers of event loops (a sleep, a timeout) belong to tasks, which are held by themselves. Those of known libraries
are housekeeping.
"""

from __future__ import annotations

import asyncio
from sys import _getframe
from typing import TYPE_CHECKING, Any

from quiesce.core.node import current
from quiesce.mesh.routes.following import Followed, hop_now, is_declared, name_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

__all__: list[str] = []

_CALL_LATER = asyncio.BaseEventLoop.call_later.__code__
_OWN = frozenset({"asyncio.tasks", "asyncio.timeouts", "anyio._backends._asyncio"})  # most of them


class Timer(asyncio.TimerHandle):
    """The handle of a callback that a hop waits for."""

    __slots__ = ("_hold", "_inner")

    def __init__(self, hold: Followed, inner: asyncio.TimerHandle, loop: Any) -> None:
        when = inner.when() if hasattr(inner, "when") else loop.time()  # uvloop: at once
        super().__init__(when, hold.release, (), loop)
        self._hold = hold
        self._inner = inner

    def cancel(self) -> None:
        """Cancel the callback; the hop does not wait for it any longer."""
        self._inner.cancel()
        asyncio.Handle.cancel(self)  # the loop does not know this handle, only the inner one
        self._hold.release()


def by_time(call: Callable[..., Any], loop: Any) -> Callable[..., Any]:
    """Return what stands in for `call_at` or `call_later`."""
    get = current.get

    def timed(when: float, callback: Any, *args: Any, context: Any = None) -> Any:
        if get() is None:
            return call(when, callback, *args, context=context)
        frame: FrameType | None = _getframe(1)
        if frame is not None and frame.f_code is _CALL_LATER:
            frame = frame.f_back
        if frame is None or frame.f_globals.get("__name__") in _OWN:
            return call(when, callback, *args, context=context)  # a sleep, a timeout
        hop = hop_now()
        if hop is None or is_declared(hop, frame, name_of(callback)):
            return call(when, callback, *args, context=context)
        hold = Followed(hop, "timer", name_of(callback), frame)

        def fire(*given: Any) -> None:
            try:
                callback(*given)
            finally:
                hold.release()

        handle = Timer(hold, call(when, fire, *args, context=context), loop)
        hold._on_stop = handle.cancel
        return handle

    return timed
