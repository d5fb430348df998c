"""The calls that a node makes to other nodes, and its answers to their calls.

One loop makes the calls that are due. If other nodes cannot post receipts to this node, it asks them: it sends
one question to each of these nodes, and the answer comes as soon as one of the edges is closed. Invariants:

1. This module makes no decisions about verdicts. If all calls fail, a cascade is unknown, never settled.
2. An incoming call changes only edges whose id the caller knows. A caller can ask for edges that never arrived,
   and the node keeps a bounded number of them.
3. Every wait has a bound, or ends with the node.
"""

from __future__ import annotations

import math
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio

from quiesce.core import report as reports
from quiesce.core.current import detached
from quiesce.core.tree import ScopeState, logger
from quiesce.errors import PeerLost, QuiesceError, RemoteProtocolError
from quiesce.mesh.protocol import codec
from quiesce.mesh.protocol.facts import Closed, Ended
from quiesce.mesh.protocol.states import HopState
from quiesce.mesh.runtime import progress
from quiesce.mesh.runtime.admission import Allowances
from quiesce.mesh.runtime.call_errors import CallErrors
from quiesce.mesh.runtime.edge_names import answer_keys
from quiesce.mesh.runtime.receipt_pull import Pull
from quiesce.mesh.runtime.unposted import Receipts, Untold, not_posted
from quiesce.mesh.store.journal_keeper import RETRY_SECONDS
from quiesce.mesh.transport.call_bodies import CallBodies
from quiesce.mesh.transport.links import Links
from quiesce.mesh.transport.node_transport import PROBE, RECEIPTS, Memory, NoMesh, no_mesh

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

    from quiesce.core.backends import Waiter
    from quiesce.core.hold import Hold
    from quiesce.core.job import Job
    from quiesce.core.scope import Scope
    from quiesce.mesh.protocol.engine import Engine
    from quiesce.mesh.protocol.facts import Record
    from quiesce.mesh.protocol.scheduler import NodeCall, NodeReply
    from quiesce.mesh.runtime.open_node import OpenNode
    from quiesce.mesh.transport.node_transport import Transport

__all__: list[str] = []

_CALL_SECONDS = 10.0
_POLLS_MAX = 1000


