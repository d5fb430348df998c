"""How nodes reach each other: the interface of a transport, which carries the protocol's calls as bytes.

`http_transport` and `links` are transports between processes. `Memory` connects nodes of one process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from quiesce.errors import ArgumentError, PeerLost, UsageError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

__all__ = ["Memory", "Transport"]

RECEIPTS, PROBE, READY = "/quiesce/receipts", "/quiesce/probe", "/quiesce/ready"
# Statuses of a server that is not a node, or does not forward calls to its node. A node answers a call with 200, never
# with another success. A server that is starting, or a proxy whose server is down, answers with other statuses.
_NOT_HERE = frozenset((*range(201, 300), 301, 302, 303, 307, 308, 404, 405, 410, 501))


class NoMesh(PeerLost):
    """A server answers at the address of a node, but is not a node."""


def not_ok(to: str, status: int) -> PeerLost:
    """Return the error for an HTTP answer whose status is not 200."""
    if status in _NOT_HERE:
        return NoMesh(no_mesh(to, f"it answered {status}"))
    return PeerLost(f"{to} answered {status}")


def no_mesh(to: str, how: str) -> str:
    """Return a message that says what is wrong with an address, and what to do."""
    return (
        f"no mesh at {to}: {how}. Is it served by Quiesce(app, node=…), quiesce_app(agent, node=…) or node.asgi(app), "
        "is its url= right, and, if it is below a path, is it in peers=? If it takes no part, name it in opaque= "
        "instead of peers="
    )


class Transport(Protocol):
    """The interface by which a node calls other nodes. Implement it to connect nodes in a new way."""

    async def call(self, to: str, path: str, body: bytes) -> bytes:
        """Post a body to a node, and return its answer.

        *Cancel safety*: may be cancelled at any time.

        *Raises*: `PeerLost` if there is no answer, or an answer that is not a success; its subclass `NoMesh` if the server
        that answers is not a node.
        """

    async def aclose(self) -> None:
        """Close the connections of the transport."""


def checked_transport(transport: Transport | None) -> Transport | None:
    """Return a transport after a check of its methods, so that a wrong one fails early.

    *Raises*: `ArgumentError`.
    """
    if transport is not None and not (
        callable(getattr(transport, "call", None)) and callable(getattr(transport, "aclose", None))
    ):
        message = (
            f"transport must have the methods `call` and `aclose` of a Transport, not {transport!r}"
        )
        raise ArgumentError(message)
    return transport


class Memory:
    """A transport between nodes of one process, which call each other directly. Use it in tests, or for agents in one process.

    ```python
    memory = Memory()
    planner = Node("planner", url="http://planner", transport=memory)
    ```
    """

    def __init__(self) -> None:
        """Start without nodes: each node is there while it is open."""
        self._nodes: dict[str, Callable[[str, bytes], Awaitable[bytes]]] = {}

    def join(self, url: str, serve: Callable[[str, bytes], Awaitable[bytes]]) -> None:
        """Register a node at an address.

        *Raises*: `UsageError` if another node is registered there.
        """
        if self._nodes.setdefault(url, serve) != serve:
            message = f"another node is open at {url}: give each node an address of its own"
            raise UsageError(message)

    def leave(self, url: str, serve: Callable[[str, bytes], Awaitable[bytes]]) -> None:
        """Remove a node from its address."""
        if self._nodes.get(url) == serve:
            del self._nodes[url]

    async def call(self, to: str, path: str, body: bytes) -> bytes:
        """Send a call to another node, and return its answer."""
        serve = self._nodes.get(to)
        if serve is None:
            message = f"no node is open at {to} in this process: open it first"
            raise PeerLost(message)
        return await serve(path, body)

    async def aclose(self) -> None:
        """Do nothing, because there are no connections."""
