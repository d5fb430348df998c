"""Which addresses a node may use, and how many messages it accepts.

A message brings the address to which its receipt is to be posted. If a sender could choose any address, it could make a
node post to any server within the node's reach. So a node posts a receipt only to a configured peer or to its own
origin. For other addresses it tells the sender that it will not post, and the sender asks for the receipt.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from quiesce.core import arguments
from quiesce.errors import ArgumentError
from quiesce.mesh.protocol import codec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__: list[str] = []

_JUDGED_MAX = 1024
_PORTS = {"http": 80, "https": 443}


def address(what: str, value: object) -> str:
    """Return the checked address of a node.

    *Raises*: `ArgumentError`.
    """
    fine = isinstance(value, str) and origin(value) is not None
    if not fine or not isinstance(value, str):
        message = (
            f"{what} must be an address like 'https://hotel.example', http or https, without a query"
            f" or a password, not {value!r}"
        )
        raise ArgumentError(message)
    return codec.home(value.rstrip("/"))


def own_address(value: object) -> str:
    """Return the checked address by which other nodes reach this node.

    *Raises*: `ArgumentError`.
    """
    url = address("url", value)
    if urlsplit(url).hostname in {"0.0.0.0", "::"}:  # noqa: S104 - refused
        message = (
            f"url must be the address by which others reach the agent, not {url!r}, at which a server listens on all its"
            " addresses: name a host"
        )
        raise ArgumentError(message)
    return url


def keep_time(value: object) -> float:
    """Return the checked time for which messages are remembered. The journal and other nodes get this number.

    *Raises*: `ArgumentError`.
    """
    seconds = arguments.seconds("keep_seconds", value)
    if not codec.is_time(seconds):
        message = f"keep_seconds must be a finite number of seconds, not {value!r}"
        raise ArgumentError(message)
    return seconds


def origin(url: str) -> tuple[str, str, int] | None:
    """Return the scheme, host and port of a URL; None if the URL cannot be a node's address."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return None
    if parts.scheme not in _PORTS or not parts.hostname or "@" in parts.netloc:
        return None
    if parts.query or parts.fragment or "?" in url or "#" in url:
        return None
    return parts.scheme, parts.hostname.lower(), _PORTS[parts.scheme] if port is None else port


def _addresses(what: str, given: Iterable[str]) -> frozenset[str]:
    if isinstance(given, str):
        message = f"{what} must be a list of addresses: write [{given!r}], not {given!r}"
        raise ArgumentError(message)
    try:
        found = list(given)
    except TypeError as error:
        message = f"{what} must be a list of addresses, not {given!r}"
        raise ArgumentError(message) from error
    return frozenset(address(what, one) for one in found)


class AddressPolicy:
    """The addresses that a node may use: its peers, its own origin, and agents outside of the mesh (opaque)."""

    def __init__(self, own: str | None, peers: Iterable[str], opaque: Iterable[str] = ()) -> None:
        self._peers = _addresses("peers", peers)
        self._opaque = _addresses("opaque", opaque)
        if both := self._peers & self._opaque:
            message = (
                f"{min(both)!r} is in peers and in opaque: name an agent that takes part in the mesh in peers, any other in"
                " opaque"
            )
            raise ArgumentError(message)
        self.addresses_by_length: list[str] = sorted(
            self._peers | self._opaque, key=len, reverse=True
        )
        self._own = None if own is None else origin(own)
        self._judged: dict[str | None, str | None] = {None: None}

    def allows(self, home: str) -> bool:
        """Return whether a receipt may be posted to this address."""
        return self.reply_to(home) is not None

    def reply_to(self, home: str | None) -> str | None:
        """Return the address to which a receipt is posted; None if that is not allowed."""
        # A cache: every message brings one of a few addresses.
        if home is None or home in self._judged:
            return self._judged[home]
        return self._judge(home)

    def _judge(self, home: str) -> str | None:
        found, plain = origin(home), home.rstrip("/")
        allowed = found is not None and (plain in self._peers or found == self._own)
        if len(self._judged) >= _JUDGED_MAX:
            self._judged = {None: None}  # a sender keeps using new addresses
        self._judged[home] = judged = plain if allowed else None
        return judged

    def is_opaque(self, to: str) -> bool:
        """Return whether an agent is configured as not taking part in the mesh."""
        return to in self._opaque

    def node_of(self, url: str) -> str:
        """Return the address of the node behind a URL: the peer whose address the URL begins with, or the origin."""
        for peer in self.addresses_by_length:
            if url.startswith(peer) and url[len(peer) : len(peer) + 1] in {"", "/", "?"}:
                return peer
        try:
            parts = urlsplit(url)
        except ValueError:  # a request to this URL cannot succeed
            return "not an address"
        # The password is left out, because other nodes see this address.
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


class Allowance:
    """A rate limit (a token bucket): `most` at once, and `per_second` more each second."""

    def __init__(self, most: int, per_second: float, clock: Callable[[], float]) -> None:
        self._most = float(most)
        self._per_second = per_second
        self._clock = clock
        self._left = float(most)
        self._at = clock()

    def take(self) -> bool:
        """Take one token. Return False if there is none left."""
        now = self._clock()
        self._left = min(self._most, self._left + (now - self._at) * self._per_second)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True
