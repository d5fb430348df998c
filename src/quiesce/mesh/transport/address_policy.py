"""Which addresses a node uses, and how much it takes from whom.

A message brings the address that its receipt is to be posted to. Whoever could choose that freely could
make a node post to any server that it reaches. So an address is used only if it is a configured peer's,
or at the node's own origin; else no receipt is posted, and the sender, who is told so, asks for it.
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
    """Check the address of a node."""
    fine = isinstance(value, str) and origin(value) is not None
    if not fine or not isinstance(value, str):
        message = (
            f"{what} must be an address like 'https://hotel.example', http or https, without a query"
            f" or a password, not {value!r}"
        )
        raise ArgumentError(message)
    return codec.home(value.rstrip("/"))


def own_address(value: object) -> str:
    """Check the address of a node that others are to reach it by."""
    url = address("url", value)
    if urlsplit(url).hostname in {"0.0.0.0", "::"}:  # noqa: S104 - refused
        message = f"url must be where others reach the agent: {url!r} is where a server listens, at every address"
        raise ArgumentError(message)
    return url


def keep_time(value: object) -> float:
    """Check for how long messages are remembered: it is written, and others are told."""
    seconds = arguments.seconds("keep_seconds", value)
    if not codec.is_time(seconds):
        message = f"keep_seconds must be a number of seconds that has an end, not {value!r}"
        raise ArgumentError(message)
    return seconds


def origin(url: str) -> tuple[str, str, int] | None:
    """Return scheme, host and port; None if a node cannot have this address."""
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
    """Whose address is used."""

    def __init__(self, own: str | None, peers: Iterable[str], opaque: Iterable[str] = ()) -> None:
        self._peers = _addresses("peers", peers)
        self._opaque = _addresses("opaque", opaque)
        if both := self._peers & self._opaque:
            message = f"{min(both)!r} is in peers and in opaque: it takes part, or it does not"
            raise ArgumentError(message)
        self._by_length = sorted(self._peers | self._opaque, key=len, reverse=True)
        self._own = None if own is None else origin(own)
        self._judged: dict[str | None, str | None] = {None: None}

    def allows(self, home: str) -> bool:
        """Return whether a receipt may be posted there."""
        return self.reply_to(home) is not None

    def reply_to(self, home: str | None) -> str | None:
        """Return the address that a receipt is to be posted to, if that is allowed."""
        if home is None or home in self._judged:  # there are few, and every message has one
            return self._judged[home]
        return self._judge(home)

    def _judge(self, home: str) -> str | None:
        found, plain = origin(home), home.rstrip("/")
        allowed = found is not None and (plain in self._peers or found == self._own)
        if len(self._judged) >= _JUDGED_MAX:
            self._judged = {None: None}  # somebody sends ever new addresses
        self._judged[home] = judged = plain if allowed else None
        return judged

    def is_opaque(self, to: str) -> bool:
        """Return whether an agent is known to take no part."""
        return to in self._opaque

    def node_of(self, url: str) -> str:
        """Return the node that a request to this URL goes to: a peer below which it is, or its origin."""
        for peer in self._by_length:
            if url.startswith(peer) and url[len(peer) : len(peer) + 1] in {"", "/", "?"}:
                return peer
        try:
            parts = urlsplit(url)
        except ValueError:  # nobody is there, whoever has named it
            return "not an address"
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"  # others see it: no passwords


class Allowance:
    """So many at once, and so many more a second."""

    def __init__(self, most: int, per_second: float, clock: Callable[[], float]) -> None:
        self._most = float(most)
        self._per_second = per_second
        self._clock = clock
        self._left = float(most)
        self._at = clock()

    def take(self) -> bool:
        """Take one, if there is one."""
        now = self._clock()
        self._left = min(self._most, self._left + (now - self._at) * self._per_second)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True
