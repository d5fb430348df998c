"""A node while it is open: its engine, journal, scopes and hops, and the steps of its protocol.

A step passes an event to the engine, writes the engine's records, and carries out its requests. It has no await, so a
cancellation cannot come in between. node.py lists the invariants. Each opening of a node is an object of its own: work
that outlives the close of its opening never changes a later one.
"""

from __future__ import annotations

import logging
import random
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Literal, NoReturn
from weakref import WeakValueDictionary

from quiesce.core import arguments
from quiesce.core.announce import say
from quiesce.core.light_scope import Model
from quiesce.core.server_drain import drain_of_server
from quiesce.core.tree import ScopeState, logger
from quiesce.errors import JournalBroken, QuiesceError
from quiesce.mesh.protocol import codec
from quiesce.mesh.protocol.engine import Engine
from quiesce.mesh.protocol.facts import NOT_NOW, RUN, WORKING, Settle
from quiesce.mesh.protocol.receipt import KEY_BYTES, edge_key, edge_mark
from quiesce.mesh.routes import shared_sends
from quiesce.mesh.runtime import refusals
from quiesce.mesh.runtime.cascade import recovered
from quiesce.mesh.runtime.hop import Hop
from quiesce.mesh.runtime.hop_failures import job_failed
from quiesce.mesh.runtime.left_running import describe_left
from quiesce.mesh.runtime.node_events import RecordEvents
from quiesce.mesh.runtime.node_scope import Home
from quiesce.mesh.runtime.peer_calls import PeerCalls
from quiesce.mesh.runtime.shared_node import SharedNode
from quiesce.mesh.runtime.unposted import not_ended
from quiesce.mesh.store.journal_keeper import Health, Keeping

if TYPE_CHECKING:
    from collections.abc import Callable
    from threading import Thread

    from quiesce.core.hold import Hold
    from quiesce.core.scope import Scope
    from quiesce.mesh.protocol import states
    from quiesce.mesh.protocol.facts import Answer, Record, Stop
    from quiesce.mesh.protocol.receipt import Status
    from quiesce.mesh.protocol.states import Sending
    from quiesce.mesh.runtime.cascade import Cascade
    from quiesce.mesh.runtime.node import Node

__all__: list[str] = []

_OPEN = ScopeState.OPEN


