"""What an open node does if it shares its store with other replicas of its agent.

Any replica may get a message, a copy of it, a question about it, or a receipt for a message that another replica has
sent. The store decides: the first replica that claims an edge runs it. Everything else is answered from the rows, or
passed to their owner. Rules:

1. A message begins only after its claim was won, and its row has lasted.
2. A replica answers for edges of others with what their rows say, and never changes these rows.
3. The answer `never` is a claim of its own: the edge is refused in the store before the answer leaves.
4. A replica that was declared dead cancels its work, and rejects all messages until it is started again.
"""

from __future__ import annotations

from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from quiesce.core.tree import logger
from quiesce.errors import EdgeRefused, JournalBroken, PeerLost, QuiesceError, ReplicaBuried
from quiesce.mesh.protocol.facts import (
    NEVER,
    NOT_NOW,
    UNKNOWN,
    WORKING,
    Answer,
    Begun,
    Closed,
    EdgeClosed,
    Over,
)
from quiesce.mesh.protocol.horizon import DRIFT_SECONDS
from quiesce.mesh.protocol.receipt import edge_key, pack, unpack
from quiesce.mesh.protocol.scheduler import NodeReply
from quiesce.mesh.runtime.edge_names import EdgeNames, answer_as_asked
from quiesce.mesh.runtime.node_events import ReplicaGone, ReplicaJoined
from quiesce.mesh.runtime.refusals import not_worked_on
from quiesce.mesh.store.fence import Fence
from quiesce.mesh.store.record_rows import (
    RecordRows,
    is_cancelled,
    receipt_of_row,
    records_of_rows,
    was_refused,
)
from quiesce.mesh.store.replica_identity import this_replica
from quiesce.mesh.store.replica_watch import ReplicaWatch
from quiesce.mesh.store.rows import Notice
from quiesce.mesh.store.shared_store import SharedStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

    from quiesce.mesh.protocol.codec import Handed
    from quiesce.mesh.protocol.facts import Record
    from quiesce.mesh.protocol.receipt import Receipt
    from quiesce.mesh.protocol.scheduler import NodeCall
    from quiesce.mesh.runtime.hop import Hop
    from quiesce.mesh.runtime.open_node import OpenNode
    from quiesce.mesh.store.database import Database
    from quiesce.mesh.store.rows import EdgeRow, Replica

__all__: list[str] = []

_LOOK_SECONDS = 0.5  # between looks at the rows of others, for a question that waits


