"""Sockets that code in a hop connects to a peer directly. The hop records them as untracked, and does not follow them.

A peer is configured by a host name, but a socket is connected to an IP address. So the results of host name lookups for
peers are kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from quiesce.core.patches import Patch
from quiesce.mesh.clients.sending import hop_here, is_http_below, notice
from quiesce.mesh.runtime.peers import peers_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import ModuleType

    from quiesce.mesh.runtime.node import Node

__all__: list[str] = []

_ADDRESSES_MAX = 4096
_ADDRESS_PARTS = 2  # an internet address has a host, a port, and perhaps more


class SocketHooks:
    """The replacements of socket functions while nodes are open, and the known addresses of peers."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        self._nodes = nodes
        self._names: dict[str, set[str]] = {}
        """By IP address, the host names of the peers at that address."""

    def wrap(self, module: ModuleType) -> Iterator[Patch]:
        """Wrap the functions of `socket` that connect and look up names."""
        yield Patch(module.socket, "connect", self._connect)
        yield Patch(module.socket, "connect_ex", self._connect)
        yield Patch(module, "getaddrinfo", self._getaddrinfo)

    def wrap_uvloop(self, module: ModuleType) -> Iterator[Patch]:
        """Wrap uvloop, which connects without Python's sockets."""
        yield Patch(module.Loop, "create_connection", self._create_connection)

    def _connect(self, original: Any) -> Any:
        def connect(sock: Any, address: Any) -> Any:
            self._notice_connection(address)
            return original(sock, address)

        return connect

    def _create_connection(self, original: Any) -> Any:
        def create_connection(
            loop: Any, factory: Any, host: Any = None, port: Any = None, **options: Any
        ) -> Any:
            self._notice_connection((host, port))
            return original(loop, factory, host, port, **options)

        return create_connection

    def _getaddrinfo(self, original: Callable[..., Any]) -> Any:
        def getaddrinfo(host: Any, *args: Any, **options: Any) -> Any:
            found = original(host, *args, **options)
            name = host.decode("latin-1") if isinstance(host, bytes) else host
            if isinstance(name, str):
                self._remember(name.lower(), found)
            return found

        return getaddrinfo

    def _remember(self, name: str, found: Any) -> None:
        if any(name in peers_of(node).hosts() for node in list(self._nodes)):
            if len(self._names) >= _ADDRESSES_MAX:
                self._names.clear()
            for entry in found:
                self._names.setdefault(entry[4][0], set()).add(name)

    def _notice_connection(self, address: Any) -> None:
        hop = hop_here()
        if hop is None or not isinstance(address, tuple) or len(address) < _ADDRESS_PARTS:
            return
        host, port = address[:2]
        if not isinstance(host, str) or not isinstance(port, int):
            return
        peers, host = peers_of(hop.mesh_node), host.lower()
        names = (host, *self._names.get(host, ()))
        if any(peers.at(name, port) for name in names) and not is_http_below():
            notice(hop, "raw socket")
