"""Checks of the addresses that users pass in, for probes and listeners."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import stat
import struct
import sys
from dataclasses import dataclass
from typing import Any

from quiesce.errors import ArgumentError

__all__ = [
    "Address",
    "Identity",
    "SocketFile",
    "abandoned",
    "connected_to_itself",
    "family_of",
    "identity",
    "ip_of",
    "is_taken",
    "port_of",
    "socket_path",
]

# The size of sun_path, with the byte that ends it. Abstract names need no such byte.
PATH_BYTES_MAX = 108 if sys.platform == "linux" else 104
PORT_MAX = 65535
LOOK_SECONDS = (
    0.05  # on this machine an answer comes at once, unless the queue of the listener is full
)
RESET = struct.pack("ii", 1, 0)  # close without a TIME_WAIT that keeps the port

Address = str | tuple[str, int]


def socket_path(what: str, path: object) -> str:
    """Check the path of a unix socket; on Linux one that starts with a NUL is abstract."""
    if not isinstance(path, str | os.PathLike):
        message = f"{what} needs a path, not {path!r}"
        raise ArgumentError(message)
    name: Any = os.fspath(path)
    if not isinstance(name, str) or not name:
        message = f"{what} needs a path that is text, and not empty, not {name!r}"
        raise ArgumentError(message)
    abstract = name.startswith("\0") and sys.platform == "linux"
    if "\0" in name and not abstract:
        message = f"{what}: there is a NUL in the path {name!r}"
        raise ArgumentError(message)
    try:
        size = len(os.fsencode(name))
    except UnicodeEncodeError as error:
        message = f"{what}: the path {name!r} cannot be written in the system's encoding"
        raise ArgumentError(message) from error
    size_max = PATH_BYTES_MAX if abstract else PATH_BYTES_MAX - 1
    if size > size_max:
        message = (
            f"{what}: {name!r} has {size} bytes, and the path of a socket at most {size_max}: "
            "use a shorter folder"
        )
        raise ArgumentError(message)
    return name


def port_of(what: str, port: object, *, lowest: int = 1) -> int:
    """Check a port."""
    if isinstance(port, bool) or not isinstance(port, int) or not lowest <= port <= PORT_MAX:
        message = f"{what} needs a port, a whole number from {lowest} to {PORT_MAX}, not {port!r}"
        raise ArgumentError(message)
    return port


def ip_of(host: str) -> str | None:
    """Return the address itself, if it is one and no name."""
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return None


def family_of(host: str) -> socket.AddressFamily:
    """Return the address family of a host: IPv6 if it has a colon, else IPv4."""
    return socket.AF_INET6 if ":" in host else socket.AF_INET


@dataclass(frozen=True, slots=True)
class Identity:
    """Which socket file it is. Inode numbers are used again at once, so the time counts too."""

    device: int
    inode: int
    born: int


def identity(path: str) -> Identity | None:
    """Look which socket is at a path; None: none is."""
    if path.startswith("\0"):
        return None
    try:
        seen = os.lstat(path)
    except OSError:
        return None
    if not stat.S_ISSOCK(seen.st_mode):
        return None
    return Identity(seen.st_dev, seen.st_ino, seen.st_mtime_ns)


class SocketFile:
    """The file of a socket that a child is going to bind; whatever is there already is not its."""

    def __init__(self, path: str) -> None:
        """See what is there."""
        self._path = path
        self._before = identity(path)

    def remove(self) -> None:
        """Remove what the child has left there, unless somebody listens at it."""
        now = identity(self._path)
        if now is not None and now != self._before and abandoned(self._path):
            with contextlib.suppress(OSError):
                os.unlink(self._path)  # noqa: PTH108 - the path as it was given


def abandoned(path: str) -> bool:
    """Return whether nobody listens at a socket file any more."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(0)
        try:
            sock.connect(path)
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return False


def is_taken(family: socket.AddressFamily, address: Address) -> bool:
    """Return whether a process of this machine listens at an address, also if its queue is full."""
    with socket.socket(family, socket.SOCK_STREAM) as sock:
        sock.settimeout(LOOK_SECONDS if family != socket.AF_UNIX else 0)
        try:
            sock.connect(address)
            return family == socket.AF_UNIX or not connected_to_itself(sock)
        except (BlockingIOError, TimeoutError):
            return True
        except OSError:
            return False


def connected_to_itself(sock: socket.socket) -> bool:
    """Return whether a TCP socket has reached nobody but itself, and see that it goes at once.

    Nobody listens on the port, the system picks a port for our end, and picks that very one: then
    TCP connects the socket to itself. It would also keep the child from binding the port.
    """
    if sock.getsockname() != sock.getpeername():
        return False
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    return True
