"""References to stuck tasks whose scope is closed, so that the tasks are not collected while they run."""

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

    loop: object
    backend: Backend

    def __init__(self, backend: Backend, name: str) -> None:
        super().__init__(name)
        self.backend, self.loop = backend, backend.loop
        self.phase = ScopeState.CLOSED

    def note_failed(self, held: Held, error: BaseException) -> None:
        logger.warning(
            "%s %s, reported as stuck when scope %r was closed, has now failed with %r",
            held.kind, held.name, self.name_given, error,
        )  # fmt: skip

    def note_idle(self) -> None:
        graveyards.discard(self)


graveyards: set[Graveyard] = set()


def bury_held(node: TreeNode, table: dict[object, Held]) -> None:
    """Keep the tasks and threads that outlived their scope until they end.

    Plain holds are dropped, because no code runs behind them.
    """
    left = {
        key: held
        for key, held in table.items()
        if held.fate == "stuck" and not isinstance(held, TreeNode)
    }
    if not left:
        return
    for gone in [known for known in graveyards if not known.backend.alive()]:
        graveyards.discard(gone)
    graveyard = Graveyard(node.backend, node.name_given)
    for key, held in left.items():
        held.move_to(graveyard)
        graveyard.holds[key] = held
    graveyards.add(graveyard)
