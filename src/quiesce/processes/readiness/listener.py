"""A listener that the parent binds, and hands down to the child.

It can be connected to before the child has even begun, so nobody has to find out when: the system
keeps the connections until the child takes them. That a child *works* is another matter, and still
needs a probe that hears from it: `Http`, `Line` or `Fd`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import sys
from typing import TYPE_CHECKING, Any, Self

from quiesce.core import arguments
from quiesce.errors import ArgumentError, UsageError
from quiesce.processes.descriptors import beyond_standard
from quiesce.processes.readiness import addresses

if TYPE_CHECKING:
    from os import PathLike

    from quiesce.processes.readiness.probe import Launch

__all__ = ["Listener"]

VARIABLE = "LISTEN_FD"
BACKLOG = 128
BACKLOG_MAX = 65535  # systems have a limit of their own, below that
USER_ONLY = 0o600
MODE_MAX = 0o777


class Listener:
    """A listening socket, made by `Listener.unix` or `Listener.tcp`.

    The child inherits it, as a blocking one, under the number that `fileno()` gives here, for its
    command line, and that is in its environment variable `LISTEN_FD`. (The variables of systemd's
    socket activation name the child's id, which nobody knows before the fork; they are not set.)

    It is closed, and its socket file is removed, when the process is gone; one made with
    `keep=True` stays, for the next process, and is closed by `close()` or `with`.
    """

    def __init__(self, sock: socket.socket, *, path: str | None = None, keep: bool = False) -> None:
        self._sock = sock
        self._keep = keep
        self.path: str | None = path
        """The path of a unix socket."""
        self._identity = None if path is None else addresses.identity(path)
        self._address: tuple[Any, ...] = () if path is not None else sock.getsockname()

    @classmethod
    def unix(
        cls,
        path: str | PathLike[str],
        *,
        mode: int = USER_ONLY,
        backlog: int = BACKLOG,
        keep: bool = False,
    ) -> Listener:
        """Listen on a unix socket.

        A socket file that is there, but at which nobody listens any more, is replaced.

        Args:
            path: Where; on Linux a NUL in front makes it an abstract one.
            mode: Who may connect; only our own user by default.
            backlog: How many connections may wait for the child.
            keep: Whether it outlives the process it is given to.

        *Raises*: `ArgumentError` if the path is longer than the system allows; `OSError` if it
        cannot be bound.
        """
        name = addresses.socket_path("Listener.unix", path)
        bits, length = _mode(mode), _length(backlog)
        sock = _socket(socket.AF_UNIX)
        try:
            if sys.platform == "linux":
                os.fchmod(sock.fileno(), bits)  # goes over to the file: it is never open to more
            try:
                sock.bind(name)
            except OSError as error:
                if error.errno != errno.EADDRINUSE or not _make_room(name):
                    raise
                sock.bind(name)
        except OSError as error:
            sock.close()
            raise OSError(error.errno, error.strerror, name) from None
        listener = cls(sock, path=name, keep=keep)
        try:
            if not name.startswith("\0"):
                os.chmod(name, bits)  # noqa: PTH101 - the path as it was given; the umask took from it
            sock.listen(length)
        except OSError as error:
            listener.close()
            raise OSError(error.errno, error.strerror, name) from None
        return listener

    @classmethod
    def tcp(
        cls, host: str = "127.0.0.1", port: int = 0, *, backlog: int = BACKLOG, keep: bool = False
    ) -> Listener:
        """Listen on a TCP port; 0 takes a free one, which `port` then tells.

        Args:
            host: An IP address, or `localhost` (127.0.0.1). Other names are not looked up: that
                would block.
            port: Which, or 0.
            backlog: How many connections may wait for the child.
            keep: Whether it outlives the process it is given to.

        *Raises*: `ArgumentError`; `OSError` if it cannot be bound.
        """
        text = arguments.check_text("the host of Listener.tcp", host)
        address = addresses.ip_of("127.0.0.1" if text == "localhost" else text)
        if address is None:
            raise ArgumentError(f"Listener.tcp needs an IP address or 'localhost', not {text!r}")
        number = addresses.port_of("Listener.tcp", port, lowest=0)
        length = _length(backlog)
        sock = _socket(addresses.family_of(address))
        try:
            # Else the port of a server that has just ended could not be had again for a minute.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((address, number))
            sock.listen(length)
        except OSError as error:
            sock.close()
            raise OSError(error.errno, error.strerror, f"{address}:{number}") from None
        return cls(sock, keep=keep)

    def __repr__(self) -> str:
        """Show where it listens."""
        if self.closed:
            return "<Listener, closed>"
        where = repr(self.path) if self.path is not None else "{}:{}".format(*self.address)
        return f"<Listener at {where}>"

    @property
    def closed(self) -> bool:
        """Whether it is closed here; the child may still have it open."""
        return self._sock.fileno() < 0

    @property
    def address(self) -> tuple[str, int]:
        """The host and port of a TCP listener."""
        if self.path is not None:
            raise UsageError(f"{self!r} is a unix socket: it has a path, and no port")
        host, port = self._address[:2]
        return str(host), int(port)

    @property
    def port(self) -> int:
        """The port of a TCP listener."""
        return self.address[1]

    def fileno(self) -> int:
        """Return the number of the descriptor, here and in the child."""
        if self.closed:
            raise UsageError("the listener is closed: a process that had it is gone; see keep=True")
        return self._sock.fileno()

    def prepare(self, launch: Launch) -> None:
        """Hand it down; from now on the process's end is its end, unless it is kept."""
        launch.pass_fds.append(self.fileno())
        launch.env[VARIABLE] = str(self.fileno())
        launch.cleanup.append(self.let_go)

    def let_go(self) -> None:
        """Close it unless it is kept: the process that it was for is gone, or never came."""
        if not self._keep:
            self.close()

    def close(self) -> None:
        """Close it, and remove its socket file if it is still ours. Does nothing the second time."""
        if self.closed:
            return
        # Before it is closed: as long as it is open, its inode is not given to another.
        if self._identity is not None and addresses.identity(self.path or "") == self._identity:
            with contextlib.suppress(OSError):
                os.unlink(self.path or "")  # noqa: PTH108 - the path as it was given
        self._sock.close()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *exc: object) -> None:
        """Close it."""
        self.close()


def _mode(mode: object) -> int:
    """Check who may connect."""
    if isinstance(mode, bool) or not isinstance(mode, int) or not 0 <= mode <= MODE_MAX:
        message = f"the mode of Listener.unix must be one like 0o600, not {mode!r}"
        raise ArgumentError(message)
    return mode


def _length(backlog: object) -> int:
    """Check the length of a queue."""
    return min(arguments.size("backlog", backlog) or BACKLOG, BACKLOG_MAX)


def _socket(family: socket.AddressFamily) -> socket.socket:
    """Make a socket whose number can be the same in a child."""
    return socket.socket(fileno=beyond_standard(socket.socket(family).detach()))


def _make_room(path: str) -> bool:
    """Remove a socket file that nobody listens at any more."""
    if addresses.identity(path) is None or not addresses.abandoned(path):
        return False
    os.unlink(path)  # noqa: PTH108 - the path as it was given
    return True
