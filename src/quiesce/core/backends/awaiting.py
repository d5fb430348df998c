"""Which tasks wait for a future: found by following its callbacks, when it is asked (asyncio)."""

from __future__ import annotations

from asyncio import Future, Queue, Task
from functools import partial
from typing import TYPE_CHECKING, Any

from quiesce.core.node import current

if TYPE_CHECKING:
    from collections.abc import Iterator

    from quiesce.core.node import Node

_WAIT = "_wait.<locals>._on_completion"  # the callback of asyncio.wait()


def waiters_of(
    future: Future[Any], *, for_result: bool = False
) -> Iterator[tuple[Task[Any], Node | None]]:
    """Yield the tasks that the end of a future wakes, each with its current scope.

    They await it directly, or through `gather`, `shield`, `wait_for`, `wait`, a task group, or a
    callback that has a future in its closure or among its arguments.

    Args:
        future: A future or task that has not ended.
        for_result: Leave out tasks that only wait for its end: `wait` and task groups.
    """
    found: list[Future[Any]] = [future]
    for one in found:  # it grows
        for callback, context in getattr(one, "_callbacks", None) or ():
            owner = getattr(callback, "__self__", None)
            if isinstance(owner, Task):
                yield owner, context.get(current)
            elif not (for_result and getattr(callback, "__qualname__", "") == _WAIT):
                found += [
                    next_one
                    for next_one in _leads_to(callback, owner, groups=not for_result)
                    if next_one not in found
                ]


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
    except ValueError:  # it is empty so far
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
