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
    """For each thread, the scope whose close cancels something in the current step."""

    node: TreeNode | None = None

    def stop(self, node: TreeNode, held: Held, *, force: bool = False) -> float | None:
        """Ask a hold of a scope to end; see `Held._stop`."""
        before, self.node = self.node, node
        try:
            return held._stop(force=force)
        finally:
            self.node = before


stopping: Stopping = Stopping()

is_detached: ContextVar[bool] = ContextVar("quiesce_is_detached", default=False)
"""Whether the running code is inside `detached()`. It stays true in a scope that is opened there."""


def current_scope() -> Scope | None:
    """Return the innermost open scope around the running code, or None."""
    node = current.get()
    while node is not None and node._state is ScopeState.CLOSED:
        node = node._parent
    return cast("Scope | None", node)


def place_for(scope: Scope) -> Scope:
    """Return the scope in which to start new work: `scope` itself, or an errand below it.

    Work that a hop starts in a scope outside of the hop also belongs to the hop; see errand.py.
    """
    node = current.get()
    hop = None if node is None else node._errand
    if hop is None or hop is scope._errand or hop._state is ScopeState.CLOSED:
        return scope
    if hop._loop is not scope._loop:
        return scope
    from quiesce.core.errand import Errand  # noqa: PLC0415 - it is a scope itself

    return Errand(scope, hop)


@contextmanager
def detached() -> Iterator[None]:
    """Step out of every scope: no scope adopts tasks that are created inside.

    Use it for tasks that live as long as the process, like the housekeeper that a connection
    pool starts in its first call.
    """
    token, declared = current.set(None), is_detached.set(True)
    try:
        yield
    finally:
        is_detached.reset(declared)
        current.reset(token)
