"""Calls from node to node over a connection that two agents have anyway: no address, no port.

Agents that speak JSON-RPC to each other, as those of MCP and ACP do, hand over edges in `_meta`, and are
asked for receipts by methods of our own on the same connection. docs/reference/protocol.md has the names.
What holds:

1. A link that has no name of its own is one connection. When that ends, nobody can be asked any more:
   what it was handed, and is not closed, is `unknown`, at once.
2. One that has a name is whichever connection has it at the time; never two at once, because the one
   would be taken at its word about what the other was handed.
3. Nothing is taken for an answer that did not come from the receiver: an agent is opaque only if it has
   said, by the handshake or by an answer without a receipt, that it takes no part.
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
"""The keys in `_meta`; the first is also how an agent says that it takes part."""
METHODS = {RECEIPTS: "quiesce/receipts", PROBE: "quiesce/probe"}
PATHS = {method: path for path, method in METHODS.items()}
CALL_SECONDS = 60.0
"""More than any call takes: those who make them have bounds of their own."""

_SCHEMES = ("acp:", "mcp:")
_KEEP_MIN = 64


class Links:
    """Calls nodes over connections, and all others by another transport: HTTP, by default."""

    def __init__(self, inner: Transport | None, make: Callable[[], Transport]) -> None:
        """Start without a connection; `make` returns the transport when it is needed, if there is none."""
        self._inner = inner
        self._make = make
        self._made: Transport | None = None
        self._links: dict[str, Link] = {}

    def attach(self, link: Link) -> None:
        """Register a link at its address (2).

        *Raises*: `UsageError` if another one is.
        """
        if link.address in self._links:
            message = f"there is a connection to {link.address} already: close that one first"
            raise UsageError(message)
        self._links[link.address] = link

    def detach(self, link: Link) -> None:
        """Remove a link from its address."""
        if self._links.get(link.address) is link:
            del self._links[link.address]

    async def call(self, to: str, path: str, body: bytes) -> bytes:
        """Post a body to a node, and give its answer.

        *Cancel safety*: may be cancelled at any time.

        *Raises*: `PeerLost` if there is no answer, or one that is no success.
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


class Link:
    """One connection to an agent, as the sender of messages has it.

    Args:
        node: The sender's node; it has to be open.
        kind: The protocol that the connection speaks.
        address: The URL of the agent's own node, which is asked then; or a name that stays the same
            when the connection is made anew; None: none (1).
        ask: Has the agent answer a call, over the connection.
    """

    def __init__(
        self,
        node: Node,
        kind: Literal["acp", "mcp"],
        address: str | None,
        ask: Callable[[str, dict[str, Any]], Awaitable[Any]],
    ) -> None:
        """Register the link with the node."""
        check_node(node)
        node._opened()
        self._node = node
        self._engine = node._engine
        self._links = node._exchange.links
        self._ask = ask
        self.takes_part: bool | None = None
        """Whether the agent has said that it takes part; None: it has said nothing so far."""
        self.closed: bool = False
        self._calls: set[anyio.CancelScope] = set()
        self._edges: dict[bytes, None] = {}
        self._prune_at = _KEEP_MIN
        self._named = address is not None
        if address is not None and address.startswith(("http://", "https://")):
            self.address: str = node._policy.node_of(address)
            return
        self.address = f"{kind}:{secrets.token_hex(6) if address is None else address}"
        self._links.attach(self)
        if self._named:  # what was asked of the connection before this one is asked soon
            node._exchange.contact(self.address, node._clock())

    # Handing over.

    @contextmanager
    def delegate(self, hop: Hop) -> Iterator[Handing]:
        """Hand over a message of a hop; what is to be done with its answer is the caller's."""
        handing = hop.delegate(self.address)
        self._keep(handing._edge)
        try:
            yield handing
        finally:
            if not handing._uses:
                self.opaque(handing)  # it went without an edge, whatever was said since
            handing.in_doubt()

    def opaque(self, handing: Handing) -> None:
        """Record that the agent takes no part (3).

        Also if it has an address, at which a node would say that it never came, and never will run.
        """
        handing._resolve("is opaque")

    def answered(self, handing: Handing, meta: object, *, failed: bool = False) -> None:
        """Record what the answer to a message has in its `_meta`; an error may have none (3)."""
        told = meta.get(RESPONSE_KEY) if isinstance(meta, dict) else None
        if not handing._uses:
            pass  # whatever it says, it was handed nothing
        elif isinstance(told, str):
            handing.answered(told)
        elif self.takes_part and not failed:
            # It has the message: who then does not know of it has lost what came along.
            handing.told(WORKING, must_ask=True)
        elif not failed:
            self.opaque(handing)

    def _keep(self, edge: bytes) -> None:
        if len(self._edges) >= self._prune_at:
            is_open = self._engine.detector.is_open
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
            message = f"{self.address} gave an answer that is not of the protocol"
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
        if self._named or node._scope is None:
            return
        why = (
            f"the connection to {self.address} has ended. With address=, an agent that keeps a journal is asked when it"
            " is back"
        )
        for edge in edges:
            engine.detector.give_up(edge, why)
        engine._absorb(node._clock())
        try:
            node._commit()
        except Exception:  # noqa: BLE001 - of the journal: the node refuses messages then
            logger.exception("node %r could not record that a connection ended", node.name)


