"""Who is at the other end of a socket: the child, or a stranger who was there before it?

A probe that only connects takes an old server at the same address for the new one. Linux tells:

- `SO_PEERCRED` of a unix connection names the process that called `listen()`; `SCM_CREDENTIALS` of
  a datagram names its sender. It is the child if it is in the child's session or process group, or
  descends from it.
- For TCP, and for a unix listener that was made by another (the parent, who handed it down), the
  tables below /proc/net name the listening socket, and /proc/PID/fd who holds it.

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
from pathlib import Path

__all__ = ["SENDER", "descends", "holds", "listeners_at", "listeners_on", "peer_of"]

SENDER = struct.Struct("3i")
"""A `struct ucred`: pid, uid, gid."""
GENERATIONS_MAX = 64
LISTENING_TCP = "0A"
LISTENING_UNIX = 0x10000
PROC = Path("/proc")


def peer_of(sock: socket.socket) -> int | None:
    """Give the id of the process that listens at the other end of a unix connection.

    0: a process that cannot be seen from here, so no descendant of ours.
    """
    if not hasattr(socket, "SO_PEERCRED"):
        return None
    with suppress(OSError):
        data = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, SENDER.size)
        return int(SENDER.unpack(data)[0])
    return None


def descends(pid: int, child: int) -> bool | None:
    """Tell whether a process is the child, of its session or group, or descends from it."""
    if pid <= 0:
        return False
    forebear: int | None = pid
    for _ in range(GENERATIONS_MAX):
        if forebear is None or forebear <= 1:
            break
        if child == forebear or child in _circles(forebear):
            return True
        forebear = _parent(forebear)
    return None if _parent(pid) is None else False


def _circles(pid: int) -> set[int]:
    """Give the session and the group of a process."""
    with suppress(OSError):  # it has ended
        return {os.getsid(pid), os.getpgid(pid)}
    return set()


def _parent(pid: int) -> int | None:
    try:
        text = (PROC / str(pid) / "stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    # The name, in parentheses, may have any characters in it.
    return int(text.rpartition(")")[2].split()[1])


def listeners_at(path: str) -> set[int]:
    """Give the inodes of the unix sockets that listen under a path (with a NUL in front: an abstract one)."""
    shown = "@" + path[1:].replace("\0", "@") if path.startswith("\0") else path
    found = set()
    for row in _table("unix"):
        fields = row.split(maxsplit=7)
        if len(fields) == 8 and fields[7] == shown and int(fields[3], 16) & LISTENING_UNIX:  # noqa: PLR2004 - columns
            found.add(int(fields[6]))
    return found


def listeners_on(host: str, port: int) -> set[int]:
    """Give the inodes of the TCP sockets that take connections to an address.

    One for the very address goes before one for all addresses, as in the kernel.
    """
    exact: set[int] = set()
    wild: set[int] = set()
    addresses = _as_shown(host)
    for row in (*_table("tcp"), *_table("tcp6")):
        fields = row.split()
        if len(fields) > 9 and fields[3] == LISTENING_TCP:  # noqa: PLR2004 - columns
            address, _, number = fields[1].partition(":")
            if int(number, 16) != port:
                continue
            if address in addresses:
                exact.add(int(fields[9]))
            elif not address.strip("0"):
                wild.add(int(fields[9]))
    return exact or wild


def _as_shown(host: str) -> set[str]:
    """Write an address as the tables do: words in the machine's own byte order."""
    if ":" in host:
        packed = [socket.inet_pton(socket.AF_INET6, host.partition("%")[0])]
    else:
        four = socket.inet_pton(socket.AF_INET, host)
        packed = [four, bytes(10) + b"\xff\xff" + four]  # an IPv6 socket may take IPv4 as well
    return {"".join(f"{word:08X}" for (word,) in struct.iter_unpack("=I", one)) for one in packed}


def _table(name: str) -> list[str]:
    try:
        text = (PROC / "self" / "net" / name).read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return []
    return text.split("\n")[1:]


def holds(child: int, inodes: set[int]) -> bool | None:
    """Tell whether the child, or one of its descendants, has one of these sockets open."""
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
    return [pid for pid in pids if pid != child and descends(pid, child)]


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
