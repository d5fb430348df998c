"""What the tests of nodes share: a mesh in memory, whose ids, clocks and lines are given."""

from __future__ import annotations

import errno
import hashlib
import itertools
from itertools import chain
from typing import TYPE_CHECKING, Any, Self

import anyio

from quiesce import Scope, detached
from quiesce.errors import CascadeCancelled, EdgeRefused, JournalBroken, PeerLost
from quiesce.mesh import Memory, Node, Patience, Unknown, current_hop
from quiesce.mesh.protocol.receipt import edge_mark
from quiesce.mesh.store.journal import Journal
from tests.stress import lasting, turns

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path
    from types import TracebackType

    import pytest

    from quiesce.mesh import Cascade
    from quiesce.mesh.runtime.hop import Hop

    Handler = Callable[[Hop], Awaitable[object]]

WALL = 1_800_000_000.0  # what time it is on every wall
HASTE = Patience(retry_first=0.01, retry_most=0.05, ask_in_doubt=0.02, ask_every=0.3, give_up=0.8)
"""For tests that wait for these times, which are real on uvloop."""


class HandlerError(Exception):
    """What a handler raises that fails."""


class Lines(Memory):
    """The network between the nodes: it counts the calls, and may be cut."""

    def __init__(self) -> None:
        """Start with no line cut."""
        super().__init__()
        self.cut: set[str] = set()
        self.calls: list[tuple[str, str, bytes]] = []
        self.replies: list[bytes] = []

    async def call(self, to: str, path: str, body: bytes) -> bytes:
        """Return the answer of a node, unless the line to it is cut."""
        self.calls.append((to, path, body))
        if to in self.cut:
            message = f"the line to {to} is cut"
            raise PeerLost(message)
        reply = await super().call(to, path, body)
        self.replies.append(reply)
        return reply


class NoRoom:
    """The keeping of a journal on a disk that is full, and stays so."""

    is_refusing = True

    def __init__(self, node: Node) -> None:
        """Replace the keeping of a node's journal by this one."""
        self._own = node.opened.keeping
        self.error = OSError(errno.ENOSPC, "No space left on device")
        node.opened.keeping = self  # type: ignore[assignment]  # as far as it is used

    def retry(self) -> bool:
        """Fail."""
        return False

    def write(self, records: object) -> bool:
        """Fail."""
        del records
        return False

    def why(self) -> str:
        """Return what is wrong."""
        return "it cannot write"

    def broken(self) -> JournalBroken:
        """Return the error."""
        return JournalBroken(self.why())

    def close(self) -> None:
        """Let go of the file."""
        if self._own is not None:
            self._own.close()


class World:
    """Some nodes in one process, each with a server that runs handlers in tasks of its own."""

    def __init__(self, folder: Path | None = None) -> None:
        """Start without nodes.

        Args:
            folder: where the nodes have their journals; None: they have none.
        """
        self.lines = Lines()
        self.wall = WALL
        self.edges: set[bytes] = set()
        self.nodes: dict[str, Node] = {}
        self.all: list[Node] = []
        self.peers: list[str] = [f"http://{name}" for name in "abcd"]
        self._folder = folder
        self._ids = itertools.count()
        self.servers: Scope

    def make(self, name: str, **options: Any) -> Node:
        """Make a node, without opening it."""
        journal = None if self._folder is None else self._folder / f"{name}.journal"
        given = {
            "url": f"http://{name}", "store": journal, "peers": self.peers, "patience": HASTE,
            "transport": self.lines,
        }  # fmt: skip
        node = Node(name, **(given | options))
        node.random_bytes = self._random
        node.wall = lambda: self.wall
        self.nodes[name] = node
        self.all.append(node)
        return node

    async def add(self, name: str, **options: Any) -> Node:
        """Make a node, and open it."""
        return await self.make(name, **options).open()

    def _random(self, size: int) -> bytes:
        made = hashlib.blake2b(str(next(self._ids)).encode(), digest_size=size).digest()
        if size == 12:  # that of an edge
            self.edges.add(made)
        return made

    async def __aenter__(self) -> Self:
        """Open the scope in which the servers run."""
        self.servers = await Scope.open("servers")
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close all that is open, and see that nobody was told the id of an edge."""
        with anyio.CancelScope(shield=True):
            for node in self.all:
                if node.own_scope is not None:
                    await node.aclose(0.3)
            await self.servers.aclose(1.0)

    # Messages.

    async def hand(self, to: str, handler: Handler) -> None:
        """Hand a message to a node, from the current hop, as a client does."""
        with here().delegate(f"http://{to}") as handing:
            handing.answered(await self.deliver(to, handing.header, handler))

    async def deliver(self, to: str, header: str, handler: Handler) -> str:
        """Run a handler in a node's server; return what the answer says, when it has come."""
        with detached():  # as if it were in a process of its own
            job = self.servers.spawn(self.serve, to, header, handler)
        return await job

    async def serve(self, to: str, header: str, handler: Handler) -> str:
        """Run a handler as a hop, and answer."""
        node = self.nodes[to]
        try:
            part = node.handle(header)
        except EdgeRefused as refused:
            return refused.header
        try:
            async with part as hop:
                await handler(hop)
        except (CascadeCancelled, HandlerError):
            pass
        finally:
            answer = node.opened.answer(part.hop)
        return answer

    def secrets(self) -> list[str]:
        """Return the ids of all edges, in the forms in which they might be printed."""
        return [text for edge in self.edges for text in (edge.hex(), repr(edge), repr(edge)[2:-1])]


