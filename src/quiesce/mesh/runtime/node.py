"""A node: one agent's part in the mesh.

A node runs the engine on an event loop, with a clock, a journal, scopes for the hops, and an exchange with other
nodes. Invariants:

1. A step passes an event to the engine, writes the engine's records, and carries out its requests. It has no
   await, so a cancellation cannot come in between.
2. The node acts on a record only after it has written the record. If it cannot write, it refuses all messages
   until it can, unless it is configured to go on without a journal (`journal_keeper.py`).
3. All tasks that the node starts belong to its scope.
"""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Any, Self
from weakref import WeakSet

from quiesce.core import arguments
from quiesce.core.python_private import get_frame
from quiesce.errors import ArgumentError, PeerLost, UsageError
from quiesce.mesh.clients.instrumentation import Instrumentation
from quiesce.mesh.protocol import codec
from quiesce.mesh.protocol.horizon import KEEP_SECONDS
from quiesce.mesh.protocol.scheduler import Patience
from quiesce.mesh.routes.bystanders import Bystanders
from quiesce.mesh.routes.joined_work import JoinedWork
from quiesce.mesh.runtime.cascade import Cascade
from quiesce.mesh.runtime.hop_parts import ClaimedPart, FirstPart, Part
from quiesce.mesh.runtime.node_events import Subscribers
from quiesce.mesh.runtime.open_node import OpenNode
from quiesce.mesh.store.journal import DURABILITIES
from quiesce.mesh.store.journal_keeper import MODES, Health
from quiesce.mesh.store.store_address import store_of
from quiesce.mesh.transport.address_policy import AddressPolicy, keep_time, own_address
from quiesce.mesh.transport.node_transport import checked_transport

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from quiesce.core.frontier import Frontier
    from quiesce.core.report import Report
    from quiesce.core.scope import Scope
    from quiesce.mesh.protocol.states import Sending
    from quiesce.mesh.runtime.admission import Arrival
    from quiesce.mesh.runtime.hop import Hop
    from quiesce.mesh.runtime.node_events import NodeEvent
    from quiesce.mesh.runtime.node_scope import Home
    from quiesce.mesh.store.database import Database
    from quiesce.mesh.store.journal import Journal
    from quiesce.mesh.transport.node_transport import Transport

__all__ = ["Node"]

_LEASE_MIN = 2.0  # seconds, with a fence


