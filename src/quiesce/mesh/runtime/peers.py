"""The servers that a node knows as part of the mesh.

These are the node's `peers`, its own origin, and every origin that has answered a message with a receipt. Every
request to one of them is a message, whatever its method. An instrumented client never sends an edge to any
other server.
"""

from __future__ import annotations

import ipaddress
from functools import lru_cache
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

from quiesce.mesh.transport.address_policy import origin

if TYPE_CHECKING:
    from collections.abc import Iterator

    from quiesce.mesh.runtime.node import Node

__all__: list[str] = []

Origin = tuple[str, str, int]
"""The scheme, the host in lower case, and the port."""

_LEARNED_MAX = 1024
_SCHEMES = {"ws": "http", "wss": "https"}
_LOCAL = frozenset(("localhost", "127.0.0.1", "::1"))
# Requests for descriptions of a server, and calls of the mesh itself, are not work.
_NO_WORK = ("/.well-known/", "/quiesce/")
_PRIVATE = (".home.arpa", ".internal", ".lan", ".local", ".localhost", ".svc")
"""The ends of names that are not public."""
SAFE = frozenset(("GET", "HEAD", "OPTIONS", "TRACE"))

_known: WeakKeyDictionary[Node, Peers] = WeakKeyDictionary()


def peers_of(node: Node) -> Peers:
    """Return the servers that a node knows as part of the mesh."""
    found = _known.get(node)
    if found is None:
        found = _known[node] = Peers(node)
    return found


class Peers:
    """The servers that take part, by origin and path."""

    def __init__(self, node: Node) -> None:
        self._addresses: set[str] = set()
        self._learned: dict[str, Origin] = {}
        self._paths: dict[Origin, list[tuple[str, str]]] = {}
        """For each origin, the paths of its nodes, longest first, with their addresses."""
        for peer in node.policy.addresses_by_length:
            self._add(peer)
        if node.url is not None:
            self._add(node.url)

    def _add(self, address: str) -> None:
        at = origin(address)
        self._addresses.add(address)
        if at is not None:
            paths = self._paths.setdefault(at, [])
            paths.append((urlsplit(address).path.rstrip("/"), address))
            paths.sort(key=lambda entry: len(entry[0]), reverse=True)

    def learn(self, address: str) -> None:
        """Add a server that has answered with a receipt."""
        if address in self._addresses:
            return
        at = origin(address)
        if at is None:
            return
        if (
            len(self._learned) >= _LEARNED_MAX
        ):  # forget the oldest, because a program may talk to an unlimited number of servers
            oldest = next(iter(self._learned))
            self._forget(oldest, self._learned.pop(oldest))
        self._learned[address] = at
        self._add(address)

    def _forget(self, address: str, at: Origin) -> None:
        self._addresses.discard(address)
        paths = self._paths[at] = [entry for entry in self._paths[at] if entry[1] != address]
        if not paths:
            del self._paths[at]

    def find(self, scheme: str, host: str, port: int | None, path: str) -> str | None:
        """Return the address of the node that a request goes to; None if no node is known there."""
        scheme = _SCHEMES.get(scheme, scheme)
        host, port = host.lower().strip("[]"), port or (443 if scheme == "https" else 80)
        path = path.partition("?")[0]
        for name in (host, *sorted(_LOCAL - {host})) if host in _LOCAL else (host,):
            for below, address in self._paths.get((scheme, name, port), ()):
                if path.startswith(below) and path[len(below) : len(below) + 1] in {"", "/"}:
                    return address
        return None

    def find_url(self, url: str) -> str | None:
        """Return the address of the node that a URL leads to; None if no node is known there."""
        try:
            parts = urlsplit(url)
            return self.find(parts.scheme, parts.hostname or "", parts.port, parts.path)
        except ValueError:  # not a URL: nothing will be sent
            return None

    def at(self, host: str, port: int) -> bool:
        """Return whether a node listens at a host and port."""
        return any(
            own == port and (name == host or {name, host} <= _LOCAL) for name, own in self._doors()
        )

    def hosts(self) -> set[str]:
        """Return the hosts of all known servers."""
        return {name for name, _ in self._doors()}

    def _doors(self) -> Iterator[tuple[str, int]]:
        return ((name, port) for _, name, port in list(self._paths))


@lru_cache(maxsize=1024)  # a program sends to a few servers
def is_private_host(host: str) -> bool:
    """Return whether a host is on this machine or in a private network, by its name or its IP address."""
    host = host.lower().strip("[]").rstrip(".")
    try:
        found = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return bool(host) and ("." not in host or host.endswith(_PRIVATE))
    found = getattr(found, "ipv4_mapped", None) or found
    return found.is_loopback or found.is_private or found.is_link_local


def may_start_work(method: str, path: str) -> bool:
    """Return whether a request to a node may start work: all may, except requests for descriptions."""
    return method not in SAFE or not any(part in path for part in _NO_WORK)