# What both sides do with `_meta`.


def handed(params: object) -> str | None:
    """Return what hands over an edge, from the parameters of a request; None if nothing does."""
    meta = params.get("_meta") if isinstance(params, dict) else None
    if not isinstance(meta, dict) or REQUEST_KEY not in meta:
        return None
    value = meta[REQUEST_KEY]
    return value if isinstance(value, str) else ""  # which no parser takes


def with_meta(found: Mapping[str, Any] | None, key: str, value: object) -> dict[str, Any]:
    """Return a JSON object with one more key in its `_meta`."""
    made = dict(found or {})
    meta = made.get("_meta")
    made["_meta"] = {**(meta if isinstance(meta, dict) else {}), key: value}
    return made


def without_meta(found: Any, key: str) -> Any:
    """Return a JSON object without a key in its `_meta`; and without `_meta`, if nothing else is there."""
    meta = found.get("_meta") if isinstance(found, dict) else None
    if not isinstance(meta, dict) or key not in meta:
        return found
    rest = {name: value for name, value in meta.items() if name != key}
    made = {name: value for name, value in found.items() if name != "_meta"}
    return {**made, "_meta": rest} if rest else made


def with_answer(error: object, told: str) -> Any:
    """Return the data of an error with an answer in it; as it is, if it has no room for one."""
    if error is None or isinstance(error, dict):
        return with_meta(error, RESPONSE_KEY, told)
    return error


def start_answer(
    node: Node, name: str, fn: Callable[..., Coroutine[Any, Any, None]], *args: object
) -> Job[None]:
    """Start what answers a call; also while the node is drained, for those who wait hear by that alone.

    *Raises*: `UsageError` if the node is not open.
    """
    node._opened()
    job = node._exchange.service(name, fn, *args)
    assert job is not None  # noqa: S101 - it is open
    return job


async def serve_link(node: Node, method: str, params: object) -> Any:
    """Answer a call that came over a connection.

    *Cancel safety*: as that of any call.

    *Raises*: `RemoteProtocolError` if it is none; `PeerLost` if the node takes no calls now.
    """
    try:
        body = codec.dumps(params)
    except (ValueError, TypeError, RecursionError):
        body = b""
    return json.loads(await node._serve(PATHS[method], body))


def refuse_message(node: Node, header: str | bytes) -> str | None:
    """Refuse a message that is not even looked at; return the answer, if there is one to give."""
    try:
        node._arrive(
            codec.parse_request_header(header),
            "its agent refused the request before it read the message",
        )
    except EdgeRefused as refused:
        return refused.header
    except QuiesceError:
        pass
    return None


def check_node(node: object) -> None:
    """Check what is to be a node.

    *Raises*: `ArgumentError`.
    """
    from quiesce.mesh.runtime.node import Node  # noqa: PLC0415 - it needs this module

    if not isinstance(node, Node):
        message = f"node must be a Node, as made by Node('hotel', ...), not {node!r}"
        raise ArgumentError(message)


def check_address(address: object) -> None:
    """Check the name of a link.

    *Raises*: `ArgumentError`.
    """
    if address is not None:
        arguments.check_text("address", address)
