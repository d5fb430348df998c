"""A node: one agent's part in the mesh.

It puts the engine on an event loop: a clock, a journal, scopes for the hops, and an exchange with other
nodes. What holds:

1. Every step (something is told to the engine, what it wants written is written, what it wants done is
   done) is made without an await, so no cancellation comes between.
2. What cannot be written is not acted upon: the node then refuses all that comes, because it could not
   keep what it says. Those who wait for it find that they cannot know.
3. All that it does on its own belongs to its scope.
"""

from __future__ import annotations

import os
import random
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self
from weakref import WeakSet, WeakValueDictionary

from quiesce.core import arguments
from quiesce.core.light import Model
from quiesce.core.node import State, logger
from quiesce.errors import EdgeRefused, JournalBroken, PeerLost, UsageError
from quiesce.mesh import wire
from quiesce.mesh.cascade import Cascade, recovered
from quiesce.mesh.compaction import Tidying
from quiesce.mesh.courier import Patience
from quiesce.mesh.engine import Engine
from quiesce.mesh.exchange import Exchange
from quiesce.mesh.facts import NOT_NOW, RUN, WORKING, Closed, Settle
from quiesce.mesh.home import Home
from quiesce.mesh.hop import Hop, Part, Taken, failed
from quiesce.mesh.journal import DURABILITIES, Journal
from quiesce.mesh.policy import KEEP_SECONDS, Policy, is_early, is_in_time, keep_time, own_address
from quiesce.mesh.receipt import mark
from quiesce.mesh.transport import checked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import TracebackType

    from quiesce.core.frontier import Frontier
    from quiesce.core.report import Report
    from quiesce.core.scope import Scope
    from quiesce.mesh import states
    from quiesce.mesh.facts import Answer, Record, Stop
    from quiesce.mesh.receipt import Status
    from quiesce.mesh.states import Sending
    from quiesce.mesh.transport import Transport

__all__ = ["Node"]

_OPEN = State.OPEN


