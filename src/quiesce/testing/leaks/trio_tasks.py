"""Find the tasks of a running trio program."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from quiesce.core import callsites
from quiesce.testing.leaks.findings import Finding

if TYPE_CHECKING:
    from quiesce.testing.leaks.instrument import StartWatch


def running_trio() -> Any:
    """Return the trio module if trio runs this code; otherwise None."""
    trio = sys.modules.get("trio")
    if trio is None:
        return None
    try:
        trio.lowlevel.current_task()
    except (AttributeError, RuntimeError):
        return None
    return trio


def present_trio_tasks() -> dict[Any, Any]:
    """Return all tasks of the trio program in this thread, except the current task."""
    trio = running_trio()
    root = None if trio is None else trio.lowlevel.current_root_task()
    if root is None:
        return {}
    found: dict[Any, Any] = {}
    unseen = [root]
    while unseen:
        task = unseen.pop()
        found[task] = task
        for nursery in task.child_nurseries:
            unseen.extend(nursery.child_tasks)
    del found[trio.lowlevel.current_task()]
    return found


def trio_task_finding(task: Any, watch: StartWatch) -> Finding:
    """Describe a task that was left."""
    birth = watch.births.get(task)
    waits = callsites.waiting_on(callsites.await_chain(task.coro))
    return Finding(
        "task",
        task.name,
        None if birth is None else birth.where,
        f"waits at {waits}" if waits else "",
    )
