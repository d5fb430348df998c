"""The scope that the running code is in."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, cast

from quiesce.core.tree import ScopeState, current

if TYPE_CHECKING:
    from collections.abc import Iterator

    from quiesce.core.hold import Held
    from quiesce.core.scope import Scope
    from quiesce.core.tree import TreeNode

__all__ = ["current_scope", "detached"]


class Stopping(threading.local):
    """The scope whose close calls `request_stop()` in the current step; one for each thread."""

    node: TreeNode | None = None

    def stop(self, node: TreeNode, held: Held, *, force: bool = False) -> float | None:
        """Call `held.request_stop()`, with `node` recorded as the closing scope."""
        before, self.node = self.node, node
        try:
            return held.request_stop(force=force)
        finally:
            self.node = before


stopping: Stopping = Stopping()

is_detached: ContextVar[bool] = ContextVar("quiesce_is_detached", default=False)
"""Whether the running code is inside `detached()`, or in a scope that was opened there."""


def current_scope() -> Scope | None:
    """Return the innermost open scope around the running code, or None."""
    node = current.get()
    while node is not None and node.phase is ScopeState.CLOSED:
        node = node.parent
    return cast("Scope | None", node)


def place_for(scope: Scope) -> Scope:
    """Return the scope in which to start new work: `scope` itself, or an errand below it.

    If a hop starts work in a scope outside of the hop, the work belongs to both, by an errand; see errand.py.
    """
    node = current.get()
    hop = None if node is None else node.hop_served
    if hop is None or hop is scope.hop_served or hop.phase is ScopeState.CLOSED:
        return scope
    if hop.loop is not scope.loop:
        return scope
    from quiesce.core.errand import Errand  # noqa: PLC0415 - it is a scope itself

    return Errand(scope, hop)


@contextmanager
def detached() -> Iterator[None]:
    """Step out of every scope: tasks created inside the block are not adopted by any scope.

    Use it for tasks that live as long as the process, like the housekeeping task that a connection
    pool starts in its first call.
    """
    token, declared = current.set(None), is_detached.set(True)
    try:
        yield
    finally:
        is_detached.reset(declared)
        current.reset(token)
