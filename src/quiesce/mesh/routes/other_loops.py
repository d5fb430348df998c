"""Other event loops: what a hop hands to the loop of another thread holds the hop until it is done.

`call_soon_threadsafe` is the way in, also of `run_coroutine_threadsafe` and of anyio's portals. It copies the context, so
what runs there works for the hop. In a loop that was handed something, tasks and timers of hops are followed as well.
"""

from __future__ import annotations

import asyncio
import threading
from contextvars import Context
from functools import partial
from sys import _getframe
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from quiesce.core import libraries
from quiesce.core.backends.asyncio.backend import AsyncioBackend
from quiesce.core.patches import Patch
from quiesce.core.tree import current
from quiesce.mesh.routes import timers
from quiesce.mesh.routes.following import (
    Followed,
    Later,
    calling_frame,
    function_name,
    hop_behind,
    hop_now,
    is_declared,
    target_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

    from quiesce.mesh.runtime.hop import Hop

__all__: list[str] = []

_others: WeakKeyDictionary[Any, list[Patch]] = WeakKeyDictionary()
"""What is replaced in loops that hops have handed something to."""


_STARTING = frozenset({"call_at", "call_later", "create_task"})
_UNSEEN_TURNS = 3  # as a hop waits for, if its own loop does not show its callbacks
_running = threading.local()  # the hold of the callback that was handed over, and that runs now


class _Handed(Later):
    """A callback that was handed to another loop."""

    __slots__ = ()

    def __call__(self, *args: Any, **options: Any) -> Any:
        _running.hold = self._hold
        try:
            return super().__call__(*args, **options)
        finally:
            _running.hold = None


def by_threadsafe(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return what stands in for `call_soon_threadsafe` of a kind of event loop."""

    def called(self: Any, callback: Any, *args: Any, context: Any = None) -> Any:
        hop = hop_now()
        if hop is None or hop._backend.loop is self or _is_ours():
            return call(self, callback, *args, context=context)
        frame = calling_frame()
        if is_declared(hop, frame, target_of(callback), function_name(callback)):
            return call(self, callback, *args, context=context)
        _follow_in(self)
        later = _Handed(
            _followed(self, callback), hop, "callback", frame, partial(_release_after, self, hop)
        )
        return call(self, later, *args, context=context)

    return called


def wrap_uvloop(module: ModuleType) -> Iterator[Patch]:
    """Wrap uvloop's kind of event loop."""
    yield Patch(module.Loop, "call_soon_threadsafe", by_threadsafe, bare=True)


def restore() -> None:
    """Follow nothing in other loops any more."""
    while _others:
        for patch in _others.popitem()[1]:
            patch.remove()


def _is_ours() -> bool:
    """Return whether a function of quiesce makes the call by itself, and not for the function that it was given."""
    frame = libraries.frame_behind_call(_getframe(2), "call_soon_threadsafe")
    return frame is not None and libraries.package_of(frame.f_globals.get("__name__")) == "quiesce"


def _follow_in(loop: Any) -> None:
    if loop in _others:
        return
    made = _others[loop] = [Patch(loop, "create_task", partial(_creating, loop), bare=True)]
    made.append(Patch(loop, "call_at", timers.by_time, loop, bare=True))
    if type(loop).call_later is not asyncio.BaseEventLoop.call_later:
        made.append(Patch(loop, "call_later", timers.by_time, loop, bare=True))


def _followed(loop: Any, callback: Any) -> Any:
    """Return a callback with the loop's functions as they are now: the code has read its own before they were replaced."""
    if isinstance(callback, partial):
        return partial(_followed(loop, callback.func), *callback.args, **callback.keywords)
    name = getattr(callback, "__name__", "")
    is_own = getattr(callback, "__self__", None) is loop and name in _STARTING
    return getattr(loop, name) if is_own else callback


def _release_after(
    loop: Any, hop: Hop, release: Callable[[], None], turns: int = _UNSEEN_TURNS
) -> None:
    """Release a hop as soon as no callback of it is left in a loop; after some turns, if the loop does not show that."""
    left = AsyncioBackend(loop).about_to_run()
    if (turns > 0) if left is None else hop in left:
        again = partial(_release_after, loop, hop, release, turns - 1)
        loop.call_soon(again, context=Context())
    else:
        release()


def _creating(loop: Any, create: Callable[..., Any]) -> Callable[..., Any]:
    def create_task(coro: Any, **options: Any) -> Any:
        task = create(coro, **options)
        context = options.get("context")
        hop = hop_now() if context is None else hop_behind(context.get(current))
        if (
            hop is None
            or hop._backend.loop is loop
            or task.done()
            or libraries.is_process_wide(coro)
        ):
            return task
        name, frame = libraries.full_name(coro), calling_frame()
        # What counts is the code that has handed it over, also if the coroutine is one of a library.
        handed = getattr(_running, "hold", None) if frame is None else None
        if handed is None and frame is None:
            frame = getattr(coro, "cr_frame", None)
        if not is_declared(hop, frame, name, task.get_name()):
            called = getattr(libraries.inner(coro), "__qualname__", "task")
            hold = Followed(hop, "task", called, frame, task, target=name)
            if handed is not None:
                hold.place_as(handed)
            task.add_done_callback(lambda _: _release_after(loop, hop, hold.release))
        return task

    return create_task
