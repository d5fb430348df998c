"""Holds of tasks that another library's task factory makes."""

from __future__ import annotations

from asyncio import Future, Task
from typing import TYPE_CHECKING, Any, ClassVar

from quiesce.core import callsites, libraries
from quiesce.core.backends.asyncio import service_tasks
from quiesce.core.backends.asyncio.swallowing import coro_of, deferred, spared, swallowed, went_on
from quiesce.core.backends.asyncio.tasks import reclassify, settle_adopted
from quiesce.core.backends.asyncio.thread_frames import chain_of
from quiesce.core.hold import NOTHING, Fate

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import CodeType

    from quiesce.core.tree import TreeNode

__all__: list[str] = []


class ForeignTask:
    """The hold of a task that another library's task factory made."""

    __slots__ = ("_code", "_creator", "_offset", "began_at", "owner_node", "task")

    fate: ClassVar[Fate] = "stuck"
    can_be_stopped: ClassVar[bool] = True

    def __init__(
        self, node: TreeNode, code: CodeType | None, offset: int, *, creator: Task[Any] | None
    ) -> None:
        self.owner_node: TreeNode = node
        self.began_at: float = node.backend.clock()
        self._code = code
        self._offset = offset
        self._creator = creator
        self.task: Any = None

    def begin(self, task: Future[Any] | None) -> None:
        """Hold `task` from now on.

        Usually the factory has returned the task. An eager factory runs the task's first step before it
        returns. In that step `task` is the running task, unless that is the creator.
        """
        if self.task is None and task is not None and task is not self._creator:
            self.task = task
            self.owner_node.insert_hold(task, self)

    @property
    def kind(self) -> str:
        return "task"

    @property
    def name(self) -> str:
        if not isinstance(self.task, Task):
            return repr(self.task)
        return callsites.task_name(self.task, coro_of(self.task))

    @property
    def since(self) -> float:
        return self.began_at

    @property
    def where(self) -> str | None:
        return callsites.describe(self._code, self._offset)

    @property
    def details(self) -> Mapping[str, object]:
        return NOTHING

    @property
    def _declared_as(self) -> str | None:
        return libraries.full_name(coro_of(self.task))

    def request_stop(self, *, force: bool = False) -> None:
        task = self.task
        if not force and task is not None and service_tasks.is_ended_by_service(task):
            return
        if isinstance(task, Task) and deferred(task):
            return
        fresh = force or not isinstance(task, Task) or not task.cancelling() or swallowed(task)
        if task is not None and fresh:
            task.cancel()
        elif task is not None:
            spared.add(task)  # other code has cancelled the task before, and it is cleaning up

    def goes_on_regardless(self) -> bool:
        task = self.task
        return isinstance(task, Task) and (went_on(task) or swallowed(task))

    def list_frames(self) -> list[callsites.Frame]:
        return chain_of(self.task)

    def move_to(self, node: TreeNode) -> None:
        self.owner_node = node

    def reclassify(self) -> None:
        if isinstance(self.task, Task):
            reclassify(self.task, self.owner_node)

    def done(self, task: Future[Any]) -> None:
        """Record how the task ended. Its done callback."""
        settle_adopted(self.owner_node, task, self)


foreign: list[ForeignTask] = []  # holds whose task is being made, of all loops, innermost last


def begin_foreign(loop: object, task: Task[Any] | None) -> None:
    """Bind the running task to the innermost hold of this loop that has no task yet."""
    for held in foreign[::-1]:  # a copy: other threads change the list
        if held.owner_node.loop is loop:
            held.begin(task)
            return
