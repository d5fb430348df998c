"""Whose wish the end of a cancelled task of a hop was (asyncio).

Code that works for a hop may cancel what the hop has started: the slower of two requests, what a timeout ends. That
is part of its work, and the hop may still be done. A task of a hop that other code cancels, or that raises
`CancelledError` by itself, has not done its work, and nobody of the hop has decided that it need not.
"""

from __future__ import annotations

import weakref
from asyncio import CancelledError, Task
from typing import TYPE_CHECKING, Any

from quiesce.core.tree import ScopeState, current

if TYPE_CHECKING:
    from quiesce.core.tree import TreeNode

__all__: list[str] = []

# Tasks whose last cancellation was asked for by code that works for the same hop.
_own: weakref.WeakSet[Task[Any]] = weakref.WeakSet()


def cancel_asked(task: Task[Any], node: TreeNode) -> None:
    """Record whether the code that cancels a task works for the hop of that task."""
    hop = node._errand
    if hop is not None:
        asker = current.get()
        is_own = asker is not None and asker._errand is hop
        (_own.add if is_own else _own.discard)(task)


def task_cancelled(task: object, node: TreeNode, *, is_ours: bool) -> None:
    """Record in the hop of a cancelled task that the hop did not cancel it itself.

    Args:
        task: The task; it has ended.
        node: The scope that has held it.
        is_ours: Whether its `cancel()` calls `cancel_asked()`. If not, the caller of that counts as the hop.
    """
    hop = node._errand
    if hop is None or hop._state is ScopeState.CLOSING:
        return  # a hop that is told to end knows
    if node._state is ScopeState.CLOSING:
        if node._is_within(hop):
            return  # a scope that the handler has opened was closed
    elif isinstance(task, Task) and task.cancelling() and (task in _own or not is_ours):
        return
    hop._fail(CancelledError())
