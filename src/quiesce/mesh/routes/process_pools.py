"""Pools of `multiprocessing`: a call that a hop gives to a pool holds the hop until the result has arrived.

A pool keeps each result in a table until the result is complete and its callbacks have run. The hop is held for the same
time. Workers and threads of the pool are not work of the hop. In a `ThreadPool`, the call works for the hop.
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
"""By the number of a call. The number is unique in the process."""


def by_call(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return the replacement of a method of `Pool` that gets a function to call."""

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
            func = _in_scope(node, func, hold) if is_thread else func
        # What the pool starts and queues for itself is not the hop's work.
        token = current.set(None)
        try:
            return call(self, func, *args, **options)
        finally:
            current.reset(token)
            left = vars(_starting).pop("call", None)
            if left is not None:  # the pool has refused it
                left[1].release()

    return called


def by_keep(keep: Callable[..., None]) -> Callable[..., None]:
    """Return the replacement of the method by which a pool adds an awaited result to its table."""

    def kept(self: Any, job: int, result: Any) -> None:
        started = vars(_starting).pop("call", None)
        if started is not None:
            node, _holds[job] = started
            for name in _CALLBACKS:
                if getattr(result, name, None) is not None:
                    setattr(result, name, _in_scope(node, getattr(result, name)))
        keep(self, job, result)

    return kept


def by_forget(forget: Callable[..., None]) -> Callable[..., None]:
    """Return the replacement of the method by which a pool removes a complete result from its table."""

    def forgotten(self: Any, job: int) -> None:
        forget(self, job)
        _release(job)

    return forgotten


def by_terminate(terminate: Callable[..., None]) -> Callable[..., None]:
    """Return the replacement of `Pool.terminate`, after which waiting calls never run."""

    def terminated(self: Any) -> None:
        terminate(self)
        for job in list(self._cache):
            _release(job)

    return terminated


def _release(job: int) -> None:
    hold = _holds.pop(job, None)
    if hold is not None:
        hold.release()


def _in_scope(node: TreeNode | None, fn: Any, hold: Followed | None = None) -> Any:
    def call(*args: Any, **options: Any) -> Any:
        token = current.set(node)
        handed.hold = hold
        try:
            return fn(*args, **options)
        finally:
            handed.hold = None
            current.reset(token)

    return call
