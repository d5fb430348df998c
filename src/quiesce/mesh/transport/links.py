"""Calls from node to node over a connection that two agents already have, so that they need no address and no port.

Agents that speak JSON-RPC to each other, by MCP or ACP, hand over edges in `_meta`. Their nodes call each other by
additional methods on the same connection. docs/reference/protocol.md has the names. These guarantees hold:

1. A link without a name is one connection. When the connection ends, the agent cannot be asked any more, so its open
   edges become `unknown` at once.
2. A link with a name is the current connection under that name. There are never two at once, because the agent behind
   one would answer for edges that the other was handed.
3. Only the receiver can answer. An agent is opaque only if it has shown, by the handshake or by an answer without a
   receipt, that it does not take part in the mesh.
"""

from __future__ import annotations

import json
import secrets
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import anyio

from quiesce.core import arguments
from quiesce.core.tree import logger
from quiesce.errors import ArgumentError, EdgeRefused, PeerLost, QuiesceError, UsageError
from quiesce.mesh.protocol import codec
from quiesce.mesh.protocol.facts import WORKING
from quiesce.mesh.transport.node_transport import PROBE, RECEIPTS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping

    from quiesce.core.job import Job
    from quiesce.mesh.runtime.delegation import Handing
    from quiesce.mesh.runtime.hop import Hop
    from quiesce.mesh.runtime.node import Node
    from quiesce.mesh.transport.node_transport import Transport

__all__: list[str] = []

REQUEST_KEY, RESPONSE_KEY = "quiesce/cascade", "quiesce/cascade-receipt"
"""The keys in `_meta`. By the first key, an agent also shows in the handshake that it takes part."""
METHODS = {RECEIPTS: "quiesce/receipts", PROBE: "quiesce/probe"}
PATHS = {method: path for path, method in METHODS.items()}
CALL_SECONDS = 60.0
"""A time limit above that of every call: each caller has a shorter limit of its own."""

_SCHEMES = ("acp:", "mcp:")
_KEEP_MIN = 64
_UNREAD = "its agent refused the request before it read the message"


class Links:
    """The transport of a node: it calls agents over their links, and other nodes by another transport (HTTP)."""

    def __init__(self, inner: Transport | None, make: Callable[[], Transport]) -> None:
        """Start without links. If `inner` is None, `make` returns the other transport when it is needed."""
        self._inner = inner
        self._make = make
        self._made: Transport | None = None
        self._links: dict[str, Link] = {}
        self.handlers: LinkHandlers = LinkHandlers()
        """The hops of messages that arrived over links, while their handlers run."""

    def attach(self, link: Link) -> None:
        """Register a link at its address (2).

        *Raises*: `UsageError` if another link is registered there.
        """
        if link.address in self._links:
            message = (
                f"there is a connection to {link.address} already: close that connection first"
            )
            raise UsageError(message)
        self._links[link.address] = link

    def detach(self, link: Link) -> None:
        """Remove a link from its address."""
        if self._links.get(link.address) is link:
            del self._links[link.address]

    async def call(self, to: str, path: str, body: bytes) -> bytes:
        """Post a body to a node, and return its answer.

        *Cancel safety*: may be cancelled at any time.

        *Raises*: `PeerLost` if there is no answer, or an answer that is not a success.
        """
        link = self._links.get(to)
        if link is not None:
            return await link.call(path, body)
        if to.startswith(_SCHEMES):
            message = f"there is no connection to {to}"
            raise PeerLost(message)
        inner = self._inner
        if inner is None:
            inner = self._inner = self._made = self._make()
        return await inner.call(to, path, body)

    async def aclose(self) -> None:
        """Close the transport, if this object made it."""
        made, self._made = self._made, None
        if made is not None:
            self._inner = None
            await made.aclose()


class LinkHandlers:
    """The hops of messages that arrived over a connection, each until its handler has ended.

    With MCP over HTTP, the handler does not run in the request that waits for its answer. So a drain of the server first
    cancels the handlers, and cancels the requests only when the answers have been sent.
    """

    def __init__(self) -> None:
        self._hops: dict[Hop, None] = {}
        self._ended: anyio.Event | None = None  # set at the end of a handler, if a drain waits

    @contextmanager
    def handling(self, hop: Hop) -> Iterator[None]:
        """Register a hop while its message is handled."""
        self._hops[hop] = None
        try:
            yield
        finally:
            del self._hops[hop]
            if self._ended is not None:
                self._ended.set()

    async def cut(self, grace: float, cleanup: float) -> bool:
        """Cancel the handlers that have not ended after the grace, and wait for their end.

        Return whether any was cancelled.

        *Cancel safety*: may be cancelled at any time.
        """
        await self._end_within(grace)
        cut = list(self._hops)
        for hop in cut:
            hop.close_with_parent(hop.backend.clock() + cleanup)  # the parent's report has the hop
        await self._end_within(cleanup)
        return bool(cut)

    async def _end_within(self, seconds: float) -> None:
        with anyio.move_on_after(seconds):
            while self._hops:
                self._ended = ended = anyio.Event()
                await ended.wait()


