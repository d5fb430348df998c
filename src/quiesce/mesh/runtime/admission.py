"""Who may hand a node messages and ask it questions, and how much of that it keeps.

Nothing is kept of a request before it is accepted. After that, what a caller can make the node keep is bounded: for
each address, and for all that have not shown that they are part of the mesh. A caller shows it by the id of an edge
that the node knows.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from quiesce.errors import EdgeRefused
from quiesce.mesh.protocol import codec
from quiesce.mesh.protocol.facts import NOT_NOW
from quiesce.mesh.transport.address_policy import Allowance

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, MutableMapping

    from quiesce.mesh.runtime.node import Node

__all__ = ["Arrival"]

_CALLERS_MAX = 1024
_EACH, _EACH_PER_SECOND = 10_000, 10.0
_ALL, _ALL_PER_SECOND = 100_000, 100.0
_PREFIX = 64  # bits of an IPv6 address that are one caller's


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request that hands a node a message, or asks it for receipts; for `Node(accept=...)`."""

    path: str
    headers: Mapping[str, str]
    """By name, in lower case; of several with one name, the last."""
    client: str
    """The address that the connection comes from: that of a proxy, if there is one. Empty, if it is not known."""
    is_call: bool
    """Whether another node calls `/quiesce/...`; else it is a message for the app."""


def arrival(scope: MutableMapping[str, Any], *, is_call: bool) -> Arrival:
    """Describe a request."""
    lines = {
        name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]
    }
    client = scope.get("client")
    return Arrival(scope["path"], lines, client[0] if client else "", is_call)


def caller_address(scope: MutableMapping[str, Any]) -> str:
    """Return what is counted as one caller: an address, or the network of an IPv6 address."""
    client = scope.get("client")
    host: str = client[0] if client else ""
    if ":" not in host:
        return host
    try:
        return str(ipaddress.ip_network((host.partition("%")[0], _PREFIX), strict=False))
    except ValueError:
        return host


class NotAccepted(EdgeRefused):
    """A request that the node's `accept` has turned down; nothing is kept of it."""


def check_accept(node: Node, scope: MutableMapping[str, Any], header: bytes | None = None) -> str:
    """Check a request with the node's `accept`, if it has one, and return its caller; `header` is that of a message.

    *Raises*: `NotAccepted`; `RemoteProtocolError` if the header is not of the protocol.
    """
    if node._accept is None or node._accept(arrival(scope, is_call=header is None)):
        return caller_address(scope)
    answer = ""
    if header is not None:
        answer = codec.response_header(codec.parse_request_header(header).edge, NOT_NOW)
    message = f"node {node.name!r} does not accept this request (see `accept=` of the node)"
    raise NotAccepted(message, answer)


class Allowances:
    """An allowance for each caller, and one for all strangers together."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._callers: dict[str, Allowance] = {}
        self._peers: dict[str, None] = {}
        self._strangers = Allowance(_ALL, _ALL_PER_SECOND, clock)

    def known(self, caller: str) -> None:
        """Record that a caller knows an edge, so that it is not a stranger."""
        if caller not in self._peers:
            if len(self._peers) >= _CALLERS_MAX:
                del self._peers[next(iter(self._peers))]
            self._peers[caller] = None

    def take(self, caller: str) -> bool:
        """Take one from the allowance of a caller, if there is one."""
        own = self._callers.get(caller)
        if own is None:
            if len(self._callers) >= _CALLERS_MAX:
                del self._callers[next(iter(self._callers))]
            own = self._callers[caller] = Allowance(_EACH, _EACH_PER_SECOND, self._clock)
        return own.take() and (caller in self._peers or self._strangers.take())
