"""Receipts that are still to be posted when a node is closed: it waits for them, and names those that are left."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce.core.hold import Hold

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import CodeType

    from quiesce.core.hold import Fate
    from quiesce.core.scope import Scope
    from quiesce.mesh.protocol.engine import Engine

__all__: list[str] = []

_NAMES_MAX = 3  # of agents, in one line


class Receipts(Hold):
    """Holds a node open that is about to be closed, until its receipts are posted."""

    __slots__ = ("_engine",)

    def __init__(self, scope: Scope, engine: Engine, code: CodeType) -> None:
        super().__init__(scope, "receipts", "to be posted", {}, code, 0)
        self._engine = engine

    @property
    def details(self) -> dict[str, object]:
        """How many there are, and for whom."""
        return {"count": self._engine.unposted, "to": ", ".join(_addresses(self._engine, {}))}

    @property
    def _fate(self) -> Fate:  # type: ignore[override]  # it may have nothing to lose
        return "undelivered" if self._engine.unposted else "nothing"


def not_posted(engine: Engine, errors: Mapping[str, str], *, has_journal: bool) -> str:
    """Return to which addresses receipts were not posted, why, and what to do.

    Args:
        engine: the node's.
        errors: why the last call to an address failed.
        has_journal: whether the node's next process has the receipts.
    """
    is_one = engine.unposted == 1
    were = "receipt was" if is_one else "receipts were"
    to = ", ".join(_addresses(engine, errors, "no answer yet"))
    head = f"{engine.unposted} {were} not posted before the node closed: to {to}"
    if has_journal:
        return (
            f"{head}. Check that this node reaches them, and open it again with its journal: it then posts "
            f"{'it' if is_one else 'them'}"
        )
    return (
        f"{head}. The node has no journal, so {'it is' if is_one else 'they are'} lost, and the cascade "
        "will be Unknown. Check that this node reaches them, and give it a journal (Node(journal=...))"
    )


def _addresses(engine: Engine, errors: Mapping[str, str], default: str = "") -> list[str]:
    """Return the first addresses that receipts are for, each with its error, and how many more there are."""
    to = list(engine.unposted_to())
    first = [(one, errors.get(one, default)) for one in to[:_NAMES_MAX]]
    named = [f"{one} ({why})" if why else one for one, why in first]
    return [*named, f"and {len(to) - _NAMES_MAX} more"] if len(to) > _NAMES_MAX else named
