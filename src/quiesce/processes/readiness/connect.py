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
import struct
from collections.abc import Collection
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import anyio
import anyio.lowlevel

from quiesce.core import arguments
from quiesce.errors import ArgumentError
from quiesce.processes.descriptors import readable, writable
from quiesce.processes.readiness import addresses, peer_identity
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
STRANGER_PAUSE_SECONDS = 0.25  # looking for who it is costs more than an attempt
HEAD_BYTES_MAX = 65536
STATUS_MIN, STATUS_MAX = 200, 599  # below, the answer proper is still to come
STATUSES_SHOWN_MAX = 4
STATUS_LINE = re.compile(rb"HTTP/1\.[0-9] ([1-9][0-9]{2})(?:[ \r\n]|$)")
RESET = struct.pack("ii", 1, 0)  # close without a TIME_WAIT that keeps the port
LOCALHOST = ("127.0.0.1", "::1")
CALL_IT_OFF = "if it is meant, say check_peer=False"


class NotYetError(Exception):
    """This attempt did not find the child ready; the text says why."""


class StrangerError(NotYetError):
    """Somebody else answers."""


class Connecting(Probe):
    """The base of the probes that try until it works."""

    async def wait(self, process: ProbedChild) -> None:
        """Return when an attempt succeeds."""
        self.obstacle = f"{self!r} has given no answer so far"
        await anyio.lowlevel.checkpoint()  # a unix socket may be connected without any wait
        pause, patience = PAUSE_SECONDS_MIN, ATTEMPT_SECONDS
        while True:
            rest = pause
            try:
                with anyio.move_on_after(patience):
                    await self._attempt(process)
                    self.obstacle = None
                    return
                self.obstacle = f"{self!r} gave no answer within {patience:g} s"
                patience *= 2
            except StrangerError as stranger:
                self.obstacle = str(stranger)
                rest = STRANGER_PAUSE_SECONDS
            except NotYetError as reason:
                self.obstacle = str(reason)
            except OSError as error:
                self.obstacle = f"{self!r}: {error.strerror or error}"
            await anyio.sleep(rest)
            pause = min(2 * pause, PAUSE_SECONDS_MAX)

    async def _attempt(self, process: ProbedChild) -> None:
        """Return if the child is ready.

        *Raises*: `NotYetError` or an `OSError` if not.
        """
        raise NotImplementedError


class UnixSocket(Connecting):
    """Ready when the child listens on a unix socket.

    The child sees a connection that is closed at once. When the process is gone, the socket file
    goes too, if it is the child's and nobody listens there.

    On Linux the process that listens is known: it has to be the child, or one that descends from
    it, or is in its session. On macOS that is not checked; the system could tell
    (`LOCAL_PEERPID`), this library does not ask.

    Args:
        path: As the child binds it; a relative one is relative to our own working folder. On Linux
            a NUL in front makes it an abstract one.
        check_peer: Whether to refuse other processes. False for a server that leaves the child's
            session and lets its parent end, and for one in a container that a daemon runs.

    *Raises*: `ArgumentError` if the path is longer than the system allows for a socket.
    """

    def __init__(self, path: str | PathLike[str], *, check_peer: bool = True) -> None:
        self.path: str = addresses.socket_path("UnixSocket", path)
        self._check_peer = check_peer

    def __repr__(self) -> str:
        """Show the path."""
        return f"UnixSocket({self.path!r})"

    def prepare(self, launch: Launch) -> None:
        """See to it that the socket file goes with the child."""
        launch.cleanup.append(addresses.SocketFile(self.path).remove)

    async def _attempt(self, process: ProbedChild) -> None:
        with await connected(socket.AF_UNIX, self.path) as sock:
            if self._check_peer:
                check_unix(sock, self.path, process)


