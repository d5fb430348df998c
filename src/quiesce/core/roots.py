"""The open scopes that have no parent: nobody else may refer to them."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quiesce.core.node import Node

roots: set[Node] = set()


def add(node: Node) -> None:
    """Keep an open scope, and all that hangs on it, from being collected."""
    for root in [root for root in roots if not root._backend.alive()]:
        roots.discard(root)  # its event loop has ended, so nothing of it runs any more
        message = f"scope {root.name!r}, opened at {root.where}, was never closed"
        warnings.warn(message, ResourceWarning, source=root, stacklevel=4)
    roots.add(node)
