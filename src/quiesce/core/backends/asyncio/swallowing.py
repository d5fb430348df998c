"""Finds out whether a cancelled task is cleaning up or ignores its cancellation (asyncio)."""

from __future__ import annotations

import gc
import weakref
from asyncio import CancelledError, Future, Task
from concurrent.futures import Future as ThreadFuture
from functools import partial
from typing import Any

from quiesce.core import callsites

__all__: list[str] = []


def coro_of(task: object) -> object:
    """Return the coroutine of a task, or None if the task has ended.

    An eager task that has ended has no coroutine, and CPython 3.12.1 crashes in its `get_coro()`.
    """
    return task.get_coro() if isinstance(task, Task) and not task.done() else None


# Tasks that a scope wanted to cancel, but that other code had cancelled before.
spared: weakref.WeakSet[Task[Any]] = weakref.WeakSet()


def went_on(task: Task[Any]) -> bool:
    """Return whether a spared task is no longer cancelled, because a timeout inside it had cancelled it.

    The timeout has taken back its cancellation, so the scope must still cancel the task.
    """
    return task in spared and not task.cancelling()


def swallowed(task: Task[Any]) -> bool:
    """Return whether a task was cancelled and has visibly gone on with its work.

    While a coroutine handles an exception (in `except` or `finally`), the coroutine refers to the exception.
    A cancelled task that does not handle a cancellation has swallowed it. A task that handles the
    cancellation, or an exception caused by it, is cleaning up: a second cancellation would break the cleanup.
    A task that waits for other tasks has passed its cancellation on, so those tasks decide.
    """
    waited_for = getattr(task, "_fut_waiter", None)
    if not task.cancelling() or waited_for is None or waited_for.done():
        return False  # not cancelled, or not yet resumed with the cancellation
    helpers = [waited_for, *getattr(waited_for, "_children", ())]  # gather() has several
    asked = [h for h in helpers if isinstance(h, Task) and not h.done() and h.cancelling()]
    if asked:
        return any(swallowed(helper) for helper in asked)
    chain = callsites.links(coro_of(task))
    return bool(chain) and not any(
        _is_of_cancellation(referent)
        for link in chain
        for referent in gc.get_referents(link)
        if isinstance(referent, BaseException)
    )


def _is_of_cancellation(error: BaseException) -> bool:
    """Return whether an exception is a cancellation, or was raised while one was handled."""
    found: list[BaseException] = [error]
    for one in found:  # the loop adds to `found`
        inner = one.exceptions if isinstance(one, BaseExceptionGroup) else ()
        for next_one in (one.__cause__, one.__context__, *inner):
            if next_one is not None and next_one not in found:
                found.append(next_one)
    return any(isinstance(one, CancelledError) for one in found)


# Tasks that will be cancelled when the thread that they wait for has returned.
_deferred: weakref.WeakSet[Task[Any]] = weakref.WeakSet()
OF_EXECUTOR = "_chain_future.<locals>._call_check_cancel"
OF_ANYIO = "run_sync_in_worker_thread"


def deferred(task: Task[Any]) -> bool:
    """Return whether a task waits for a thread; if so, cancel the task when the thread has returned.

    An earlier cancellation would end the task but not the thread, and hide that work still runs.
    """
    future = _thread_awaited(task)
    if future is None:
        return False
    if task not in _deferred:
        _deferred.add(task)
        before = list(getattr(future, "_callbacks", None) or ())
        for callback, _ in before:
            future.remove_done_callback(callback)
        future.add_done_callback(partial(_resume, task, getattr(task, "_fut_waiter", None)))
        for callback, context in before:  # after ours, or the task could start another thread
            future.add_done_callback(callback, context=context)
    return True


def _resume(task: Task[Any], awaited: object, _: object) -> None:
    """Cancel a task whose thread has returned, unless it waits for another thread in `gather`."""
    _deferred.discard(task)
    if getattr(task, "_fut_waiter", None) is not awaited or not deferred(task):
        Task.cancel(task)


def _thread_awaited(task: Task[Any]) -> Future[Any] | None:
    """Return the future of a running thread that a task waits for, unless the task may abandon it."""
    awaited = getattr(task, "_fut_waiter", None)
    while isinstance(awaited, Task):
        task, awaited = awaited, getattr(awaited, "_fut_waiter", None)
    if awaited is None or awaited.done():
        return None
    for child in getattr(awaited, "_children", ()):  # of gather()
        found = _thread_awaited(child) if isinstance(child, Task) else _running(child)
        if found is not None:
            return found
    if (running := _running(awaited)) is not None:
        return running
    frame = callsites.innermost(coro_of(task))
    if frame is not None and frame.f_code.co_name == OF_ANYIO:
        return None if frame.f_locals.get("abandon_on_cancel", True) else awaited
    return None


def _running(future: Future[Any]) -> Future[Any] | None:
    """Return a future of an executor if its call runs, so that it cannot be cancelled."""
    for callback, _ in getattr(future, "_callbacks", None) or ():
        if getattr(callback, "__qualname__", "") == OF_EXECUTOR:
            cells = [cell.cell_contents for cell in callback.__closure__]
            if any(isinstance(one, ThreadFuture) and one.running() for one in cells):
                return future
    return None
