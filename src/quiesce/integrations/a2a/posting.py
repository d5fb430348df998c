"""How a push is posted: to the address that was looked up and checked, without redirects, bounded.

An agent posts to URLs that its clients give. So the addresses of a name are checked when it is
connected to, and exactly those are connected to: a name that means another address a moment later
gains nothing.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import anyio
import httpcore

from quiesce.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__: list[str] = []

_IPV4_INSIDE = ipaddress.ip_network("64:ff9b::/96")  # NAT64: the last four bytes are an IPv4 one
_ANSWER_BYTES_MAX = 64 * 1024
_GONE = 410
_OK = range(200, 300)

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class Refused(Exception):  # noqa: N818 - what happened: it must not, or need not, be tried again
    """A push that there is no point in trying again."""


class NotTaken(Exception):  # noqa: N818 - the same
    """A push that its receiver has not taken this time."""


class Policy:
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
        """Tell whether an address may be connected to."""
        if self._all or any(
            address.version == network.version and address in network for network in self._networks
        ):
            return True
        inside = _inside(address)
        if inside is not None:
            return self.permits(inside)
        return address.is_global and not address.is_multicast


def _inside(address: Address) -> ipaddress.IPv4Address | None:
    """Give the IPv4 address that an IPv6 one leads to."""
    if isinstance(address, ipaddress.IPv4Address):
        return None
    if address in _IPV4_INSIDE:
        return ipaddress.IPv4Address(address.packed[-4:])
    teredo = address.teredo
    return address.ipv4_mapped or address.sixtofour or (teredo[1] if teredo else None)


class _CheckedNetwork(httpcore.AsyncNetworkBackend):  # type: ignore[misc]  # no types here
    """Connects only to addresses that a policy permits."""

    def __init__(self, policy: Policy) -> None:
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

    def __init__(self, policy: Policy, *, seconds: float, bytes_max: int, connections: int) -> None:
        self._policy = policy
        self._seconds = seconds
        self._bytes_max = bytes_max
        self._connections = connections
        self._pool: Any = None

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> None:
        """Post a body, and be content with any answer that says it was taken.

        *Raises*: `Refused` if it is no use; `NotTaken` if it may be tried again.
        """
        self._check(url, body)
        head = [(b"Content-Type", b"application/json")]
        try:
            head += [
                (name.encode("ascii"), value.encode("latin-1")) for name, value in headers.items()
            ]
        except UnicodeEncodeError:
            message = "its configuration has a token or credentials that are no header"
            raise Refused(message) from None
        try:
            with anyio.fail_after(self._seconds):  # the pool is shielded from no other kind
                status = await self._post(url, head, body)
        except TimeoutError:
            message = f"no answer within {self._seconds} s"
            raise NotTaken(message) from None
        except Refused:
            raise
        except Exception as error:
            message = f"{type(error).__name__}: {error}"
            raise NotTaken(message) from error
        _judge(status)

    def _check(self, url: str, body: bytes) -> None:
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            message = f"{url!r} is no http or https URL"
            raise Refused(message)
        if len(body) > self._bytes_max:
            message = f"it has {len(body)} bytes, more than {self._bytes_max}"
            raise Refused(message)

    async def _post(self, url: str, head: Sequence[tuple[bytes, bytes]], body: bytes) -> int:
        if self._pool is None:
            self._pool = httpcore.AsyncConnectionPool(
                max_connections=self._connections,
                keepalive_expiry=5.0,
                network_backend=_CheckedNetwork(self._policy),
            )
        limits = dict.fromkeys(("connect", "read", "write", "pool"), self._seconds)
        async with self._pool.stream(
            "POST", url, headers=list(head), content=body, extensions={"timeout": limits}
        ) as response:
            read = 0
            async for part in response.aiter_stream():  # to its end, or the connection is lost
                read += len(part)
                if read > _ANSWER_BYTES_MAX:
                    break
            status: int = response.status
            return status

    async def close(self) -> None:
        """Close the connections."""
        pool, self._pool = self._pool, None
        if pool is not None:
            await pool.aclose()


def _judge(status: int) -> None:
    if status in _OK:
        return
    if 300 <= status < 400:  # noqa: PLR2004 - HTTP's
        message = f"it answered with a redirect ({status}), which is not followed"
        raise Refused(message)
    if status == _GONE:
        message = "it answered that it is gone (410)"
        raise Refused(message)
    message = f"it answered {status}"
    raise NotTaken(message)
