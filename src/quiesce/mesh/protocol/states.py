"""The states of a hop and of an edge, and how they move: the tables from which the documentation draws them.

A hop is the receiving side of an edge; the sending side is the edge itself. The detector moves both.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Literal

from quiesce.mesh.protocol.receipt import Tally

if TYPE_CHECKING:
    from quiesce.mesh.protocol.facts import Begun
    from quiesce.mesh.protocol.receipt import Receipt, Status

__all__: list[str] = []


class _State(Enum):
    """A state: there is one of each, so its identity is hash enough, and much faster than its name's."""

    if not TYPE_CHECKING:
        __hash__ = object.__hash__


class HopState(_State):
    """Where the receiving side of an edge stands; `ABSENT` and `OVER` are never a hop's own."""

    ABSENT = "absent"
    RUNNING = "running"
    WAITING = "waiting"
    CLOSED = "closed"
    OVER = "over"


class EdgeState(_State):
    """Where the sending side of an edge stands."""

    SENDING = "sending"
    OPEN = "open"
    CLOSED = "closed"


HOP_MOVES: dict[tuple[HopState, str], HopState] = {
    (HopState.ABSENT, "arrives"): HopState.RUNNING,
    (HopState.ABSENT, "is refused"): HopState.OVER,
    (HopState.ABSENT, "is asked for"): HopState.OVER,
    (HopState.RUNNING, "ends, with edges open"): HopState.WAITING,
    (HopState.RUNNING, "ends"): HopState.CLOSED,
    (HopState.WAITING, "last edge is closed"): HopState.CLOSED,
    (HopState.CLOSED, "receipt is taken"): HopState.OVER,
    (HopState.CLOSED, "receipt is on the answer"): HopState.OVER,
    (HopState.CLOSED, "nobody takes its receipt"): HopState.OVER,
}
EDGE_MOVES: dict[tuple[EdgeState, str], EdgeState] = {
    (EdgeState.SENDING, "is taken"): EdgeState.OPEN,
    (EdgeState.SENDING, "is in doubt"): EdgeState.OPEN,
    (EdgeState.SENDING, "is refused"): EdgeState.CLOSED,
    (EdgeState.SENDING, "is refused, for now"): EdgeState.CLOSED,
    (EdgeState.SENDING, "is not sent"): EdgeState.CLOSED,
    (EdgeState.SENDING, "is opaque"): EdgeState.CLOSED,
    (EdgeState.SENDING, "is untracked"): EdgeState.CLOSED,
    **{
        (state, event): EdgeState.CLOSED
        for event in ("has a receipt", "never will run", "is not known there", "is given up")
        for state in (EdgeState.SENDING, EdgeState.OPEN)
    },
}

Sending = Literal[
    "is taken", "is in doubt", "is refused", "is refused, for now", "is not sent", "is opaque", "is untracked"
]  # fmt: skip

_RUNNING = HopState.RUNNING  # Python takes long to find a member of an enumeration
NOTHING = Tally()  # of a hop that no edge of is closed: most hops send none


class EdgeRecord:
    """An edge that was sent from here, and is not closed."""

    __slots__ = ("below", "by", "error_status", "hop", "is_taken", "state", "to")

    def __init__(self, hop: HopRecord, to: str, by: float = 0) -> None:
        self.hop: HopRecord = hop
        self.to: str = to
        self.by: float = by  # exactly, if this process has sent it; else in whole seconds, an `int`
        self.state: EdgeState = EdgeState.SENDING
        self.is_taken: bool = False
        self.error_status: int = (
            0  # of an answer that does not say whether it is taken; not kept in the journal
        )
        self.below: tuple[tuple[bytes, str], ...] = ()  # what follows from it, and to whom


class HopRecord:
    """The receiving side of an edge, or the root of a cascade, which nobody has sent."""

    __slots__ = (
        "cascade", "edge", "edges", "is_answered", "is_cancelled", "is_root", "name", "parent", "receipt", "reply",
        "seconds", "state", "status", "tally", "why",
    )  # fmt: skip

    def __init__(self, begun: Begun) -> None:
        self.edge: bytes = begun.edge
        self.cascade: bytes = begun.cascade
        self.parent: str = begun.parent
        self.reply: str | None = begun.reply
        self.is_root: bool = begun.is_root
        self.name: str = begun.name
        self.state: HopState = _RUNNING
        self.status: Status = "done"
        self.seconds: float | None = None
        self.why: str = ""
        self.is_answered: bool = False
        self.is_cancelled: bool = False
        self.edges: dict[bytes, EdgeRecord] = {}
        self.tally: Tally = NOTHING
        self.receipt: Receipt | None = None

    def add(self, receipt: Receipt) -> None:
        """Count the receipt of an edge that was sent from it."""
        if self.tally is NOTHING:
            self.tally = Tally()
        self.tally.add(receipt)

    def move(self, event: str) -> None:
        """Go to the next state."""
        self.state = HOP_MOVES[self.state, event]