class OpenNode:
    """One opening of a node, from `Node.open()` to the close."""

    scope: Home | None
    """The scope of the node; None before the node is open and after it is closed."""
    closed_scope: Home | None
    """The scope of the node after the close, with the report."""
    scope_of_hops: Scope
    hop_model: Model
    clock: Callable[[], float]
    exchange: PeerCalls

    def __init__(self, node: Node) -> None:
        """Make the engine; `open` fills it from the journal."""
        self.node = node
        self.name: str = node.name
        self.scope = self.closed_scope = None
        self.engine: Engine = Engine(
            node.name,
            lasting=node.keeps_records,
            patience=node.patience,
            jitter=random.random,
            keep=node.keep_seconds,
            wall=node.wall,
        )
        self.engine.may_call = node.policy.allows
        self.keeping: Keeping | None = None
        if node.journal is not None:
            mode, random_bytes = node.on_trouble, node.random_bytes
            self.keeping = Keeping(node.journal, self.engine, mode, random_bytes)
        self.shared: SharedNode | None = None
        if node.database is not None:
            self.shared = SharedNode(self, node.database)
        self.running_hops: dict[bytes, Hop] = {}
        self.known_cascades: WeakValueDictionary[bytes, Cascade] = (
            WeakValueDictionary()
        )  # others let go
        self.shared_sendings: shared_sends.Shared = {}  # messages that are sent for several hops
        self.hop_threads: dict[Thread, Hold] = {}  # daemon threads of hops, until they end
        self.is_serving: bool = False
        self.events: RecordEvents | None = None  # if anything watches the node

    # Opening and closing.

    async def open(self) -> None:
        """Read the journal, open the scopes, and continue from the journal's state."""
        node, engine = self.node, self.engine
        if self.keeping is not None:
            self.keeping.open()
        owner = drain_of_server.get()
        scope: Home | None = None
        try:
            scope = await Home.open(f"node {self.name}")
            adopts = scope.backend.name == "asyncio"  # on trio, nurseries own all tasks
            self.scope_of_hops = scope.child("hops", adopt=adopts)
            self.hop_model = Model(
                self.scope_of_hops,
                adopt=adopts,
                services=[*node.services_given, *(() if owner is None else owner.services)],
                on_error=job_failed,
                leftovers="parent",  # the node takes over services, which go on
            )
            self.clock = scope.backend.clock
            self.exchange = PeerCalls(self, engine, scope)
            if self.shared is not None:
                await scope.enter(self.shared.opened())
                await self.shared.open()
            engine.resume(self.clock())
            node.recovered = tuple(recovered(self, engine.known.roots()))
            await scope.enter(self.exchange.opened())
            self.commit_records()
            if self.keeping is not None:
                self.keeping.opened()
        except BaseException:
            self._let_go()
            if scope is not None:
                await scope.aclose()
            raise
        self.scope = scope
        self.watch_events()
        scope.belong_to(self)
        if self.shared is not None:
            self.shared.start()
        self.exchange.start()

    def watch_events(self) -> None:
        """Begin or end to make events, as the node has subscribers or not."""
        subscribers = self.node.subscribers
        if not subscribers.functions:
            self.events = None
        elif self.events is None:
            self.events = RecordEvents(self.engine.known, subscribers)

    def adopted(self) -> None:
        """Go on with the cascades of a dead replica, which this one has taken over."""
        if self.scope is not None:
            known = (
                root for root in self.engine.known.roots() if root.edge not in self.known_cascades
            )
            self.node.recovered += tuple(recovered(self, list(known)))

    def _let_go(self) -> None:
        """Close the journal, and wake the tasks that wait for a verdict which will not come."""
        if self.running_hops:
            # The next owner of the journal would assume that this work is dead, so keep the journal locked.
            logger.error(
                "node %r was closed, but work of its hops still runs: %s",
                self.name,
                describe_left(self.running_hops.values()),
            )
        elif self.keeping is not None:
            self.keeping.close()
        self.abandon()

    def abandon(self) -> None:
        """Wake the tasks that wait for a verdict which this node cannot learn."""
        for cascade in self.known_cascades.values():
            cascade.abandon_wait()

    def note_closed(self) -> None:
        """Record, in the same step, that the node's scope is closed."""
        self.closed_scope, self.scope = self.scope, None
        left = not_ended(self.engine, has_journal=self.node.keeps_records)
        if left and self.node.is_telling_drain:
            say(logger, logging.INFO, f"node {self.name!r}: {left}")
        self._let_go()

    # Steps.

    def check_accepts(self) -> None:
        if self.scope is None:
            raise self.node.not_open()
        if self.shared is not None:
            self.shared.check()
        elif self.is_refusing and not self.retry_writing():
            self._refuse()

    @property
    def is_refusing(self) -> bool:
        if self.shared is not None:
            return self.shared.store.buried is not None
        return self.keeping is not None and self.keeping.is_refusing

    @property
    def write_error(self) -> BaseException | None:
        if self.shared is not None:
            return self.shared.store.buried
        return self.keeping.error if self.keeping is not None and self.is_refusing else None

    @property
    def is_behind(self) -> bool:
        return self.keeping is not None and self.keeping.error is not None

    def _refuse(self) -> NoReturn:
        assert self.keeping is not None  # noqa: S101 - it has a journal that cannot be written
        raise self.keeping.broken() from self.keeping.error

    def retry_writing(self) -> bool:
        """Try again to write the records that could not be written; on success, act on them."""
        assert self.keeping is not None  # noqa: S101 - as above
        if self.keeping.retry():
            for cascade in self.known_cascades.values():
                cascade.wait_again()
            self.commit_records()
            self.exchange.wake()
        return self.keeping.error is None

    @property
    def health(self) -> Health:
        """Return whether the node can work on messages now, and the problem if it cannot."""
        if self.scope is None:
            return Health("closed")
        if self.keeping is not None and self.is_behind:
            state: Literal["refusing", "behind"] = "refusing" if self.is_refusing else "behind"
            return Health(state, self.keeping.why())
        if self.shared is not None and (why := self.shared.why_broken()):
            return Health("refusing", why)
        return Health("ready" if self.scope_of_hops.phase is _OPEN else "draining")

    def try_to_commit(self) -> None:
        """Commit the records. If the journal cannot be written, the actions wait until it can."""
        with suppress(JournalBroken):
            self.commit_records()

    def commit_records(self) -> None:
        """Write the engine's records, then carry out its requests (1, 2)."""
        engine, exchange = self.engine, self.exchange
        writes = engine.known.writes
        if writes:
            engine.known.writes = []
            if self.shared is not None:
                self.shared.add(writes)
            keeping = self.keeping
            if keeping is not None:
                if not keeping.write(writes):
                    self.abandon()
                    exchange.wake()
                    self._refuse()
                if keeping.error is not None or keeping.tidying.is_over():
                    exchange.wake()  # the exchange also retries the write
            self._pass_on(writes)
        if engine.news:
            self._when_written(partial(self._hear, engine.take_news()))
        if engine.is_stirred or exchange.flush_hold is not None:
            engine.take_stir()
            exchange.look()

    def _pass_on(self, writes: list[Record]) -> None:
        """Pass records to everything in this process that waits for them."""
        exchange = self.exchange
        if exchange.waiting_polls or exchange.flush_hold is not None:
            exchange.wrote(writes)
        if self.shared_sendings:
            shared_sends.edges_closed(self.shared_sendings, writes)
        if self.events is not None:
            self._when_written(partial(self.events.tell, writes))

    def _when_written(self, action: Callable[[], None]) -> None:
        if self.shared is None:
            action()
        else:
            self.shared.store.when_written(action)

    def _hear(self, told: list[Stop | Settle]) -> None:
        for news in told:
            if type(news) is Settle:
                cascade = self.known_cascades.get(news.edge)
                if cascade is None:
                    self.note_told(news.edge)  # no code can ask for the verdict
                else:
                    cascade.settle_with(news.receipt)
            elif news.edge in self.running_hops:
                self.running_hops[news.edge].cancel_work()

    async def written(self) -> None:
        """Wait until all records that the node has made so far have lasted. A file has them already.

        *Raises*: `StoreLost` if the shared store does not write in time; `ReplicaBuried`.
        """
        if self.shared is not None:
            await self.shared.store.written()

    def name_of(self, edge: bytes) -> bytes:
        """Return the name by which this node knows an edge, given its id."""
        return edge if self.shared is None else edge_key(edge)

    def id_of(self, name: bytes) -> bytes:
        """Return the id of an edge, given its name; its name if this node does not know the id."""
        return name if self.shared is None else self.shared.names.id_of(name)

    def new_edge(self) -> bytes:
        """Return the name of a new edge that is never sent."""
        return self.node.random_bytes(12 if self.shared is None else KEY_BYTES)

    def begin_root(self, cascade: Cascade) -> Hop:
        self.check_accepts()
        self.scope_of_hops.check_may_start()
        edge, name = self.new_edge(), cascade.name
        record = self.engine.begin(edge, self.node.random_bytes(16), self.clock(), name)
        self._commit_begun(edge)
        hop = self.running_hops[record.edge] = Hop(self, record, f"cascade {cascade.name}")
        self.known_cascades[record.edge] = cascade
        return hop

    def _commit_begun(self, edge: bytes) -> None:
        try:
            self.commit_records()
        except JournalBroken:
            assert self.keeping is not None  # noqa: S101 - it raised the error
            self.keeping.withdraw(edge)  # a later copy may be accepted
            raise

    def accept_arrival(
        self, handed: codec.Handed, why_not: str | None = None, caller: str = ""
    ) -> Hop:
        keeping = self.keeping
        if self.scope is None or (keeping is not None and keeping.error is not None):
            self.check_accepts()
        edge, engine = handed.edge, self.engine
        why = self.objection(handed, why_not)
        self.check_room(handed)
        if why is None:
            answer = engine.arrive(handed, self.node.policy.reply_to(handed.home))
        elif self.exchange.may_note(edge, caller):
            answer = engine.refuse(handed, self.clock())
        else:
            answer = NOT_NOW  # too many: record nothing, and promise nothing
        if answer is not RUN:
            self.commit_records()
            raise refusals.not_worked_on(self, handed, answer, why, is_told=why_not is not None)
        self._commit_begun(edge)
        self.is_serving = True
        hop = self.running_hops[edge] = Hop(self, engine.known.hop_records[edge])
        return hop

    def objection(self, handed: codec.Handed, why_not: str | None) -> str | None:
        """Return why a message must not begin; None if it may."""
        why = why_not or self.engine.horizon.objection(handed)
        if why is None and self.scope_of_hops.phase is not _OPEN:
            why = "its agent is being shut down: send a new message later, or to another agent"
        return why

    def check_room(self, handed: codec.Handed) -> None:
        """Refuse a new message for now if too many are being processed.

        *Raises*: `EdgeRefused`.
        """
        is_full = len(self.running_hops) >= self.node.hops_max
        if is_full and not self.engine.detector.knows(handed.edge):
            raise refusals.busy(self, handed)

    def answer(self, hop: Hop) -> str:
        """Return the header for the answer to a hop's message. See `Node.answer()`."""
        record = hop.record
        if hop.packed is not None:
            return codec.closed_header(record.edge, hop.packed)
        answer = WORKING  # also if the hop has ended, but its end could not be written
        if not self.is_refusing:
            answer = self.engine.detector.ride(record.edge)  # makes no requests to carry out
            if self.shared is not None:
                self.try_to_commit()  # that the row of the message is over
        return codec.response_header(record.edge, answer, must_ask=record.reply is None)

    async def written_answer(self, hop: Hop, answer: str) -> str:
        """Return the header for the answer to a hop's message when it may leave: when all that it says has lasted.

        If the store does not write in time, the answer does not have the receipt, and the sender asks for it.
        """
        if self.shared is None:
            return answer
        try:
            await self.shared.store.written()
        except QuiesceError as error:
            logger.debug("the answer for %s leaves without its receipt: %s", hop.name, error)
            return self.answer_to_ask(hop)
        return answer

    def answer_to_ask(self, hop: Hop) -> str:
        """Return a header for the answer to a hop's message that has the sender ask for the receipt."""
        return codec.response_header(hop.record.edge, WORKING, must_ask=True)

    def answer_turned_away(self, hop: Hop, caller: str) -> str | None:
        """Return the header for a message that the app has refused, if the caller has sent too many such messages.

        The node then keeps nothing of the message. If a copy comes, the app refuses it as well.
        """
        edge = hop.record.edge
        if hop.packed is None or self.is_behind or self.exchange.may_keep(caller):
            return None
        if not self.engine.known.forget(edge):
            return None
        self.try_to_commit()
        return codec.response_header(edge, NOT_NOW, must_ask=True)

    def note_hop_ended(self, hop: Hop, status: Status, why: str) -> None:
        """Record that a hop has ended, in the step in which it ends."""
        record = hop.record
        self.running_hops.pop(record.edge, None)
        if self.scope is None:
            return  # the verdict has no recipient any more; a journal keeps the state
        now = self.clock()
        microseconds = int((now - hop.began_at) * 1e6 + 0.5)
        keeping = self.keeping
        try:
            is_kept = keeping is None or keeping.error is None
            if hop.rides and status == "done" and is_kept:
                packed = self.engine.detector.finish(record, microseconds, why)
                if packed is not None:
                    self.commit_records()
                    hop.packed = packed
                    return
            for edge in list(record.edges) if record.edges else ():
                self.engine.sent(edge, "is in doubt", now)  # no answer was recorded for it
            self.engine.end(record, status, now, seconds=microseconds / 1e6, why=why)
            self.try_to_commit()
        except Exception:  # noqa: BLE001 - this runs in a callback of the event loop, so no caller gets it
            logger.exception("node %r could not record that %s has ended", self.name, hop.name)

    def send_edge(self, hop: states.HopRecord, to: str) -> tuple[bytes, str]:
        self.check_accepts()
        sent_id, now = self.node.random_bytes(12), self.clock()
        edge = sent_id if self.shared is None else self.shared.names.keep(sent_id)
        begin_by = self.engine.send(hop, edge, arguments.check_text("to", to), now)
        try:
            self.commit_records()
        except JournalBroken:
            self.engine.sent(edge, "is not sent", now)
            self.try_to_commit()
            raise
        handed = codec.Handed(hop.cascade, sent_id, edge_mark(hop.edge), begin_by, self.node.url)
        return edge, codec.request_header(handed)

    def resolve_edge(self, edge: bytes, to: str, how: Sending, why: str = "") -> None:
        if self.scope is None:
            return
        self.engine.sent(edge, how, self.clock(), why)
        if how == "is in doubt" and self.node.url is None:
            self.exchange.pull(edge, to)
        self.try_to_commit()

    def note_answer(
        self, edge: bytes, to: str, answer: Answer, how: Sending, *, must_ask: bool, uses: int
    ) -> None:
        if self.scope is None:
            return
        now = self.clock()
        self.engine.answered(edge, answer, how, now, uses=uses)
        self.exchange.contact(to, now)
        if answer.kind == "working" and (must_ask or self.node.url is None):
            self.exchange.pull(edge, to)
        self.try_to_commit()

    def note_told(self, edge: bytes) -> None:
        """Record that a cascade's verdict was delivered. If this cannot be written, it is delivered again later."""
        self.known_cascades.pop(edge, None)
        if self.scope is not None:
            self.engine.told(edge, self.clock())
            self.try_to_commit()

    def note_dropped(self, root: states.HopRecord) -> None:
        if self.engine.known.find_root(root.edge) is root:  # not a root of a later opening
            self.note_told(root.edge)

    def cancel_hop(self, hop: states.HopRecord) -> None:
        self.check_accepts()
        self.engine.cancel(hop, self.clock())
        self.commit_records()

    def tidy_journal(self) -> None:
        """Start to compact the journal if it has grown, but not while the node closes, which would wait for it."""
        keeping = self.keeping
        if keeping is not None and not self.exchange.is_ending and keeping.tidying.is_due():
            self.exchange.service("compaction", keeping.tidying.run)
