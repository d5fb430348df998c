"""How a push is posted: to the address that was looked up and checked, without redirects, bounded.

An agent posts to URLs that its clients give. So the addresses of a name are checked when it is
connected to, and exactly those are connected to: a name that means another address a moment later
gains nothing.
"""

from __future__ import annotations

import asyncio
import email.utils
import ipaddress
import re
import socket
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import anyio
import httpcore

from quiesce.errors import ArgumentError
from quiesce.mesh.transport.http_transport import WholeBody

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterable, Mapping, Sequence

    Hear = Callable[[int, str | None], object]
    """Told of an answer's status, and of what it says of an edge."""

__all__: list[str] = []

_IPV4_INSIDE = ipaddress.ip_network("64:ff9b::/96")  # NAT64: the last four bytes are an IPv4 one
_ANSWER_BYTES_MAX = 64 * 1024
_EDGE = b"cascade-receipt"
_GONE = 410
_BUSY = frozenset((429, 503))
_AFTER_DIGITS_MAX = 9
_OK = range(200, 300)
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"(?:[!-~\x80-\xff](?:[\t -~\x80-\xff]*[!-~\x80-\xff])?)?")

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class Refused(Exception):  # noqa: N818 - what happened: it must not, or need not, be tried again
    """A push that need not, or must not, be tried again."""


class NotTaken(Exception):  # noqa: N818 - the same
    """A push that its receiver has not taken this time."""

    def __init__(self, why: str, after: float = 0.0) -> None:
        super().__init__(why)
        self.after = after
        """How many seconds its receiver wants to be left alone."""


class PushPolicy:
    """Which addresses may be posted to: public ones, and those that are allowed."""

    def __init__(self, allow: bool | Iterable[str]) -> None:  # noqa: FBT001 - or networks
        self._all = allow is True
        try:
            networks = () if isinstance(allow, bool) else tuple(allow)
            self._networks = [ipaddress.ip_network(network) for network in networks]
        except ValueError as error:
            message = f"allow_private must be a bool or networks such as '10.0.0.0/8': {error}"
            raise ArgumentError(message) from None

    def permits(self, address: Address) -> bool:
        """Return whether an address may be connected to."""
        if self._all or any(
            address.version == network.version and address in network for network in self._networks
        ):
            return True
        inside = _inside(address)
        if inside is not None:
            return self.permits(inside)
        if address.is_multicast or address.is_reserved or getattr(address, "is_site_local", False):
            return False  # some of these count as global
        return address.is_global


def _inside(address: Address) -> ipaddress.IPv4Address | None:
    """Return the IPv4 address that an IPv6 one leads to."""
    if isinstance(address, ipaddress.IPv4Address):
        return None
    if address in _IPV4_INSIDE:
        return ipaddress.IPv4Address(address.packed[-4:])
    teredo = address.teredo
    return address.ipv4_mapped or address.sixtofour or (teredo[1] if teredo else None)


class _CheckedNetwork(httpcore.AsyncNetworkBackend):  # type: ignore[misc]  # no types here
    """Connects only to addresses that a policy permits."""

    def __init__(self, policy: PushPolicy) -> None:
        self._policy = policy
        self._network: Any = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - the base class has it
        local_address: str | None = None,
        socket_options: Any = None,
    ) -> Any:
        """Look the host up, check all of its addresses, and connect to one of those."""
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise httpcore.ConnectError(str(error)) from error
        addresses = list(dict.fromkeys(str(entry[4][0]).partition("%")[0] for entry in found))
        for address in addresses:
            if not self._policy.permits(ipaddress.ip_address(address)):
                message = f"{host} is at {address}, which is not a public address"
                raise Refused(message)
        failure: Exception = httpcore.ConnectError(f"{host} has no address")
        for address in addresses:
            try:
                return await self._network.connect_tcp(
                    address, port, timeout, local_address, socket_options
                )
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failure = error
        raise failure

    async def connect_unix_socket(self, path: str, *_: Any, **__: Any) -> Any:
        """Refuse: no URL leads there."""
        raise Refused(path)

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)


