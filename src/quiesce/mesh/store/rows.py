"""What replicas keep in a shared store: rows about edges, entries of replicas, and notices from one to another.

A row is about one side of one edge, and has one owner: the incarnation of a replica that may change it. Its body is the
record lines of that side (see `record_format`), with the edge's key in place of its id, which is a secret.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

__all__: list[str] = []

Side = Literal["hop", "sent"]
"""`hop`: the side of the receiver, which runs the message. `sent`: the side of the sender."""

RowState = Literal["open", "closed", "over"]
"""`closed`: the row has a receipt that its sender may not know yet. `over`: the row only keeps copies from being run."""

ReplicaState = Literal["alive", "left", "dead"]
"""`left`: the replica has closed, and owns no open row. `dead`: it is proven that its code has stopped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeRow:
    """One side of one edge."""

    key: bytes
    """The key of the edge (`receipt.edge_key`), 16 bytes."""
    side: Side
    agent: str
    """The name of the node that owns the row."""
    owner: str
    """The incarnation that owns the row."""
    cascade: bytes
    above: bytes = b""
    """For the side of the sender: the key of the hop that has sent the edge."""
    state: RowState = "open"
    root: str | None = None
    """For the first hop of a cascade: the name of the cascade."""
    began_at: float
    """When the row was made, in seconds since 1970, by the clock of the owner."""
    keep_until: float | None = None
    """When the row may be removed, in seconds since 1970; None while it is needed."""
    body: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """One start of one replica of an agent."""

    incarnation: str
    """A random name of this start."""
    agent: str
    name: str
    """The name of the replica, which a later start of the same replica has as well."""
    host: str = ""
    """The machine and its namespace of processes; empty if unknown. Replicas of one host see each other's processes."""
    boot: str = ""
    """The id of the machine's boot."""
    pid: int = 0
    started: int = 0
    """When the process started, in ticks of the machine since its boot: tells it from a later one of the same pid."""
    lease: float
    """For how many seconds a heartbeat counts."""
    fences: bool = False
    """Whether the process ends before its lease does, also while it is stopped or frozen."""
    state: ReplicaState = "alive"
    age: float = 0.0
    """How many seconds ago the last heartbeat was recorded, by the clock of the store."""
    heir: str = ""
    """The incarnation that owns the rows of this one, if this one is dead."""
    why: str = ""
    """How it is known that the replica is dead."""


@dataclass(frozen=True, slots=True)
class Notice:
    """A message to the owner of a row, from another process."""

    owner: str
    """The incarnation that the notice is for."""
    kind: Literal["receipt", "cancel"]
    key: bytes
    body: bytes = b""
    """The packed receipt."""
    number: int = 0
    """The number of the notice in the store; 0 before it is written."""


@dataclass(slots=True)
class Batch:
    """Changes that one incarnation makes at the same time.

    A store that cannot write them in one step writes them in the order of the fields, and each list in its order.
    """

    owner: str
    claims: list[EdgeRow] = field(default_factory=list)
    """Rows to insert, each only if the store has no row of that key and side."""
    puts: list[EdgeRow] = field(default_factory=list)
    """Rows to insert or replace."""
    notices: list[Notice] = field(default_factory=list)
    drops: list[tuple[Side, bytes]] = field(default_factory=list)
    """Rows to remove."""
    handled: list[int] = field(default_factory=list)
    """The numbers of notices that the owner has dealt with."""

    def __bool__(self) -> bool:
        """Return whether there is anything to write."""
        return bool(self.claims or self.puts or self.notices or self.drops or self.handled)
