"""Other event loops: a callback that a hop hands to the loop of another thread holds the hop until it is done.

Work of a hop gets into another loop in three ways. `call_soon_threadsafe` copies the context, so its callback works for
the hop; `run_coroutine_threadsafe` and anyio's portals use it, too. A thread that works for a hop may run a loop itself.
A task of another loop may take an item of a hop. In each such loop, the tasks and timers of hops are followed.
"""

from __future__ import annotations

import asyncio
import threading
from contextvars import Context
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from quiesce.core import libraries
from quiesce.core.backends.asyncio.backend import AsyncioBackend
from quiesce.core.patches import Patch
from quiesce.core.python_private import get_frame
from quiesce.core.tree import current
from quiesce.mesh.routes import timers
from quiesce.mesh.routes.following import (
    Followed,
    Later,
    calling_frame,
    enters,
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
"""The replacements in the loops in which work of hops runs."""


late_releases: WeakKeyDictionary[Any, dict[Callable[[], None], None]] = WeakKeyDictionary()
"""By loop, the functions to call in one of its next turns, or when the loop stops, because it may never run again."""
_STARTING = frozenset({"call_at", "call_later", "create_task"})
# Turns to wait for if a loop does not show its callbacks; the same number as in a hop's own loop.
_UNSEEN_TURNS = 3
_running = threading.local()  # the hold of the handed-over callback that runs now


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
    """Return the replacement of `call_soon_threadsafe` of a kind of event loop."""

    def called(self: Any, callback: Any, *args: Any, context: Any = None) -> Any:
        hop = hop_now()
        if hop is None or hop.backend.loop is self or _is_ours():
            return call(self, callback, *args, context=context)
        frame = calling_frame()
        if is_declared(hop, frame, target_of(callback), function_name(callback)):
            return call(self, callback, *args, context=context)
        _follow_in(self)
        later = _Handed(
            _with_replaced(self, callback),
            hop,
            "callback",
            frame,
            partial(_release_after, self, hop),
        )
        return call(self, later, *args, context=context)

    return called


def by_run(run: Callable[[Any], None]) -> Callable[[Any], None]:
    """Return the replacement of a loop class's `run_forever`, which `run_until_complete` uses, too."""

    def running(self: Any) -> None:
        hop = hop_now()
        if hop is not None and hop.backend.loop is not self:
            _follow_in(self)
        try:
            run(self)
        finally:
            for release in list(late_releases.pop(self, {})):
                release()

    return running


def by_runner(run: Callable[..., Any]) -> Callable[..., Any]:
    """Return the replacement of `asyncio.Runner.run`. A runner's own context may be older than the hop."""

    def running(self: Any, coro: Any, *, context: Any = None) -> Any:
        if context is not None or hop_now() is None:
            return run(self, coro, context=context)
        self.get_loop()  # this makes the context
        node = current.get()
        token = self._context.run(current.set, node)
        try:
            return run(self, coro)
        finally:
            self._context.run(current.reset, token)

    return running


REPLACED = (
    (asyncio.BaseEventLoop, "call_soon_threadsafe", by_threadsafe),
    (asyncio.BaseEventLoop, "run_forever", by_run),
    (asyncio.Runner, "run", by_runner),
)
"""The replacements for the time in which a node is open."""


def wrap_uvloop(module: ModuleType) -> Iterator[Patch]:
    """Wrap uvloop's class of event loop."""
    yield Patch(module.Loop, "call_soon_threadsafe", by_threadsafe, bare=True)
    yield Patch(module.Loop, "run_forever", by_run, bare=True)


def restore() -> None:
    """Remove the replacements from other loops."""
    while _others:
        for patch in _others.popitem()[1]:
            patch.remove()


def _is_ours() -> bool:
    """Return whether quiesce makes the call for itself, and not for a function of the user."""
    frame = libraries.frame_behind_call(get_frame(2), "call_soon_threadsafe")
    return frame is not None and libraries.package_of(frame.f_globals.get("__name__")) == "quiesce"


def _follow_in(loop: Any) -> None:
    if loop in _others:
        return
    made = _others[loop] = [Patch(loop, "create_task", partial(_by_create_task, loop), bare=True)]
    made.append(Patch(loop, "call_at", timers.by_time, loop, bare=True))
    if type(loop).call_later is not asyncio.BaseEventLoop.call_later:
        made.append(Patch(loop, "call_later", timers.by_time, loop, bare=True))


enters.append(_follow_in)


def _with_replaced(loop: Any, callback: Any) -> Any:
    """Return a callback that uses the loop's replaced functions: the code may have read the originals before."""
    if isinstance(callback, partial):
        return partial(_with_replaced(loop, callback.func), *callback.args, **callback.keywords)
    name = getattr(callback, "__name__", "")
    is_own = getattr(callback, "__self__", None) is loop and name in _STARTING
    return getattr(loop, name) if is_own else callback


def _release_after(
    loop: Any, hop: Hop, release: Callable[[], None], turns: int = _UNSEEN_TURNS
) -> None:
    """Release a hop once a loop has no more callbacks of it; if the loop does not show them, after some turns."""
    left = AsyncioBackend(loop).about_to_run()
    if (turns > 0) if left is None else hop in left:
        late_releases.setdefault(loop, {})[release] = None
        again = partial(_release_after, loop, hop, release, turns - 1)
        loop.call_soon(again, context=Context())
    else:
        late_releases.get(loop, {}).pop(release, None)
        release()


def _by_create_task(loop: Any, create: Callable[..., Any]) -> Callable[..., Any]:
    def create_task(coro: Any, **options: Any) -> Any:
        task = create(coro, **options)
        context = options.get("context")
        hop = hop_now() if context is None else hop_behind(context.get(current))
        if (
            hop is None
            or hop.backend.loop is loop
            or task.done()
            or libraries.is_process_wide(coro)
        ):
            return task
        name, frame = libraries.full_name(coro), calling_frame()
        # The place that counts is where the callback was handed over, also if a library wrote the coroutine.
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
