"""One loss, one entry: work that a job did in another scope is not named a second time when the job ends by it.

A request is a job of its app, and may be the handler of a hop. If one drain cuts both, its report would name the
request twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quiesce.core.tree import TreeNode

__all__: list[str] = []


def name_once(owner: TreeNode, key: object, other: TreeNode) -> None:
    """Record that `other` reports as cancelled what a job of `owner` did there, if one report has both."""
    closed = _outermost_closing(owner)
    if closed is not None and closed is _outermost_closing(other):
        closed._named[key] = None  # not in the owner: the job may be handed over


def is_named(node: TreeNode, key: object) -> bool:
    """Return whether another scope reports what a job of this scope did."""
    closed = _outermost_closing(node)
    return closed is not None and key in closed._named


def _outermost_closing(start: TreeNode) -> TreeNode | None:
    """Return the outermost scope around this one that is being closed: its report has all of it."""
    node: TreeNode | None = start
    found: TreeNode | None = None
    while node is not None:
        found = node if node._closing is not None else found
        node = node._parent
    return found
