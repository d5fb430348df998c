"""How one push is posted: to an address that was checked, without following redirects, with limits.

The agent's clients choose the URLs of pushes. So the poster resolves the host name, checks its addresses,
and connects to exactly these addresses. A name that resolves to another address a moment later cannot get
around the check.
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
    """A function that gets an answer's status, and its receipt header if it has one."""

__all__: list[str] = []

_IPV4_INSIDE = ipaddress.ip_network(
    "64:ff9b::/96"
)  # NAT64: the last four bytes are an IPv4 address
_ANSWER_BYTES_MAX = 64 * 1024
_EDGE = b"cascade-receipt"
_GONE = 410
_BUSY = frozenset((429, 503))
_AFTER_DIGITS_MAX = 9
_OK = range(200, 300)
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"(?:[!-~\x80-\xff](?:[\t -~\x80-\xff]*[!-~\x80-\xff])?)?")

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class Refused(Exception):  # noqa: N818 - an outcome of an attempt, not a fault of the program
    """Raised if a push must not be sent, or if sending it again cannot help."""


class NotTaken(Exception):  # noqa: N818 - the same
    """Raised if an attempt has failed, and the push may be sent again."""

    def __init__(self, why: str, after: float = 0.0) -> None:
        super().__init__(why)
        self.after = after
        """How many seconds the receiver asks to wait before the next attempt."""


class PushPolicy:
    """Which addresses pushes may go to: public addresses, and the allowed private ones."""

    def __init__(self, allow: bool | Iterable[str]) -> None:  # noqa: FBT001 - or networks
        self._all = allow is True
        try:
            networks = () if isinstance(allow, bool) else tuple(allow)
            self._networks = [ipaddress.ip_network(network) for network in networks]
        except ValueError as error:
            message = f"allow_private must be a bool or networks such as '10.0.0.0/8': {error}"
            raise ArgumentError(message) from None

    def permits(self, address: Address) -> bool:
        """Return whether a push may go to an address."""
        if self._all or any(
            address.version == network.version and address in network for network in self._networks
        ):
            return True
        inside = _ipv4_inside(address)
        if inside is not None:
            return self.permits(inside)
        if address.is_multicast or address.is_reserved or getattr(address, "is_site_local", False):
            return False  # `is_global` is True for some of these
        return address.is_global


def _ipv4_inside(address: Address) -> ipaddress.IPv4Address | None:
    """Return the IPv4 address that an IPv6 address leads to; None if it leads to none."""
    if isinstance(address, ipaddress.IPv4Address):
        return None
    if address in _IPV4_INSIDE:
        return ipaddress.IPv4Address(address.packed[-4:])
    teredo = address.teredo
    return address.ipv4_mapped or address.sixtofour or (teredo[1] if teredo else None)


class _CheckedNetwork(httpcore.AsyncNetworkBackend):  # type: ignore[misc]  # httpcore has no types here
    """A network backend that connects only to addresses that a policy permits."""

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
        """Resolve the host, check all of its addresses, and connect to one of them."""
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise httpcore.ConnectError(str(error)) from error
        addresses = list(dict.fromkeys(str(entry[4][0]).partition("%")[0] for entry in found))
        for address in addresses:
            if not self._policy.permits(ipaddress.ip_address(address)):
                message = f"{host} is at {address}, which is not a public address; allow it with allow_private="
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
        """Raise `Refused`: a push never goes to a Unix socket."""
        raise Refused(path)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class Poster:
    """The HTTP client that posts all pushes of a server."""

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
        """Post a body, and return if the receiver has accepted it (any 2xx status).

        *Raises*: `Refused` if sending it again cannot help; `NotTaken` if it may be sent again.
        """
        self._check(url, body)
        try:
            head = [
                (b"Content-Type", b"application/json"),
                (b"Content-Length", str(len(body)).encode()),
                *lines(headers),
            ]
        except ValueError:
            message = (
                "the token or the credentials of its push configuration are not valid as a header"
            )
            raise Refused(message) from None
        try:
            with anyio.fail_after(
                self._seconds
            ):  # httpcore shields its cleanup from anyio's cancellation only
                status, after = await self._post(url, head, body, hear)
        except TimeoutError:
            message = f"no answer within {self._seconds} s"
            raise NotTaken(message) from None
        except Refused:
            raise
        except Exception as error:
            message = f"{type(error).__name__}: {error}"
            raise NotTaken(message) from error
        _raise_if_not_taken(status, after)

    def _check(self, url: str, body: bytes) -> None:
        """Raise `Refused` if the URL or the body is not valid. The message omits the URL, which may have a secret."""
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
                # Read to the end, so that the connection can be used again.
                async for part in response.aiter_stream():
                    read += len(part)
                    if read > _ANSWER_BYTES_MAX:
                        enough.cancel()  # `break` would leave the stream's generator open
            after = b"".join(
                value for name, value in response.headers if name.lower() == b"retry-after"
            )
            return response.status, after.decode("latin-1")

    async def _pool(self, scheme: str) -> Any:
        """Return the connection pool of a scheme; certificates are loaded at the first https push only."""
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
        while self._pools:
            _, pool = self._pools.popitem()
            await pool.aclose()


def lines(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    """Return headers as pairs of bytes.

    *Raises*: `ValueError` if a header is not valid. The message omits its text, which may be a secret.
    """
    made = []
    for name, value in headers.items():
        if not (_HEADER_NAME.fullmatch(name) and _HEADER_VALUE.fullmatch(value)):
            message = "a header's name or value is not valid"
            raise ValueError(message)
        made.append((name.encode("ascii"), value.encode("latin-1")))
    return made


def receiver(url: str) -> str:
    """Return a receiver's scheme, host and port, for logs; the rest of the URL may have a secret."""
    try:
        parts = urlsplit(url)
        port = "" if parts.port is None else f":{parts.port}"
    except ValueError:
        return "an invalid URL"
    return f"{parts.scheme}://{parts.hostname}{port}"


def _raise_if_not_taken(status: int, after: str) -> None:
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
    """Return the seconds of a `Retry-After` header, which is a number of seconds or a date."""
    if after.isascii() and after.isdigit() and len(after) <= _AFTER_DIGITS_MAX:
        return float(after)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(after).timestamp() - time.time())
    except (ValueError, OverflowError):
        return 0.0
