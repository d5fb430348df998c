"""Decides which callers may hand over messages and ask questions, and bounds the memory that they can use.

The node keeps nothing of a request before it is accepted. After that, the memory that callers can use is bounded, for
each address, and for all strangers together. A caller that shows the id of a known edge is part of the mesh; all
other callers are strangers.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from quiesce.errors import EdgeRefused
from quiesce.mesh.protocol import codec
from quiesce.mesh.protocol.facts import NOT_NOW
from quiesce.mesh.protocol.receipt import edge_mark
from quiesce.mesh.transport.address_policy import Allowance

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, MutableMapping

    from quiesce.mesh.runtime.node import Node

__all__ = ["Arrival"]

CALLERS_MAX = 1024
"""The number of callers that a node counts. It forgets the oldest of them first."""
EACH_MAX, EACH_PER_SECOND = 10_000, 10.0
"""How many messages of one caller the node keeps in memory at once, and how many more each second."""
STRANGERS_MAX, STRANGERS_PER_SECOND = 100_000, 100.0
"""The same for all strangers together."""
_PREFIX = 64  # all IPv6 addresses with the same first 64 bits count as one caller


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request that hands a node a message, or asks it for receipts; for `Node(accept=...)`."""

    path: str
    headers: Mapping[str, str]
    """The headers by name, in lower case. If a name occurs several times, the last value."""
    client: str
    """The address that the connection comes from, which may be a proxy's. Empty if it is not known."""
    is_call: bool
    """Whether this is another node's call to `/quiesce/...`. If not, it is a message for the app."""


def arrival(scope: MutableMapping[str, Any], *, is_call: bool) -> Arrival:
    """Return the description of a request."""
    lines = {
        name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]
    }
    client = scope.get("client")
    return Arrival(scope["path"], lines, client[0] if client else "", is_call)


def caller_address(scope: MutableMapping[str, Any]) -> str:
    """Return the address that counts as one caller: an IPv4 address, or the network of an IPv6 address."""
    client = scope.get("client")
    host: str = client[0] if client else ""
    if ":" not in host:
        return host
    try:
        return str(ipaddress.ip_network((host.partition("%")[0], _PREFIX), strict=False))
    except ValueError:
        return host


class NotAccepted(EdgeRefused):
    """The node's `accept` function has refused a request; the node keeps nothing of it."""


def check_accept(node: Node, scope: MutableMapping[str, Any], header: bytes | None = None) -> str:
    """Check a request with the node's `accept`, if it has one, and return the caller; `header` is a message's header.

    *Raises*: `NotAccepted` if `accept` refuses; `RemoteProtocolError` if the header violates the protocol.
    """
    if node.accept_rule is None or node.accept_rule(arrival(scope, is_call=header is None)):
        return caller_address(scope)
    answer = ""
    if header is not None:
        answer = codec.response_header(codec.parse_request_header(header).edge, NOT_NOW)
    message = f"node {node.name!r} does not accept this request (see `accept=` of the node)"
    raise NotAccepted(message, answer)


def never_opened(node: Node, handed: codec.Handed) -> EdgeRefused:
    """Return the refusal of a message by a node that was never opened in this process.

    The refusal is temporary, because the node would accept a late copy of the message after it is opened.
    """
    text = (
        f"message {edge_mark(handed.edge)} is not worked on: node {node.name!r} was never opened."
        " The log of its server says what to do"
    )
    return EdgeRefused(text, codec.response_header(handed.edge, NOT_NOW), is_busy=True)


class Allowances:
    """Counts how much callers may still make the node remember: each caller, and all strangers together."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._callers: dict[str, Allowance] = {}
        self._peers: dict[str, None] = {}
        self._strangers = Allowance(STRANGERS_MAX, STRANGERS_PER_SECOND, clock)

    def known(self, caller: str) -> None:
        """Record that a caller knows an edge, so that it is not a stranger."""
        if caller not in self._peers:
            if len(self._peers) >= CALLERS_MAX:
                del self._peers[next(iter(self._peers))]
            self._peers[caller] = None

    def take(self, caller: str) -> bool:
        """Use one unit of a caller's allowance; return False if the allowance is used up."""
        own = self._callers.get(caller)
        if own is None:
            if len(self._callers) >= CALLERS_MAX:
                del self._callers[next(iter(self._callers))]
            own = self._callers[caller] = Allowance(EACH_MAX, EACH_PER_SECOND, self._clock)
        return own.take() and (caller in self._peers or self._strangers.take())
