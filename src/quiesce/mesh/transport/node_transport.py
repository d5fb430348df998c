"""How nodes reach each other: the calls of the protocol, as bytes; nothing here knows what they say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from quiesce.errors import ArgumentError, PeerLost, UsageError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

__all__ = ["Memory", "Transport"]

RECEIPTS, PROBE, READY = "/quiesce/receipts", "/quiesce/probe", "/quiesce/ready"
# Said by what is there, and is no node, or does not pass on what is for one. Not by one that is being
# started, or by a proxy whose server is down.
# A node itself says 200, and no other success.
_NOT_HERE = frozenset((*range(201, 300), 301, 302, 303, 307, 308, 404, 405, 410, 501))


class NoMesh(PeerLost):
    """Something answers at the address of a node, and it is none."""


def not_ok(to: str, status: int) -> PeerLost:
    """Return the error for an HTTP answer whose status is not a success."""
    if status in _NOT_HERE:
        return NoMesh(no_mesh(to, f"it answered {status}"))
    return PeerLost(f"{to} answered {status}")


def no_mesh(to: str, how: str) -> str:
    """Say what is wrong with an address, and what to do."""
    return (
        f"no mesh at {to}: {how}. Is it served by Quiesce(app, node=…), quiesce_app(agent, node=…) or node.asgi(app), "
        "is its url= right, and, if it is below a path, is it in peers=?"
    )


class Transport(Protocol):
    """What a node needs to call others."""

    async def call(self, to: str, path: str, body: bytes) -> bytes:
        """Post a body to a node, and give its answer.

        *Cancel safety*: may be cancelled at any time.

        *Raises*: `PeerLost` if there is no answer, or one that is no success; `NoMesh`, which is one, if what
        answers is no node.
        """

    async def aclose(self) -> None:
        """Close the connections of the transport."""


def checked_transport(transport: Transport | None) -> Transport | None:
    """Refuse what is none, when it is given, not when somebody is to be called."""
    if transport is not None and not (
        callable(getattr(transport, "call", None)) and callable(getattr(transport, "aclose", None))
    ):
        message = (
            f"transport must have the methods `call` and `aclose` of a Transport, not {transport!r}"
        )
        raise ArgumentError(message)
    return transport


class Memory:
    """Nodes of one process that call each other directly; for tests, and for agents that share one.

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

        *Raises*: `UsageError` if another one is.
        """
        if self._nodes.setdefault(url, serve) != serve:
            message = f"another node is open at {url}: give each an address of its own"
            raise UsageError(message)

    def leave(self, url: str, serve: Callable[[str, bytes], Awaitable[bytes]]) -> None:
        """Remove a node from its address."""
        if self._nodes.get(url) == serve:
            del self._nodes[url]

    async def call(self, to: str, path: str, body: bytes) -> bytes:
        """Send a call to another node, and return its answer."""
        serve = self._nodes.get(to)
        if serve is None:
            message = f"no node is open at {to}"
            raise PeerLost(message)
        return await serve(path, body)

    async def aclose(self) -> None:
        """Do nothing: there are no connections."""