class Tcp(Connecting):
    """Ready when the child takes connections on a TCP port.

    The child sees a connection that is closed at once.

    On Linux, if the address is this machine's, it has to be the child that listens, or one that
    descends from it, or is in its session: the one who has taken the port before it is not ready
    in its place. Elsewhere that is not checked.

    Args:
        host: An IP address, `localhost` (IPv4, then IPv6), or a name, which is looked up in a
            thread: that may outlast a deadline, the wait for it does not.
        port: From 1 to 65535.
        check_peer: As for `UnixSocket`.
    """

    def __init__(self, host: str, port: int, *, check_peer: bool = True) -> None:
        self.host: str = _host("Tcp", host)
        self.port: int = addresses.port_of("Tcp", port)
        self._check_peer = check_peer

    def __repr__(self) -> str:
        """Show the address."""
        return f"Tcp({self.host!r}, {self.port})"

    async def _attempt(self, process: ProbedChild) -> None:
        with await dialled(self.host, self.port) as sock:
            if self._check_peer:
                check_tcp(sock, process)


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
        self.url: str = arguments.check_text("the URL of Http", url)
        self.host: str
        self.port: int
        self.host, self.port, self._request = _parsed(url)
        self.status: tuple[int, ...] = _statuses(status)
        self.unix: str | None = None if unix is None else addresses.socket_path("Http", unix)
        self._check_peer = check_peer

    def __repr__(self) -> str:
        """Show the URL."""
        return f"Http({self.url!r})"

    def prepare(self, launch: Launch) -> None:
        """See to it that the socket file goes with the child, if there is to be one."""
        if self.unix is not None:
            launch.cleanup.append(addresses.SocketFile(self.unix).remove)

    async def _attempt(self, process: ProbedChild) -> None:
        if self.unix is not None:
            connecting = connected(socket.AF_UNIX, self.unix)
        else:
            connecting = dialled(self.host, self.port)
        with await connecting as sock:
            if self._check_peer and self.unix is not None:
                check_unix(sock, self.unix, process)
            elif self._check_peer:
                check_tcp(sock, process)
            self.obstacle: str | None = f"{self!r} takes the connection, and does not answer"
            await _send(sock, self._request)
            status = await _status(sock)
        if status not in self.status:
            few = len(self.status) <= STATUSES_SHOWN_MAX
            wanted = " or ".join(map(str, self.status)) if few else "one that was asked for"
            raise NotYetError(f"{self.url} answers {status}, not {wanted}")


def check_unix(sock: socket.socket, path: str, process: ProbedChild) -> None:
    """Refuse a unix socket that is not the child's."""
    pid = peer_identity.peer_of(sock)
    known = None if pid is None else peer_identity.descends(pid, process.pid)
    if known:
        return
    # Who called listen() need not be who accepts: it may have handed the socket down, and ended.
    held = peer_identity.holds(process.pid, peer_identity.listeners_at(path))
    if held or (held is None and known is None):
        return
    message = f"process {pid} listens at {path!r}, not the child {process.pid}; {CALL_IT_OFF}"
    raise StrangerError(message)


def check_tcp(sock: socket.socket, process: ProbedChild) -> None:
    """Refuse a TCP port of this machine that is not the child's."""
    host, port = sock.getpeername()[:2]
    if host != sock.getsockname()[0] and not ipaddress.ip_address(host).is_loopback:
        return  # another machine's, or a container's: our tables do not know it
    if peer_identity.holds(process.pid, peer_identity.listeners_on(host, port)) is False:
        message = f"another process has port {port} of {host}, not {process.pid}; {CALL_IT_OFF}"
        raise StrangerError(message)


async def connected(family: socket.AddressFamily, address: str | tuple[str, int]) -> socket.socket:
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
            if not connected_to_itself(sock):
                return sock
            failure = ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        except OSError as error:  # it was taken, and reset in the same moment
            failure = error
        sock.close()
    raise failure


def connected_to_itself(sock: socket.socket) -> bool:
    """Return whether a TCP socket has reached nobody but itself, and see that it goes at once.

    Nobody listens on the port, the system picks a port for our end, and picks that very one: then
    TCP connects the socket to itself. It would also keep the child from binding the port.
    """
    if sock.getsockname() != sock.getpeername():
        return False
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    return True


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
