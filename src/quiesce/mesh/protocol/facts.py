"""What a detector writes, what it wants done, and what it answers: plain facts, nothing else.

Nobody changes one. They are not frozen all the same: several are made for every message, and a frozen
one takes four times as long to make.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from quiesce.mesh.protocol.receipt import Receipt, Status

__all__: list[str] = []

# What is written.


@dataclass(slots=True, unsafe_hash=True)
class Begun:
    """A hop begins."""

    edge: bytes
    cascade: bytes
    parent: str
    reply: str | None
    is_root: bool = False
    name: str = ""
    """The cascade's, of a root."""


@dataclass(slots=True, unsafe_hash=True)
class Sent:
    """An edge is about to be sent from a hop."""

    hop: bytes
    edge: bytes
    to: str
    by: int = 0
    """Until when it may begin; 0: that is not known."""


@dataclass(slots=True, unsafe_hash=True)
class Taken:
    """The receiver of an edge has said that it works on it."""

    edge: bytes


@dataclass(slots=True, unsafe_hash=True)
class Keep:
    """For how many seconds it was promised, from now on, to remember what came."""

    seconds: float


@dataclass(slots=True, unsafe_hash=True)
class Born:
    """A journal begins: whose it is, and since when it has had all that its node did."""

    node: str
    at: float
    """In seconds since 1970."""
    key: str = field(repr=False)
    """A secret of the node, in hexadecimal digits: what it has told of its journal is signed with it."""
    boot: str = ""
    """While which run of the machine it has all that its process did; empty: whatever happens."""


@dataclass(slots=True, unsafe_hash=True)
class Counted:
    """How many records were written until now, this one left out; in place of those that are gone."""

    records: int


@dataclass(slots=True, unsafe_hash=True)
class Aged:
    """What was over for long is forgotten, and all else that is over is so for long from now on."""

    at: float
    """In seconds since 1970."""
    rotates: bool = True
    """False: it happened before all that is in the file."""


@dataclass(slots=True, unsafe_hash=True)
class Stay:
    """Copies of a message may come until this time, which is later than is usual."""

    edge: bytes
    by: int


@dataclass(slots=True, unsafe_hash=True)
class Gone:
    """Nothing is known of an edge that came: the app has turned its message away, as many others from there."""

    edge: bytes


@dataclass(slots=True, unsafe_hash=True)
class EdgeClosed:
    """An edge that was sent is closed."""

    edge: bytes
    receipt: Receipt


@dataclass(slots=True, unsafe_hash=True)
class Tallied:
    """What the edges of a hop that are closed come to; in place of their records."""

    edge: bytes
    receipt: Receipt


@dataclass(slots=True, unsafe_hash=True)
class Ended:
    """A hop's own work has ended; edges are open."""

    edge: bytes
    status: Status
    seconds: float | None
    why: str


@dataclass(slots=True, unsafe_hash=True)
class Cancelled:
    """A hop was told to end, with all that was handed on from it."""

    edge: bytes


@dataclass(slots=True, unsafe_hash=True)
class Closed:
    """A hop has its receipt, which is packed."""

    edge: bytes
    packed: bytes


@dataclass(slots=True, unsafe_hash=True)
class Over:
    """An edge never runs here, or not again.

    With its receipt, packed, if it was run and that may still be asked for; `RAN`, if the receipt was taken; None, if
    it was never run.
    """

    edge: bytes
    packed: bytes | None = None
    is_long: bool = False
    """Whether it is so for long, and forgotten the next time."""


RAN = b""


Told = EdgeClosed | Tallied | Ended | Cancelled | Closed
Record = Begun | Sent | Taken | Over | Gone | Told | Keep | Born | Counted | Aged | Stay


# What is to be done.


@dataclass(slots=True, unsafe_hash=True)
class Write:
    """Keep a record, so that it is there after a restart, before what comes next is done."""

    record: Record


@dataclass(slots=True, unsafe_hash=True)
class Post:
    """Send a receipt to whoever has sent the edge, until it is taken."""

    edge: bytes
    to: str
    receipt: Receipt


@dataclass(slots=True, unsafe_hash=True)
class Watch:
    """Ask the receiver of an edge how it stands, from time to time, until it is closed."""

    edge: bytes
    to: str
    in_doubt: bool = False
    """Whether it is not known that the edge has arrived."""
    cancel: bool = False
    """Whether to ask at once, and to ask it to end."""


@dataclass(slots=True, unsafe_hash=True)
class Unwatch:
    """Ask no more: the edge is closed."""

    edge: bytes


@dataclass(slots=True, unsafe_hash=True)
class Stop:
    """Cancel the work of a hop; it says when it has ended, as ever."""

    edge: bytes


@dataclass(slots=True, unsafe_hash=True)
class Settle:
    """Notify the caller that waits for a cascade which began here."""

    edge: bytes
    cascade: bytes
    receipt: Receipt


Act = Post | Watch | Unwatch | Stop | Settle
Effect = Write | Act


# What a receiver answers when an edge arrives, or is asked for.


@dataclass(slots=True, unsafe_hash=True)
class Answer:
    """How an edge stands with its receiver.

    `run`: it has just begun. `working`: it has begun, and has not closed. `closed`: see the receipt.
    `never`: it does not run, and never will. `not now`: it does not run, but a copy might after a
    restart, for there is no journal. `unknown`: the receiver knows nothing of it, and keeps no journal.
    """

    kind: Literal["run", "working", "closed", "never", "not now", "unknown"]
    receipt: Receipt | None = None


RUN, WORKING, UNKNOWN = Answer("run"), Answer("working"), Answer("unknown")
NEVER, NOT_NOW = Answer("never"), Answer("not now")
