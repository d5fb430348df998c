"""Replicas of some agents in one process, which share an SQLite file; calls go to each replica of an agent in turn."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, ClassVar

import anyio

from quiesce.errors import CascadeCancelled, EdgeRefused, PeerLost, StoreLost
from quiesce.mesh import Hop, Node, Patience
from quiesce.mesh.runtime.hop import current_hop
from quiesce.mesh.store.record_rows import RecordRows
from quiesce.mesh.store.rows import Replica
from quiesce.mesh.store.shared_store import SharedStore
from quiesce.mesh.store.sqlite_database import SqliteDatabase

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from quiesce.mesh.store.rows import Batch, EdgeRow, Notice

    Handler = Callable[[Hop], Awaitable[None]]

HASTE = Patience(retry_first=0.02, retry_most=0.1, ask_in_doubt=0.05, ask_every=0.2)
AGENTS = ("a", "b", "c")


class Town:
    """Some agents, each with replicas behind one address."""

    address: ClassVar[str | None] = None
    """The store in place of a file."""

    def __init__(self, folder: Path) -> None:
        """Begin without agents; the file is in `folder`."""
        self.store = self.address or f"sqlite://{folder / 'mesh.db'}"
        self.replicas: dict[str, list[Node]] = {}
        self.all: list[Node] = []
        self.calls: list[tuple[str, str]] = []
        self._turns: dict[str, int] = {}

    def make(self, agent: str, **options: Any) -> Node:
        """Make one more replica of an agent, without opening it."""
        given: dict[str, Any] = {
            "url": f"http://{agent}", "store": self.store, "peers": [f"http://{one}" for one in AGENTS],
            "patience": HASTE, "transport": self, "store_seconds": 30.0, "lease_seconds": 0.3,
        }  # fmt: skip
        node = Node(agent, **(given | options))
        self.all.append(node)
        return node

    async def add(self, agent: str, **options: Any) -> Node:
        """Make one more replica of an agent, and open it."""
        node = await self.make(agent, **options).open()
        self.replicas.setdefault(agent, []).append(node)
        return node

    def next_of(self, agent: str) -> Node:
        """Return the replica of an agent whose turn it is."""
        turn = self._turns[agent] = self._turns.get(agent, -1) + 1
        nodes = [one for one in self.replicas.get(agent, ()) if one.own_scope is not None]
        if not nodes:
            message = f"no replica of {agent} is open"
            raise PeerLost(message)
        return nodes[turn % len(nodes)]

    async def call(self, to: str, path: str, body: bytes) -> bytes:
        """Carry a call to the replica whose turn it is."""
        agent = to.removeprefix("http://")
        self.calls.append((agent, path))
        return await self.next_of(agent).serve_call(path, body)

    async def aclose(self) -> None:
        """Do nothing: there are no connections."""

    async def close(self) -> None:
        """Close all replicas that are open."""
        with anyio.CancelScope(shield=True):
            for node in self.all:
                if node.own_scope is not None:
                    await node.aclose(20.0)

    async def hand(self, to: Node, handler: Handler) -> str:
        """Hand a message of the current hop to a replica; return its header."""
        hop = current_hop()
        assert hop is not None
        async with hop.delegate(to.url or "") as handing:
            header = handing.header
            handing.answered(await deliver(to, header, handler))
        return header


async def deliver(to: Node, header: str, handler: Handler) -> str:
    """Run a handler in a replica; return what the answer says."""
    try:
        async with to.handle(header) as hop:
            await handler(hop)
    except EdgeRefused as refused:
        return refused.header
    except CascadeCancelled:
        pass
    return await to.opened.written_answer(hop, to.answer(hop))


@asynccontextmanager
async def town(folder: Path) -> AsyncIterator[Town]:
    """Open a town, and close its replicas at the end."""
    made = Town(folder)
    try:
        yield made
    finally:
        await made.close()


async def nothing(_: Hop) -> None:
    """Return at once."""


class Gate(SqliteDatabase):
    """A file that lets a test hold up what reads and writes it."""

    def __init__(self, path: Path) -> None:
        """Begin with all open."""
        super().__init__(path)
        self.may_write = anyio.Event()
        self.may_write.set()
        self.may_own = anyio.Event()
        self.may_own.set()
        self.is_lost = False
        self.asks_for_owned = 0
        self.reads = 0
        self.failures = 0
        self.claimed: list[EdgeRow] = []

    async def apply(self, batch: Batch) -> dict[bytes, EdgeRow]:
        """Write, when the test lets it."""
        await self.may_write.wait()
        if self.is_lost:
            self.failures += 1
            message = "the test has taken it away"
            raise StoreLost(message)
        self.claimed += batch.claims
        return await super().apply(batch)

    async def owned(self, owner: str) -> list[EdgeRow]:
        """Read the rows of an incarnation, when the test lets it."""
        self.asks_for_owned += 1
        await self.may_own.wait()
        return await super().owned(owner)

    async def notices(self, owners: Any) -> list[Notice]:
        """Read notices, and count how often."""
        found = await super().notices(owners)
        self.reads += 1
        return found


def replica_of(incarnation: str, agent: str = "a", **facts: Any) -> Replica:
    """Return the entry of an incarnation."""
    return Replica(incarnation=incarnation, agent=agent, name=incarnation, lease=10.0, **facts)


def store_in(database: SqliteDatabase, own: str = "a1", *, within: float = 30.0) -> SharedStore:
    """Return a store that has not connected yet."""
    rows = RecordRows("a", own, lambda: 1000.0, lambda: 60.0)
    return SharedStore(database, replica_of(own), rows, within=within)