class SharedNode:
    """The replica of an open node."""

    def __init__(self, opened: OpenNode, database: Database) -> None:
        """Prepare; `open` connects."""
        node = opened.node
        self._opened = opened
        self._engine = opened.engine
        self._engine.detector.is_shared = True
        self.names: EdgeNames = EdgeNames()
        replica = this_replica(node.name, node.replica, lease=node.lease_seconds, fences=node.fence)
        horizon = opened.engine.horizon
        rows = RecordRows(
            node.name, replica.incarnation, node.wall, lambda: horizon.promised + 2 * DRIFT_SECONDS
        )
        self.store: SharedStore = SharedStore(database, replica, rows, within=node.store_seconds)
        self.store.on_buried = self._buried
        self.store.has_stopped = lambda: not opened.running_hops
        self._fence: Fence | None = Fence() if node.fence else None
        self.watch: ReplicaWatch = ReplicaWatch(self.store, self._hear, self._adopt, self._fence)
        self.watch.on_change = self._tell_replica

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Take part in the store inside the block."""
        if self._fence is not None:
            self._fence.kill_in(
                self.store.replica.lease
            )  # from now on, as the entry is not written yet
        try:
            async with self.store.opened():
                yield
        finally:
            if self._fence is not None:
                self._fence.close()

    async def open(self) -> None:
        """Continue the work of earlier incarnations that are proven dead; called while the node opens."""
        database = self.store.database
        self._engine.known.bear(await database.born_at(), "")
        await self.watch.look(is_starting=True)

    def start(self) -> None:
        """Start the tasks of the replica."""
        service = self._opened.exchange.service
        service("store", self.store.write)
        service("heartbeats", self.watch.beat)
        service("changes of the store", self.watch.listen)
        service("notices", self.watch.read)

    def add(self, records: list[Record]) -> None:
        """Write records soon, and forget the ids of edges that are over."""
        self.store.add(records)
        hops = self._engine.known.hop_records
        for record in records:
            if isinstance(record, Over | EdgeClosed) and record.edge not in hops:
                self.names.drop(record.edge)
            elif isinstance(record, Closed):
                self._closed(record)

    # Messages (1).

    async def admit(self, handed: Handed, why_not: str | None = None, caller: str = "") -> Hop:
        """Accept a message, and return its hop.

        *Cancel safety*: if cancelled, the message does not run, and a copy of it may.

        *Raises*: `EdgeRefused`; `StoreLost` if the store does not answer in time.
        """
        opened = self._opened
        opened.check_accepts()
        edge = self.names.keep(handed.edge)
        named = replace(handed, edge=edge)
        row: EdgeRow | None = None
        try:
            if not self._engine.detector.knows(edge):
                row = await self._claim(named, why_not, caller)
                self.names.keep(handed.edge)  # a copy that was refused has dropped it
            return opened.accept_arrival(named, why_not, caller)
        except EdgeRefused:
            if self._engine.detector.knows(edge):
                await self.store.written()  # what the refusal says
            raise
        finally:
            if edge not in self._engine.known.hop_records:
                self.names.drop(edge)
                if row is not None and not self._engine.detector.knows(edge):
                    self.store.rows.give_back(row)  # the node has begun to close meanwhile
                    self.store.ring()

    async def _claim(self, handed: Handed, why_not: str | None, caller: str) -> EdgeRow:
        """Claim a message, to run it or to refuse it; return the row.

        *Raises*: `EdgeRefused` if another replica has the message.
        """
        opened = self._opened
        why = opened.objection(handed, why_not)
        opened.check_room(handed)
        if why is not None and not opened.exchange.may_note(handed.edge, caller):
            raise not_worked_on(opened, handed, NOT_NOW, why)
        record = self._first_record(handed, why)
        there = await self.store.claim(record)
        if there is not None:
            raise not_worked_on(opened, handed, self._answer_of(there), None)
        return self.store.rows.claim_of(record)

    def _first_record(self, handed: Handed, why: str | None) -> Begun | Over:
        if why is not None:
            return Over(handed.edge)
        reply = self._opened.node.policy.reply_to(handed.home)
        return Begun(handed.edge, handed.cascade, handed.parent, reply)

    def _answer_of(self, row: EdgeRow) -> Answer:
        """Return what the row of another replica says about an edge (2)."""
        receipt = receipt_of_row(row)
        if receipt is not None:
            return Answer("closed", receipt)
        if row.state == "open":
            return WORKING
        return NEVER if was_refused(row) else UNKNOWN

    # Calls of other nodes.

    async def answer_call(self, call: NodeCall, caller: str) -> NodeReply:
        """Answer a call for this replica, and for the others.

        *Raises*: `PeerLost` if the node accepts no calls now.
        """
        try:
            return answer_as_asked(call, await self._answer(self.names.incoming(call), caller))
        except QuiesceError as error:
            raise PeerLost(str(error)) from error

    async def _answer(self, call: NodeCall, caller: str) -> NodeReply:
        opened, engine = self._opened, self._engine
        opened.check_accepts()
        elsewhere = await self._asks_elsewhere(call, caller)
        passed = await self._pass_receipts(call)
        mine = replace(
            call,
            asks=tuple(ask for ask in call.asks if engine.detector.knows(ask[0])),
            receipts=tuple(pair for pair in call.receipts if pair[0] not in passed),
        )
        reply = opened.exchange.answer_here(mine)
        await self.store.written()
        reply = replace(reply, taken=tuple(edge for edge, _ in call.receipts))
        told = engine.horizon.answering(call, NodeReply((), tuple(elsewhere.items())))
        return replace(reply, answers=(*reply.answers, *told.answers))

    async def _asks_elsewhere(self, call: NodeCall, caller: str) -> dict[bytes, Answer]:
        """Return the answers for edges that this replica does not know, and refuse those that nobody knows (3)."""
        opened, knows = self._opened, self._engine.detector.knows
        asked = {edge: cancel for edge, cancel in call.asks if not knows(edge)}
        if not asked:
            return {}
        rows = await self.store.find("hop", asked)
        answers: dict[bytes, Answer] = {}
        for edge, cancel in asked.items():
            row = rows.get(edge)
            if row is None:
                if not opened.exchange.may_note(edge, caller):
                    continue
                row = await self.store.claim(Over(edge))
            answers[edge] = NEVER if row is None else self._answer_of(row)
            if cancel and row is not None and row.state == "open" and not is_cancelled(row):
                self.store.notify([Notice(row.owner, "cancel", edge)])
        return answers

    async def _pass_receipts(self, call: NodeCall) -> set[bytes]:
        """Pass receipts to the replicas that have sent the edges; return these edges."""
        is_open = self._engine.known.is_open
        receipts = {edge: receipt for edge, receipt in call.receipts if not is_open(edge)}
        if not receipts:
            return set()
        rows = await self.store.find("sent", receipts)
        self._notify_senders(rows, receipts)
        return set(rows)

    def _closed(self, record: Closed) -> None:
        """Notify the sender of a hop that has closed, if no receipt is posted to it, and it shares this store."""
        hop = self._engine.known.hop_records.get(record.edge)
        if hop is not None and hop.reply is None and hop.is_answered and not hop.is_root:
            self._opened.exchange.service("notify a sender", self._notify_sender, record)

    async def _notify_sender(self, record: Closed) -> None:
        with suppress(QuiesceError):  # else the sender hears of it when it asks
            receipt = unpack(record.packed)
            self._notify_senders(
                await self.store.find("sent", [record.edge]), {record.edge: receipt}
            )

    def _notify_senders(self, rows: dict[bytes, EdgeRow], receipts: dict[bytes, Receipt]) -> None:
        own = self.store.replica.incarnation
        self.store.notify(
            Notice(row.owner, "receipt", edge, pack(receipts[edge]))
            for edge, row in rows.items()
            if row.state == "open" and row.owner != own
        )

    async def answer_later(
        self, call: NodeCall, caller: str, change: Callable[[float], Awaitable[None]]
    ) -> NodeReply:
        """Answer a waiting question after a change of its edges.

        Args:
            call: The question.
            caller: The address that it comes from.
            change: A function that waits for a change in this replica, at most for some seconds.
        """
        exchange, knows = self._opened.exchange, self._engine.detector.knows
        until = self._opened.clock() + call.wait
        is_here = all(knows(edge_key(edge)) for edge, _ in call.asks)
        while True:
            left = until - self._opened.clock()
            await change(left if is_here else min(left, _LOOK_SECONDS))
            reply = await self.answer_call(call, caller)
            is_news = any(answer.kind != "working" for _, answer in reply.answers)
            if is_here or is_news or exchange.ends_polls() or self._opened.clock() >= until:
                return reply

    # Calls to other nodes.

    async def deliver_inside(self, call: NodeCall) -> NodeCall | None:
        """Deliver what a call has for nodes that share this store. Return the rest of the call; None if nothing is left.

        The rest may leave: what it says has lasted.
        """
        try:
            await self.store.written()
            return await self._deliver(call, self._opened.clock())
        except QuiesceError as error:  # the call is made again later
            self._engine.failed(call, self._opened.clock(), "", str(error))
            return None

    async def of_this_store(self, edges: Iterable[bytes]) -> list[bytes]:
        """Return the edges whose receivers share this store: they need not be asked, because they send notices."""
        try:
            return [*await self.store.find("hop", list(edges))]
        except QuiesceError:
            return []

    async def _deliver(self, call: NodeCall, now: float) -> NodeCall | None:
        engine = self._engine
        receipts = dict(call.receipts)
        sent = await self.store.find("sent", receipts) if receipts else {}
        hops = await self.store.find("hop", [edge for edge, _ in call.asks]) if call.asks else {}
        deserted = await self._deserted(hops)
        self._notify_senders(sent, receipts)
        own = self.store.replica.incarnation
        for edge, row in sent.items():
            if row.owner == own:
                engine.detector.receive(edge, receipts[edge])
        self.store.notify(
            Notice(hops[edge].owner, "cancel", edge)
            for edge, cancel in call.asks
            if cancel and edge in hops and hops[edge].state == "open"
        )
        if deserted:
            asks = tuple(ask for ask in call.asks if ask[0] in deserted)
            why = "no replica of it has sent a heartbeat for longer than its lease"
            engine.failed(replace(call, receipts=(), asks=asks), now, "", why)
        answers = tuple((e, self._answer_of(row)) for e, row in hops.items() if e not in deserted)
        if sent or hops:
            await self.store.written()
            inside = replace(
                call,
                receipts=tuple(pair for pair in call.receipts if pair[0] in sent),
                asks=tuple(a for a in call.asks if a[0] in hops and a[0] not in deserted),
            )
            engine.replied(inside, NodeReply(tuple(sent), answers), now)
        # Its sender is not in this store. Without an address, and the id of the edge, the sender asks for the receipt.
        has_id = self.names.is_known
        lost = [edge for edge in receipts if edge not in sent and not (call.to and has_id(edge))]
        engine.unpost(lost)
        left = replace(
            call,
            receipts=tuple(p for p in call.receipts if p[0] not in sent and p[0] not in lost),
            asks=tuple(ask for ask in call.asks if ask[0] not in hops),
        )
        return left if left.receipts or left.asks else None

    async def _deserted(self, hops: dict[bytes, EdgeRow]) -> set[bytes]:
        """Return the edges whose rows are open, while no replica of their agent is known to run."""
        is_open = {edge: row.agent for edge, row in hops.items() if row.state == "open"}
        alive: set[str] = set()
        for agent in {*is_open.values()} - {self._opened.name}:
            replicas = await self.store.database.replicas(agent)
            if any(one.state == "alive" and one.age <= one.lease for one in replicas):
                alive.add(agent)
        return {edge for edge, agent in is_open.items() if agent not in {*alive, self._opened.name}}

    # What other replicas tell.

    def _hear(self, notices: list[Notice]) -> None:
        """Handle notices, in one step."""
        opened, engine = self._opened, self._engine
        for notice in notices:
            if notice.kind == "receipt":
                engine.detector.receive(notice.key, unpack(notice.body))
            else:
                hop = engine.known.find(notice.key)
                if hop is not None:
                    engine.detector.cancel(hop)
        engine.absorb_news(opened.clock())
        opened.try_to_commit()

    def _adopt(self, rows: list[EdgeRow]) -> None:
        """Own the rows of a dead replica, and go on with what it has left (`Engine.adopt`)."""
        opened, engine = self._opened, self._engine
        try:
            records = records_of_rows(rows)
        except JournalBroken:
            logger.exception("node %r cannot take over from a dead replica", opened.name)
            return
        self.store.rows.inherit(rows)
        engine.adopt(records, opened.clock())
        opened.try_to_commit()
        opened.adopted()

    def _tell_replica(self, other: Replica) -> None:
        """Notify subscribers that another replica has joined or is gone."""
        subscribers = self._opened.node.subscribers
        if not subscribers.functions:
            return
        first = subscribers.now()
        if other.state == "alive":
            subscribers.tell(ReplicaJoined(*first, other.name))
        else:
            subscribers.tell(ReplicaGone(*first, other.name, other.state == "dead", other.why))

    def _buried(self) -> None:
        """Cancel all work, because another replica may have taken it over (4)."""
        for hop in list(self._opened.running_hops.values()):
            hop.cancel_work()
        self._opened.abandon()

    # The state of the store.

    def check(self) -> None:
        """Raise the reason for which the node rejects all messages now, if there is one."""
        if self.store.buried is not None:
            raise ReplicaBuried(self.store.buried.incarnation, self.store.buried.why)

    def why_broken(self) -> str:
        """Return what is wrong with the store; empty if nothing is."""
        error = self.store.buried or self.store.error
        return "" if error is None else str(error)