class Link:
    """The sender's end of a connection to an agent.

    Args:
        node: The sender's node, which has to be open.
        kind: The protocol of the connection.
        address: The URL of the agent's own node, which then gets the calls; or a name for the agent that stays the same
            after a reconnection; or None for a link without a name (1).
        title: What verdicts call the agent behind a link without a name, if it is known.
        ask: A function that sends a call over the connection and returns the agent's answer.
    """

    def __init__(
        self,
        node: Node,
        kind: Literal["acp", "mcp"],
        address: str | None,
        ask: Callable[[str, dict[str, Any]], Awaitable[Any]],
        *,
        title: str = "",
    ) -> None:
        check_node(node)
        node.get_open_scope()
        self._node = node
        self._engine = node.opened.engine
        self._links = node.opened.exchange.links
        self._ask = ask
        self.takes_part: bool | None = None
        """Whether the agent takes part in the mesh; None as long as it has not shown that."""
        self.closed: bool = False
        self._calls: set[anyio.CancelScope] = set()
        self._edges: dict[bytes, None] = {}
        self._prune_at = _KEEP_MIN
        self._named = address is not None
        if address is not None and address.startswith(("http://", "https://")):
            self.address: str = node.policy.node_of(address)
            return
        if address is None:
            address = secrets.token_hex(6) if not title else f"{title}:{secrets.token_hex(6)}"
        self.address = f"{kind}:{address}"
        self._links.attach(self)
        if self._named:  # repeat the open questions of the earlier connection soon
            node.opened.exchange.contact(self.address, node.opened.clock())

    # Handing over.

    @contextmanager
    def delegate(self, hop: Hop) -> Iterator[Handing]:
        """Hand over a message of a hop. The caller passes the answer to `answered`."""
        handing = hop.delegate(self.address)
        self._keep(handing.edge_id)
        try:
            yield handing
        finally:
            if not handing.use_count:
                self.opaque(handing)  # the message did not carry the edge
            handing.in_doubt()

    def opaque(self, handing: Handing) -> None:
        """Record that the agent does not take part (3).

        The agent's node is not asked, even if it has an address: it would answer that the edge will never run.
        """
        if self.takes_part is False:
            why = "it takes no part in the mesh: it announced no node in the handshake"
        elif handing.use_count:
            why = "it takes no part in the mesh: it answered without a receipt"
        else:
            why = "the message could not carry its edge"
        handing.resolve_sending("is opaque", why)

    def answered(self, handing: Handing, meta: object, *, failed: bool = False) -> None:
        """Record the `_meta` of the answer to a message. An error may come without a receipt (3)."""
        told = meta.get(RESPONSE_KEY) if isinstance(meta, dict) else None
        if not handing.use_count:
            pass  # the message did not carry the edge
        elif isinstance(told, str):
            handing.answered(told)
        elif self.takes_part and not failed:
            # The agent has the message. If its node does not know the edge, the edge was lost on the way.
            handing.told(WORKING, must_ask=True)
        elif not failed:
            self.opaque(handing)

    def _keep(self, edge: bytes) -> None:
        if len(self._edges) >= self._prune_at:
            is_open = self._engine.known.is_open
            self._edges = {one: None for one in self._edges if is_open(one)}
            self._prune_at = max(_KEEP_MIN, 2 * len(self._edges))
        self._edges[edge] = None

    # Calls.

    async def call(self, path: str, body: bytes) -> bytes:
        """Send a call to the agent, and return its answer.

        *Cancel safety*: may be cancelled at any time.

        *Raises*: `PeerLost` if the connection ends meanwhile, or the agent does not answer.
        """
        scope = anyio.CancelScope()
        self._calls.add(scope)
        try:
            with scope:
                answer = await self._ask(METHODS[path], json.loads(body))
                return codec.dumps(answer)
        except (ValueError, TypeError, RecursionError) as error:
            message = f"{self.address} gave an invalid answer to a call of the protocol: {type(error).__name__}"
            raise PeerLost(message) from error
        finally:
            self._calls.discard(scope)
        message = f"the connection to {self.address} has ended"
        raise PeerLost(message)

    def close(self) -> None:
        """Record that the connection has ended (1). Idempotent."""
        if self.closed:
            return
        self.closed = True
        self._links.detach(self)
        for scope in self._calls:
            scope.cancel()
        edges, self._edges = self._edges, {}
        self._give_up(edges)

    def _give_up(self, edges: Iterable[bytes]) -> None:
        node, engine = self._node, self._engine
        if self._named or node.own_scope is None:
            return
        why = (
            f"the connection to {self.address} has ended. With address=, an agent that keeps a journal is asked again after"
            " a reconnection"
        )
        for edge in edges:
            engine.detector.give_up(edge, why)
        engine.absorb_news(node.opened.clock())
        try:
            node.opened.commit_records()
        except Exception:  # noqa: BLE001 - the journal failed: the node then rejects messages
            logger.exception(
                "node %r could not write to its journal that a connection ended", node.name
            )


