"""Which addresses a node uses, and how much it takes from whom.

A message brings the address that its receipt is to be posted to. Whoever could choose that freely could
make a node post to any server that it reaches. So an address is used only if it is a configured peer's,
or at the node's own origin; else no receipt is posted, and the sender, who is told so, asks for it.

How long a message may come, and how long it is remembered, is what `never` rests on. By the sender's clock, a
message may begin for `keep` seconds after it was sent; by the receiver's, which may differ by `DRIFT_SECONDS`,
for as much more. So whoever says of an edge that it never will run, or has run it, has to know that for the
sender's `keep` and twice that: also if it has not seen the message, and so not the time in its header. A
receiver keeps ids for its own `keep` and twice that. So it says `never` only to those whose `keep` is not longer
than its own: that of a message is in its header, and whoever asks says it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from quiesce.core import arguments
from quiesce.errors import ArgumentError
from quiesce.mesh import wire

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__: list[str] = []

_JUDGED_MAX = 1024
DRIFT_SECONDS = 300.0
"""By how much the clocks of two machines may differ."""

KEEP_SECONDS = 3600.0
"""How long messages may be under way, of those who do not say it when they ask."""

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
    return wire.home(value.rstrip("/"))


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
    if not wire.is_time(seconds):
        message = f"keep_seconds must be a number of seconds that has an end, not {value!r}"
        raise ArgumentError(message)
    return seconds


def origin(url: str) -> tuple[str, str, int] | None:
    """Give scheme, host and port; None if it is no address that a node may have."""
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


class Policy:
    """Whose address is used."""

    def __init__(self, own: str | None, peers: Iterable[str]) -> None:
        if isinstance(peers, str):
            message = f"peers must be a list of addresses: write [{peers!r}], not {peers!r}"
            raise ArgumentError(message)
        try:
            given = list(peers)
        except TypeError as error:
            message = f"peers must be a list of addresses, not {peers!r}"
            raise ArgumentError(message) from error
        self._peers = frozenset(address("peers", peer) for peer in given)
        self._by_length = sorted(self._peers, key=len, reverse=True)
        self._own = None if own is None else origin(own)
        self._judged: dict[str | None, str | None] = {None: None}

    def allows(self, home: str) -> bool:
        """Tell whether a receipt may be posted there."""
        return self.reply_to(home) is not None

    def reply_to(self, home: str | None) -> str | None:
        """Give the address that a receipt is to be posted to, if that is allowed."""
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

    def node_of(self, url: str) -> str:
        """Give the node that a request to this URL goes to: a peer below which it is, or its origin."""
        for peer in self._by_length:
            if url.startswith(peer) and url[len(peer) : len(peer) + 1] in {"", "/", "?"}:
                return peer
        try:
            parts = urlsplit(url)
        except ValueError:  # nobody is there, whoever has named it
            return "what is no address"
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"  # others see it: no passwords


def is_in_time(handed: wire.Handed, now: float, keep: float) -> bool:
    """Tell whether a message may begin: it is not too late, nor too early (see `is_early`)."""
    return now - DRIFT_SECONDS <= handed.begin_by <= now + keep + DRIFT_SECONDS


def is_early(handed: wire.Handed, now: float, keep: float) -> bool:
    """Tell whether a message may begin for longer than it would be remembered."""
    return handed.begin_by > now + keep + DRIFT_SECONDS


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
