"""A listening socket that the parent binds and the child inherits.

Clients can connect before the child runs, because the system keeps the connections until the child
accepts them. So a client does not have to wait until the child listens. To know that the child
*works*, use a probe that gets an answer from it: `Http`, `Line` or `Fd`.
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
BACKLOG_MAX = 65535  # systems have lower limits
USER_ONLY = 0o600
MODE_MAX = 0o777


class Listener:
    """A listening socket, made by `Listener.unix` or `Listener.tcp`.

    The child inherits the socket, in blocking mode, under the number that `fileno()` returns. Put the
    number into its command line, or let the child read its environment variable `LISTEN_FD`. (The
    variables of systemd's socket activation contain the child's pid, which is not known before the
    fork, so they are not set.)

    When the process is gone, the listener is closed and its socket file is removed. A listener made
    with `keep=True` stays open for the next process, until `close()` or the end of a `with` block.
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

        An existing socket file is replaced if no process listens at it.

        Args:
            path: The path of the socket; on Linux a leading NUL makes an abstract path.
            mode: The permissions of the socket file; by default only our own user may connect.
            backlog: How many connections may wait for the child.
            keep: Whether the listener stays open after the process has ended.

        *Raises*: `ArgumentError` if the path is longer than the system allows; `OSError` if the
        socket cannot be bound.
        """
        name = addresses.socket_path("Listener.unix", path)
        bits, length = _mode(mode), _length(backlog)
        sock = _socket(socket.AF_UNIX)
        try:
            if sys.platform == "linux":
                os.fchmod(sock.fileno(), bits)  # before `bind`: the file inherits them
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
        """Listen on a TCP port.

        Args:
            host: An IP address, or `localhost` (127.0.0.1). Other names are refused, because a lookup
                would block.
            port: The port; 0 chooses a free port, which is then in the attribute `port`.
            backlog: How many connections may wait for the child.
            keep: Whether the listener stays open after the process has ended.

        *Raises*: `ArgumentError` if the host is a name; `OSError` if the port cannot be bound.
        """
        text = arguments.check_text("the host of Listener.tcp", host)
        address = addresses.ip_of("127.0.0.1" if text == "localhost" else text)
        if address is None:
            raise ArgumentError(f"Listener.tcp needs an IP address or 'localhost', not {text!r}")
        number = addresses.port_of("Listener.tcp", port, lowest=0)
        length = _length(backlog)
        sock = _socket(addresses.family_of(address))
        try:
            # Without this, the port of a server that has just ended is blocked for a minute.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((address, number))
            sock.listen(length)
        except OSError as error:
            sock.close()
            raise OSError(error.errno, error.strerror, f"{address}:{number}") from None
        return cls(sock, keep=keep)

    def __repr__(self) -> str:
        if self.closed:
            return "<Listener, closed>"
        where = repr(self.path) if self.path is not None else "{}:{}".format(*self.address)
        return f"<Listener at {where}>"

    @property
    def closed(self) -> bool:
        """Whether the listener is closed in this program; the child may still have it open."""
        return self._sock.fileno() < 0

    @property
    def address(self) -> tuple[str, int]:
        """The host and port of a TCP listener."""
        if self.path is not None:
            raise UsageError(f"{self!r} is a unix socket, which has no port: use its path")
        host, port = self._address[:2]
        return str(host), int(port)

    @property
    def port(self) -> int:
        """The port of a TCP listener."""
        return self.address[1]

    def fileno(self) -> int:
        """Return the number of the descriptor, which is the same here and in the child."""
        if self.closed:
            raise UsageError("the listener is closed, as at its process's end: use keep=True")
        return self._sock.fileno()

    def prepare(self, launch: Launch) -> None:
        """Make the child inherit the listener, and close it at the child's end unless it is kept."""
        launch.pass_fds.append(self.fileno())
        launch.env[VARIABLE] = str(self.fileno())
        launch.cleanup.append(self.let_go)

    def let_go(self) -> None:
        """Close the listener unless it is kept. Called when its process has ended or could not start."""
        if not self._keep:
            self.close()

    def close(self) -> None:
        """Close the listener, and remove its socket file if it is still ours. Idempotent."""
        if self.closed:
            return
        # Compare before the close: while the socket is open, its inode is not reused.
        if self._identity is not None and addresses.identity(self.path or "") == self._identity:
            with contextlib.suppress(OSError):
                os.unlink(self.path or "")  # noqa: PTH108 - the path as it was given
        self._sock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _mode(mode: object) -> int:
    """Check the permissions of a socket file, and return them."""
    if isinstance(mode, bool) or not isinstance(mode, int) or not 0 <= mode <= MODE_MAX:
        message = f"the mode of Listener.unix must be one like 0o600, not {mode!r}"
        raise ArgumentError(message)
    return mode


def _length(backlog: object) -> int:
    """Check the length of a listener's queue, and return it."""
    return min(arguments.size("backlog", backlog) or BACKLOG, BACKLOG_MAX)


def _socket(family: socket.AddressFamily) -> socket.socket:
    """Return a new socket whose number a child can inherit unchanged."""
    return socket.socket(fileno=beyond_standard(socket.socket(family).detach()))


def _make_room(path: str) -> bool:
    """Remove a socket file if no process listens at it; return whether it was removed."""
    if addresses.identity(path) is None or not addresses.abandoned(path):
        return False
    os.unlink(path)  # noqa: PTH108 - the path as it was given
    return True
