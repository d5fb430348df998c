"""Shared tasks: adopted tasks that tasks of another scope await, and that outlive their own scope (asyncio).

Code that loads a value once for all its callers (`async_lru`) starts a task in the scope of its
first caller. When that scope cancels its work, it hands such a task to the scope of another caller.
"""

from __future__ import annotations

from asyncio import Task
from typing import TYPE_CHECKING, Any

from quiesce.core.backends.asyncio.awaiters import waiters_of
from quiesce.core.backends.asyncio.foreign_task import ForeignTask
from quiesce.core.backends.asyncio.tasks import AdoptedTask, SharedTask, task_behind
from quiesce.core.current import stopping
from quiesce.core.tree import ScopeState, TreeNode

if TYPE_CHECKING:
    from collections.abc import Callable

    from quiesce.core.hold import Held

_ALIVE = frozenset({ScopeState.OPEN, ScopeState.DRAINING})


def stop_all(node: TreeNode, table: dict[object, Held]) -> int:
    """Cancel everything that a node holds, except tasks that other scopes await; return the number of these.

    These tasks are handed to the other scopes in this step. Tasks of the node that await them are cancelled, too.
    """
    shared = {
        key: heir for key, held in table.items() if (heir := _heir(held, node, set())) is not None
    }
    spares = getattr(node, "_spares", None)  # of a hop
    kept = set(shared) if getattr(node, "_keeps_shared", False) else set()
    for key, heir in shared.items():
        if key not in kept:
            _hand_on(key, table[key], node, heir)
    for key, held in list(table.items()):
        if key not in kept and (spares is None or not _is_awaited(held, spares)):
            stopping.stop(node, held)
    return len(shared) - len(kept)


def _is_awaited(held: object, spares: Callable[[object], bool]) -> bool:
    task = task_behind(held)
    return isinstance(task, Task) and any(spares(waiter) for waiter, _ in waiters_of(task))


def _heir(held: object, node: TreeNode, seen: set[object]) -> TreeNode | None:
    """Return a scope outside of `node` with a task that awaits the result of an adopted task."""
    task = task_behind(held)
    if not isinstance(held, AdoptedTask | ForeignTask) or not isinstance(task, Task):
        return None
    for waiter, where in waiters_of(task, for_result=True):
        if waiter in seen or not isinstance(where, TreeNode) or where.loop is not node.loop:
            continue
        seen.add(waiter)
        heir: TreeNode | None = where
        if where.is_within(node):
            heir = _heir(node.holds.get(waiter), node, seen)
        while heir is not None and heir.phase not in _ALIVE:
            heir = heir.parent
        if heir is not None and not heir.is_within(node):
            return heir
    return None


def _hand_on(key: object, held: Any, node: TreeNode, heir: TreeNode) -> None:
    if isinstance(held, AdoptedTask):
        held.__class__ = SharedTask
    node.discard_hold(key)
    held.move_to(heir)
    heir.insert_hold(key, held)
