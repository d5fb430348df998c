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
    """The scope whose close cancels something in this very step, in each thread."""

    node: TreeNode | None = None

    def stop(self, node: TreeNode, held: Held, *, force: bool = False) -> float | None:
        """Ask something that a scope holds to end: see `Held._stop`."""
        before, self.node = self.node, node
        try:
            return held._stop(force=force)
        finally:
            self.node = before


stopping: Stopping = Stopping()

is_detached: ContextVar[bool] = ContextVar("quiesce_is_detached", default=False)
"""Whether the running code was declared to belong to no scope; a scope that is opened inside counts all the same."""


def current_scope() -> Scope | None:
    """Return the innermost open scope around the running code, or None."""
    node = current.get()
    while node is not None and node._state is ScopeState.CLOSED:
        node = node._parent
    return cast("Scope | None", node)


def place_for(scope: Scope) -> Scope:
    """Return where to start something that a scope is asked to start: there, or in an errand below it.

    Work that is started for a hop in a scope outside of the hop is the hop's work, too: see errand.py.
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
    """Step out of every scope: tasks created inside are adopted by none.

    For what lives as long as the process, like a connection pool's housekeeper that is started
    by whoever comes first.
    """
    token, declared = current.set(None), is_detached.set(True)
    try:
        yield
    finally:
        is_detached.reset(declared)
        current.reset(token)
