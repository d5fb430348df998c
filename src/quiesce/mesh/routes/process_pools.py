"""Pools of `multiprocessing`: a call that a hop gives to one holds the hop until its result is there.

A pool keeps each result in a table until it is complete and its callbacks were called; so does the hop. Workers and
threads of the pool belong to the pool. In a `ThreadPool` the call works for the hop.
"""

from __future__ import annotations

import threading
from multiprocessing.pool import ThreadPool
from typing import TYPE_CHECKING, Any

from quiesce.core.tree import current
from quiesce.mesh.routes.following import (
    Followed,
    calling_frame,
    function_name,
    handed,
    hop_now,
    is_declared_service,
    target_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from quiesce.core.tree import TreeNode

__all__: list[str] = []

CALLS = ("apply_async", "_map_async", "imap", "imap_unordered")
_CALLBACKS = ("_callback", "_error_callback")
_starting = threading.local()  # the hold of the call that is being given to a pool
_holds: dict[int, Followed] = {}
"""By the number of a call, which is unique in the process."""


def by_call(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return what stands in for a function of `Pool` that takes a function to be called."""

    def called(self: Any, func: Any, *args: Any, **options: Any) -> Any:
        hop = hop_now()
        if hop is None:
            return call(self, func, *args, **options)
        node, frame, target = current.get(), calling_frame(), target_of(func)
        if not is_declared_service(hop, frame, target, function_name(func)):
            is_thread = isinstance(self, ThreadPool)
            kind = "thread" if is_thread else "process"
            hold = Followed(hop, kind, function_name(func), frame, target=target)
            _starting.call = node, hold
            func = _within(node, func, hold) if is_thread else func
        token = current.set(None)  # what the pool itself starts and queues is not the hop's
        try:
            return call(self, func, *args, **options)
        finally:
            current.reset(token)
            left = vars(_starting).pop("call", None)
            if left is not None:  # the pool has refused it
                left[1].release()

    return called


def by_keep(keep: Callable[..., None]) -> Callable[..., None]:
    """Return what stands in for where a pool puts a result that it waits for into its table."""

    def kept(self: Any, job: int, result: Any) -> None:
        started = vars(_starting).pop("call", None)
        if started is not None:
            node, _holds[job] = started
            for name in _CALLBACKS:
                if getattr(result, name, None) is not None:
                    setattr(result, name, _within(node, getattr(result, name)))
        keep(self, job, result)

    return kept


def by_forget(forget: Callable[..., None]) -> Callable[..., None]:
    """Return what stands in for where a pool removes a complete result from its table."""

    def forgotten(self: Any, job: int) -> None:
        forget(self, job)
        _release(job)

    return forgotten


def by_terminate(terminate: Callable[..., None]) -> Callable[..., None]:
    """Return what stands in for `Pool.terminate`: what was not called yet never is."""

    def terminated(self: Any) -> None:
        terminate(self)
        for job in list(self._cache):
            _release(job)

    return terminated


def _release(job: int) -> None:
    hold = _holds.pop(job, None)
    if hold is not None:
        hold.release()


def _within(node: TreeNode | None, fn: Any, hold: Followed | None = None) -> Any:
    def call(*args: Any, **options: Any) -> Any:
        token = current.set(node)
        handed.hold = hold
        try:
            return fn(*args, **options)
        finally:
            handed.hold = None
            current.reset(token)

    return call