async def nothing(_: Hop) -> None:
    """Return at once: the message is done."""


async def fails(_: Hop) -> None:
    """Fail at a message."""
    raise HandlerError


async def hangs(_: Hop) -> None:
    """Work until the end of time."""
    await anyio.sleep_forever()


async def leaves(hop: Hop) -> None:
    """Leave a job that is at it until the end of time, and return."""
    hop.spawn(anyio.sleep_forever)


def questions(node: Node) -> int:
    """Count the questions of other nodes that wait at a node for an answer."""
    waiters = chain.from_iterable(node.opened.exchange.waiting_polls.values())
    return len({id(waiter) for waiter in waiters})


async def until(fact: Callable[[], object]) -> None:
    """Wait for something of which nobody tells."""
    give_up_at = anyio.current_time() + 60  # a guard
    while not fact():
        assert anyio.current_time() < give_up_at, "it did not come to that"
        await lasting(0.005)


def here() -> Hop:
    """Return the hop that the test is in."""
    hop = current_hop()
    assert hop is not None
    return hop


async def cancel_inside(cascade: Cascade) -> Hop:
    """Begin a cascade, and cancel it from inside; gives its hop."""
    found: list[Hop] = []
    try:
        async with cascade:
            found.append(here())
            await cascade.cancel()
            await anyio.sleep_forever()
    except CascadeCancelled:
        return found[0]
    message = "the block was not interrupted"
    raise AssertionError(message)


def marks(world: World) -> set[str]:
    """Return what the edges are called in public."""
    return {edge_mark(edge) for edge in world.edges}


class Full:
    """A disk that is full from some write on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
        """Count the writes to a journal."""
        self.left: int | None = None
        self.count = 0
        self._path = path
        self._write = Journal.write
        full = self

        def write(self: Journal, records: Any) -> None:
            full.write(self, records)

        monkeypatch.setattr(Journal, "write", write)

    def write(self, kept: Journal, records: Any) -> None:
        """Write, if there is room."""
        if kept.path == self._path:
            self.count += 1
            if self.left is not None:
                if not self.left:
                    raise OSError(errno.ENOSPC, "no space left")
                self.left -= 1
        self._write(kept, records)


async def is_held_by(start: Callable[[Hop, anyio.Event], object]) -> None:
    """See that a hop has not ended before what a handler has left, and ends right after it."""
    gate = anyio.Event()
    hops: list[Hop] = []

    async def handler(hop: Hop) -> None:
        hops.append(hop)
        start(hop, gate)

    async with World() as world:
        root, _ = await world.add("a"), await world.add("b")
        async with root.cascade("c") as cascade:
            await world.hand("b", handler)
        await turns(20)
        (hop,) = hops
        assert hop.state == "open"
        assert len(world.nodes["b"].opened.running_hops) == 1
        early = await cascade.settled(within=0)
        assert isinstance(early, Unknown)
        gate.set()
        assert (await cascade.settled(5, require="participants")).ok
        assert hop.state == "closed"
        assert not world.nodes["b"].opened.running_hops