class Poster:
    """Posts pushes; one for each server."""

    def __init__(
        self,
        policy: PushPolicy,
        *,
        seconds: float,
        bytes_max: int,
        connections: int,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        self._policy = policy
        self._seconds = seconds
        self._bytes_max = bytes_max
        self._connections = connections
        self._ssl_context = ssl_context
        self._pools: dict[str, Any] = {}

    async def post(
        self, url: str, headers: Mapping[str, str], body: bytes, hear: Hear | None = None
    ) -> None:
        """Post a body, and be content with any answer that says it was taken.

        *Raises*: `Refused` if trying again cannot help; `NotTaken` if it may be tried again.
        """
        self._check(url, body)
        try:
            head = [
                (b"Content-Type", b"application/json"),
                (b"Content-Length", str(len(body)).encode()),
                *lines(headers),
            ]
        except ValueError:
            message = "its configuration has a token or credentials that cannot be sent as a header"
            raise Refused(message) from None
        try:
            with anyio.fail_after(self._seconds):  # the pool is shielded from no other kind
                status, after = await self._post(url, head, body, hear)
        except TimeoutError:
            message = f"no answer within {self._seconds} s"
            raise NotTaken(message) from None
        except Refused:
            raise
        except Exception as error:
            message = f"{type(error).__name__}: {error}"
            raise NotTaken(message) from error
        _judge(status, after)

    def _check(self, url: str, body: bytes) -> None:
        """Refuse a URL that leads nowhere; without repeating it, as it may have a secret in it."""
        try:
            parts = urlsplit(url)
            fine = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
        except ValueError:
            fine = False
        if not fine or not (url.isascii() and url.isprintable()) or " " in url:
            message = "its URL is not an http or https URL in ASCII"
            raise Refused(message)
        if "@" in parts.netloc:
            message = "its URL has a user in it: credentials belong in the push configuration"
            raise Refused(message)
        if len(body) > self._bytes_max:
            message = f"it has {len(body)} bytes, more than {self._bytes_max}"
            raise Refused(message)

    async def _post(
        self, url: str, head: Sequence[tuple[bytes, bytes]], body: bytes, hear: Hear | None
    ) -> tuple[int, str]:
        pool = await self._pool(urlsplit(url).scheme)
        limits = dict.fromkeys(("connect", "read", "write", "pool"), self._seconds)
        async with pool.stream(
            "POST", url, headers=list(head), content=WholeBody(body), extensions={"timeout": limits}
        ) as response:
            if hear is not None:
                told = [value for name, value in response.headers if name.lower() == _EDGE]
                hear(response.status, told[0].decode("latin-1") if told else None)
            read = 0
            with anyio.CancelScope() as enough:
                async for part in response.aiter_stream():  # to its end, or the connection is lost
                    read += len(part)
                    if read > _ANSWER_BYTES_MAX:
                        enough.cancel()  # and not `break`: what is read from would be left open
            after = b"".join(
                value for name, value in response.headers if name.lower() == b"retry-after"
            )
            return response.status, after.decode("latin-1")

    async def _pool(self, scheme: str) -> Any:
        """Return the connections of a scheme; only one of them needs certificates, which take time."""
        if scheme == "https" and self._ssl_context is None:
            self._ssl_context = await asyncio.to_thread(httpcore.default_ssl_context)
        if scheme not in self._pools:
            self._pools[scheme] = httpcore.AsyncConnectionPool(
                ssl_context=self._ssl_context,
                max_connections=self._connections,
                keepalive_expiry=5.0,
                network_backend=_CheckedNetwork(self._policy),
            )
        return self._pools[scheme]

    async def close(self) -> None:
        """Close the connections."""
        while self._pools:
            _, pool = self._pools.popitem()
            await pool.aclose()


def lines(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    """Return headers as they are sent.

    *Raises*: `ValueError` if one is not valid; without its text, which may be a secret.
    """
    made = []
    for name, value in headers.items():
        if not (_HEADER_NAME.fullmatch(name) and _HEADER_VALUE.fullmatch(value)):
            message = "no header"
            raise ValueError(message)
        made.append((name.encode("ascii"), value.encode("latin-1")))
    return made


def receiver(url: str) -> str:
    """Name a receiver, for logs: not by its whole URL, which may have a secret in it."""
    try:
        parts = urlsplit(url)
        port = "" if parts.port is None else f":{parts.port}"
    except ValueError:
        return "an invalid URL"
    return f"{parts.scheme}://{parts.hostname}{port}"


def _judge(status: int, after: str) -> None:
    if status in _OK:
        return
    if 300 <= status < 400:  # noqa: PLR2004 - HTTP's
        message = f"it answered with a redirect ({status}), which is not followed"
        raise Refused(message)
    if status == _GONE:
        message = "it answered that it is gone (410)"
        raise Refused(message)
    message = f"it answered {status}"
    raise NotTaken(message, _seconds(after) if status in _BUSY else 0.0)


def _seconds(after: str) -> float:
    """Read a `Retry-After`: a number of seconds, or a date."""
    if after.isascii() and after.isdigit() and len(after) <= _AFTER_DIGITS_MAX:
        return float(after)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(after).timestamp() - time.time())
    except (ValueError, OverflowError):
        return 0.0
