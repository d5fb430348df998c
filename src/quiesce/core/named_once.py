"""Keeps one loss from appearing twice in a report.

A request is a job of its app, and may also be the handler of a hop. If one drain cancels both, the report names the
request once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quiesce.core.tree import TreeNode

__all__: list[str] = []


def name_once(owner: TreeNode, key: object, other: TreeNode) -> None:
    """Record that `other` reports the cancellation of a job of `owner`, if one report covers both scopes."""
    closed = _outermost_closing(owner)
    if closed is not None and closed is _outermost_closing(other):
        closed.reported_elsewhere[key] = None  # not in `owner`, because the job may be handed over


def is_named(node: TreeNode, key: object) -> bool:
    """Return whether another scope reports the cancellation of this job."""
    closed = _outermost_closing(node)
    return closed is not None and key in closed.reported_elsewhere


def _outermost_closing(start: TreeNode) -> TreeNode | None:
    """Return the outermost closing scope around this one; its report covers both."""
    node: TreeNode | None = start
    found: TreeNode | None = None
    while node is not None:
        found = node if node.close_plan is not None else found
        node = node.parent
    return found
