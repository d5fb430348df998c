"""A task whose result another scope's task awaits outlives the scope that adopted it (asyncio).

Code that loads something once for all its callers (`async_lru`) starts a task in the scope of its
first caller. When that scope cancels what is left, such a task is handed to the scope of another
caller.
"""

from __future__ import annotations

from asyncio import Future, Task
from typing import TYPE_CHECKING, Any, TypeVar

from quiesce.core.backends.awaiting import waiters_of
from quiesce.core.backends.tasks import AdoptedTask, ForeignTask, task_of
from quiesce.core.node import Node, State, current

if TYPE_CHECKING:
    from quiesce.core.hold import Held

T = TypeVar("T")

_ALIVE = frozenset({State.OPEN, State.DRAINING})
_spared: set[Task[Any]] = set()  # shared tasks, in the step in which a scope cancels all others


class SharedTask(AdoptedTask[T]):
    """An adopted task that was handed to another scope, or that such a task has started."""

    __slots__ = ()

    def cancel(self, msg: Any = None) -> bool:
        """Cancel the task, unless the request comes from a scope that has handed it on."""
        node = current.get()
        ended = node is not None and node._state not in _ALIVE and not node._is_within(self._node)
        return self in _spared or ended or super().cancel(msg)


def stop_all(node: Node, table: dict[object, Held]) -> int:
    """Cancel all that a node holds, except what tasks elsewhere wait for; return how many these are.

    These are handed on in this step. Tasks of the node that await them are cancelled all the same.
    """
    shared = {
        key: heir for key, held in table.items() if (heir := _heir(held, node, set())) is not None
    }
    for key, heir in shared.items():
        _hand_on(key, table[key], node, heir)
    tasks = {key for key in shared if isinstance(key, SharedTask)}
    _spared.update(tasks)
    try:
        for held in list(table.values()):
            held._stop()
    finally:
        _spared.difference_update(tasks)
    for task in tasks:
        for waiter, where in list(waiters_of(task, for_result=True)):
            if where is not None and where._is_within(node) and waiter.cancelling():
                _wake(waiter)
    return len(shared)


def _heir(held: object, node: Node, seen: set[object]) -> Node | None:
    """Find a scope outside of `node` one of whose tasks awaits the result of an adopted task."""
    task = task_of(held)
    if not isinstance(held, AdoptedTask | ForeignTask) or not isinstance(task, Task):
        return None
    for waiter, where in waiters_of(task, for_result=True):
        if waiter in seen or where is None or where._loop is not node._loop:
            continue
        seen.add(waiter)
        heir: Node | None = where
        if where._is_within(node):
            heir = _heir(node._holds.get(waiter), node, seen)
        while heir is not None and heir._state not in _ALIVE:
            heir = heir._parent
        if heir is not None and not heir._is_within(node):
            return heir
    return None


def _hand_on(key: object, held: Any, node: Node, heir: Node) -> None:
    if isinstance(held, AdoptedTask):
        held.__class__ = SharedTask
    node._discard(key)
    held._move(heir)
    heir._insert(key, held)


def _wake(task: Task[Any]) -> None:
    """Deliver a cancellation to a task whose request stopped at a shared task that it awaits."""
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
    """Look at a result that nothing awaits any more, so that asyncio does not complain of it."""
    if not isinstance(future, Task) and not future.cancelled():
        future.exception()