# Functions of both sides for `_meta`.


def handed(params: object) -> str | None:
    """Return the value that hands over an edge, from the parameters of a request; None if there is none."""
    meta = params.get("_meta") if isinstance(params, dict) else None
    if not isinstance(meta, dict) or REQUEST_KEY not in meta:
        return None
    value = meta[REQUEST_KEY]
    return value if isinstance(value, str) else ""  # the parser refuses an empty value


def with_meta(found: Mapping[str, Any] | None, key: str, value: object) -> dict[str, Any]:
    """Return a JSON object with one more key in its `_meta`."""
    made = dict(found or {})
    meta = made.get("_meta")
    made["_meta"] = {**(meta if isinstance(meta, dict) else {}), key: value}
    return made


def without_meta(found: Any, key: str) -> Any:
    """Return a JSON object without a key in its `_meta`. An empty `_meta` is removed."""
    meta = found.get("_meta") if isinstance(found, dict) else None
    if not isinstance(meta, dict) or key not in meta:
        return found
    rest = {name: value for name, value in meta.items() if name != key}
    made = {name: value for name, value in found.items() if name != "_meta"}
    return {**made, "_meta": rest} if rest else made


def with_answer(error: object, told: str) -> Any:
    """Return the data of an error with an answer added. Data that is not an object is returned unchanged."""
    if error is None or isinstance(error, dict):
        return with_meta(error, RESPONSE_KEY, told)
    return error


def start_answer(
    node: Node, name: str, fn: Callable[..., Coroutine[Any, Any, None]], *args: object
) -> Job[None]:
    """Start a job that answers a call, also while the node drains: nodes that wait for it need the answer.

    *Raises*: `UsageError` if the node is not open.
    """
    node.get_open_scope()
    job = node.opened.exchange.service(name, fn, *args)
    assert job is not None  # noqa: S101 - the node is open
    return job


async def serve_link(node: Node, method: str, params: object) -> Any:
    """Return the answer to a call that arrived over a connection.

    *Cancel safety*: as that of any call.

    *Raises*: `RemoteProtocolError` if the call is invalid; `PeerLost` if the node does not answer calls now.
    """
    try:
        body = codec.dumps(params)
    except (ValueError, TypeError, RecursionError):
        body = b""
    return json.loads(await node.serve_call(PATHS[method], body))


async def refuse_message(node: Node, header: str | bytes) -> str | None:
    """Refuse a message without reading it, and return the answer; None if the header is invalid.

    With a shared store, this waits for the store; None also if the store does not answer.

    *Cancel safety*: may be cancelled at any time.
    """
    opening = node.last_opening
    if opening is None or opening.shared is None:
        return refuse_at_once(node, header)
    try:
        await opening.shared.admit(codec.parse_request_header(header), _UNREAD)
    except EdgeRefused as refused:
        return refused.header
    except QuiesceError:
        pass
    return None


def refuse_at_once(node: Node, header: str | bytes) -> str | None:
    """Refuse a message as `refuse_message` does, if the node does not share its store."""
    try:
        node.opened.accept_arrival(codec.parse_request_header(header), _UNREAD)
    except EdgeRefused as refused:
        return refused.header
    except QuiesceError:
        pass
    return None


def shares_store(node: Node) -> bool:
    """Return whether a node that was opened shares its store with others."""
    return node.last_opening is not None and node.last_opening.shared is not None


def check_node(node: object) -> None:
    """Check that an argument is a node.

    *Raises*: `ArgumentError`.
    """
    from quiesce.mesh.runtime.node import Node  # noqa: PLC0415 - that module imports this one

    if not isinstance(node, Node):
        message = f"node must be a Node, as made by Node('hotel', ...), not {node!r}"
        raise ArgumentError(message)


def check_address(address: object) -> None:
    """Check the name of a link.

    *Raises*: `ArgumentError`.
    """
    if address is not None:
        arguments.check_text("address", address)
