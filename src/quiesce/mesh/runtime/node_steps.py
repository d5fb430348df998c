"""The steps of a node: pass an event to the engine, write the engine's records, carry out its requests.

A step has no await, so a cancellation cannot come in between. node.py lists the invariants.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Literal, NoReturn

from quiesce.core import arguments
from quiesce.core.tree import ScopeState, logger
from quiesce.errors import EdgeRefused, JournalBroken
from quiesce.mesh.protocol import codec
from quiesce.mesh.protocol.facts import NOT_NOW, RUN, WORKING, Settle
from quiesce.mesh.protocol.receipt import edge_mark
from quiesce.mesh.routes import shared_sends
from quiesce.mesh.runtime.hop import Hop
from quiesce.mesh.store.journal_keeper import Health

if TYPE_CHECKING:
    from collections.abc import Callable
    from weakref import WeakValueDictionary

    from quiesce.core.scope import Scope
    from quiesce.mesh.protocol import states
    from quiesce.mesh.protocol.engine import Engine
    from quiesce.mesh.protocol.facts import Answer, Stop
    from quiesce.mesh.protocol.receipt import Status
    from quiesce.mesh.protocol.states import Sending
    from quiesce.mesh.runtime.cascade import Cascade
    from quiesce.mesh.runtime.node_scope import Home
    from quiesce.mesh.runtime.peer_calls import PeerCalls
    from quiesce.mesh.store.journal_keeper import Keeping
    from quiesce.mesh.transport.address_policy import AddressPolicy

__all__: list[str] = []

_OPEN = ScopeState.OPEN
_COPY = "it is a copy of a message that this agent took before. The first one counts, and nothing is lost"
_REFUSED = "it is a copy of a message that this agent refused for good, and never worked on: send a new message"


class Steps:
    """The steps of a node; a base of `Node`."""

    if TYPE_CHECKING:
        name: str
        url: str | None
        journal_keeping: Keeping | None
        own_scope: Home | None
        running_hops: dict[bytes, Hop]
        _hops_max: int
        shared_sendings: shared_sends.Shared
        is_serving: bool
        known_cascades: WeakValueDictionary[bytes, Cascade]
        policy: AddressPolicy
        random_bytes: Callable[[int], bytes]
        engine: Engine
        exchange: PeerCalls
        scope_of_hops: Scope
        clock: Callable[[], float]

        def get_open_scope(self) -> Scope: ...
        def _abandon(self) -> None: ...

    def check_accepts(self) -> None:
        self.get_open_scope()
        if self.is_refusing and not self.retry_writing():
            self._refuse()

    @property
    def is_refusing(self) -> bool:
        return self.journal_keeping is not None and self.journal_keeping.is_refusing

    @property
    def write_error(self) -> BaseException | None:
        return (
            self.journal_keeping.error
            if self.journal_keeping is not None and self.is_refusing
            else None
        )

    @property
    def is_behind(self) -> bool:
        return self.journal_keeping is not None and self.journal_keeping.error is not None

    def _refuse(self) -> NoReturn:
        assert self.journal_keeping is not None  # noqa: S101 - it has a journal that cannot be written
        raise self.journal_keeping.broken() from self.journal_keeping.error

    def retry_writing(self) -> bool:
        """Try again to write the records that could not be written; on success, act on them."""
        assert self.journal_keeping is not None  # noqa: S101 - as above
        if self.journal_keeping.retry():
            for cascade in self.known_cascades.values():
                cascade.wait_again()
            self.commit_records()
            self.exchange.wake()
        return self.journal_keeping.error is None

    @property
    def health(self) -> Health:
        """Return whether the node can do its part now, and the problem if it cannot."""
        if self.own_scope is None:
            return Health("closed")
        if self.journal_keeping is not None and self.is_behind:
            state: Literal["refusing", "behind"] = "refusing" if self.is_refusing else "behind"
            return Health(state, self.journal_keeping.why())
        return Health("ready" if self.scope_of_hops.phase is _OPEN else "draining")

    def try_to_commit(self) -> None:
        """Commit the records. If the journal cannot be written, the actions wait until it can."""
        with suppress(JournalBroken):
            self.commit_records()

    def commit_records(self) -> None:
        """Write the engine's records, then carry out its requests (1, 2)."""
        engine, exchange = self.engine, self.exchange
        writes = engine.detector.writes
        if writes:
            engine.detector.writes = []
            keeping = self.journal_keeping
            if keeping is not None:
                if not keeping.write(writes):
                    self._abandon()
                    exchange.wake()
                    self._refuse()
                if keeping.error is not None or keeping.tidying.is_over():
                    exchange.wake()  # the exchange also retries the write
            if exchange.waiting_polls or exchange.flush_hold is not None:
                exchange.wrote(writes)
            if self.shared_sendings:
                shared_sends.edges_closed(self.shared_sendings, writes)
        if engine.news:
            self._hear(engine.take_news())
        if engine.is_stirred or exchange.flush_hold is not None:
            engine.take_stir()
            exchange.look()

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

    def begin_root(self, cascade: Cascade) -> Hop:
        self.check_accepts()
        self.scope_of_hops.check_may_start()
        edge, name = self.random_bytes(12), cascade.name
        record = self.engine.begin(edge, self.random_bytes(16), self.clock(), name)
        self._commit_begun(edge)
        hop = self.running_hops[record.edge] = Hop(self, record, f"cascade {cascade.name}")  # type: ignore[arg-type]  # a Node
        self.known_cascades[record.edge] = cascade
        return hop

    def _commit_begun(self, edge: bytes) -> None:
        try:
            self.commit_records()
        except JournalBroken:
            assert self.journal_keeping is not None  # noqa: S101 - it raised that
            self.journal_keeping.withdraw(edge)  # a later copy may be accepted
            raise

    def accept_arrival(
        self, handed: codec.Handed, why_not: str | None = None, caller: str = ""
    ) -> Hop:
        keeping = self.journal_keeping
        if self.own_scope is None or (keeping is not None and keeping.error is not None):
            self.check_accepts()
        edge, engine = handed.edge, self.engine
        why = why_not or engine.horizon.objection(handed)
        if why is None and self.scope_of_hops.phase is not _OPEN:
            why = "its agent is being shut down: send a new message later, or to another agent"
        if len(self.running_hops) >= self._hops_max and not engine.detector.knows(edge):
            raise self._busy(handed)
        if why is None:
            answer = engine.arrive(handed, self.policy.reply_to(handed.home))
        elif self.exchange.may_note(edge, caller):
            answer = engine.refuse(handed, self.clock())
        else:
            answer = NOT_NOW  # too many: record nothing, and promise nothing
        if answer is not RUN:
            self.commit_records()
            is_draining = why_not is not None or self.scope_of_hops.phase is not _OPEN
            raise self._refusal(handed, answer, why, is_draining=is_draining)
        self._commit_begun(edge)
        self.is_serving = True
        hop = self.running_hops[edge] = Hop(self, engine.detector.hop_records[edge])  # type: ignore[arg-type]  # a Node
        return hop

    def _refusal(
        self, handed: codec.Handed, answer: Answer, why: str | None, *, is_draining: bool
    ) -> EdgeRefused:
        known = self.engine.detector.find(handed.edge)
        must_ask = known is not None and known.reply is None
        header = codec.response_header(handed.edge, answer, must_ask=must_ask)
        is_refused = answer.kind in {"never", "not now"}  # or a copy of an accepted message
        if not is_refused or why is None:
            why = _REFUSED if is_refused else _COPY
        text = f"message {edge_mark(handed.edge)} is not worked on: {why}"
        return EdgeRefused(text, header, is_busy=is_draining and is_refused)

    def _busy(self, handed: codec.Handed) -> EdgeRefused:
        """Return a temporary refusal. The node keeps nothing of the message, so it may accept a copy later."""
        must_ask = self.journal_keeping is not None  # else it could not answer later
        header = codec.response_header(handed.edge, NOT_NOW, must_ask=must_ask)
        text = (
            f"message {edge_mark(handed.edge)} is not worked on: {self._hops_max} messages are already being"
            " processed, and hops_max allows no more: send it again later"
        )
        return EdgeRefused(text, header, is_busy=True)

    def answer(self, hop: Hop) -> str:
        """Return the header `Cascade-Receipt` for the answer to a hop's message.

        Call this once, as late as possible: if the hop has ended by then, the header carries its receipt.
        """
        record = hop.record
        if hop.packed is not None:
            return codec.closed_header(record.edge, hop.packed)
        answer = WORKING  # also if the hop has ended, but its end could not be written
        if not self.is_refusing:
            answer = self.engine.detector.ride(record.edge)  # makes no requests to carry out
        return codec.response_header(record.edge, answer, must_ask=record.reply is None)

    def answer_turned_away(self, hop: Hop, caller: str) -> str | None:
        """Return the header for a message that the app has refused, if the caller has sent too many such messages.

        The node then keeps nothing of the message. If a copy comes, the app refuses it as well.
        """
        edge = hop.record.edge
        if hop.packed is None or self.is_behind or self.exchange.may_keep(caller):
            return None
        if not self.engine.detector.forget(edge):
            return None
        self.try_to_commit()
        return codec.response_header(edge, NOT_NOW, must_ask=True)

    def note_hop_ended(self, hop: Hop, status: Status, why: str) -> None:
        """Record that a hop has ended, in the step in which it ends."""
        record = hop.record
        self.running_hops.pop(record.edge, None)
        if self.own_scope is None:
            return  # the verdict has no recipient any more; a journal keeps the state
        now = self.clock()
        microseconds = int((now - hop.began_at) * 1e6 + 0.5)
        keeping = self.journal_keeping
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
        except Exception:  # noqa: BLE001 - a callback of the event loop has nobody to raise it to
            logger.exception("node %r could not record that %s has ended", self.name, hop.name)

    def send_edge(self, hop: states.HopRecord, to: str) -> tuple[bytes, str]:
        self.check_accepts()
        edge, now = self.random_bytes(12), self.clock()
        begin_by = self.engine.send(hop, edge, arguments.check_text("to", to), now)
        try:
            self.commit_records()
        except JournalBroken:
            self.engine.sent(edge, "is not sent", now)
            self.try_to_commit()
            raise
        handed = codec.Handed(hop.cascade, edge, edge_mark(hop.edge), begin_by, self.url)
        return edge, codec.request_header(handed)

    def resolve_edge(self, edge: bytes, to: str, how: Sending) -> None:
        if self.own_scope is None:
            return
        self.engine.sent(edge, how, self.clock())
        if how == "is in doubt" and self.url is None:
            self.exchange.pull(edge, to)
        self.try_to_commit()

    def note_answer(
        self, edge: bytes, to: str, answer: Answer, how: Sending, *, must_ask: bool, uses: int
    ) -> None:
        if self.own_scope is None:
            return
        now = self.clock()
        self.engine.answered(edge, answer, how, now, uses=uses)
        self.exchange.contact(to, now)
        if answer.kind == "working" and (must_ask or self.url is None):
            self.exchange.pull(edge, to)
        self.try_to_commit()

    def note_told(self, edge: bytes) -> None:
        """Record that a cascade's verdict was delivered. If this cannot be written, it is delivered again later."""
        self.known_cascades.pop(edge, None)
        if self.own_scope is not None:
            self.engine.told(edge, self.clock())
            self.try_to_commit()

    def note_dropped(self, root: states.HopRecord) -> None:
        if self.engine.detector.find_root(root.edge) is root:  # not a root of a later opening
            self.note_told(root.edge)

    def cancel_hop(self, hop: states.HopRecord) -> None:
        self.check_accepts()
        self.engine.cancel(hop, self.clock())
        self.commit_records()

    def tidy_journal(self) -> None:
        """Start to compact the journal if it has grown, but not while the node closes, which would wait for it."""
        keeping = self.journal_keeping
        if keeping is not None and not self.exchange.is_ending and keeping.tidying.is_due():
            self.exchange.service("compaction", keeping.tidying.run)
