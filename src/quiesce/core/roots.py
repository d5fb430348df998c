"""The open scopes that have no parent. This set keeps them from being collected."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quiesce.core.backends import Backend
    from quiesce.core.tree import TreeNode


class Roots(Collection["TreeNode"]):
    """The root scopes of all event loops. Each loop changes only its own set."""

    def __init__(self) -> None:
        self._by_loop: dict[object, tuple[Backend, set[TreeNode]]] = {}

    def add(self, node: TreeNode) -> None:
        """Keep an open scope, and everything it refers to, from being collected.

        The first scope of an event loop calls `prune()`.
        """
        backend = node.backend
        entry = self._by_loop.get(backend.loop)
        if entry is None:
            self.prune()
            entry = self._by_loop[backend.loop] = (backend, set())
        entry[1].add(node)

    def prune(self) -> None:
        """Drop the scopes of event loops that have ended, whose tasks cannot run again."""
        for loop, (backend, _) in list(self._by_loop.items()):
            if not backend.alive():
                self._by_loop.pop(loop, None)

    def discard(self, node: TreeNode) -> None:
        loop = node.backend.loop
        entry = self._by_loop.get(loop)
        if entry is not None:
            entry[1].discard(node)
            if not entry[1]:
                self._by_loop.pop(loop, None)

    def clear(self) -> None:
        self._by_loop.clear()

    def __contains__(self, node: object) -> bool:
        return any(node in nodes for _, nodes in list(self._by_loop.values()))

    def __iter__(self) -> Iterator[TreeNode]:
        """Iterate over a copy. Any thread may do so."""
        return iter([node for _, nodes in list(self._by_loop.values()) for node in list(nodes)])

    def __len__(self) -> int:
        return sum(len(nodes) for _, nodes in list(self._by_loop.values()))


roots: Roots = Roots()