class Node:
    """One agent's part in the mesh.

    ```python
    node = Node("planner", url="https://planner.example", store="planner.journal")
    app = node.asgi(app)
    ```

    Args:
        name: The agent's name in settlements and logs.
        url: The address at which other nodes reach this node. None, for a script or a program behind a
            firewall: others cannot reach it, so it asks them for receipts.
        store: Where the node keeps its state for a restart. A path: a file, for one process. `sqlite:///path`: a file
            that the processes of one machine share. All processes with the same name and shared store are one agent,
            its replicas. None: a restart loses the state, so no cascade with this node gets the verdict fully settled.
        durability: Of a file: `"process"`: written records survive the end of the process. `"power"`: they also
            survive a power failure of the machine.
        replica: With a shared store, the name of this replica, if its platform gives it a name that only one process
            has at a time, such as the name of a pod of a StatefulSet. When a replica starts, the earlier process of that
            name is known to be dead.
        lease_seconds: With a shared store, how long the others believe without a heartbeat that this replica runs.
        fence: With a shared store on Linux, have the kernel kill this process when it could not send a heartbeat for
            `lease_seconds`, also while it is stopped. Then the others know that it is dead when its lease is over.
        store_seconds: With a shared store, how long a message waits for the store before it is refused.
        peers: The addresses of nodes that receipts may be posted to, apart from the node's own origin. Also list
            the nodes that are not at the root of their server.
        opaque: The addresses of agents that take no part. The verdict does not wait for them, even if they
            answer with an error or not at all.
        accept: A function that decides whether to accept a request with a message or a question for receipts. The
            node keeps nothing of a refused request. Use it if your app checks credentials.
        transport: How to call other nodes; HTTP by default.
        patience: How often to try, and for how long.
        keep_seconds: How long a message may be under way, and how long the node remembers it.
            Use the same value in all nodes: a node with a lower value refuses messages of a node with a higher one.
        on_trouble: What to do while the file cannot be written, as on a full disk. `"refuse"`: refuse
            all messages. `"serve"`: go on as a node without a file, so no cascade gets fully settled.
        services: Patterns of names or functions of tasks, threads and calls that are loops, not work. A hop does
            not wait for them, and they outlive it. `package.module.*` also declares work that the module's code starts.
        hops_max: How many messages may be processed at once; further messages are refused. None: any number.
    """

    def __init__(  # noqa: PLR0913 - all but one have a default
        self,
        name: str,
        *,
        url: str | None = None,
        store: str | os.PathLike[str] | Database | None = None,
        durability: str = "process",
        replica: str | None = None,
        lease_seconds: float = 15.0,
        fence: bool = False,
        store_seconds: float = 10.0,
        peers: Iterable[str] = (),
        opaque: Iterable[str] = (),
        accept: Callable[[Arrival], bool] | None = None,
        transport: Transport | None = None,
        patience: Patience | None = None,
        keep_seconds: float = KEEP_SECONDS,
        on_trouble: str = "refuse",
        services: Iterable[str] = (),
        hops_max: int | None = 100_000,
    ) -> None:
        """Describe a node. `async with`, or the server that it is part of, opens it."""
        self.name: str = arguments.name("name", name)
        self.url: str | None = None if url is None else own_address(url)
        self.policy: AddressPolicy = AddressPolicy(self.url, peers, opaque)
        self.accept_rule = accept
        if accept is not None:
            arguments.check_callable(accept, "accept", "a function of an Arrival")
        arguments.one_of("durability", durability, DURABILITIES)  # checked even without a store
        self.journal: Journal | None
        self.database: Database | None
        self.journal, self.database = store_of(store, durability=durability)
        self.replica: str | None = None if replica is None else arguments.name("replica", replica)
        self.lease_seconds: float = arguments.seconds("lease_seconds", lease_seconds)
        self.fence: bool = arguments.instance("fence", fence, bool)
        self.store_seconds: float = arguments.seconds("store_seconds", store_seconds)
        self._check_shared(on_trouble)
        self.patience: Patience = arguments.instance("patience", patience or Patience(), Patience)
        self.transport_given: Transport | None = checked_transport(transport)
        self.keep_seconds: float = keep_time(keep_seconds)
        self.on_trouble: str = arguments.one_of("on_trouble", on_trouble, MODES)
        self.services_given: tuple[str, ...] = arguments.patterns("services", services)
        self.hops_max: int = arguments.size("hops_max", hops_max) or sys.maxsize
        self.wall: Callable[[], float] = time.time
        self.random_bytes: Callable[[int], bytes] = os.urandom
        self.last_opening: OpenNode | None = None
        self.is_opening: bool = False
        self.is_telling_drain = True  # False for nodes that quiesce makes for internal use
        self.stray_sendings: dict[object, tuple[str, str, Sending]] = {}  # see clients/strays.py
        self.bystanders: Bystanders = Bystanders()
        self.joined_work: JoinedWork = JoinedWork()
        # Other nodes in whose hops this node's clients were used.
        self.strangers: WeakSet[Node] = WeakSet()
        self.subscribers: Subscribers = Subscribers(self)
        self.recovered: tuple[Cascade, ...] = ()
        """Cascades that an earlier process of this node has begun, and whose verdict was not delivered."""

    def _check_shared(self, on_trouble: str) -> None:
        if self.database is None and (self.replica is not None or self.fence):
            option = "fence=" if self.fence else "replica="
            message = (
                f"node {self.name!r} has {option} but no shared store, so it is one process: give it store=, such as"
                f" sqlite:///path, or leave {option} out"
            )
            raise ArgumentError(message)
        if self.fence and self.lease_seconds < _LEASE_MIN:
            message = (
                f"lease_seconds must be at least {_LEASE_MIN:g} with fence=True, not {self.lease_seconds:g}: the kernel ends"
                " the process if no heartbeat is written in that time"
            )
            raise ArgumentError(message)
        if self.database is not None and on_trouble == "serve":
            message = (
                f'node {self.name!r} has on_trouble="serve", which only a store in a file has: with a shared store, another'
                " replica might run the same message"
            )
            raise ArgumentError(message)

    @property
    def keeps_records(self) -> bool:
        """Whether the node has a store, so that a restart does not lose its state."""
        return self.journal is not None or self.database is not None

    # Opening and closing.

    async def open(self) -> Self:
        """Open the node below the current scope, if there is one; read the journal, and continue from its state.

        *Cancel safety*: if cancelled, the node is either open or closed.

        *Raises*: `JournalInUse` if another node uses the journal; `JournalBroken` if the file is damaged.
        """
        if self.own_scope is not None or self.is_opening:
            message = f"node {self.name!r} is already open: open it only once, or close it first"
            raise UsageError(message)
        self.is_opening = True
        try:
            opening = OpenNode(self)
            await opening.open()
            self.last_opening = opening
        finally:
            self.is_opening = False
        return self

    async def drain(self, grace: float | None = 30.0, *, cleanup: float = 5.0) -> Report:
        """Refuse new messages, wait for the work to end, post the receipts, then close.

        Cancelled work has `cleanup` seconds to end. Afterwards the node has `cleanup` seconds to post the
        receipts. A receipt that is not posted is lost, unless the node has a journal. If the node is already
        closed, return the report of that close.

        *Cancel safety*: as that of `Scope.drain()`.

        *Raises*: `UsageError` if the node was never opened.
        """
        return await self._last_scope().drain(grace, cleanup=cleanup)

    async def aclose(self, cleanup: float = 5.0) -> Report:
        """Cancel all hops, and close. If the node is already closed, return the report of that close.

        *Cancel safety*: as that of `Scope.aclose()`.

        *Raises*: `UsageError` if the node was never opened.
        """
        return await self._last_scope().aclose(cleanup)

    async def __aenter__(self) -> Self:
        """Open the node."""
        return await self.open()

    async def __aexit__(self, kind: object, exc: BaseException | None, traceback: object) -> None:
        """Drain the node, or close it if the block raised."""
        if self.own_scope is not None:
            await (self.drain() if exc is None else self.aclose())

    @property
    def opened(self) -> OpenNode:
        """The node's current opening; after a close, the last one.

        *Raises*: `UsageError` if the node was never opened.
        """
        if self.last_opening is None:
            raise self.not_open()
        return self.last_opening

    @property
    def own_scope(self) -> Home | None:
        """The node's scope while the node is open."""
        return None if self.last_opening is None else self.last_opening.scope

    @property
    def was_opened(self) -> bool:
        """Whether the node is open, or was open before."""
        return self.last_opening is not None

    @property
    def health(self) -> Health:
        """Whether the node can work on messages now, and the problem if it cannot."""
        return Health("closed") if self.last_opening is None else self.last_opening.health

    def _last_scope(self) -> Scope:
        """Return the node's scope; after a close, the closed one, which has the report."""
        return self.opened.scope or self.opened.closed_scope or self.get_open_scope()

    def not_open(self) -> UsageError:
        """Return the error for a use of the node while it is not open."""
        message = f"node {self.name!r} is not open: use `async with node`, or `await node.open()`"
        return UsageError(message)

    def get_open_scope(self) -> Scope:
        scope = self.own_scope
        if scope is None:
            raise self.not_open()
        return scope

    def frontier(self) -> Frontier:
        """Return a snapshot of the work in flight: the hops, each with its work."""
        return self.get_open_scope().frontier()

    def cascade(self, name: str) -> Cascade:
        """Return a cascade. Its block begins work; afterwards, wait for the end of that work in all agents.

        ```python
        async with node.cascade("book-trip") as cascade:
            await client.send_message(...)
        settlement = await cascade.settled()
        ```
        """
        self.opened.check_accepts()
        return Cascade(self, arguments.check_text("name", name))

    def handle(self, edge: codec.Handed | str | bytes) -> Part:
        """Return the first part of a received message's hop. Its block works on the message.

        ```python
        async with node.handle(request.headers["Cascade"]) as hop:
            ...
        ```

        Work that was started in the hop and goes on after the block still belongs to the hop.

        *Raises*: `EdgeRefused` if the node must not process the message, for example because it is a copy;
        `RemoteProtocolError` if the header violates the protocol. With a shared store, entering the block raises
        `EdgeRefused`, or `StoreLost` if the store does not answer in time.
        """
        handed = edge if isinstance(edge, codec.Handed) else codec.parse_request_header(edge)
        opened = self.opened
        if opened.shared is not None:
            return ClaimedPart(opened.shared, handed, get_frame(1))
        return FirstPart(opened.accept_arrival(handed), "handler", "handler", get_frame(1))

    def answer(self, hop: Hop) -> str:
        """Return the header `Cascade-Receipt` for the answer to a hop's message.

        Call this once, as late as possible: if the hop has ended by then, the header carries its receipt.
        """
        return hop.opened.answer(hop)

    async def serve_call(self, path: str, body: bytes, caller: str = "") -> bytes:
        """Answer a call of another node, over any transport."""
        if self.own_scope is None:
            message = f"node {self.name!r} is not open: it has not started yet, or it was closed"
            raise PeerLost(message)
        return await self.opened.exchange.serve(path, body, caller)

    def __repr__(self) -> str:
        """Return the node's name, its state, and its number of hops."""
        scope = self.own_scope
        state = "new or closed" if scope is None else scope.state
        hops = 0 if self.last_opening is None else len(self.last_opening.running_hops)
        return f"<Node {self.name!r} {state}, {hops} hops>"

    def subscribe(self, fn: Callable[[NodeEvent], object]) -> Callable[[], None]:
        """Call a function with every event of this node from now on. Return a function that ends this.

        ```python
        node.subscribe(print)
        ```

        The function is called in the event loop, in the order of the events, after their records have lasted. It must
        return soon. If it raises, the error is logged, and the node goes on.
        """
        arguments.check_callable(fn, "subscribe", "a function of a NodeEvent")
        remove = self.subscribers.add(fn)
        if self.last_opening is not None:
            self.last_opening.watch_events()
        return remove

    def asgi(self, app: Any, *, grace: float = 30.0, cleanup: float = 5.0) -> Any:
        """Wrap an ASGI app: requests that carry a message become hops of this node.

        The node is open during the app's lifespan, and other nodes reach it at `/quiesce/receipts`. At
        the shutdown, hops have `grace` seconds to end, and cancelled hops `cleanup` seconds. If a
        `Quiesce` is around it, `Quiesce` drains requests and hops together, with its own times.
        """
        from quiesce.mesh.transport.asgi_server import wrap_app  # noqa: PLC0415 - only for programs that serve

        return wrap_app(self, app, grace=grace, cleanup=cleanup)

    def client(self, **options: Any) -> Any:
        """Return an `AsyncClient` of httpx, or `library="httpx2"`, whose requests are messages of the current hop.

        All requests to known nodes are messages. Requests to other servers are messages, too, unless their method is
        safe. The other options are those of the library's client.
        """
        from quiesce.mesh.transport.http_transport import client  # noqa: PLC0415 - httpx and httpx2 are optional

        return client(self, **options)

    def instrument(self) -> Instrumentation:
        """From now on, turn requests of plain clients to known nodes into messages of the current hop."""
        return Instrumentation(self)
