"""Threads: what a handler gives to an executor or to a thread of its own is the hop's work.

A hop waits for calls in executors, and for threads that the interpreter would wait for as well. It does not wait
for daemon threads, which often live as long as the process: if one is alive when the hop ends, it is untracked.
In a thread that works for a hop, the hop is the current one.
"""

from __future__ import annotations

from functools import partial
from sys import _getframe
from typing import TYPE_CHECKING, Any

from quiesce.core import known
from quiesce.core.node import current
from quiesce.mesh.routes.following import (
    Followed,
    caller,
    hop_now,
    is_declared,
    name_of,
    names_of,
    place_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable

__all__: list[str] = []


def by_executor(submit: Callable[..., Any]) -> Callable[..., Any]:
    """Return what stands in for `ThreadPoolExecutor.submit`."""

    def submitted(self: Any, fn: Any, /, *args: Any, **options: Any) -> Any:
        hop = hop_now()
        if hop is None:
            return submit(self, fn, *args, **options)
        node = current.get()
        hold = Followed(hop, "thread", name_of(fn), caller())

        def call() -> Any:
            token = current.set(node)
            try:
                return fn(*args, **options)
            finally:
                current.reset(token)

        return _released(hold, submit, self, call)

    return submitted


def by_process_executor(submit: Callable[..., Any]) -> Callable[..., Any]:
    """Return what stands in for `ProcessPoolExecutor.submit`."""

    def submitted(self: Any, fn: Any, /, *args: Any, **options: Any) -> Any:
        hop = hop_now()
        if hop is None:
            return submit(self, fn, *args, **options)
        hold = Followed(hop, "process", name_of(fn), caller())
        return _released(hold, submit, self, fn, *args, **options)

    return submitted


def _released(hold: Followed, submit: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Submit a call, and release its hold when it has ended, or was never begun."""
    try:
        future = submit(*args, **options)
    except BaseException:
        hold.release()
        raise
    hold.thing = future
    future.add_done_callback(lambda _: hold.release())
    return future


def by_thread(start: Callable[..., Any]) -> Callable[..., Any]:
    """Return what stands in for `Thread.start`."""

    def started(self: Any) -> None:
        hop = hop_now()
        if hop is None:
            start(self)
            return
        frame = _getframe(1)  # pools start threads for all calls; it is the calls that are followed
        name = name_of(
            getattr(self, "_target", None) or getattr(self, "function", None) or self.run
        )
        if is_declared(hop, frame, name, self.name):
            start(self)
            return
        run, node = self.run, current.get()
        if self.daemon:
            line = known.declaration([names_of(frame)[0]])
            place = f"{name} started at {place_of(frame)}. If it lives as long as the process, declare it: {line}"
            hop.untracked("daemon thread", place, thing=self)
            ended: Callable[[], object] = partial(hop.tracked, self)
        else:
            ended = Followed(hop, "thread", name, frame, self).release

        def followed() -> None:
            del self.run
            current.set(node)
            try:
                run()
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
