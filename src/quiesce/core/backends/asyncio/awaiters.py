"""Finds the tasks that wait for a future, by following the future's callbacks (asyncio).

It can also cancel a task without cancelling the task that it awaits.
"""

from __future__ import annotations

from asyncio import Future, Queue, Task, current_task
from functools import partial
from typing import TYPE_CHECKING, Any

from quiesce.core.current import stopping
from quiesce.core.tree import ScopeState, TreeNode, current

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType, FrameType


_ENDING = frozenset({ScopeState.CLOSING, ScopeState.CLOSED})
_PLUMBING = frozenset({"asyncio", "anyio", "quiesce"})  # they pass errors to waiting tasks
_ANSWERING = frozenset({"acp"})  # its callbacks read failures after sending them to the peer
runners: set[CodeType] = set()  # code that runs an event loop written in C (uvloop)
_WAIT = "_wait.<locals>._on_completion"  # the callback of asyncio.wait()


def waiters_of(
    future: Future[Any], *, for_result: bool = False
) -> Iterator[tuple[Task[Any], TreeNode | None]]:
    """Yield the tasks that the end of a future wakes, each with its current scope or the scope it was handed to.

    A task may await the future directly, or through `gather`, `shield`, `wait_for`, `wait`, a task
    group, or a callback that has another future in its closure or among its arguments.

    Args:
        future: A future or task that has not ended.
        for_result: Leave out tasks that wait only for the end, by `wait` or in a task group.
    """
    found: list[Future[Any]] = [future]
    for one in found:  # the loop adds to `found`
        for callback, context in getattr(one, "_callbacks", None) or ():
            owner = getattr(callback, "__self__", None)
            if isinstance(owner, Task):
                handed_on = getattr(owner, "_is_handed_on", False)
                yield owner, owner.owner_node if handed_on else context.get(current)  # type: ignore[attr-defined]  # a SharedTask
            elif not (for_result and getattr(callback, "__qualname__", "") == _WAIT):
                found += [
                    next_one
                    for next_one in _leads_to(callback, owner, groups=not for_result)
                    if next_one not in found
                ]


def host_of(task: Task[Any]) -> Task[Any] | None:
    """Return the task that runs the task group (asyncio's or anyio's) of a task, and so ends after it."""
    for callback, _ in getattr(task, "_callbacks", None) or ():
        cells = getattr(callback, "__closure__", None) or ()
        for group in [getattr(callback, "__self__", None), *map(_content, cells)]:
            inner = getattr(group, "cancel_scope", None)
            host = getattr(group, "_parent_task", None) or getattr(inner, "_host_task", None)
            if isinstance(host, Task):
                return host
    return None


def _leads_to(callback: Any, owner: object, *, groups: bool) -> Iterator[Future[Any]]:
    """Yield the plain futures that a callback of a future may complete."""
    while isinstance(callback, partial):
        yield from _plain(callback.args, groups=groups)
        callback = callback.func
    cells = getattr(callback, "__closure__", None) or ()
    yield from _plain([owner, *map(_content, cells)], groups=groups)


def _content(cell: Any) -> object:
    try:
        content: object = cell.cell_contents
    except ValueError:  # the closure's cell is still empty
        return None
    return content


def _plain(things: Any, *, groups: bool) -> Iterator[Future[Any]]:
    for thing in things:
        if isinstance(thing, Future) and not isinstance(thing, Task):
            yield thing
        elif isinstance(thing, Queue):  # as_completed() has one
            yield from getattr(thing, "_getters", ())
        elif groups:
            completed = getattr(thing, "_on_completed_fut", None)  # asyncio's groups, and anyio's
            if isinstance(completed, Future):
                yield completed


def passes_on(frame: FrameType) -> bool:
    """Return whether the code that asks a task for its error passes the error on to a waiting task."""
    if frame.f_globals.get("__name__", "").partition(".")[0] in _PLUMBING | _ANSWERING:
        return True
    if frame.f_code in runners:  # the loop itself, which resumes a task that awaits this one
        return True
    return any(
        isinstance(value, Future) and not isinstance(value, Task) and any(waiters_of(value))
        for value in frame.f_locals.values()
    )


def passed_on_by(task: Task[Any], frame: FrameType) -> TreeNode | None:
    """Return the scope whose close cancels a task by cancelling a task that awaits it.

    Args:
        task: The task whose `cancel()` is called.
        frame: The code that calls it.
    """
    if stopping.node is not None:
        return stopping.node
    node = current.get()
    if not isinstance(node, TreeNode) or node.phase not in _ENDING:
        return None  # a call of the a2a adapter, which is not a scope
    if frame.f_globals.get("__name__", "").partition(".")[0] == "asyncio":  # wait_for, a task group
        return node
    asked = (waiter.cancelling() for waiter, where in waiters_of(task) if _is_in(where, node))
    return node if any(asked) else None


def let_go(task: Task[Any], owner: TreeNode, node: TreeNode) -> bool:
    """Cancel the tasks of `node` that await `task`, but not `task`, if other scopes own it and await it.

    Otherwise do nothing and return False.
    """
    if owner.is_within(node):
        return False
    waiters = list(waiters_of(task, for_result=True))
    if all(_is_not_elsewhere(where, node) or waiter.cancelling() for waiter, where in waiters):
        return False
    for waiter, where in waiters:
        if _is_in(where, node) and waiter.cancelling():
            _wake(waiter)
    asking = current_task()
    if asking is not None and asking.cancelling():  # wait_for() on 3.11 then waits for the end
        task.get_loop().call_soon(_wake, asking)
    return True


def _is_not_elsewhere(where: object, node: TreeNode) -> bool:
    """Return whether a waiter is within `node`, or in a call of the a2a adapter, which is set as current scope."""
    return where is not None and (not isinstance(where, TreeNode) or where.is_within(node))


def _is_in(where: TreeNode | None, node: TreeNode) -> bool:
    return isinstance(where, TreeNode) and where.is_within(node)  # it may be a call of a2a


def _wake(task: Task[Any]) -> None:
    """Resume a task with its cancellation, which did not reach the task that it awaits."""
    awaited: Future[Any] | None = getattr(task, "_fut_waiter", None)
    for callback, context in getattr(awaited, "_callbacks", None) or ():
        if getattr(callback, "__self__", None) is task and awaited is not None:
            awaited.remove_done_callback(callback)
            awaited.add_done_callback(_retrieve)
            cancelled: Future[Any] = task.get_loop().create_future()
            cancelled.cancel()
            task.get_loop().call_soon(callback, cancelled, context=context)
            return


def _retrieve(future: Future[Any]) -> None:
    """Read the exception of a future that no task awaits any more, so that asyncio does not log it."""
    if not isinstance(future, Task) and not future.cancelled():
        future.exception()
