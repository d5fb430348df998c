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

from quiesce.errors import ArgumentError, UsageError

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

# The size of sun_path, including the final NUL byte, which abstract names do not need.
PATH_BYTES_MAX = 108 if sys.platform == "linux" else 104
PORT_MAX = 65535
LOOK_SECONDS = 0.05  # a listener on this machine answers at once, unless its queue is full
RESET = struct.pack("ii", 1, 0)  # close without a TIME_WAIT that keeps the port

Address = str | tuple[str, int]


def socket_path(what: str, path: object) -> str:
    """Check the path of a unix socket, and return it. On Linux a path that starts with a NUL is abstract."""
    if not hasattr(socket, "AF_UNIX"):
        message = f"{what} needs unix sockets, which Python does not have on this platform: use TCP"
        raise UsageError(message)
    if not isinstance(path, str | os.PathLike):
        message = f"{what} needs a path, not {path!r}"
        raise ArgumentError(message)
    name: Any = os.fspath(path)
    if not isinstance(name, str) or not name:
        message = f"{what} needs a path that is a string and not empty, not {name!r}"
        raise ArgumentError(message)
    abstract = name.startswith("\0") and sys.platform == "linux"
    if "\0" in name and not abstract:
        message = f"{what}: the path {name!r} contains a NUL: remove it"
        raise ArgumentError(message)
    try:
        size = len(os.fsencode(name))
    except UnicodeEncodeError as error:
        message = f"{what}: the file system's encoding cannot express the path {name!r}"
        raise ArgumentError(message) from error
    size_max = PATH_BYTES_MAX if abstract else PATH_BYTES_MAX - 1
    if size > size_max:
        message = (
            f"{what}: the path {name!r} has {size} bytes, but a socket's path may have at most "
            f"{size_max}: use a shorter folder"
        )
        raise ArgumentError(message)
    return name


def port_of(what: str, port: object, *, lowest: int = 1) -> int:
    """Check a port, and return it."""
    if isinstance(port, bool) or not isinstance(port, int) or not lowest <= port <= PORT_MAX:
        message = f"{what} needs a port, a whole number from {lowest} to {PORT_MAX}, not {port!r}"
        raise ArgumentError(message)
    return port


def ip_of(host: str) -> str | None:
    """Return the host if it is an IP address; None if it is a name."""
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return None


def family_of(host: str) -> socket.AddressFamily:
    """Return the address family of a host: IPv6 if it has a colon, else IPv4."""
    return socket.AF_INET6 if ":" in host else socket.AF_INET


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of a socket file: inode and time, because inode numbers are reused at once."""

    device: int
    inode: int
    born: int


def identity(path: str) -> Identity | None:
    """Return the identity of the socket at a path; None if no socket is there."""
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
    """The socket file that a child will create, distinguished from a file that exists before."""

    def __init__(self, path: str) -> None:
        """Record the file that exists now."""
        self._path = path
        self._before = identity(path)

    def remove(self) -> None:
        """Remove the file that the child created, unless a process listens at it."""
        now = identity(self._path)
        if now is not None and now != self._before and abandoned(self._path):
            with contextlib.suppress(OSError):
                os.unlink(self._path)  # noqa: PTH108 - the path as it was given


def abandoned(path: str) -> bool:
    """Return whether no process listens at a socket file any more."""
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
    """Return whether a process of this machine listens at an address, even if its queue is full."""
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
    """Return whether a TCP socket is connected to itself; if so, make its close free the port at once.

    This happens if no process listens on the port, and the system chooses the same port for our end.
    Such a connection would keep the child from binding the port.
    """
    if sock.getsockname() != sock.getpeername():
        return False
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    return True
