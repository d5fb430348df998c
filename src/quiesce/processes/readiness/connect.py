"""Probes that connect to the child repeatedly until it answers.

The system has no event for "a process listens now". So these probes try at once, after a
millisecond, and then less and less often, down to twenty times a second. An attempt that hangs is
given up, and the next attempt may take twice the time, so that a slow child can answer in the end.
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
STATUS_MIN, STATUS_MAX = 200, 599  # a lower status is interim: the final answer follows
STATUSES_SHOWN_MAX = 4
STATUS_LINE = re.compile(rb"HTTP/1\.[0-9] ([1-9][0-9]{2})(?:[ \r\n]|$)")
LOCALHOST = ("127.0.0.1", "::1")


class NotYetError(Exception):
    """The child was not ready at this attempt; the text says why."""


class Connecting(Probe):
    """The base of the probes that try until an attempt succeeds."""

    def __init__(self, *, check_peer: bool) -> None:
        self._check_peer = check_peer

    def prepare(self, launch: Launch) -> None:
        """Raise if a process already listens at the address: it would be mistaken for the child."""
        listeners = self._places() if self._check_peer and VARIABLE not in launch.env else []
        for family, address in listeners:
            if addresses.is_taken(family, address):
                message = (
                    f"a process already listens at {address!r}: end it, use another address, "
                    "or pass check_peer=False"
                )
                raise OSError(errno.EADDRINUSE, message)

    def _places(self) -> list[tuple[socket.AddressFamily, addresses.Address]]:
        """Return the addresses of this machine, which can be checked without waiting."""
        raise NotImplementedError

    async def wait(self, process: ProbedChild) -> None:  # noqa: ARG002 - the contract of all probes
        """Return when an attempt succeeds."""
        self.obstacle = f"{self!r} has given no answer so far"
        await anyio.lowlevel.checkpoint()  # connecting a unix socket may not wait at all
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
    is removed if the child created it and no process listens there.

    Args:
        path: The path that the child binds. A relative path is relative to this program's working
            folder. On Linux a leading NUL makes an abstract path.
        check_peer: Whether to refuse the start with `SpawnFailed` if a process already listens there, such
            as an old server, which would be mistaken for the child. The `listen=` of the same start is allowed.

    *Raises*: `ArgumentError` if the path is longer than the system allows for a socket.
    """

    def __init__(self, path: str | PathLike[str], *, check_peer: bool = True) -> None:
        super().__init__(check_peer=check_peer)
        self.path: str = addresses.socket_path("UnixSocket", path)

    def __repr__(self) -> str:
        return f"UnixSocket({self.path!r})"

    def prepare(self, launch: Launch) -> None:
        """Register the removal of the socket file for the child's end."""
        super().prepare(launch)
        launch.cleanup.append(addresses.SocketFile(self.path).remove)

    def _places(self) -> list[tuple[socket.AddressFamily, addresses.Address]]:
        return [(socket.AF_UNIX, self.path)]

    async def _attempt(self) -> None:
        (await connected(socket.AF_UNIX, self.path)).close()


class Tcp(Connecting):
    """Ready when the child accepts connections on a TCP port.

    The child sees a connection that is closed at once.

    Args:
        host: An IP address, `localhost` (IPv4, then IPv6), or a name. A thread looks the name up; the
            deadline ends the wait for the lookup, but not the thread.
        port: From 1 to 65535.
        check_peer: As for `UnixSocket`, for `localhost` and the addresses of the loopback interface.
    """

    def __init__(self, host: str, port: int, *, check_peer: bool = True) -> None:
        super().__init__(check_peer=check_peer)
        self.host: str = _host("Tcp", host)
        self.port: int = addresses.port_of("Tcp", port)

    def __repr__(self) -> str:
        return f"Tcp({self.host!r}, {self.port})"

    def _places(self) -> list[tuple[socket.AddressFamily, addresses.Address]]:
        return _loopback(self.host, self.port)

    async def _attempt(self) -> None:
        (await dialled(self.host, self.port)).close()


