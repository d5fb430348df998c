"""Finds out whether a cancelled task was cancelled by its own hop (asyncio).

Code that works for a hop may cancel tasks that the hop has started: the slower of two requests, or one that exceeds a
timeout. That is part of the hop's work, and the hop may still succeed. If other code cancels a task of the hop, or if
the task raises `CancelledError` by itself, the hop has failed, because work that it needs is not done.
"""

from __future__ import annotations

import weakref
from asyncio import CancelledError, Task
from typing import TYPE_CHECKING, Any

from quiesce.core.tree import ScopeState, current

if TYPE_CHECKING:
    from quiesce.core.tree import TreeNode

__all__: list[str] = []

# Tasks whose last `cancel()` was called by code that works for the same hop.
_own: weakref.WeakSet[Task[Any]] = weakref.WeakSet()


def cancel_asked(task: Task[Any], node: TreeNode) -> None:
    """Record whether the code that cancels a task works for the hop of that task."""
    hop = node.hop_served
    if hop is not None:
        asker = current.get()
        is_own = asker is not None and asker.hop_served is hop
        (_own.add if is_own else _own.discard)(task)


def task_cancelled(task: object, node: TreeNode, *, is_ours: bool) -> None:
    """Make the hop of a cancelled task fail, unless the hop cancelled the task itself.

    Args:
        task: The task; it has ended.
        node: The scope that has held it.
        is_ours: Whether its `cancel()` calls `cancel_asked()`. If not, any `cancel()` counts as the hop's.
    """
    hop = node.hop_served
    if hop is None or hop.phase is ScopeState.CLOSING:
        return  # the hop itself is being cancelled
    if node.phase is ScopeState.CLOSING:
        if node.is_within(hop):
            return  # the handler has closed a scope that the handler had opened
    elif isinstance(task, Task) and task.cancelling() and (task in _own or not is_ours):
        return
    hop.work_failed(CancelledError())