class Node:
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
        transport: How to call other nodes; HTTP by default.
        patience: How often to try, and for how long.
        keep_seconds: How long a message may be under way, and how long it is remembered that it came.
            All nodes of a mesh should have the same: one with more is refused by those with less.
        services: Patterns of names or functions of tasks that are loops, not work: a hop does not
            wait for them, and they go on after it.
        hops_max: How many messages are worked on at once; more are refused. None: any number.
    """

    def __init__(
        self,
        name: str,
        *,
        url: str | None = None,
        journal: str | os.PathLike[str] | None = None,
        durability: str = "process",
        peers: Iterable[str] = (),
        transport: Transport | None = None,
        patience: Patience | None = None,
        keep_seconds: float = KEEP_SECONDS,
        services: Iterable[str] = (),
        hops_max: int | None = 100_000,
    ) -> None:
        """Describe it; it is opened by `async with`, or by the server that it is part of."""
        self.name: str = arguments.name("name", name)
        self.url: str | None = None if url is None else own_address(url)
        self._policy = Policy(self.url, peers)
        self._journal = None if journal is None else Journal(journal, durability=durability)
        arguments.one_of("durability", durability, DURABILITIES)  # also of one without
        self._patience = arguments.instance("patience", patience or Patience(), Patience)
        self._transport = checked(transport)
        self._keep = keep_time(keep_seconds)
        self._services = arguments.patterns("services", services)
        self._hops_max = arguments.size("hops_max", hops_max) or sys.maxsize
        self._wall: Callable[[], float] = time.time
        self._random: Callable[[int], bytes] = os.urandom
        self._scope: Scope | None = None
        self._is_opening = False
        self._broken: BaseException | None = None
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
            message = f"node {self.name!r} is open already"
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
        )
        self._hops, self._cascades, self._broken = {}, WeakValueDictionary(), None
        if self._journal is not None:
            self._journal.open_into(engine.detector.restore)
            self._tidying = Tidying(self.name, self._journal, engine.detector)
        scope: Home | None = None
        try:
            scope = await Home.open(f"node {self.name}")
            adopts = scope._backend.name == "asyncio"  # on trio, every task has a nursery
            self._hops_scope = scope.child("hops", adopt=adopts)
            self._model = Model(
                self._hops_scope,
                adopt=adopts,
                services=self._services,
                on_error=failed,
                leftovers="parent",  # services, which go on
            )
            self._clock = scope._backend.clock
            engine.resume(self._clock())
            self.recovered = tuple(recovered(self, engine.detector.roots()))
            self._exchange = Exchange(self, engine, scope)
            await scope.enter(self._exchange.opened())
            self._exchange.promise()
        except BaseException:
            self._let_go()
            if scope is not None:
                await scope.aclose()
            raise
        self._scope = scope
        scope.node = self
        self._exchange.start()

    def _let_go(self) -> None:
        """Let go of the journal, and of those who wait for what will not come."""
        if self._hops:
            # Whoever has the journal next takes for dead what was at work: so nobody may have it.
            names = ", ".join(hop.name for hop in self._hops.values())
            logger.error("node %r is closed, but %s did not end", self.name, names)
        elif self._journal is not None:
            self._journal.close()
        self._abandon()

    def _abandon(self) -> None:
        for cascade in self._cascades.values():
            cascade._abandon()

    def _is_closed(self) -> None:
        """Know that its scope is closed, in this step."""
        self._scope = None
        self._let_go()

    async def drain(self, within: float | None = 30.0) -> Report:
        """Take no more, let what is worked on end, post the receipts, then close.

        For the receipts there are three seconds at most, if those who are to have them do not answer.
        One that was not posted is lost, unless there is a journal.

        *Cancel safety*: as that of `Scope.drain()`.
        """
        return await self._opened().drain(within)

    async def aclose(self, within: float = 5.0) -> Report:
        """Cancel what is worked on, and close.

        *Cancel safety*: as that of `Scope.aclose()`.
        """
        return await self._opened().aclose(within)

    async def __aenter__(self) -> Self:
        """Open it."""
        return await self.open()

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
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

    # What users do with it.

    def cascade(self, name: str) -> Cascade:
        """Begin something of which one wants to know when all of it has ended, in every agent.

        ```python
        async with node.cascade("book-trip") as cascade:
            await client.send_message(...)
        settlement = await cascade.settled()
        ```
        """
        self._check()
        return Cascade(self, arguments.text("name", name))

    def handle(self, edge: wire.Handed | str | bytes) -> Part:
        """Work on a message that was handed over: opens its hop, for the block.

        ```python
        async with node.handle(request.headers["Cascade"]) as hop:
            ...
        ```

        What was started in the hop, and goes on after the block, still belongs to it.

        *Raises*: `EdgeRefused` if the message must not be worked on, as when it was before;
        `RemoteProtocolError` if what came with it is not of the protocol.
        """
        handed = edge if isinstance(edge, wire.Handed) else wire.parse_request_header(edge)
        return Taken(self._arrive(handed), "handler", "handler")

    async def _serve(self, path: str, body: bytes) -> bytes:
        """Answer a call of another node, however it came."""
        if self._scope is None:
            message = f"node {self.name!r} is not open"
            raise PeerLost(message)
        return await self._exchange.serve(path, body)

    # Steps (1).

    def _check(self) -> None:
        self._opened()
        if self._broken is not None:
            raise self._no_journal() from self._broken

    def _no_journal(self) -> JournalBroken:
        message = f"node {self.name!r} could not write its journal, and takes nothing any more"
        return JournalBroken(message)

    def _commit(self) -> None:
        """Write what has to last, then have done what is to be done (1, 2)."""
        engine, exchange = self._engine, self._exchange
        writes = engine.detector.writes
        if writes:
            engine.detector.writes = []
            if self._journal is not None:
                self._write(self._journal, writes)
            if exchange._polls:
                for record in writes:
                    if type(record) is Closed:
                        exchange.closed(record.edge)
        if engine.news:
            self._hear(engine.take_news())
        if engine.is_stirred or exchange._flush is not None:
            engine.take_stir()
            exchange.look()

    def _hear(self, told: list[Stop | Settle]) -> None:
        for news in told:
            if type(news) is Settle:
                cascade = self._cascades.get(news.edge)
                if cascade is None:
                    self._told(news.edge)  # nobody will ask
                else:
                    cascade._settle(news.receipt)
            elif news.edge in self._hops:
                self._hops[news.edge]._cancel()

    def _write(self, journal: Journal, records: list[Record]) -> None:
        if self._broken is not None:
            raise self._no_journal() from self._broken
        try:
            journal.write(records)
        except BaseException as error:
            self._broken = error
            journal.drop_draft()  # what is known is no longer what was written
            logger.critical("node %r cannot write its journal", self.name, exc_info=error)
            self._abandon()
            if not isinstance(error, Exception):
                raise
            raise self._no_journal() from error
        if journal.size > self._tidying.at:
            self._exchange.wake()  # it sees to that, too

    def _begin(self, cascade: Cascade) -> Hop:
        self._check()
        self._hops_scope._admit()
        record = self._engine.begin(self._random(12), self._random(16), self._clock())
        self._commit()
        hop = self._hops[record.edge] = Hop(self, record, f"cascade {cascade.name}")
        self._cascades[record.edge] = cascade
        return hop

    def _arrive(self, handed: wire.Handed, why_not: str | None = None) -> Hop:
        if self._scope is None or self._broken is not None:
            self._check()
        edge, detector = handed.edge, self._engine.detector
        why = why_not or self._objection(handed)
        if why is None:
            reply = self._policy.reply_to(handed.home)
            answer = detector.arrive(edge, handed.cascade, handed.parent, reply)
        elif self._exchange.may_note(edge):
            answer = self._engine.refuse(edge, self._clock())
        else:
            answer = NOT_NOW  # there is no end of them: nothing is noted, and nothing promised
        self._commit()
        if answer is not RUN:
            raise self._refusal(handed, answer, why or "it was taken before")
        hop = self._hops[edge] = Hop(self, detector._hops[edge])
        return hop

    def _refusal(self, handed: wire.Handed, answer: Answer, why: str) -> EdgeRefused:
        if answer.kind == "never" and is_early(handed, self._wall(), self._keep):
            answer = NOT_NOW  # it would be forgotten before its copies are too late
        known = self._engine.detector.find(handed.edge)
        must_ask = known is not None and known.reply is None
        header = wire.response_header(handed.edge, answer, must_ask=must_ask)
        return EdgeRefused(f"message {mark(handed.edge)} is not worked on: {why}", header)

    def _objection(self, handed: wire.Handed) -> str | None:
        """Tell why a message is not to be worked on, if it is not known already."""
        if not is_in_time(handed, self._wall(), self._keep):
            return "it was under way for too long, or its sender's clock, or keep_seconds, is wrong"
        if self._hops_scope._state is not _OPEN:
            return "the agent is being shut down"
        if len(self._hops) >= self._hops_max:
            return "the agent has too much to do"
        return None

    def answer(self, hop: Hop) -> str:
        """Give what the answer to a hop's message has to carry, as the header `Cascade-Receipt`.

        To be asked once, as late as can be: if the hop has ended by then, its receipt is in it.
        """
        record = hop._record
        if hop.packed is not None:
            return wire.closed_header(record.edge, hop.packed)
        answer = WORKING  # if its end could not be written, it is not told
        if self._broken is None:
            answer = self._engine.detector.ride(record.edge)  # which wants nothing done
        return wire.response_header(record.edge, answer, must_ask=record.reply is None)

    def _ended(self, hop: Hop, status: Status, why: str) -> None:
        """Know that a hop has ended; from its own step."""
        record = hop._record
        self._hops.pop(record.edge, None)
        if self._scope is None or self._broken is not None:
            return  # nobody would be told; a journal says what it was
        now = self._clock()
        microseconds = int((now - hop._since) * 1e6 + 0.5)
        try:
            if hop.rides and status == "done":
                packed = self._engine.detector.finish(record, microseconds)
                if packed is not None:
                    self._commit()
                    hop.packed = packed
                    return
            for edge in list(record.edges) if record.edges else ():
                self._engine.sent(edge, "is in doubt", now)  # nobody has said what became of it
            self._engine.end(record, status, now, seconds=microseconds / 1e6, why=why)
            self._commit()
        except Exception:  # noqa: BLE001 - a callback of the event loop has nobody to raise it to
            logger.exception("node %r could not write down that %s has ended", self.name, hop.name)

    def _send(self, hop: states.Hop, to: str) -> tuple[bytes, str]:
        self._check()
        edge = self._random(12)
        begin_by = int(self._wall() + self._keep)
        handed = wire.Handed(hop.cascade, edge, mark(hop.edge), begin_by, self.url)
        header = wire.request_header(handed)
        self._engine.send(hop, edge, arguments.text("to", to), self._clock(), begin_by)
        self._commit()
        return edge, header

    def _resolve(self, edge: bytes, to: str, how: Sending) -> None:
        if self._scope is None or self._broken is not None:
            return
        self._engine.sent(edge, how, self._clock())
        if how == "is in doubt" and self.url is None:
            self._exchange.pull(edge, to)
        self._commit()

    def _answered(
        self, edge: bytes, to: str, answer: Answer, how: Sending, *, must_ask: bool
    ) -> None:
        if self._scope is None or self._broken is not None:
            return
        now = self._clock()
        if answer.receipt is not None:
            self._engine.receive(edge, answer.receipt, now)
        if how == "is refused" and self._exchange.is_old(edge):
            how = "is in doubt"  # it may have run, and that be forgotten
        self._engine.sent(edge, how, now)
        self._exchange.contact(to, now)
        if answer.kind == "working" and (must_ask or self.url is None):
            self._exchange.pull(edge, to)
        self._commit()

    def _told(self, edge: bytes) -> None:
        """Know that whoever has begun a cascade was told; if that cannot be written, he is told again."""
        self._cascades.pop(edge, None)
        if self._scope is not None and self._broken is None:
            self._engine.told(edge, self._clock())
            with suppress(JournalBroken):
                self._commit()

    def _dropped(self, root: states.Hop) -> None:
        if self._engine.detector.find_root(root.edge) is root:  # not that of a later opening
            self._told(root.edge)

    def _cancel(self, hop: states.Hop) -> None:
        self._check()
        self._engine.cancel(hop, self._clock())
        self._commit()

    def _tidy(self) -> None:
        """Have a smaller journal made, if it has grown; not at the end, which would wait for it."""
        if self._journal is not None and not self._exchange.is_ending and self._tidying.is_due():
            self._exchange.service("compaction", self._tidying.run)

    def __repr__(self) -> str:
        """Name it, and say whether it is open."""
        state = "new or closed" if self._scope is None else self._scope.state
        return f"<Node {self.name!r} {state}, {len(self._hops)} hops>"

    if TYPE_CHECKING:  # set when it is opened
        _engine: Engine
        _exchange: Exchange
        _hops_scope: Scope
        _model: Model
        _clock: Callable[[], float]
        _tidying: Tidying

    def asgi(self, app: Any) -> Any:
        """Make an ASGI app take part.

        Requests that hand over a message become hops, the node is open while the app is, and other
        nodes reach it at `/quiesce/receipts`.
        """
        from quiesce.mesh.asgi import Mesh  # noqa: PLC0415 - only for those who serve

        return Mesh(self, app)

    def client(self, **options: Any) -> Any:
        """Make an `httpx.AsyncClient` whose requests hand over messages; the options are its own.

        Requests that are sent in a hop, and are not safe by their method, become messages of it.
        """
        from quiesce.mesh.http import client  # noqa: PLC0415 - httpx is optional

        return client(self, **options)
