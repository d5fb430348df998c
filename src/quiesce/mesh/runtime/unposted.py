"""The receipts that a closing node still has to post, and the messages that other nodes still process.

A caller without an address asks for its receipts instead, so the closing node also waits for its next question.
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

_NAMES_MAX = 3  # names of agents in a line
_ASKS_WITHIN = 1.0  # seconds in which a live caller sends its next question


class Receipts(Hold):
    """The hold that keeps a closing node open until its receipts are posted."""

    __slots__ = ("_engine",)

    def __init__(self, scope: Scope, engine: Engine, code: CodeType) -> None:
        super().__init__(scope, "receipts", "to be posted", {}, code, 0)
        self._engine = engine

    @property
    def details(self) -> dict[str, object]:
        """The number of receipts, and their addresses."""
        return {"count": self._engine.unposted, "to": ", ".join(_addresses(self._engine, {}))}

    @property
    def fate(self) -> Fate:  # type: ignore[override]  # it may have nothing to lose
        return "undelivered" if self._engine.unposted else "nothing"


class Untold:
    """The ended hops whose caller has no address, and has not asked for the end yet."""

    __slots__ = ("_until",)

    def __init__(self) -> None:
        self._until: dict[bytes, float] = {}  # until when to wait, by edge, earliest first

    def __bool__(self) -> bool:
        """Return whether there are such hops."""
        return bool(self._until)

    def closed(self, hop: HopRecord | None, now: float) -> None:
        """Record that a hop is closed, if its caller has to ask for the end."""
        if hop is not None and hop.reply is None and hop.is_answered and not hop.is_root:
            self.forget(now)
            self._until[hop.edge] = now + _ASKS_WITHIN

    def told(self, edge: bytes) -> None:
        """Record that the caller has asked for the end, and gets the answer."""
        self._until.pop(edge, None)

    def forget(self, now: float) -> None:
        """Drop the callers that have not asked in time. They have ended, or will ask this node's next process."""
        while self._until and self.next_at() <= now:
            del self._until[next(iter(self._until))]

    def next_at(self) -> float:
        """Return the earliest time at which a caller is dropped; infinity without callers."""
        return next(iter(self._until.values()), math.inf)


def not_posted(engine: Engine, errors: Mapping[str, str], *, has_journal: bool) -> str:
    """Return a sentence about the unposted receipts: their addresses, the reasons, and what to do.

    Args:
        engine: the engine of the node.
        errors: by address, why the last call failed.
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
        "will be Unknown. Check that this node reaches them, and give it a journal (Node(store=...))"
    )


def not_ended(engine: Engine, *, has_journal: bool) -> str:
    """Return a sentence about the open messages that the node has sent for other cascades; empty if there are none.

    Messages of cascades that began in this node do not count: its next process has them in `Node.recovered`.
    """
    count = engine.known.count_handed_on()
    if not count:
        return ""
    is_one = count == 1
    head = f"{count} {'message' if is_one else 'messages'} that it handed on {'has' if is_one else 'have'} not ended"
    if has_journal:
        return f"{head}: start this node again with its journal, and the verdict of {'its cascade' if is_one else 'their cascades'} comes"
    return (
        f"{head}, and the node has no journal: the verdict of {'its cascade' if is_one else 'their cascades'} stays "
        "unknown. Give the node a journal (Node(store=...))"
    )


def _addresses(engine: Engine, errors: Mapping[str, str], default: str = "") -> list[str]:
    """Return the first addresses of unposted receipts, each with its error, and the number of the others."""
    to = list(engine.unposted_to())
    first = [(one, errors.get(one, default)) for one in to[:_NAMES_MAX]]
    named = [f"{one} ({why})" if why else one for one, why in first]
    return [*named, f"and {len(to) - _NAMES_MAX} more"] if len(to) > _NAMES_MAX else named