class PeerCalls:
    """The calls from and to one node, while the node is open."""

    def __init__(self, opened: OpenNode, engine: Engine, scope: Scope) -> None:
        self._opened = opened
        self._node = node = opened.node
        self._engine = engine
        self._scope = scope
        self._clock = scope.backend.clock
        self._awake_at = -math.inf
        self._sleeper: Waiter | None = None
        self._pulls: dict[str, Pull] = {}
        self.waiting_polls: dict[bytes, list[Waiter]] = {}
        self._waiting = 0
        self._errors = CallErrors(node.name, every=node.patience.retry_most)
        self._is_over = False
        self._ending_by = -math.inf
        self._untold = Untold()
        self.flush_hold: Hold | None = None
        self._flush_from = math.inf  # when the work ended and only receipts were left to post
        self._noted = Allowances(self._clock)
        self._rejected = Allowances(self._clock)
        self.links: Links = Links(node.transport_given, _http)
        self.transport_used: Transport = self.links
        self.bodies: CallBodies = CallBodies()

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Serve other nodes inside the block, and close the connections after it."""
        given = self._node.transport_given
        memory = given if isinstance(given, Memory) else None
        url = self._node.url
        try:
            if memory is not None and url is not None:
                memory.join(url, self.serve)
            yield
        finally:
            if memory is not None and url is not None:
                memory.leave(url, self.serve)
            await self.links.aclose()

    def start(self) -> None:
        """Start the loop that makes calls, and answer calls from now on."""
        self.service("exchange", self._make_calls)
        self.service("end of the polls", self._end_polls)
        if self._node.url is None:  # no node can post receipts here
            for edge, to in self._engine.known.open_edges():
                self.pull(edge, to)
        if self._scope.phase is not ScopeState.OPEN:
            self.closing()

    def service(
        self, name: str, fn: Callable[..., Coroutine[Any, Any, None]], *args: object
    ) -> Job[None] | None:
        """Start a service of the node; also during a drain, which needs services to post receipts.

        Return None if the node is closed.
        """
        scope = self._scope
        if scope.phase is ScopeState.CLOSED:
            return None
        job: Job[None] = scope.start_job(scope, fn(*args), name, fn.__code__, 0)
        scope.services[job] = job  # type: ignore[assignment]  # a job is Held
        return job

    # The end.

    def closing(self) -> None:
        """Hold the closing node open until its receipts are posted."""
        if self.flush_hold is None:
            for hop in self._opened.running_hops.values():
                hop.hold_unbegun()
            flush: Hold = Receipts(self._scope, self._engine, self.closing.__code__)
            self.flush_hold = flush
            self._scope.insert_hold(flush, flush)
            self._try_to_end()
            # Try again: a task of a hop that asks for the close counts as work in this step, but not in the next.
            self._scope.backend.soon(self._try_to_end)

    @property
    def is_ending(self) -> bool:
        """Whether the node is held open until its receipts are posted."""
        return self.flush_hold is not None

    @property
    def _flush_by(self) -> float:
        """The deadline for posting receipts: the cleanup time, but not later than the close's deadline."""
        if self._flush_from == math.inf:
            return math.inf
        root: Any = self._scope.draining_root
        own = self._scope.close_plan
        by: float = self._flush_from + root.close_plan.cleanup
        return by if own is None else min(by, own.join_by)

    @property
    def _end_at(self) -> float:
        """When to check whether the node still must be held open."""
        is_held = self.flush_hold is not None and not self.flush_hold.released
        return min(self._flush_by, self._untold.next_at() if is_held else math.inf)

    def _try_to_end(self) -> None:
        """Release the node if its work has ended and its receipts are posted, or at the deadline."""
        flush = self.flush_hold
        if flush is None or flush.released:
            return
        now, unposted = self._clock(), self._engine.unposted
        self._untold.forget(now)  # also while hops run: `_end_at` looks at what is left
        if not all(hop.has_only_closers for hop in self._opened.running_hops.values()):
            return
        if not (unposted or self._untold) or self._opened.is_refusing:
            flush.release()
            return
        if now < self._flush_from:
            self._flush_from = now
            self._engine.post_now(now)
            self.wake()
        if now >= self._flush_by and not unposted:
            flush.release()
        elif now >= self._flush_by:
            has_journal = self._node.keeps_records
            why = not_posted(self._engine, self._errors.by_address, has_journal=has_journal)
            logger.warning("node %r: %s", self._node.name, why)
            if not has_journal:  # the receipts are lost
                self._scope.undelivered_items.append(
                    (reports.report_entry(flush, self._scope.name, now),)
                )
            flush.release()

    # Calling others.

    def look(self) -> None:
        """Wake the loop if a step has made a call due earlier than the loop expects."""
        if self.flush_hold is not None:
            self._try_to_end()
        if min(self._engine.next_at(), self._end_at) < self._awake_at:
            self.wake()

    def wake(self) -> None:
        """Wake the loop that makes the due calls."""
        if self._sleeper is not None:
            self._awake_at = -math.inf
            if not self._sleeper.done():
                self._sleeper.set_result(None)

    async def _make_calls(self) -> None:
        node, engine = self._opened, self._engine
        while True:
            now = self._clock()
            if now >= self._end_at:
                is_late = now >= self._flush_by
                self._try_to_end()
                self._flush_from = math.inf if is_late else self._flush_from
            is_behind = node.is_behind and not node.retry_writing()
            if not node.is_refusing:
                self._make_due(now)
            self._awake_at = min(engine.next_at(), self._end_at)
            if is_behind:  # calls that depend on unwritten records wait for the next try
                later = now + RETRY_SECONDS
                self._awake_at = later if node.is_refusing else min(self._awake_at, later)
            self._sleeper = self._scope.backend.waiter()
            with anyio.move_on_after(max(0.0, self._awake_at - now)):  # lets others run, always
                await self._sleeper
            self._sleeper = None

    def _make_due(self, now: float) -> None:
        calls = self._engine.due(now)
        self._opened.try_to_commit()
        for call in calls:
            self.service(f"call {call.to}", self._make_call, call)
        self._opened.tidy_journal()

    async def _make_call(self, call: NodeCall) -> None:
        shared = self._opened.shared
        if shared is not None:
            left = await shared.deliver_inside(call)
            self._opened.try_to_commit()
            if left is None:
                return
            call = left
        reply = await self._ask(call, _CALL_SECONDS)
        now = self._clock()
        if isinstance(reply, str):
            self._engine.failed(call, now, reply, self._errors.by_address.get(call.to, ""))
        else:
            known = self._engine.known
            doubted = [edge for edge, _ in call.asks if not known.is_taken(edge)]
            self._engine.replied(call, reply, now)
            self.contact(call.to, now, is_node=True)
            for edge in doubted:
                if known.is_taken(edge):  # its lost answer may have said that no receipt is posted
                    self.pull(edge, call.to)
        self._opened.try_to_commit()

    async def _ask(self, call: NodeCall, seconds: float) -> NodeReply | str:
        """Make a call, and return the reply. If it fails, return the lasting reason, or "" if the failure may pass."""
        try:
            # Tasks that the client starts belong to the call, not to a scope around it.
            names = None if self._opened.shared is None else self._opened.shared.names
            asked = call if names is None else names.outgoing(call)
            with anyio.fail_after(seconds), detached():
                body = await self._deliver(call.to, codec.call_body(self._engine.asking(asked)))
            reply = codec.parse_reply(body)
            reply = reply if names is None else names.named(reply)
        except NoMesh as error:
            return self._errors.wrong(call.to, str(error))
        except RemoteProtocolError as error:
            why = no_mesh(call.to, f"its answer is not from a node ({error})")
            return self._errors.wrong(call.to, why)
        except (PeerLost, TimeoutError) as error:
            text = str(error) or f"no answer within {seconds:g} s"
            logger.debug("node %r did not reach %s: %s", self._node.name, call.to, text)
            return self._errors.failed(call.to, text)
        except Exception as error:  # noqa: BLE001 - a transport may raise anything: count it as no answer
            logger.exception("node %r could not call %s", self._node.name, call.to)
            return self._errors.failed(call.to, f"the transport raised {type(error).__name__}")
        self._errors.succeeded(call.to)
        return reply

    async def _deliver(self, to: str, body: bytes) -> bytes:
        """Send a call. A call to this node itself skips the transport: the server may no longer listen."""
        if to == self._node.url:
            return await self.serve(RECEIPTS, body)
        return await self.transport_used.call(to, RECEIPTS, body)

    # Asking for receipts that are not posted.

    def pull(self, edge: bytes, to: str) -> None:
        """Ask for an edge until it is closed, so that this node learns the end at once."""
        if not self._engine.known.is_open(edge):
            return
        pull = self._pulls.get(to)
        if pull is None:
            pull = self._pulls[to] = Pull(to, self._node.patience)
            self.service(f"poll {to}", self._pull_from, pull)
        pull.add(edge)

    async def _pull_from(self, pull: Pull) -> None:
        engine, node = self._engine, self._opened
        try:
            while pull.edges:
                if node.shared is not None:
                    for edge in await node.shared.of_this_store(pull.edges):
                        del pull.edges[edge]
                    if not pull.edges:
                        return
                with pull.asking() as asked:
                    reply = await self._ask(asked.call, asked.seconds)
                    if isinstance(reply, str):
                        asked.why = reply
                    else:
                        asked.is_answered = True
                        now = self._clock()
                        engine.contact(pull.to, now, is_node=True)
                        engine.heard(pull.to, reply, now)
                        node.try_to_commit()
                await pull.rest(asked, engine.known.is_open)
        finally:
            if self._pulls.get(pull.to) is pull:
                del self._pulls[pull.to]

    def contact(self, to: str, now: float, *, is_node: bool = False) -> None:
        """Record a sign of life from an agent, so that failed calls to it are repeated soon."""
        pull = self._pulls.get(to)
        if pull is not None:
            pull.contact(now, is_node=is_node)
        self._engine.contact(to, now, is_node=is_node)

    # Being called.

    async def serve(self, path: str, body: bytes, caller: str = "") -> bytes:
        """Answer a call of another node; `caller` is the address that it comes from, if known.

        *Cancel safety*: may be cancelled at any time. Changes by the call stay, and the caller may
        repeat the call.

        *Raises*: `RemoteProtocolError` if the call violates the protocol; `PeerLost` if the node accepts no calls now.
        """
        if path == PROBE:
            return await progress.serve_frontier(self._opened, self.transport_used, body)
        if path != RECEIPTS:
            message = f"a node has only the paths {RECEIPTS} and {PROBE}"
            raise RemoteProtocolError(message)
        call = codec.parse_call(body)
        reply = await self._reply(call, caller)
        if call.wait and not call.receipts and self._waiting < _POLLS_MAX:
            edges = [edge for edge, answer in reply.answers if answer.kind == "working"]
            if edges and len(edges) == len(call.asks):
                change = partial(self._change, list(map(self._opened.name_of, edges)))
                if self._opened.shared is not None:
                    reply = await self._opened.shared.answer_later(call, caller, change)
                else:
                    await change(call.wait)
                    reply = await self._reply(call, caller)
        return codec.reply_body(reply)

    async def _reply(self, call: NodeCall, caller: str) -> NodeReply:
        shared = self._opened.shared
        if shared is not None:
            return await shared.answer_call(call, caller)
        return answer_keys(call, self._engine.known, partial(self._answer, caller=caller))

    def _answer(self, call: NodeCall, caller: str) -> NodeReply:
        try:
            self._opened.check_accepts()
        except QuiesceError as error:
            raise PeerLost(str(error)) from error
        keeping = self._opened.keeping
        if keeping is not None and call.seen:
            keeping.check(call.seen, caller)
        detector = self._engine.detector
        if any(detector.knows(edge) for edge, _ in call.asks) or any(
            detector.known.is_open(edge) for edge, _ in call.receipts
        ):
            self._noted.known(caller)
        asks = tuple(ask for ask in call.asks if self.may_note(ask[0], caller))
        try:
            reply = self.answer_here(replace(call, asks=asks))
        except QuiesceError as error:
            raise PeerLost(str(error)) from error
        return reply if keeping is None else replace(reply, seen=keeping.seen())

    def answer_here(self, call: NodeCall) -> NodeReply:
        """Answer a call by what this process knows.

        *Raises*: `JournalBroken` if the records of the answer cannot be written.
        """
        reply = self._engine.called(call, self._clock())
        for edge, answer in reply.answers if self._untold else ():
            if answer.kind != "working":
                self._untold.told(edge)
        self._opened.commit_records()
        return reply

    def may_note(self, edge: bytes, caller: str = "") -> bool:
        """Return whether the node may record an edge: it knows the edge, or the caller's allowance is left (2)."""
        return self._engine.detector.knows(edge) or self._noted.take(caller)

    def may_keep(self, caller: str) -> bool:
        """Return whether the node may record one more refused message of this caller (2)."""
        return self._rejected.take(caller)

    async def _change(self, edges: list[bytes], seconds: float) -> None:
        """Wait until a question about these edges can be answered, at most for `seconds`.

        Usually that is when one of the edges is closed. After the server was told to end, the client cannot ask
        again, so then it is when this process no longer works on any of the edges.
        """
        until = self._clock() + seconds
        while not self._is_over:
            by = self._ending_by if self.is_told_to_end() else math.inf
            if self.is_told_to_end() and not any(map(self._is_at_work, edges)):
                return
            if not await self._change_by(edges, min(until, by)) or not self.is_told_to_end():
                return

    async def _change_by(self, edges: list[bytes], until: float) -> bool:
        """Wait until one of the edges is closed or `end_polls()` is called; return False at the deadline."""
        waiter = self._scope.backend.waiter()
        for edge in edges:
            self.waiting_polls.setdefault(edge, []).append(waiter)
        self._waiting += 1
        try:
            with anyio.move_on_after(until - self._clock()) as limit:
                await waiter
        finally:
            self._waiting -= 1
            for edge in edges:
                left = self.waiting_polls.get(edge, [])
                with suppress(ValueError):
                    left.remove(waiter)
                if not left:
                    self.waiting_polls.pop(edge, None)
        return not limit.cancelled_caught

    def is_told_to_end(self) -> bool:
        """Return whether the server was told to end, and its time to answer questions is not over."""
        return self._clock() < self._ending_by

    def _is_at_work(self, edge: bytes) -> bool:
        """Return whether work in this process must end before an edge can be closed."""
        hop = self._engine.known.find(edge)
        if hop is None:
            return False
        sent = [one for one, open_edge in hop.edges.items() if open_edge.to == self._node.url]
        return hop.state is HopState.RUNNING or any(map(self._comes_from_here, sent))

    def _comes_from_here(self, edge: bytes) -> bool:
        """Return whether an edge to this node itself is being processed here, or has a receipt under way."""
        hop = self._engine.known.find_root(edge)
        return hop is not None and (hop.receipt is not None or self._is_at_work(edge))

    def told_to_end(self, seconds: float) -> None:
        """Record that the server was told to end. It waits for its open requests, including questions.

        A question about work in this process is answered when that work has ended, or after `seconds`. No
        other node can answer it, and this node cannot until it is started again.
        """
        self._ending_by = self._clock() + seconds
        self.end_polls()
        self.service("end of the reads", self.bodies.end_soon)

    def wrote(self, records: list[Record]) -> None:
        """Wake the questions that these records may answer (see `_change`)."""
        kinds = (Closed, Ended) if self.is_told_to_end() else (Closed,)
        for record in records:
            if isinstance(record, Closed):
                hop = self._engine.known.find_root(record.edge)
                self._untold.closed(hop, self._clock())
            if isinstance(record, kinds):
                for waiter in self.waiting_polls.get(record.edge, ()):
                    if not waiter.done():
                        waiter.set_result(None)

    async def _end_polls(self) -> None:
        """Answer all waiting questions when the node ends, so that the close does not wait for them."""
        try:
            await anyio.sleep_forever()
        finally:
            self._is_over = True
            self.end_polls()
            self.bodies.end()

    def ends_polls(self) -> bool:
        """Return whether questions are answered at once, because the node or its server ends."""
        return self._is_over or self.is_told_to_end()

    def end_polls(self) -> None:
        """Wake all waiting questions, so that each checks again whether it can be answered."""
        for waiters in list(self.waiting_polls.values()):
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)


def _http() -> Transport:
    try:
        from quiesce.mesh.transport.http_transport import HttpTransport  # noqa: PLC0415 - httpx is optional
    except ModuleNotFoundError as error:
        message = f"other nodes are called over HTTP, and that needs {error.name}: pip install 'quiesce[httpx]'."
        raise NoMesh(message) from error
    return HttpTransport()
