"""Probes that connect to the child, again and again, until it answers.

There is no event for "somebody listens now", so they try: at once, after a millisecond, and then
less and less often, down to twenty times a second. An attempt that hangs is given up, and the next
one is given twice the time, so that a slow answer is waited for in the end.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import re
import socket
from collections.abc import Collection
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import anyio
import anyio.lowlevel

from quiesce.core import arguments
from quiesce.errors import ArgumentError
from quiesce.processes.descriptors import readable, writable
from quiesce.processes.readiness import addresses
from quiesce.processes.readiness.listener import VARIABLE
from quiesce.processes.readiness.probe import (
    PAUSE_SECONDS_MAX,
    PAUSE_SECONDS_MIN,
    Launch,
    Probe,
    ProbedChild,
)

if TYPE_CHECKING:
    from os import PathLike

__all__ = ["Http", "Tcp", "UnixSocket"]

ATTEMPT_SECONDS = 1.0
HEAD_BYTES_MAX = 65536
STATUS_MIN, STATUS_MAX = 200, 599  # below, the answer proper is still to come
STATUSES_SHOWN_MAX = 4
STATUS_LINE = re.compile(rb"HTTP/1\.[0-9] ([1-9][0-9]{2})(?:[ \r\n]|$)")
LOCALHOST = ("127.0.0.1", "::1")


class NotYetError(Exception):
    """This attempt did not find the child ready; the text says why."""


class Connecting(Probe):
    """The base of the probes that try until it works."""

    def __init__(self, *, check_peer: bool) -> None:
        self._check_peer = check_peer

    def prepare(self, launch: Launch) -> None:
        """Refuse an address at which a process listens before the child has begun."""
        listeners = self._places() if self._check_peer and VARIABLE not in launch.env else []
        for family, address in listeners:
            if addresses.is_taken(family, address):
                message = (
                    f"a process listens at {address!r} already: end it, use another address, "
                    "or say check_peer=False"
                )
                raise OSError(errno.EADDRINUSE, message)

    def _places(self) -> list[tuple[socket.AddressFamily, addresses.Address]]:
        """Return the addresses that can be looked at in one step: those of this machine."""
        raise NotImplementedError

    async def wait(self, process: ProbedChild) -> None:  # noqa: ARG002 - the contract of all probes
        """Return when an attempt succeeds."""
        self.obstacle = f"{self!r} has given no answer so far"
        await anyio.lowlevel.checkpoint()  # a unix socket may be connected without any wait
        pause, patience = PAUSE_SECONDS_MIN, ATTEMPT_SECONDS
        while True:
            try:
                with anyio.move_on_after(patience):
                    await self._attempt()
                    self.obstacle = None
                    return
                self.obstacle = f"{self!r} gave no answer within {patience:g} s"
                patience *= 2
            except NotYetError as reason:
                self.obstacle = str(reason)
            except OSError as error:
                self.obstacle = f"{self!r}: {error.strerror or error}"
            await anyio.sleep(pause)
            pause = min(2 * pause, PAUSE_SECONDS_MAX)

    async def _attempt(self) -> None:
        """Return if the child is ready.

        *Raises*: `NotYetError` or an `OSError` if not.
        """
        raise NotImplementedError


class UnixSocket(Connecting):
    """Ready when the child listens on a unix socket.

    The child sees a connection that is closed at once. When the process is gone, the socket file
    goes too, if it is the child's and nobody listens there.

    Args:
        path: As the child binds it; a relative one is relative to our own working folder. On Linux
            a NUL in front makes it an abstract one.
        check_peer: Whether to refuse the start with `SpawnFailed` if a process listens there already: an old
            server would be taken for the child. A `listen=` of the same start is not refused.

    *Raises*: `ArgumentError` if the path is longer than the system allows for a socket.
    """

    def __init__(self, path: str | PathLike[str], *, check_peer: bool = True) -> None:
        super().__init__(check_peer=check_peer)
        self.path: str = addresses.socket_path("UnixSocket", path)

    def __repr__(self) -> str:
        """Show the path."""
        return f"UnixSocket({self.path!r})"

    def prepare(self, launch: Launch) -> None:
        """See to it that the socket file goes with the child."""
        super().prepare(launch)
        launch.cleanup.append(addresses.SocketFile(self.path).remove)

    def _places(self) -> list[tuple[socket.AddressFamily, addresses.Address]]:
        return [(socket.AF_UNIX, self.path)]

    async def _attempt(self) -> None:
        (await connected(socket.AF_UNIX, self.path)).close()


class Tcp(Connecting):
    """Ready when the child takes connections on a TCP port.

    The child sees a connection that is closed at once.

    Args:
        host: An IP address, `localhost` (IPv4, then IPv6), or a name, which is looked up in a
            thread: that may outlast a deadline, the wait for it does not.
        port: From 1 to 65535.
        check_peer: As for `UnixSocket`, for `localhost` and the addresses of the loopback interface.
    """

    def __init__(self, host: str, port: int, *, check_peer: bool = True) -> None:
        super().__init__(check_peer=check_peer)
        self.host: str = _host("Tcp", host)
        self.port: int = addresses.port_of("Tcp", port)

    def __repr__(self) -> str:
        """Show the address."""
        return f"Tcp({self.host!r}, {self.port})"

    def _places(self) -> list[tuple[socket.AddressFamily, addresses.Address]]:
        return _loopback(self.host, self.port)

    async def _attempt(self) -> None:
        (await dialled(self.host, self.port)).close()


class Http(Connecting):
    """Ready when the child answers `GET url` with a certain status.

    Redirects are not followed. For https, or anything but a plain GET, give an async function.

    Args:
        url: `http://host:port/path`.
        status: The status that means ready, or several.
        unix: The path of a unix socket to connect to; the URL then only names host and path. Its
            file goes with the process, as that of `UnixSocket` does.
        check_peer: As for `UnixSocket` and `Tcp`.
    """

    def __init__(
        self,
        url: str,
        status: int | Collection[int] = 200,
        *,
        unix: str | PathLike[str] | None = None,
        check_peer: bool = True,
    ) -> None:
        super().__init__(check_peer=check_peer)
        self.url: str = arguments.check_text("the URL of Http", url)
        self.host: str
        self.port: int
        self.host, self.port, self._request = _parsed(url)
        self.status: tuple[int, ...] = _statuses(status)
        self.unix: str | None = None if unix is None else addresses.socket_path("Http", unix)

    def __repr__(self) -> str:
        """Show the URL."""
        return f"Http({self.url!r})"

    def prepare(self, launch: Launch) -> None:
        """See to it that the socket file goes with the child, if there is to be one."""
        super().prepare(launch)
        if self.unix is not None:
            launch.cleanup.append(addresses.SocketFile(self.unix).remove)

    def _places(self) -> list[tuple[socket.AddressFamily, addresses.Address]]:
        if self.unix is not None:
            return [(socket.AF_UNIX, self.unix)]
        return _loopback(self.host, self.port)

    async def _attempt(self) -> None:
        if self.unix is not None:
            connecting = connected(socket.AF_UNIX, self.unix)
        else:
            connecting = dialled(self.host, self.port)
        with await connecting as sock:
            self.obstacle: str | None = f"{self!r} takes the connection, and does not answer"
            await _send(sock, self._request)
            status = await _status(sock)
        if status not in self.status:
            few = len(self.status) <= STATUSES_SHOWN_MAX
            wanted = " or ".join(map(str, self.status)) if few else "one that was asked for"
            raise NotYetError(f"{self.url} answers {status}, not {wanted}")


def _loopback(host: str, port: int) -> list[tuple[socket.AddressFamily, addresses.Address]]:
    known = LOCALHOST if host == "localhost" else (addresses.ip_of(host) or "",)
    return [
        (addresses.family_of(address), (address, port))
        for address in known
        if address and ipaddress.ip_address(address).is_loopback
    ]


async def connected(family: socket.AddressFamily, address: addresses.Address) -> socket.socket:
    """Connect a socket, once.

    *Cancel safety*: the socket is closed. *Raises*: `OSError`.
    """
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.settimeout(0)
        code = sock.connect_ex(address)
        if code == errno.EINPROGRESS:
            await writable(sock.fileno())
            code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    except BaseException:
        sock.close()
        raise
    if code:  # EAGAIN: a unix socket whose queue is full, which is to be tried again
        sock.close()
        raise OSError(code, os.strerror(code))
    return sock


async def dialled(host: str, port: int) -> socket.socket:
    """Connect to the first address of a host that answers.

    *Cancel safety*: the socket is closed. *Raises*: the last `OSError`.
    """
    failure = OSError(errno.EADDRNOTAVAIL, f"{host} has no address")
    for address in await _addresses(host):
        try:
            sock = await connected(addresses.family_of(address), (address, port))
        except OSError as error:
            failure = error
            continue
        try:
            if not addresses.connected_to_itself(sock):
                return sock
            failure = ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        except OSError as error:  # it was taken, and reset in the same moment
            failure = error
        sock.close()
    raise failure


async def _addresses(host: str) -> list[str]:
    if host == "localhost":
        return list(LOCALHOST)
    address = addresses.ip_of(host)
    if address is not None:
        return [address]
    found = await anyio.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


async def _send(sock: socket.socket, data: bytes) -> None:
    while data:
        try:
            data = data[sock.send(data) :]
        except BlockingIOError:
            await writable(sock.fileno())


async def _status(sock: socket.socket) -> int:
    """Read the status of the answer; interim ones (1xx) go before it."""
    head = bytearray()
    while len(head) < HEAD_BYTES_MAX:
        await readable(sock.fileno())
        try:
            data = sock.recv(HEAD_BYTES_MAX)
        except BlockingIOError:
            continue
        head += data
        while b"\r\n\r\n" in head or not data:
            found = STATUS_LINE.match(head)
            if found is None:
                what = f"begins with {bytes(head[:40])!r}" if head else "ends"
                raise NotYetError(f"no status of HTTP/1 comes: the answer {what}")
            status = int(found[1])
            if status >= STATUS_MIN:
                return status
            del head[: len(head) if not data else head.index(b"\r\n\r\n") + 4]
    raise NotYetError(f"the head of the answer is longer than {HEAD_BYTES_MAX} bytes")


def _host(what: str, host: object) -> str:
    text = arguments.check_text(f"the host of {what}", host)
    message = f"the host of {what} cannot be {text!r}"
    if not text or not text.isprintable() or " " in text:
        raise ArgumentError(message)
    try:
        text.encode("idna")  # as the lookup will: a part may be too long, or empty
    except UnicodeError:
        raise ArgumentError(message) from None
    return text


def _parsed(url: str) -> tuple[str, int, bytes]:
    """Check a URL; give host, port and the request."""
    wrong = f"Http needs a URL like http://127.0.0.1:8000/health, not {url!r}"
    # Before it is split: urlsplit drops line ends, which would make up headers in a request.
    if not url.isascii() or not url.isprintable() or " " in url:
        raise ArgumentError(f"{wrong}: it has characters that a URL cannot have")
    try:
        parts = urlsplit(url)
        port = 80 if parts.port is None else addresses.port_of("Http", parts.port)
    except ArgumentError:
        raise
    except ValueError as error:
        raise ArgumentError(f"{wrong}: {error}") from None
    if parts.scheme != "http":
        raise ArgumentError(f"{wrong}: for {parts.scheme or 'it'!r}, give an async function")
    if not parts.hostname or parts.username is not None or parts.password is not None:
        raise ArgumentError(f"{wrong}: it needs a host, and no user")
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    lines = (
        f"GET {target} HTTP/1.1",
        f"Host: {parts.netloc}",
        "User-Agent: quiesce",
        "Accept: */*",
        "Connection: close",
    )
    return _host("Http", parts.hostname), port, ("\r\n".join(lines) + "\r\n\r\n").encode("ascii")


def _statuses(status: object) -> tuple[int, ...]:
    wanted = tuple(status) if isinstance(status, Collection) else (status,)
    for one in wanted:
        known = isinstance(one, int) and not isinstance(one, bool)
        if not known or not STATUS_MIN <= one <= STATUS_MAX:
            message = f"the status of Http must be a number like 200, not {one!r}"
            raise ArgumentError(message)
    if not wanted:
        raise ArgumentError("the status of Http must be a number like 200, or several, not none")
    return wanted