class Http(Connecting):
    """Ready when the child answers `GET url` with the given status.

    Redirects are not followed. For https or other methods, pass an async function as `ready=`.

    Args:
        url: `http://host:port/path`.
        status: The status that means ready, or several of them.
        unix: The path of a unix socket to connect to. The URL then only provides the host and path of
            the request. The socket file is removed as for `UnixSocket`.
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
        return f"Http({self.url!r})"

    def prepare(self, launch: Launch) -> None:
        """Register the removal of the socket file, if `unix` is given, for the child's end."""
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
            self.obstacle: str | None = f"{self!r} has accepted the connection, but does not answer"
            await _send(sock, self._request)
            status = await _status(sock)
        if status not in self.status:
            few = len(self.status) <= STATUSES_SHOWN_MAX
            wanted = " or ".join(map(str, self.status)) if few else "one of the given statuses"
            raise NotYetError(f"{self.url} answers {status}, not {wanted}")


def _loopback(host: str, port: int) -> list[tuple[socket.AddressFamily, addresses.Address]]:
    known = LOCALHOST if host == "localhost" else (addresses.ip_of(host) or "",)
    return [
        (addresses.family_of(address), (address, port))
        for address in known
        if address and ipaddress.ip_address(address).is_loopback
    ]


async def connected(family: socket.AddressFamily, address: addresses.Address) -> socket.socket:
    """Return a connected socket; try once.

    *Cancel safety*: if cancelled, the socket is closed. *Raises*: `OSError`.
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
    if code:  # EAGAIN means that the queue of a unix socket is full; the caller tries again
        sock.close()
        raise OSError(code, os.strerror(code))
    return sock


async def dialled(host: str, port: int) -> socket.socket:
    """Return a socket that is connected to the first address of the host that answers.

    *Cancel safety*: if cancelled, the socket is closed. *Raises*: the last `OSError`.
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
        except OSError as error:  # the connection was accepted and reset at once
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
    """Return the status of the answer; skip interim answers (1xx)."""
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
                raise NotYetError(f"the answer has no HTTP/1 status: it {what}")
            status = int(found[1])
            if status >= STATUS_MIN:
                return status
            del head[: len(head) if not data else head.index(b"\r\n\r\n") + 4]
    raise NotYetError(f"the head of the answer is longer than {HEAD_BYTES_MAX} bytes")


def _host(what: str, host: object) -> str:
    text = arguments.check_text(f"the host of {what}", host)
    message = f"the host of {what} must be a valid host name or IP address, not {text!r}"
    if not text or not text.isprintable() or " " in text:
        raise ArgumentError(message)
    try:
        text.encode("idna")  # raises, as the lookup would, if a part is too long or empty
    except UnicodeError:
        raise ArgumentError(message) from None
    return text


def _parsed(url: str) -> tuple[str, int, bytes]:
    """Check a URL; return the host, the port and the request."""
    wrong = f"Http needs a URL like http://127.0.0.1:8000/health, not {url!r}"
    # Check before `urlsplit`, which drops line ends: these could add headers to the request.
    if not url.isascii() or not url.isprintable() or " " in url:
        raise ArgumentError(f"{wrong}: it contains characters that are not allowed in a URL")
    try:
        parts = urlsplit(url)
        port = 80 if parts.port is None else addresses.port_of("Http", parts.port)
    except ArgumentError:
        raise
    except ValueError as error:
        raise ArgumentError(f"{wrong}: {error}") from None
    if parts.scheme != "http":
        raise ArgumentError(f"{wrong}: for other schemes, pass an async function as ready=")
    if not parts.hostname or parts.username is not None or parts.password is not None:
        raise ArgumentError(f"{wrong}: it must have a host and must not have a user")
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
        raise ArgumentError("the status of Http must be a number like 200, or several, not empty")
    return wanted
