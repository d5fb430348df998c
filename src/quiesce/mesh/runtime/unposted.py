"""Receipts that are still to be posted when a node is closed: it waits for them, and names those that are left.

A caller without an address asks for its receipts instead. The node waits for its next question, too.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from quiesce.core.hold import Hold

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import CodeType

    from quiesce.core.hold import Fate
    from quiesce.core.scope import Scope
    from quiesce.mesh.protocol.engine import Engine
    from quiesce.mesh.protocol.states import HopRecord

__all__: list[str] = []

_NAMES_MAX = 3  # of agents, in one line
_ASKS_WITHIN = 1.0  # seconds: a caller that is there puts its next question by then


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


class Untold:
    """The hops whose end a caller will ask for soon: it was told that they are worked on, and has no address."""

    __slots__ = ("_until",)

    def __init__(self) -> None:
        self._until: dict[bytes, float] = {}  # the first ends first

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._until)

    def closed(self, hop: HopRecord | None, now: float) -> None:
        """Record that a hop is closed, if its caller has to ask for that."""
        if hop is not None and hop.reply is None and hop.is_answered and not hop.is_root:
            self.forget(now)
            self._until[hop.edge] = now + _ASKS_WITHIN

    def told(self, edge: bytes) -> None:
        """Record that the caller has asked, and is told of the end."""
        self._until.pop(edge, None)

    def forget(self, now: float) -> None:
        """Forget the callers that have not asked in time: they are gone, or will ask the next process."""
        while self._until and self.next_at() <= now:
            del self._until[next(iter(self._until))]

    def next_at(self) -> float:
        """Return until when the first caller may ask; never, if there is none."""
        return next(iter(self._until.values()), math.inf)


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
