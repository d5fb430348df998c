"""The scope of a node. Whatever closes it, the node is told in the same step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce.core.report import report_entry
from quiesce.core.scope import Scope
from quiesce.mesh.clients import instrumentation
from quiesce.mesh.routes.installing import install_routes

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from quiesce.core.callsites import Callsite
    from quiesce.core.report import ReportEntry
    from quiesce.core.tree import TreeNode as Tree
    from quiesce.mesh.runtime.node import Node

__all__: list[str] = []


class Home(Scope):
    """A node's own scope; a scope around it may close it as well."""

    __slots__ = ("_unfollow", "node")

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.node: Node | None = None
        self._unfollow: Callable[[], None] | None = None

    def _open(self, parent: Tree | None, frame: FrameType | Callsite) -> None:
        super()._open(parent, frame)
        self._unfollow = install_routes(self._backend)

    def belong_to(self, node: Node) -> None:
        """Notify a node when this scope ends; until then, notice what leaves the node's hops."""
        self.node = node
        instrumentation.node_opened(node)

    def _mark_draining(self, root: Tree, *, deep: bool = True) -> None:
        super()._mark_draining(root, deep=deep)
        if self.node is not None:
            self.node._exchange.closing()

    def _left_running(self) -> list[ReportEntry]:
        """Return the daemon threads that still work for hops: no drain waits for them, and the exit cuts them."""
        threads = {} if self.node is None else self.node._threads
        now = self._backend.clock()
        return [
            report_entry(held, held._node.name, now, stack=True)
            for thread, held in list(threads.items())
            if thread.is_alive()
        ]

    def _closed(self) -> None:
        super()._closed()
        if self._unfollow is not None:
            self._unfollow()
            self._unfollow = None
        if self.node is not None:
            instrumentation.node_closed(self.node)
            self.node._is_closed()
