"""Tasks that a service starts: they are part of the service while it waits for them, else work (asyncio).

A new task is held as work first (invariant 1). When the service's step is over, and whenever a callback is added to
the task, `look_at_task()` follows the task's callbacks. If they lead to its service, the task moves to the table of
services: like the service, it does not keep the scope from being idle. A part that outlives its service is work again.
"""

from __future__ import annotations

from asyncio import Task
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from quiesce.core import callsites
from quiesce.core.backends.asyncio.awaiters import waiters_of
from quiesce.core.tree import ScopeState, TreeNode

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from collections.abc import Iterable


class Start(NamedTuple):
    """How one task was started."""

    creator: Task[Any]
    held: Any  # the task itself, or the hold of a task that another factory made
    home: TreeNode  # the node that owned the creator then


class Starts:
    """The running tasks of one event loop that were started by services, or by such tasks."""

    __slots__ = ("by_creator", "by_task")

    def __init__(self) -> None:
        self.by_task: dict[Task[Any], Start] = {}
        self.by_creator: dict[Task[Any], set[Task[Any]]] = {}

    def add(self, task: Task[Any], start: Start) -> None:
        self.by_task[task] = start
        self.by_creator.setdefault(start.creator, set()).add(task)

    def remove(self, task: Task[Any]) -> None:
        start = self.by_task.pop(task, None)
        tasks = self.by_creator.get(start.creator) if start is not None else None
        if start is not None and tasks is not None:
            tasks.discard(task)
            if not tasks:
                del self.by_creator[start.creator]


_starts: dict[object, Starts] = {}  # of each event loop in which a service has started tasks


def _starts_of(task: object) -> Starts | None:
    return _starts.get(task.get_loop()) if _starts and isinstance(task, Task) else None


def creator_of(
    task: Task[Any] | None, node: TreeNode, adopter: TreeNode
) -> tuple[Task[Any], TreeNode] | None:
    """Return the running task and its owner if a task that it starts now may be part of a service; else None.

    The running task must be a service, or a service must have started it. And it must start the new task
    in its own scope, not in a scope that it has opened or entered since.
    """
    if task is None:
        return None
    if task in node.services:
        return task, node
    starts = _starts_of(task)
    known = starts is not None and task in starts.by_task
    if not (known or task in adopter.services or _may_be_service(task, adopter)):
        return None
    owner: TreeNode = getattr(task, "owner_node", adopter)
    at_home = node is owner or node is adopter or node.began_at < getattr(task, "began_at", 0.0)
    return (task, owner) if at_home else None


def _may_be_service(task: Task[Any], adopter: TreeNode) -> bool:
    """Return whether a task may still become a service: another library's factory made it.

    `asyncio.create_task()` may name such a task after its creation, and its name is read a turn later.
    """
    held: object = adopter.holds.get(task)
    return held is not None and held is not task and adopter.service_pattern is not None


def begin_service_task(task: Task[Any], start: Start, loop: AbstractEventLoop) -> None:
    """Record that a service started `task`; look at the task when this step is over."""
    starts = _starts.get(loop)
    if starts is None:
        for gone in [known for known in list(_starts) if known.is_closed()]:  # type: ignore[attr-defined]  # loops
            _starts.pop(gone, None)
        starts = _starts[loop] = Starts()
    starts.add(task, start)
    task.add_done_callback(starts.remove)
    start.home.backend.soon(partial(look_at_task, task))


def stand_alone(task: Task[Any]) -> None:
    """Record that a task is a service by its own name, so that no other service has to end it."""
    starts = _starts_of(task)
    if starts is not None:
        starts.remove(task)


def look_at_task(task: Task[Any]) -> None:
    """Make a task part of its service if the service awaits it."""
    starts = _starts_of(task)
    start = starts.by_task.get(task) if starts is not None else None
    if starts is None or start is None or task.done():
        return
    node: TreeNode = start.held.owner_node
    owner: TreeNode = getattr(start.creator, "owner_node", start.home)
    if task not in node.holds or start.creator not in owner.services:
        return
    if any(waiter is start.creator for waiter, _ in waiters_of(task)):
        node.make_service(task)
        look_at(starts.by_creator.get(task, ()))


def look_at(tasks: Iterable[Task[Any]]) -> None:
    """Look at several tasks."""
    for task in tuple(tasks):
        look_at_task(task)


def look_below(node: TreeNode) -> None:
    """Look at all tasks that services have started and that a node or its descendants hold."""
    starts = _starts.get(node.loop) if _starts else None
    if starts is not None:
        look_at(
            task for task, start in starts.by_task.items() if start.held.owner_node.is_within(node)
        )


def is_part(task: Any) -> bool:
    """Return whether a service has started a task, so that it is not a service of its own."""
    starts = _starts_of(task)
    return starts is not None and task in starts.by_task


def task_and_creators(task: object) -> list[object]:
    """Return a task, the service that has started it, if one has, and the services behind that."""
    found: list[object] = []
    while task is not None:
        found.append(task)
        starts = _starts_of(task)
        start = starts.by_task.get(task) if starts is not None else None  # type: ignore[call-overload]  # a task
        task = None if start is None else start.creator
    return found


def is_ended_by_service(task: Task[Any]) -> bool:
    """Return whether a task is part of a running service, which then has to end it."""
    starts = _starts_of(task)
    start = starts.by_task.get(task) if starts is not None else None
    return start is not None and task in start.held.owner_node.services and not start.creator.done()


def release(service: Task[Any]) -> None:
    """Make the parts of an ended service work again.

    Parts that the service has cancelled do not change. Neither do parts that run only asyncio's
    own code (`Event.wait`, `sleep`), because these are waits, not work.
    """
    starts = _starts_of(service)
    for task in tuple(starts.by_creator.get(service, ())) if starts is not None else ():
        assert starts is not None  # noqa: S101 - there is a task
        node: TreeNode = starts.by_task[task].held.owner_node
        if task.done() or task not in node.services or task.cancelling():
            continue
        if callsites.is_plumbing(task.get_coro()):
            if node.phase is ScopeState.CLOSING:
                Task.cancel(task)
            continue
        held = node.services.pop(task)
        node.insert_hold(task, held)
        held.reclassify()  # the scope's patterns may declare it as a service by itself
