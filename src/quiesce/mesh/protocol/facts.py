"""The detector's records, effects and answers, as plain data classes.

No code changes an object after it is made. The classes are not frozen, because several objects are made for each
message, and making a frozen one takes four times as long.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from quiesce.mesh.protocol.receipt import Receipt, Status

__all__: list[str] = []

# Records, which the node writes.


@dataclass(slots=True, unsafe_hash=True)
class Begun:
    """A hop begins."""

    edge: bytes
    cascade: bytes
    parent: str
    reply: str | None
    is_root: bool = False
    name: str = ""
    """The name of the cascade, if this is a root."""
    at: float | None = None
    """When a root began, in seconds since 1970; None for other hops, and in older journals."""


@dataclass(slots=True, unsafe_hash=True)
class Sent:
    """A hop will send an edge now."""

    hop: bytes
    edge: bytes
    to: str
    by: int = 0
    """The time until which the edge may begin; 0 if unknown."""


@dataclass(slots=True, unsafe_hash=True)
class Taken:
    """The receiver of an edge has said that it works on it."""

    edge: bytes


@dataclass(slots=True, unsafe_hash=True)
class Keep:
    """The node promises to remember arrived edges for this many seconds from now on."""

    seconds: float


@dataclass(slots=True, unsafe_hash=True)
class Born:
    """A journal begins. It has everything that its node has done since this time."""

    node: str
    at: float
    """In seconds since 1970."""
    key: str = field(repr=False)
    """A secret of the node, in hexadecimal digits. It signs the node's statements about its journal."""
    boot: str = ""
    """The boot of the machine during which the journal is complete; empty if it is complete after any failure."""


@dataclass(slots=True, unsafe_hash=True)
class Counted:
    """The number of records written before this one, including removed records."""

    records: int


@dataclass(slots=True, unsafe_hash=True)
class Aged:
    """A forgetting: old ended edges are dropped, and all other ended edges count as old from now on."""

    at: float
    """In seconds since 1970."""
    rotates: bool = True
    """False if the forgetting happened before all other records in the file."""


@dataclass(slots=True, unsafe_hash=True)
class Stay:
    """Copies of a message may come until this time, which is later than usual."""

    edge: bytes
    by: int


@dataclass(slots=True, unsafe_hash=True)
class Gone:
    """An arrived edge is forgotten, because the app has refused its message and many others of the same caller."""

    edge: bytes


@dataclass(slots=True, unsafe_hash=True)
class EdgeClosed:
    """A sent edge is closed."""

    edge: bytes
    receipt: Receipt


@dataclass(slots=True, unsafe_hash=True)
class Tallied:
    """The sum of the closed edges of a hop, in place of their records."""

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
    """A hop was cancelled, with all work that was handed on from it."""

    edge: bytes


@dataclass(slots=True, unsafe_hash=True)
class Closed:
    """A hop is closed and has its receipt, in packed form."""

    edge: bytes
    packed: bytes


@dataclass(slots=True, unsafe_hash=True)
class Over:
    """An edge will not run here, or not again.

    It has the packed receipt if the edge was run and a sender may still ask for the receipt; `RAN` if the receipt
    was delivered; None if the edge was never run.
    """

    edge: bytes
    packed: bytes | None = None
    is_long: bool = False
    """Whether the edge is old, so that the next forgetting drops it."""


RAN = b""


Told = EdgeClosed | Tallied | Ended | Cancelled | Closed
Record = Begun | Sent | Taken | Over | Gone | Told | Keep | Born | Counted | Aged | Stay


# Effects, which the node carries out.


@dataclass(slots=True, unsafe_hash=True)
class Write:
    """Make a record durable before carrying out the next effect."""

    record: Record


@dataclass(slots=True, unsafe_hash=True)
class Post:
    """Send a receipt to the sender of the edge, until the sender has confirmed it."""

    edge: bytes
    to: str
    receipt: Receipt


@dataclass(slots=True, unsafe_hash=True)
class Watch:
    """Ask the receiver for the state of an edge from time to time, until the edge is closed."""

    edge: bytes
    to: str
    in_doubt: bool = False
    """Whether the edge may not have arrived."""
    cancel: bool = False
    """Whether to ask at once, with the request to end the work."""


@dataclass(slots=True, unsafe_hash=True)
class Unwatch:
    """Stop asking for an edge, because it is closed."""

    edge: bytes


@dataclass(slots=True, unsafe_hash=True)
class Stop:
    """Cancel the work of a hop. The hop reports its end in the usual way."""

    edge: bytes


@dataclass(slots=True, unsafe_hash=True)
class Settle:
    """Notify the caller that waits for a cascade which began here."""

    edge: bytes
    cascade: bytes
    receipt: Receipt


Act = Post | Watch | Unwatch | Stop | Settle
Effect = Write | Act


# Answers of a receiver, when an edge arrives or a sender asks for it.


@dataclass(slots=True, unsafe_hash=True)
class Answer:
    """The state of an edge at its receiver.

    `run`: the edge has just begun. `working`: it has begun but is not closed. `closed`: it has a receipt.
    `never`: it does not run, and never will. `not now`: it does not run, but a copy may run after a
    restart, because the receiver has no journal. `unknown`: the receiver does not know the edge, and has
    no journal.
    """

    kind: Literal["run", "working", "closed", "never", "not now", "unknown"]
    receipt: Receipt | None = None


RUN, WORKING, UNKNOWN = Answer("run"), Answer("working"), Answer("unknown")
NEVER, NOT_NOW = Answer("never"), Answer("not now")
