"""Who is at the other end of a socket: the child, or a stranger who was there before it?

A probe that only connects takes an old server at the same address for the new one. Linux tells:

- `SO_PEERCRED` of a unix connection names the process that called `listen()`; `SCM_CREDENTIALS` of
  a datagram names its sender. It is the child if it is in the child's session or process group, or
  descends from it.
- For TCP, and for a unix listener that was made by another (the parent, who handed it down, or one
  that has ended since), the tables below /proc/net name the listening socket, and /proc/PID/fd who
  holds it.

Each answer is True, False, or None: the system cannot tell (the process has ended, is another
user's, or /proc is not there), and then nobody is refused.

macOS has `LOCAL_PEERPID` and `LOCAL_PEERCRED` for unix connections, nothing for datagrams, and for
TCP only `proc_pidfdinfo`, which Python does not offer. None of it is used here: there, every answer
is None.
"""

from __future__ import annotations

import os
import socket
import struct
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Kin = tuple[int, int, int]

__all__ = ["SENDER", "descends", "holds", "listeners_at", "listeners_on", "peer_of"]

SENDER = struct.Struct("3i")
"""A `struct ucred`: pid, uid, gid."""
GENERATIONS_MAX = 64
LISTENING_TCP = "0A"
LISTENING_UNIX = 0x10000
PROC = "/proc"
MAPPED = bytes(10) + b"\xff\xff"  # an IPv4 address, as one of IPv6


def peer_of(sock: socket.socket) -> int | None:
    """Return the id of the process that listens at the other end of a unix connection.

    0: a process that cannot be seen from here, so no descendant of ours.
    """
    if not hasattr(socket, "SO_PEERCRED"):
        return None
    with suppress(OSError):
        data = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, SENDER.size)
        return int(SENDER.unpack(data)[0])
    return None


def descends(pid: int, child: int) -> bool | None:
    """Return whether a process is the child, of its session or group, or descends from it."""
    return _descends(pid, child, _kin)


def _descends(pid: int, child: int, kin_of: Callable[[int], Kin | None]) -> bool | None:
    if pid <= 0:
        return False
    forebear = pid
    for _ in range(GENERATIONS_MAX):
        if forebear == child:
            return True
        kin = kin_of(forebear)
        if kin is None and forebear == pid:
            return None
        if kin is None:
            forebear = pid  # one between has just ended: what was its child has another parent now
            continue
        if child in kin:
            return True
        forebear = kin[0]
        if forebear <= 1:
            break
    return False


def _kin(pid: int) -> Kin | None:
    """Return the parent, the group and the session of a process; None: it has ended, or is hidden."""
    try:
        with open(f"{PROC}/{pid}/stat", "rb") as file:  # noqa: PTH123 - for each process: be quick
            text = file.read()
    except OSError:
        return None
    # The name, in parentheses, may have any characters in it.
    _, parent, group, session, *_ = text.rpartition(b")")[2].split()
    return int(parent), int(group), int(session)


def listeners_at(path: str) -> set[int]:
    """Return the inodes of the unix sockets that listen under a path (with a NUL in front: an abstract one)."""
    shown = "@" + path[1:].replace("\0", "@") if path.startswith("\0") else path
    found = set()
    for row in _rows("unix"):
        fields = row.rstrip("\n").split(maxsplit=7)
        if len(fields) == 8 and fields[7] == shown and int(fields[3], 16) & LISTENING_UNIX:  # noqa: PLR2004 - columns
            found.add(int(fields[6]))
    return found


def listeners_on(host: str, port: int) -> set[int]:
    """Return the inodes of the TCP sockets that take connections to an address."""
    found: dict[tuple[str, str], set[int]] = {}
    for table in ("tcp", "tcp6"):
        for local, inode in _listening(table):
            found.setdefault((table, local), set()).add(inode)
    for table, packed in _takers(host):
        # Words in the machine's own byte order.
        words = (f"{word:08X}" for (word,) in struct.iter_unpack("=I", packed))
        inodes = found.get((table, f"{''.join(words)}:{port:04X}"))
        if inodes:
            return inodes
    return set()


def _takers(host: str) -> list[tuple[str, bytes]]:
    """Name who takes connections to an address, in the order in which the kernel asks.

    One for the very address goes before one for all addresses, and a socket of IPv4 before one of
    IPv6 that takes IPv4 as well.
    """
    if ":" in host:
        address = socket.inet_pton(socket.AF_INET6, host.partition("%")[0])
    else:
        address = MAPPED + socket.inet_pton(socket.AF_INET, host)
    if not address.startswith(MAPPED):
        return [("tcp6", address), ("tcp6", bytes(16))]
    four = address.removeprefix(MAPPED)
    return [("tcp", four), ("tcp6", address), ("tcp", bytes(4)), ("tcp6", bytes(16))]


def _listening(table: str) -> Iterator[tuple[str, int]]:
    """Return the local address, as the table shows it, and the inode of each listening socket."""
    for row in _rows(table):
        fields = row.split()
        if len(fields) < 10 or fields[3] != LISTENING_TCP:  # noqa: PLR2004 - columns
            return  # the kernel promises that these come first; there may be very many others
        yield fields[1], int(fields[9])


def _rows(table: str) -> Iterator[str]:
    path = f"{PROC}/self/net/{table}"
    with (
        suppress(OSError),
        open(path, encoding="utf-8", errors="surrogateescape", newline="\n") as file,  # noqa: PTH123 - as above
    ):
        next(file, None)  # the names of the columns
        yield from file


def holds(child: int, inodes: set[int]) -> bool | None:
    """Return whether the child, or one of its descendants, has one of these sockets open."""
    if not inodes:
        return None
    wanted = {f"socket:[{inode}]" for inode in inodes}
    unknown = False
    # Most often it is the child itself: only a wrapper's server needs the look at all processes.
    for family in ([child], _descendants(child)):
        for pid in family:
            held = _has_open(pid, wanted)
            if held:
                return True
            unknown = unknown or held is None
        if unknown:
            return None
    return False


def _descendants(child: int) -> list[int]:
    pids = [int(name) for name in os.listdir(PROC) if name.isdigit()]  # noqa: PTH208 - only names
    kin = {pid: _kin(pid) for pid in pids}  # each is asked once, also if many descend from it
    return [pid for pid in pids if pid != child and _descends(pid, child, kin.get)]


def _has_open(pid: int, wanted: set[str]) -> bool | None:
    folder = f"{PROC}/{pid}/fd"
    try:
        names = os.listdir(folder)  # noqa: PTH208 - only names
    except PermissionError:
        return None
    except OSError:
        return False  # it has ended
    for name in names:
        with suppress(OSError):  # closed meanwhile
            if os.readlink(f"{folder}/{name}") in wanted:  # noqa: PTH115 - it is no path
                return True
    return False
