"""What a node says to others by itself, and how it answers them.

One loop makes the calls that are due. Where receipts are not posted to it, the node asks: one question to
each of those nodes, which is answered as soon as one of its edges is closed. What holds:

1. Nothing here decides anything: if all of it fails, a cascade is unknown, never settled.
2. A call that comes in changes only edges whose id the caller knows. What it can make the node keep, by
   asking for edges that never came, is bounded.
3. Every wait has a bound, or ends with the node.
"""

from __future__ import annotations

import math
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
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
from quiesce.mesh.runtime.receipt_pull import Pull
from quiesce.mesh.runtime.unposted import Receipts, Untold, not_posted
from quiesce.mesh.store.journal_keeper import RETRY_SECONDS
from quiesce.mesh.transport.call_bodies import CallBodies
from quiesce.mesh.transport.links import Links
from quiesce.mesh.transport.node_transport import (
    PROBE,
    RECEIPTS,
    Memory,
    NoMesh,
    no_mesh,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

    from quiesce.core.backends import Waiter
    from quiesce.core.hold import Hold
    from quiesce.core.job import Job
    from quiesce.core.scope import Scope
    from quiesce.mesh.protocol.engine import Engine
    from quiesce.mesh.protocol.facts import Record
    from quiesce.mesh.protocol.scheduler import NodeCall, NodeReply
    from quiesce.mesh.runtime.node import Node
    from quiesce.mesh.transport.node_transport import Transport

__all__: list[str] = []

_CALL_SECONDS = 10.0
_POLLS_MAX = 1000
_TOLD_MAX = 1000


class PeerCalls:
    """The traffic of one node, while it is open."""

    def __init__(self, node: Node, engine: Engine, scope: Scope) -> None:
        self._node = node
        self._engine = engine
        self._scope = scope
        self._clock = scope._backend.clock
        self._awake_at = -math.inf
        self._sleeper: Waiter | None = None
        self._pulls: dict[str, Pull] = {}
        self._polls: dict[bytes, list[Waiter]] = {}
        self._waiting = 0
        self._told: dict[str, None] = {}  # of whom it was said that they are no nodes
        self._errors: dict[str, str] = {}  # why the last call to an address failed
        self._is_over = False
        self._ending_by = -math.inf
        self._untold = Untold()
        self._flush: Hold | None = None
        self._flush_from = math.inf  # the work here has ended, and receipts are still to be posted
        self._noted = Allowances(self._clock)
        self._rejected = Allowances(self._clock)
        self.links: Links = Links(node._transport, _http)
        self._transport: Transport = self.links
        self.bodies: CallBodies = CallBodies()

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Serve other nodes inside of the block, and close connections after it."""
        given = self._node._transport
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
        """Begin to call others, and to be called."""
        self.service("exchange", self._make_calls)
        self.service("end of the polls", self._end_polls)
        if self._node.url is None:  # nobody tells it of what the process before has sent
            for edge, to in self._engine.detector.open_edges():
                self.pull(edge, to)
        if self._scope._state is not ScopeState.OPEN:
            self.closing()

    def service(
        self, name: str, fn: Callable[..., Coroutine[Any, Any, None]], *args: object
    ) -> Job[None] | None:
        """Start a service of the node; also while it is drained, which needs them to end well.

        Return None if the node is closed.
        """
        scope = self._scope
        if scope._state is ScopeState.CLOSED:
            return None
        job: Job[None] = scope._start(scope, fn(*args), name, fn.__code__, 0)
        scope._services[job] = job  # type: ignore[assignment]  # a job is Held
        return job

    # The end.

    def closing(self) -> None:
        """Hold the node open until receipts that are due are posted: it is about to be closed."""
        if self._flush is None:
            for hop in self._node._hops.values():
                hop._hold_unbegun()
            flush: Hold = Receipts(self._scope, self._engine, self.closing.__code__)
            self._flush = flush
            self._scope._insert(flush, flush)
            self._try_to_end()
            # A task of a hop that asks for the close is waited for in this step, and not in the next.
            self._scope._backend.soon(self._try_to_end)

    @property
    def is_ending(self) -> bool:
        """Whether the node is held open until its receipts are posted."""
        return self._flush is not None

    @property
    def _flush_by(self) -> float:
        """Until when receipts may be posted: for the time of cleaning up, and not after the close's deadline."""
        if self._flush_from == math.inf:
            return math.inf
        root: Any = self._scope._drain_root
        own = self._scope._closing
        by: float = self._flush_from + root._closing.cleanup
        return by if own is None else min(by, own.join_by)

    @property
    def _end_at(self) -> float:
        """When the node may have been held open for long enough."""
        is_held = self._flush is not None and not self._flush.released
        return min(self._flush_by, self._untold.next_at() if is_held else math.inf)

    def _try_to_end(self) -> None:
        """Hold the node open no longer, if that was all; or have it do so in a while."""
        flush = self._flush
        if flush is None or flush.released:
            return
        if not all(hop._only_closers for hop in self._node._hops.values()):
            return
        now, unposted = self._clock(), self._engine.unposted
        self._untold.forget(now)
        if not (unposted or self._untold) or self._node._is_refusing:
            flush.release()
            return
        if now < self._flush_from:
            self._flush_from = now
            self._engine.post_now(now)
            self.wake()
        if now >= self._flush_by and not unposted:
            flush.release()
        elif now >= self._flush_by:
            has_journal = self._node._journal is not None
            why = not_posted(self._engine, self._errors, has_journal=has_journal)
            logger.warning("node %r: %s", self._node.name, why)
            if not has_journal:  # nobody will ever have them
                self._scope._undelivered.append(
                    (reports.report_entry(flush, self._scope.name, now),)
                )
            flush.release()

    # Calling others.

    def look(self) -> None:
        """See whether something is due earlier than before, after a step that may have changed that."""
        if self._flush is not None:
            self._try_to_end()
        if min(self._engine.next_at(), self._end_at) < self._awake_at:
            self.wake()

    def wake(self) -> None:
        """See to what is due."""
        if self._sleeper is not None:
            self._awake_at = -math.inf
            if not self._sleeper.done():
                self._sleeper.set_result(None)

    async def _make_calls(self) -> None:
        node, engine = self._node, self._engine
        while True:
            now = self._clock()
            if now >= self._end_at:
                is_late = now >= self._flush_by
                self._try_to_end()
                self._flush_from = math.inf if is_late else self._flush_from
            is_behind = node._is_behind and not node._retry()
            if not node._is_refusing:
                self._make_due(now)
            self._awake_at = min(engine.next_at(), self._end_at)
            if is_behind:  # what is due waits, if it rests on what is not written
                later = now + RETRY_SECONDS
                self._awake_at = later if node._is_refusing else min(self._awake_at, later)
            if self._awake_at <= now:
                continue
            self._sleeper = self._scope._backend.waiter()
            with anyio.move_on_after(self._awake_at - now):
                await self._sleeper
            self._sleeper = None

    def _make_due(self, now: float) -> None:
        calls = self._engine.due(now)
        self._node._try_to_commit()
        for call in calls:
            self.service(f"call {call.to}", self._make_call, call)
        self._node._tidy()

    async def _make_call(self, call: NodeCall) -> None:
        reply = await self._ask(call, _CALL_SECONDS)
        now = self._clock()
        if isinstance(reply, str):
            self._engine.failed(call, now, reply)
        else:
            self._engine.replied(call, reply, now)
            self.contact(call.to, now, is_node=True)
        self._node._try_to_commit()

    async def _ask(self, call: NodeCall, seconds: float) -> NodeReply | str:
        """Make a call; if there is no answer, what is wrong, if that will not pass by itself: else empty."""
        try:
            # Tasks of the client are the call's own, and not work of a scope around it.
            with anyio.fail_after(seconds), detached():
                body = await self._deliver(call.to, codec.call_body(self._engine.asking(call)))
            reply = codec.parse_reply(body)
        except NoMesh as error:
            return self._wrong(call.to, str(error))
        except RemoteProtocolError as error:
            why = no_mesh(call.to, f"its answer is not that of a node ({error})")
            return self._wrong(call.to, why)
        except (PeerLost, TimeoutError) as error:
            text = str(error) or f"no answer within {seconds:g} s"
            logger.debug("node %r did not reach %s: %s", self._node.name, call.to, text)
            return self._failed(call.to, text)
        except Exception as error:  # noqa: BLE001 - whatever a transport raises, there is no answer
            logger.exception("node %r could not call %s", self._node.name, call.to)
            return self._failed(call.to, f"the transport raised {type(error).__name__}")
        self._told.pop(call.to, None)
        self._errors.pop(call.to, None)
        return reply

    async def _deliver(self, to: str, body: bytes) -> bytes:
        """Send a call; to this node itself without a transport, for its server may have stopped listening."""
        if to == self._node.url:
            return await self.serve(RECEIPTS, body)
        return await self._transport.call(to, RECEIPTS, body)

    def _failed(self, to: str, why: str) -> str:
        """Keep why a call failed, for people; return that this may pass by itself."""
        if len(self._errors) >= _TOLD_MAX:
            self._errors.clear()
        self._errors[to] = why.removeprefix(f"{to} was not reached: ")
        return ""

    def _wrong(self, to: str, why: str) -> str:
        """Say what is wrong with an address, once until it is right."""
        self._failed(to, why)
        if to not in self._told:
            if len(self._told) >= _TOLD_MAX:
                self._told.clear()
            self._told[to] = None
            every = self._node._patience.retry_most
            logger.warning("node %r: %s Retrying every %g s.", self._node.name, why, every)
        return why

    # Asking for receipts that are not posted.

    def pull(self, edge: bytes, to: str) -> None:
        """Ask for an edge until it is closed, so that its end is known at once."""
        if not self._engine.detector.is_open(edge):
            return
        pull = self._pulls.get(to)
        if pull is None:
            pull = self._pulls[to] = Pull(to, self._node._patience)
            self.service(f"poll {to}", self._pull_from, pull)
        pull.add(edge)

    async def _pull_from(self, pull: Pull) -> None:
        engine, node = self._engine, self._node
        try:
            while pull.edges:
                with pull.asking() as asked:
                    reply = await self._ask(asked.call, asked.seconds)
                    if isinstance(reply, str):
                        asked.why = reply
                    else:
                        asked.is_answered = True
                        now = self._clock()
                        engine.contact(pull.to, now, is_node=True)
                        engine.heard(pull.to, reply, now)
                        node._try_to_commit()
                await pull.rest(asked, engine.detector.is_open)
        finally:
            if self._pulls.get(pull.to) is pull:
                del self._pulls[pull.to]

    def contact(self, to: str, now: float, *, is_node: bool = False) -> None:
        """Record that an agent is there: what failed is tried again soon, not when it would be its turn."""
        pull = self._pulls.get(to)
        if pull is not None:
            pull.contact(now, is_node=is_node)
        self._engine.contact(to, now, is_node=is_node)

    # Being called.

    async def serve(self, path: str, body: bytes, caller: str = "") -> bytes:
        """Answer a call of another node; `caller` is where it comes from, if that is known.

        *Cancel safety*: may be cancelled at any time: what the call has changed stays, and it may be
        made again.

        *Raises*: `RemoteProtocolError` if it is none; `PeerLost` if the node takes no calls now.
        """
        if path == PROBE:
            return await progress.serve_frontier(self._node, self._transport, body)
        if path != RECEIPTS:
            message = f"a node has the paths {RECEIPTS} and {PROBE} only"
            raise RemoteProtocolError(message)
        call = codec.parse_call(body)
        reply = self._answer(call, caller)
        if call.wait and not call.receipts and self._waiting < _POLLS_MAX:
            edges = [edge for edge, answer in reply.answers if answer.kind == "working"]
            if edges and len(edges) == len(call.asks):
                await self._change(edges, call.wait)
                reply = self._answer(call, caller)
        return codec.reply_body(reply)

    def _answer(self, call: NodeCall, caller: str) -> NodeReply:
        try:
            self._node._check()
        except QuiesceError as error:
            raise PeerLost(str(error)) from error
        keeping = self._node._keeping
        if keeping is not None and call.seen:
            keeping.check(call.seen, caller)
        detector = self._engine.detector
        if any(detector.knows(edge) for edge, _ in call.asks) or any(
            detector.is_open(edge) for edge, _ in call.receipts
        ):
            self._noted.known(caller)
        asks = tuple(ask for ask in call.asks if self.may_note(ask[0], caller))
        reply = self._engine.called(replace(call, asks=asks), self._clock())
        for edge, answer in reply.answers if self._untold else ():
            if answer.kind != "working":
                self._untold.told(edge)
        try:
            self._node._commit()
        except QuiesceError as error:
            raise PeerLost(str(error)) from error
        return reply if keeping is None else replace(reply, seen=keeping.seen())

    def may_note(self, edge: bytes, caller: str = "") -> bool:
        """Return whether a note may be made of an edge: it is known, or there are not too many (2)."""
        return self._engine.detector.knows(edge) or self._noted.take(caller)

    def may_keep(self, caller: str) -> bool:
        """Return whether it may be kept that one more message of this caller was turned away (2)."""
        return self._rejected.take(caller)

    async def _change(self, edges: list[bytes], seconds: float) -> None:
        """Wait until a question about these edges can be answered, `seconds` at most.

        While the node serves, that is when one of them is closed. Once the server was told to end, its client
        cannot ask again: then it is when none of them is worked on here any more.
        """
        until = self._clock() + seconds
        while not self._is_over:
            by = self._ending_by if self.is_told_to_end() else math.inf
            if self.is_told_to_end() and not any(map(self._is_at_work, edges)):
                return
            if not await self._change_by(edges, min(until, by)) or not self.is_told_to_end():
                return

    async def _change_by(self, edges: list[bytes], until: float) -> bool:
        """Wait until an edge is closed, or all questions are to be looked at; False if the time is over."""
        waiter = self._scope._backend.waiter()
        for edge in edges:
            self._polls.setdefault(edge, []).append(waiter)
        self._waiting += 1
        try:
            with anyio.move_on_after(until - self._clock()) as limit:
                await waiter
        finally:
            self._waiting -= 1
            for edge in edges:
                left = self._polls.get(edge, [])
                with suppress(ValueError):
                    left.remove(waiter)
                if not left:
                    self._polls.pop(edge, None)
        return not limit.cancelled_caught

    def is_told_to_end(self) -> bool:
        """Return whether the server was told to end, a while ago at most."""
        return self._clock() < self._ending_by

    def _is_at_work(self, edge: bytes) -> bool:
        """Return whether something has to end here, in this process, before an edge can be closed."""
        hop = self._engine.detector.find(edge)
        if hop is None:
            return False
        sent = [one for one, open_edge in hop.edges.items() if open_edge.to == self._node.url]
        return hop.state is HopState.RUNNING or any(map(self._comes_from_here, sent))

    def _comes_from_here(self, edge: bytes) -> bool:
        """Return whether the receipt of an edge to this node itself is on its way, or worked on."""
        hop = self._engine.detector.find_root(edge)
        return hop is not None and (hop.receipt is not None or self._is_at_work(edge))

    def told_to_end(self, seconds: float) -> None:
        """Record that the server was told to end. It waits for its open requests, questions among them.

        A question about work that is under way here is answered when that work has ended, or after so many
        seconds: no other node could answer it, unless this one is started again.
        """
        self._ending_by = self._clock() + seconds
        self.end_polls()
        self.service("end of the reads", self.bodies.end_soon)

    def wrote(self, records: list[Record]) -> None:
        """Wake the questions that these records may answer (see `_change`)."""
        kinds = (Closed, Ended) if self.is_told_to_end() else (Closed,)
        for record in records:
            if isinstance(record, Closed):
                hop = self._engine.detector.find_root(record.edge)
                self._untold.closed(hop, self._clock())
            if isinstance(record, kinds):
                for waiter in self._polls.get(record.edge, ()):
                    if not waiter.done():
                        waiter.set_result(None)

    async def _end_polls(self) -> None:
        """Answer those who wait when the node ends: they are not waited for."""
        try:
            await anyio.sleep_forever()
        finally:
            self._is_over = True
            self.end_polls()
            self.bodies.end()

    def end_polls(self) -> None:
        """Wake all questions, to be looked at again."""
        for waiters in list(self._polls.values()):
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
