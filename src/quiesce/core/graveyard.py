"""Keeps stuck tasks after the close of their scope, so that they are not collected while they run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce.core.tree import ScopeState, TreeNode, logger

if TYPE_CHECKING:
    from quiesce.core.backends import Backend
    from quiesce.core.hold import Held

__all__: list[str] = []


class Graveyard(TreeNode):
    """The node that keeps the stuck tasks of one closed scope until they end."""

    __slots__ = ()

    def __init__(self, backend: Backend, name: str) -> None:
        super().__init__(name)
        self._backend, self._loop = backend, backend.loop
        self._state = ScopeState.CLOSED

    def _job_failed(self, held: Held, error: BaseException) -> None:
        logger.warning(
            "%s %s, reported as stuck when scope %r was closed, has failed since, with %r",
            held.kind, held.name, self._name, error,
        )  # fmt: skip

    def _turned_idle(self) -> None:
        graveyards.discard(self)


graveyards: set[Graveyard] = set()


def bury_held(node: TreeNode, table: dict[object, Held]) -> None:
    """Keep the tasks and threads that outlived their scope until they end.

    Plain holds are dropped: nothing runs behind them.
    """
    left = {
        key: held
        for key, held in table.items()
        if held._fate == "stuck" and not isinstance(held, TreeNode)
    }
    if not left:
        return
    for gone in [known for known in graveyards if not known._backend.alive()]:
        graveyards.discard(gone)
    graveyard = Graveyard(node._backend, node._name)
    for key, held in left.items():
        held._move(graveyard)
        graveyard._holds[key] = held
    graveyards.add(graveyard)
