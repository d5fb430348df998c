"""The open scopes that have no parent: nobody else may refer to them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quiesce.core.node import Node

roots: set[Node] = set()


def add(node: Node) -> None:
    """Keep an open scope, and all that hangs on it, from being collected.

    Those whose event loop has ended are let go: nothing of them can run any more.
    """
    roots.difference_update([root for root in roots if not root._backend.alive()])
    roots.add(node)
