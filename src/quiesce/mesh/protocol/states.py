"""The state tables of an edge, of a hop, and of the work of a hop.

A hop is the receiving side of an edge; `EdgeState` is the state of the sending side. The detector changes both. The
work of a hop runs in its agent: `mesh/runtime/hop.py` changes its state, and notifies the detector of its end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from quiesce.core.life import Life, State
from quiesce.mesh.protocol.receipt import Tally

if TYPE_CHECKING:
    from quiesce.mesh.protocol.facts import Begun
    from quiesce.mesh.protocol.receipt import Receipt, Status

__all__: list[str] = []


class HopState(State):
    """The state of the receiving side of an edge. When it is `OVER`, the detector keeps only the receipt."""

    RUNNING = "running"
    WAITING = "waiting"
    CLOSED = "closed"
    OVER = "over"


class WorkState(State):
    """The state of the work of a hop, in the process that does it."""

    RUNNING = "running"
    ENDING = "ending"
    LEFT = "left"
    ENDED = "ended"


class EdgeState(State):
    """The state of the sending side of an edge."""

    SENDING = "sending"
    OPEN = "open"
    CLOSED = "closed"


HOP_LIFE: Life[HopState] = Life(
    "a hop",
    {
        # Waiting: its edges are open. From running to over: the answer carries the receipt.
        HopState.RUNNING: (HopState.WAITING, HopState.CLOSED, HopState.OVER),
        HopState.WAITING: (HopState.CLOSED,),
        HopState.CLOSED: (HopState.OVER,),
        HopState.OVER: (),
    },
)
WORK_LIFE: Life[WorkState] = Life(
    "the work of a hop",
    {
        WorkState.RUNNING: (WorkState.ENDING, WorkState.ENDED),
        # Left: only closers run, which wait for the close of the node or of a scope below the hop.
        WorkState.ENDING: (WorkState.LEFT, WorkState.ENDED),
        WorkState.LEFT: (WorkState.ENDING, WorkState.ENDED),
        WorkState.ENDED: (),
    },
)
EDGE_LIFE: Life[EdgeState] = Life(
    "an edge",
    {
        EdgeState.SENDING: (EdgeState.OPEN, EdgeState.CLOSED),
        EdgeState.OPEN: (EdgeState.CLOSED,),
        EdgeState.CLOSED: (),
    },
)

Sending = Literal[
    "is taken", "is in doubt", "is refused", "is refused, for now", "is not sent", "is opaque", "is untracked"
]  # fmt: skip

_RUNNING = HopState.RUNNING  # a plain global is quicker than an attribute of an enum
NOTHING = Tally()  # the sum of a hop without closed edges; most hops send no messages


class EdgeRecord:
    """An open edge that this node has sent."""

    __slots__ = ("below", "by", "error_status", "hop", "is_taken", "state", "to")

    def __init__(self, hop: HopRecord, to: str, by: float = 0) -> None:
        self.hop: HopRecord = hop
        self.to: str = to
        self.by: float = by  # exact, or an `int` after a restart
        self.state: EdgeState = EdgeState.SENDING
        self.is_taken: bool = False
        self.error_status: int = (
            0  # status of an error that leaves the message in doubt; not in the journal
        )
        self.below: tuple[tuple[bytes, str], ...] = ()  # the edges below it, with their receivers

    def enter(self, state: EdgeState) -> None:
        """Enter the next state; `EDGE_LIFE` lists the allowed steps."""
        self.state = EDGE_LIFE.step(self.state, state)


class HopRecord:
    """The receiving side of an edge, or the root of a cascade, which was not sent."""

    __slots__ = (
        "at", "cascade", "edge", "edges", "is_answered", "is_cancelled", "is_root", "name", "parent", "receipt", "reply",
        "seconds", "state", "status", "tally", "why",
    )  # fmt: skip

    def __init__(self, begun: Begun) -> None:
        self.edge: bytes = begun.edge
        self.cascade: bytes = begun.cascade
        self.parent: str = begun.parent
        self.reply: str | None = begun.reply
        self.is_root: bool = begun.is_root
        self.name: str = begun.name
        self.at: float | None = begun.at
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
        """Add the receipt of an edge that the hop has sent."""
        if self.tally is NOTHING:
            self.tally = Tally()
        self.tally.add(receipt)

    def enter(self, state: HopState) -> None:
        """Enter the next state; `HOP_LIFE` lists the allowed steps."""
        self.state = HOP_LIFE.step(self.state, state)
