"""A node: one agent's part in the mesh.

It puts the engine on an event loop: a clock, a journal, scopes for the hops, and an exchange with other
nodes. What holds:

1. Every step (something is told to the engine, what it wants written is written, what it wants done is
   done) is made without an await, so no cancellation comes between.
2. What cannot be written is not acted upon: the node refuses all that comes until it can, because it could not
   keep what it says; unless it is told to go on without (`keeping.py`).
3. All that it does on its own belongs to its scope.
"""

from __future__ import annotations

import os
import random
import sys
import time
from typing import TYPE_CHECKING, Any, Self
from weakref import WeakSet, WeakValueDictionary

from quiesce.core import arguments
from quiesce.core.light_scope import Model
from quiesce.core.server_drain import drain_of_server
from quiesce.core.tree import ScopeState, logger
from quiesce.errors import PeerLost, UsageError
from quiesce.mesh.clients.instrumentation import Instrumentation
from quiesce.mesh.protocol import codec
from quiesce.mesh.protocol.engine import Engine
from quiesce.mesh.protocol.horizon import KEEP_SECONDS
from quiesce.mesh.protocol.scheduler import Patience
from quiesce.mesh.runtime.cascade import Cascade, recovered
from quiesce.mesh.runtime.hop import Hop, job_failed
from quiesce.mesh.runtime.hop_parts import FirstPart, Part
from quiesce.mesh.runtime.node_scope import Home
from quiesce.mesh.runtime.node_steps import Steps
from quiesce.mesh.runtime.peer_calls import PeerCalls
from quiesce.mesh.store.journal import DURABILITIES, Journal
from quiesce.mesh.store.journal_keeper import MODES, Keeping
from quiesce.mesh.transport.address_policy import AddressPolicy, keep_time, own_address
from quiesce.mesh.transport.node_transport import checked_transport

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from threading import Thread

    from quiesce.core.frontier import Frontier
    from quiesce.core.hold import Hold
    from quiesce.core.report import Report
    from quiesce.core.scope import Scope
    from quiesce.mesh.protocol.states import Sending
    from quiesce.mesh.routes import shared_sends
    from quiesce.mesh.runtime.admission import Arrival
    from quiesce.mesh.transport.node_transport import Transport

__all__ = ["Node"]

_OPEN = ScopeState.OPEN


