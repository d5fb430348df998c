"""The scope of a node: whoever closes it, the node is told in the same step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce.core.scope import Scope

if TYPE_CHECKING:
    from quiesce.core.node import Node as Tree
    from quiesce.mesh.node import Node

__all__: list[str] = []


class Home(Scope):
    """A node's own scope; a scope around it may close it as well."""

    __slots__ = ("node",)

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.node: Node | None = None

    def _mark_draining(self, root: Tree, *, deep: bool = True) -> None:
        super()._mark_draining(root, deep=deep)
        if self.node is not None:
            self.node._exchange.closing()

    def _closed(self) -> None:
        super()._closed()
        if self.node is not None:
            self.node._is_closed()
