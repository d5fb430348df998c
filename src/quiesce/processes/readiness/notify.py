"""The child says that it is ready, by the protocol that systemd's services use."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import sys
import tempfile
from array import array
from pathlib import Path

import anyio

from quiesce.errors import UsageError
from quiesce.processes.descriptors import readable
from quiesce.processes.readiness import addresses, peer_identity
from quiesce.processes.readiness.probe import Launch, Probe, ProbedChild

__all__ = ["Notify"]

VARIABLE = "NOTIFY_SOCKET"
MESSAGE_BYTES_MAX = 65536
DESCRIPTORS_MAX = 253  # what Linux puts into one message
ANCILLARY_BYTES = socket.CMSG_SPACE(DESCRIPTORS_MAX * array("i").itemsize) + socket.CMSG_SPACE(
    peer_identity.SENDER.size
)


class Notify(Probe):
    """Ready when the child sends `READY=1` to the socket in `NOTIFY_SOCKET`, as `sd_notify` does.

    On Linux the socket has an abstract name, so that no file is left even if we are killed; the
    message has to come from the child, or one that descends from it, or is in its session. A
    sender that has ended already (the `systemd-notify` command is gone at once) cannot be asked:
    it has to be of our own user, or root. Elsewhere the socket is in a folder that only our own
    user may enter; who has sent a message is not known there (macOS tells that of connections
    only).

    The socket is closed when the child is ready. What the child sends later is refused, which such
    programs are used to: it never has to wait for a reader.

    Args:
        abstract: Whether the name is an abstract one, which the variable tells by an `@` in front.
            False for a child in another network namespace, and for one that takes the variable
            for a path whatever it begins with. By default, True on Linux.
        check_peer: As for `UnixSocket`.
    """

    def __init__(
        self, *, abstract: bool = sys.platform == "linux", check_peer: bool = True
    ) -> None:
        self._abstract = abstract
        self._check_peer = check_peer
        self._sock: socket.socket | None = None
        self._folder: str | None = None
        self._name = self._silent = ""
        self._prepared = self._waiting = False

    def __repr__(self) -> str:
        """Show what it is."""
        return "Notify()"

    def __copy__(self) -> Notify:
        """Return one with no socket of its own yet."""
        return Notify(abstract=self._abstract, check_peer=self._check_peer)

    def prepare(self, launch: Launch) -> None:
        """Bind the socket."""
        if self._prepared:
            raise UsageError("this Notify is another process's already: give each its own")
        self._prepared = True
        launch.cleanup.append(self._clean)
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._sock.settimeout(0)
        if hasattr(socket, "SO_PASSCRED"):  # before a message can arrive without a sender
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        if self._abstract:
            self._name = f"@quiesce-{secrets.token_hex(16)}"
            self._sock.bind(self._name.replace("@", "\0", 1))
        else:
            self._folder = tempfile.mkdtemp(prefix="quiesce-")
            self._name = addresses.socket_path("Notify", Path(self._folder) / "notify")
            self._sock.bind(self._name)
        launch.env[VARIABLE] = self._name

    async def wait(self, process: ProbedChild) -> None:
        """Return when the message has come."""
        if not self._prepared:
            raise UsageError("Notify: prepare() goes before wait()")
        sock = self._sock
        if sock is None:  # the process was gone before we came here
            await anyio.sleep_forever()
            return
        self.obstacle = self._silent = f"it has not sent READY=1 to {self._name}"
        self._waiting = True
        try:
            while True:
                await readable(sock.fileno())
                if self._ready_in(sock, process):
                    break
            self.obstacle = None
        finally:
            self._waiting = False
            self._clean()

    def _ready_in(self, sock: socket.socket, process: ProbedChild) -> bool:
        """Read one message."""
        try:
            data, ancillary, _, _ = sock.recvmsg(MESSAGE_BYTES_MAX, ANCILLARY_BYTES)
        except BlockingIOError:
            return False
        refused = self._refused(ancillary, process)
        _close_descriptors(ancillary)
        if refused is not None:
            self.obstacle = refused
            return False
        words = data.split(b"\n")
        for word in words:
            if word.startswith(b"STATUS="):
                text = word.removeprefix(b"STATUS=").decode("utf-8", "replace")
                self.obstacle = f"{self._silent}; its status is {text!r}"
        return b"READY=1" in words

    def _refused(self, ancillary: list[tuple[int, int, bytes]], process: ProbedChild) -> str | None:
        """Say why a message does not count."""
        if not self._check_peer or not hasattr(socket, "SCM_CREDENTIALS"):
            return None
        for level, kind, data in ancillary:
            if (level, kind) != (socket.SOL_SOCKET, socket.SCM_CREDENTIALS):
                continue
            pid, user, _ = peer_identity.SENDER.unpack(data[: peer_identity.SENDER.size])
            known = peer_identity.descends(pid, process.pid)
            if known is None:
                known = user in {0, os.geteuid()}
            if known:
                return None
            return f"a message came from process {pid}, which is not the child's"
        return "a message came from nobody"

    def _clean(self) -> None:
        if self._waiting:
            return
        sock, self._sock = self._sock, None
        if sock is not None:
            sock.close()
        folder, self._folder = self._folder, None
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


def _close_descriptors(ancillary: list[tuple[int, int, bytes]]) -> None:
    """Close what came with a message: they are ours now, and `BARRIER=1` waits for just that."""
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            numbers = array("i")
            numbers.frombytes(data[: len(data) - len(data) % numbers.itemsize])
            for number in numbers:
                with contextlib.suppress(OSError):
                    os.close(number)
