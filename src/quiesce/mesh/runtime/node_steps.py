"""The steps of a node: something is told to the engine, what it wants written is written, what it wants is done.

Each is made without an await, so that no cancellation comes between. node.py says what holds.
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
    from quiesce.mesh.runtime.peer_calls import PeerCalls
    from quiesce.mesh.store.journal_keeper import Keeping
    from quiesce.mesh.transport.address_policy import AddressPolicy

__all__: list[str] = []

_OPEN = ScopeState.OPEN
_COPY = "it is a copy of a message that this agent took before. The first one counts, and nothing is lost"
_REFUSED = "it is a copy of a message that this agent refused for good, and never worked on: send a new message"


class Steps:
    """What a node does in one step."""

    if TYPE_CHECKING:
        name: str
        url: str | None
        _keeping: Keeping | None
        _scope: Scope | None
        _hops: dict[bytes, Hop]
        _hops_max: int
        _shared: shared_sends.Shared
        _serves: bool
        _cascades: WeakValueDictionary[bytes, Cascade]
        _policy: AddressPolicy
        _random: Callable[[int], bytes]
        _engine: Engine
        _exchange: PeerCalls
        _hops_scope: Scope
        _clock: Callable[[], float]

        def _opened(self) -> Scope: ...
        def _abandon(self) -> None: ...

    def _check(self) -> None:
        self._opened()
        if self._is_refusing and not self._retry():
            self._refuse()

    @property
    def _is_refusing(self) -> bool:
        return self._keeping is not None and self._keeping.is_refusing

    @property
    def _broken(self) -> BaseException | None:
        return self._keeping.error if self._keeping is not None and self._is_refusing else None

    @property
    def _is_behind(self) -> bool:
        return self._keeping is not None and self._keeping.error is not None

    def _refuse(self) -> NoReturn:
        assert self._keeping is not None  # noqa: S101 - it has a journal that cannot be written
        raise self._keeping.broken() from self._keeping.error

    def _retry(self) -> bool:
        """Try to write what could not be written; if that succeeds, do what rests on it."""
        assert self._keeping is not None  # noqa: S101 - as above
        if self._keeping.retry():
            for cascade in self._cascades.values():
                cascade._wait_again()
            self._commit()
            self._exchange.wake()
        return self._keeping.error is None

    @property
    def health(self) -> Health:
        """Whether it can do its part now, and what is wrong if it cannot."""
        if self._scope is None:
            return Health("closed")
        if self._keeping is not None and self._is_behind:
            state: Literal["refusing", "behind"] = "refusing" if self._is_refusing else "behind"
            return Health(state, self._keeping.why())
        return Health("ready" if self._hops_scope._state is _OPEN else "draining")

    def _try_to_commit(self) -> None:
        """Commit; if the journal cannot be written, what is to be done waits until it can."""
        with suppress(JournalBroken):
            self._commit()

    def _commit(self) -> None:
        """Write what has to last, then have done what is to be done (1, 2)."""
        engine, exchange = self._engine, self._exchange
        writes = engine.detector.writes
        if writes:
            engine.detector.writes = []
            keeping = self._keeping
            if keeping is not None:
                if not keeping.write(writes):
                    self._abandon()
                    exchange.wake()
                    self._refuse()
                if keeping.error is not None or keeping.tidying.is_over():
                    exchange.wake()  # it sees to that, too
            if exchange._polls or exchange._flush is not None:
                exchange.wrote(writes)
            if self._shared:
                shared_sends.edges_closed(self._shared, writes)
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

    def _begin(self, cascade: Cascade) -> Hop:
        self._check()
        self._hops_scope._admit()
        edge, name = self._random(12), cascade.name
        record = self._engine.begin(edge, self._random(16), self._clock(), name)
        self._commit_begun(edge)
        hop = self._hops[record.edge] = Hop(self, record, f"cascade {cascade.name}")  # type: ignore[arg-type]  # a Node
        self._cascades[record.edge] = cascade
        return hop

    def _commit_begun(self, edge: bytes) -> None:
        try:
            self._commit()
        except JournalBroken:
            assert self._keeping is not None  # noqa: S101 - it raised that
            self._keeping.withdraw(edge)  # it does not begin: another copy may, later
            raise

    def _arrive(self, handed: codec.Handed, why_not: str | None = None, caller: str = "") -> Hop:
        keeping = self._keeping
        if self._scope is None or (keeping is not None and keeping.error is not None):
            self._check()
        edge, engine = handed.edge, self._engine
        why = why_not or engine.horizon.objection(handed)
        if why is None and self._hops_scope._state is not _OPEN:
            why = "its agent is being shut down: send a new message later, or to another agent"
        if len(self._hops) >= self._hops_max and not engine.detector.knows(edge):
            raise self._busy(handed)
        if why is None:
            answer = engine.arrive(handed, self._policy.reply_to(handed.home))
        elif self._exchange.may_note(edge, caller):
            answer = engine.refuse(handed, self._clock())
        else:
            answer = NOT_NOW  # there is no end of them: nothing is noted, and nothing promised
        if answer is not RUN:
            self._commit()
            is_draining = why_not is not None or self._hops_scope._state is not _OPEN
            raise self._refusal(handed, answer, why, is_draining=is_draining)
        self._commit_begun(edge)
        self._serves = True
        hop = self._hops[edge] = Hop(self, engine.detector._hops[edge])  # type: ignore[arg-type]  # a Node
        return hop

    def _refusal(
        self, handed: codec.Handed, answer: Answer, why: str | None, *, is_draining: bool
    ) -> EdgeRefused:
        known = self._engine.detector.find(handed.edge)
        must_ask = known is not None and known.reply is None
        header = codec.response_header(handed.edge, answer, must_ask=must_ask)
        is_refused = answer.kind in {"never", "not now"}  # else it is, or was, worked on
        if not is_refused or why is None:
            why = _REFUSED if is_refused else _COPY
        text = f"message {edge_mark(handed.edge)} is not worked on: {why}"
        return EdgeRefused(text, header, is_busy=is_draining and is_refused)

    def _busy(self, handed: codec.Handed) -> EdgeRefused:
        """Refuse a message for now: nothing is kept of it, so that a copy may be taken when there is room."""
        must_ask = self._keeping is not None  # or it could not tell
        header = codec.response_header(handed.edge, NOT_NOW, must_ask=must_ask)
        text = (
            f"message {edge_mark(handed.edge)} is not worked on: {self._hops_max} messages are already being"
            " processed, and hops_max allows no more: send it again later"
        )
        return EdgeRefused(text, header, is_busy=True)

    def answer(self, hop: Hop) -> str:
        """Return what the answer to a hop's message has to carry, as the header `Cascade-Receipt`.

        To be asked once, as late as can be: if the hop has ended by then, its receipt is in it.
        """
        record = hop._record
        if hop.packed is not None:
            return codec.closed_header(record.edge, hop.packed)
        answer = WORKING  # if its end could not be written, it is not told
        if not self._is_refusing:
            answer = self._engine.detector.ride(record.edge)  # which wants nothing done
        return codec.response_header(record.edge, answer, must_ask=record.reply is None)

    def _turned_away(self, hop: Hop, caller: str) -> str | None:
        """Return what to answer if the app has turned a message away, and there are too many of these from there.

        Nothing is kept of it then: if a copy comes, the app turns that away as well.
        """
        edge = hop._record.edge
        if hop.packed is None or self._is_behind or self._exchange.may_keep(caller):
            return None
        if not self._engine.detector.forget(edge):
            return None
        self._try_to_commit()
        return codec.response_header(edge, NOT_NOW, must_ask=True)

    def _ended(self, hop: Hop, status: Status, why: str) -> None:
        """Record that a hop has ended; from its own step."""
        record = hop._record
        self._hops.pop(record.edge, None)
        if self._scope is None:
            return  # nobody would be told; a journal says what it was
        now = self._clock()
        microseconds = int((now - hop._since) * 1e6 + 0.5)
        keeping = self._keeping
        try:
            is_kept = keeping is None or keeping.error is None
            if hop.rides and status == "done" and is_kept:
                packed = self._engine.detector.finish(record, microseconds, why)
                if packed is not None:
                    self._commit()
                    hop.packed = packed
                    return
            for edge in list(record.edges) if record.edges else ():
                self._engine.sent(edge, "is in doubt", now)  # nobody has said what became of it
            self._engine.end(record, status, now, seconds=microseconds / 1e6, why=why)
            self._try_to_commit()
        except Exception:  # noqa: BLE001 - a callback of the event loop has nobody to raise it to
            logger.exception("node %r could not record that %s has ended", self.name, hop.name)

    def _send(self, hop: states.HopRecord, to: str) -> tuple[bytes, str]:
        self._check()
        edge, now = self._random(12), self._clock()
        begin_by = self._engine.send(hop, edge, arguments.check_text("to", to), now)
        try:
            self._commit()
        except JournalBroken:
            self._engine.sent(edge, "is not sent", now)
            self._try_to_commit()
            raise
        handed = codec.Handed(hop.cascade, edge, edge_mark(hop.edge), begin_by, self.url)
        return edge, codec.request_header(handed)

    def _resolve(self, edge: bytes, to: str, how: Sending) -> None:
        if self._scope is None:
            return
        self._engine.sent(edge, how, self._clock())
        if how == "is in doubt" and self.url is None:
            self._exchange.pull(edge, to)
        self._try_to_commit()

    def _answered(
        self, edge: bytes, to: str, answer: Answer, how: Sending, *, must_ask: bool, uses: int
    ) -> None:
        if self._scope is None:
            return
        now = self._clock()
        self._engine.answered(edge, answer, how, now, uses=uses)
        self._exchange.contact(to, now)
        if answer.kind == "working" and (must_ask or self.url is None):
            self._exchange.pull(edge, to)
        self._try_to_commit()

    def _told(self, edge: bytes) -> None:
        """Record that the beginner of a cascade was told. If that cannot be written, it is told again."""
        self._cascades.pop(edge, None)
        if self._scope is not None:
            self._engine.told(edge, self._clock())
            self._try_to_commit()

    def _dropped(self, root: states.HopRecord) -> None:
        if self._engine.detector.find_root(root.edge) is root:  # not that of a later opening
            self._told(root.edge)

    def _cancel(self, hop: states.HopRecord) -> None:
        self._check()
        self._engine.cancel(hop, self._clock())
        self._commit()

    def _tidy(self) -> None:
        """Start to make the journal smaller, if it has grown; not at the end, which would wait for it."""
        keeping = self._keeping
        if keeping is not None and not self._exchange.is_ending and keeping.tidying.is_due():
            self._exchange.service("compaction", keeping.tidying.run)
