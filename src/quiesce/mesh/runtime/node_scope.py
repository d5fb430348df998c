"""The scope of a node, which notifies the node in the step in which it closes, by any cause."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from quiesce.core.report import report_entry
from quiesce.core.scope import Scope
from quiesce.core.tree import ScopeState
from quiesce.mesh.clients import instrumentation
from quiesce.mesh.routes.installing import install_routes

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from quiesce.core.callsites import Callsite
    from quiesce.core.hold import Held
    from quiesce.core.report import ReportEntry
    from quiesce.core.tree import TreeNode as Tree
    from quiesce.mesh.runtime.open_node import OpenNode

__all__: list[str] = []

_CUT_MAX = 1000
_CUT_SECONDS = 1.0  # before the drain: a server that cuts requests shuts down right after


class Home(Scope):
    """A node's own scope. A scope around it may also close it."""

    __slots__ = ("_cut_before", "_unfollow", "opened")

    is_ours = True  # the user's work is not here, but in the hops below

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.opened: OpenNode | None = None
        self._unfollow: Callable[[], None] | None = None
        self._cut_before: deque[tuple[float, Held]] = deque(maxlen=_CUT_MAX)

    def open_under(self, parent: Tree | None, frame: FrameType | Callsite) -> None:
        super().open_under(parent, frame)
        self._unfollow = install_routes(self.backend)

    def belong_to(self, opened: OpenNode) -> None:
        """Bind this scope to an open node: notify the node at the end, and until then notice work that leaves its hops."""
        self.opened = opened
        instrumentation.node_opened(opened.node)

    def note_cut(self, held: Held) -> None:
        """Record work of a hop that the server has cancelled: a loss if the node is drained, or soon will be."""
        opened = self.opened
        if self.phase is ScopeState.OPEN and opened and not opened.exchange.is_told_to_end():
            self._cut_before.append((self.backend.clock(), held))
        else:
            self.cancelled_holds.append(held)

    def mark_draining(self, root: Tree, *, deep: bool = True) -> None:
        if self.phase is ScopeState.OPEN:
            since = self.backend.clock() - _CUT_SECONDS
            self.cancelled_holds.extend(held for at, held in self._cut_before if at >= since)
        super().mark_draining(root, deep=deep)
        if self.opened is not None:
            self.opened.exchange.closing()

    def list_left_running(self) -> list[ReportEntry]:
        """Return entries of daemon threads that still work for hops. No drain waits for them; the exit ends them."""
        threads = {} if self.opened is None else self.opened.hop_threads
        now = self.backend.clock()
        return [
            report_entry(held, held.owner_node.name, now, stack=True)
            for thread, held in list(threads.items())
            if thread.is_alive()
        ]

    def on_closed(self) -> None:
        super().on_closed()
        if self._unfollow is not None:
            self._unfollow()
            self._unfollow = None
        if self.opened is not None:
            instrumentation.node_closed(self.opened.node)
            self.opened.note_closed()