class Node(Steps):
    """One agent's part in the mesh.

    ```python
    node = Node("planner", url="https://planner.example", journal="planner.journal")
    app = node.asgi(app)
    ```

    Args:
        name: What people call the agent, in settlements.
        url: Where other nodes reach it. None: they do not, and it asks them for receipts; so does a
            script, or a program behind a firewall.
        journal: A file in which it keeps what it has to know after a restart. None: it forgets, and
            then a cascade that it took part in is fully settled for nobody.
        durability: `"process"`: what is written outlives the process; `"power"`: and the machine.
        peers: The addresses of nodes that receipts may be posted to, apart from its own origin; and
            of those that are not at the root of their server.
        opaque: The addresses of agents that are known to take no part. No error of theirs, and no silence, is
            waited for.
        accept: Is asked whether a request that hands over a message, or asks for receipts, is to be accepted,
            before anything of it is kept; for agents whose app checks credentials itself.
        transport: How to call other nodes; HTTP by default.
        patience: How often to try, and for how long.
        keep_seconds: How long a message may be under way, and how long it is remembered that it came.
            All nodes of a mesh should have the same: one with more is refused by those with less.
        on_journal_failure: What to do while the journal cannot be written, as on a full disk. `"refuse"`: take no
            messages. `"serve"`: go on as a node without a journal, of which nothing is fully settled.
        services: Patterns of names or functions of tasks, threads and calls that are loops, not work: a hop does
            not wait for them, and they go on after it. `package.module.*` also declares what that module's code starts.
        hops_max: How many messages are worked on at once; more are refused. None: any number.
    """

    def __init__(  # noqa: PLR0913 - all but one have a default
        self,
        name: str,
        *,
        url: str | None = None,
        journal: str | os.PathLike[str] | None = None,
        durability: str = "process",
        peers: Iterable[str] = (),
        opaque: Iterable[str] = (),
        accept: Callable[[Arrival], bool] | None = None,
        transport: Transport | None = None,
        patience: Patience | None = None,
        keep_seconds: float = KEEP_SECONDS,
        on_journal_failure: str = "refuse",
        services: Iterable[str] = (),
        hops_max: int | None = 100_000,
    ) -> None:
        """Describe it; it is opened by `async with`, or by the server that it is part of."""
        self.name: str = arguments.name("name", name)
        self.url: str | None = None if url is None else own_address(url)
        self._policy = AddressPolicy(self.url, peers, opaque)
        self._accept = accept
        if accept is not None:
            arguments.check_callable(accept, "accept", "a function of an Arrival")
        self._journal = None if journal is None else Journal(journal, durability=durability)
        arguments.one_of("durability", durability, DURABILITIES)  # also of one without
        self._patience = arguments.instance("patience", patience or Patience(), Patience)
        self._transport = checked_transport(transport)
        self._keep = keep_time(keep_seconds)
        self._mode = arguments.one_of("on_journal_failure", on_journal_failure, MODES)
        self._keeping: Keeping | None = None
        self._services = arguments.patterns("services", services)
        self._hops_max = arguments.size("hops_max", hops_max) or sys.maxsize
        self._wall: Callable[[], float] = time.time
        self._random: Callable[[int], bytes] = os.urandom
        self._scope: Scope | None = None
        self._closed_scope: Scope | None = None  # which has the report
        self._is_opening = self._serves = self._was_opened = False
        self._tells_drain = True  # not if quiesce has made it for itself
        self._strays: dict[object, tuple[str, str, Sending]] = {}  # see clients/strays.py
        self._shared: shared_sends.Shared = {}  # messages that are sent for several hops
        self._threads: dict[Thread, Hold] = {}  # daemon threads of hops, until they end
        self._hops: dict[bytes, Hop] = {}
        self._cascades: WeakValueDictionary[bytes, Cascade] = WeakValueDictionary()  # others let go
        self._strangers: WeakSet[Node] = WeakSet()  # nodes whose hops its clients were used in
        self.recovered: tuple[Cascade, ...] = ()
        """Cascades that an earlier process of this node has begun, and that nobody was told of."""

    # Opening and closing.

    async def open(self) -> Self:
        """Open it, below the current scope if there is one: read the journal, and go on from there.

        *Cancel safety*: it is either open or closed then.

        *Raises*: `JournalInUse`, `JournalBroken`.
        """
        if self._scope is not None or self._is_opening:
            message = f"node {self.name!r} is open already: open it once, or close it first"
            raise UsageError(message)
        self._is_opening = True
        try:
            await self._open()
        finally:
            self._is_opening = False
        return self

    async def _open(self) -> None:
        engine = self._engine = Engine(
            self.name,
            lasting=self._journal is not None,
            patience=self._patience,
            jitter=random.random,
            keep=self._keep,
            wall=self._wall,
        )
        engine.may_call = self._policy.allows
        self._hops, self._cascades, self._keeping = {}, WeakValueDictionary(), None
        self._threads = {}
        if self._journal is not None:
            self._keeping = Keeping(self._journal, engine, self._mode, self._random)
            self._keeping.open()
        owner = drain_of_server.get()
        scope: Home | None = None
        try:
            scope = await Home.open(f"node {self.name}")
            adopts = scope._backend.name == "asyncio"  # on trio, every task has a nursery
            self._hops_scope = scope.child("hops", adopt=adopts)
            self._model = Model(
                self._hops_scope,
                adopt=adopts,
                services=[*self._services, *(() if owner is None else owner.services)],
                on_error=job_failed,
                leftovers="parent",  # services, which go on
            )
            self._clock = scope._backend.clock
            engine.resume(self._clock())
            self.recovered = tuple(recovered(self, engine.detector.roots()))
            self._exchange = PeerCalls(self, engine, scope)
            await scope.enter(self._exchange.opened())
            self._commit()
            if self._keeping is not None:
                self._keeping.opened()
        except BaseException:
            self._let_go()
            if scope is not None:
                await scope.aclose()
            raise
        self._scope, self._closed_scope = scope, None
        self._was_opened = True
        scope.belong_to(self)
        self._exchange.start()

    def _let_go(self) -> None:
        """Close the journal, and wake the tasks that wait for a verdict which will not come."""
        if self._hops:
            # Whoever has the journal next takes for dead what was at work: so nobody may have it.
            logger.error(
                "node %r was closed, but work of its hops still runs: %s. If the node has a journal, that stays locked "
                "until this process ends. Make this work end when it is cancelled",
                self.name, "; ".join(hop.left_running() for hop in self._hops.values()),
            )  # fmt: skip
        elif self._keeping is not None:
            self._keeping.close()
        self._abandon()

    def _abandon(self) -> None:
        for cascade in self._cascades.values():
            cascade._abandon()

    def _is_closed(self) -> None:
        """Record that its scope is closed, in this step."""
        self._closed_scope, self._scope = self._scope, None
        self._let_go()

    async def drain(self, grace: float | None = 30.0, *, cleanup: float = 5.0) -> Report:
        """Refuse new messages, wait for the work to end, post the receipts, then close.

        When the work has ended, the receipts have `cleanup` seconds to be posted, as has work that was
        cut to end. A receipt that was not posted is lost, unless there is a journal. If the node is closed
        already, this returns the report of that close.

        *Cancel safety*: as that of `Scope.drain()`.

        *Raises*: `UsageError` if the node was never opened.
        """
        scope = self._closed_scope if self._scope is None else self._scope
        return await (scope or self._opened()).drain(grace, cleanup=cleanup)

    async def aclose(self, cleanup: float = 5.0) -> Report:
        """Cancel what is worked on, and close; if the node is closed already, return the report of that close.

        *Cancel safety*: as that of `Scope.aclose()`.

        *Raises*: `UsageError` if the node was never opened.
        """
        scope = self._closed_scope if self._scope is None else self._scope
        return await (scope or self._opened()).aclose(cleanup)

    async def __aenter__(self) -> Self:
        """Open it."""
        return await self.open()

    async def __aexit__(self, kind: object, exc: BaseException | None, traceback: object) -> None:
        """Drain it if the block ended well, else close it."""
        if self._scope is not None:
            await (self.drain() if exc is None else self.aclose())

    def _opened(self) -> Scope:
        scope = self._scope
        if scope is None:
            message = (
                f"node {self.name!r} is not open: use `async with node`, or `await node.open()`"
            )
            raise UsageError(message)
        return scope

    def frontier(self) -> Frontier:
        """List what is in flight here: hops, with all that belongs to them."""
        return self._opened().frontier()

    def cascade(self, name: str) -> Cascade:
        """Begin something of which one wants to know when all of it has ended, in every agent.

        ```python
        async with node.cascade("book-trip") as cascade:
            await client.send_message(...)
        settlement = await cascade.settled()
        ```
        """
        self._check()
        return Cascade(self, arguments.check_text("name", name))

    def handle(self, edge: codec.Handed | str | bytes) -> Part:
        """Work on a message that was handed over: opens its hop, for the block.

        ```python
        async with node.handle(request.headers["Cascade"]) as hop:
            ...
        ```

        What was started in the hop, and goes on after the block, still belongs to it.

        *Raises*: `EdgeRefused` if the message must not be worked on, as when it was before;
        `RemoteProtocolError` if what came with it is not of the protocol.
        """
        handed = edge if isinstance(edge, codec.Handed) else codec.parse_request_header(edge)
        return FirstPart(self._arrive(handed), "handler", "handler", sys._getframe(1))

    async def _serve(self, path: str, body: bytes, caller: str = "") -> bytes:
        """Answer a call of another node, however it came."""
        if self._scope is None:
            message = f"node {self.name!r} is not open: it has not started yet, or it was closed"
            raise PeerLost(message)
        return await self._exchange.serve(path, body, caller)

    def __repr__(self) -> str:
        """Name it, and say whether it is open."""
        state = "new or closed" if self._scope is None else self._scope.state
        return f"<Node {self.name!r} {state}, {len(self._hops)} hops>"

    if TYPE_CHECKING:  # set when it is opened
        _engine: Engine
        _exchange: PeerCalls
        _model: Model

    def asgi(self, app: Any, *, grace: float = 30.0, cleanup: float = 5.0) -> Any:
        """Wrap an ASGI app: requests that hand over a message become hops of this node.

        The node is open while the app is, and other nodes reach it at `/quiesce/receipts`. At the
        shutdown, hops have `grace` seconds to end; cancelled ones have `cleanup` seconds. Inside of
        a `Quiesce`, which drains requests and hops together, the times of that count.
        """
        from quiesce.mesh.transport.asgi_server import wrap_app  # noqa: PLC0415 - only for programs that serve

        return wrap_app(self, app, grace=grace, cleanup=cleanup)

    def client(self, **options: Any) -> Any:
        """Return an `AsyncClient` of httpx, or `library="httpx2"`, whose requests are messages of the current hop.

        All requests to known nodes are; to others, unless their method is safe. Other options are the library's.
        """
        from quiesce.mesh.transport.http_transport import client  # noqa: PLC0415 - httpx and httpx2 are optional

        return client(self, **options)

    def instrument(self) -> Instrumentation:
        """Make requests that plain clients send to known nodes messages of the current hop, from now on."""
        return Instrumentation(self)
