"""Probes tell the child from strangers, where the system can."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from quiesce.processes.readiness import peer_identity
from quiesce.processes.readiness.connect import Http, Tcp, UnixSocket
from quiesce.processes.readiness.listener import Listener
from quiesce.processes.readiness.notify import Notify
from tests.unit.processes.ready_children import (
    free_port,
    never_ready,
    nothing_left,
    ready_after,
    started,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [
    pytest.mark.real_time,
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux is asked who it is"),
]

STRANGER = "not the child"


@pytest.fixture(autouse=True)
def _nothing_left(tmp_path: Path) -> Iterator[None]:
    with nothing_left(tmp_path):
        yield


@pytest.mark.parametrize("kind", [UnixSocket, Http])
async def test_a_stranger_at_the_path_is_not_the_child(kind: type, tmp_path: Path) -> None:
    """An old server at the same path is not taken for the child, nor is its socket removed."""
    path = tmp_path / "socket"
    probe = UnixSocket(path) if kind is UnixSocket else Http("http://x/", unix=path)
    with socket.socket(socket.AF_UNIX) as old:
        old.bind(str(path))
        old.listen()
        with started(probe, "line") as (child, waiting):
            await never_ready(child, waiting, f"process {os.getpid()} listens")
        assert path.is_socket()
    path.unlink()


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
@pytest.mark.parametrize("kind", [Tcp, Http])
async def test_a_stranger_at_the_port_is_not_the_child(kind: type, host: str) -> None:
    """A server that has taken the port before the child is not ready in its place."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        server = socket.create_server((host, 0), family=family)
    except OSError:
        pytest.skip("there is no IPv6 here")
    with server:
        port = server.getsockname()[1]
        shown = f"[{host}]" if ":" in host else host
        probe = Tcp(host, port) if kind is Tcp else Http(f"http://{shown}:{port}/")
        with started(probe, "line") as (child, waiting):
            await never_ready(child, waiting, f"another process has port {port}")


async def test_strangers_count_if_asked_for(tmp_path: Path) -> None:
    """With check_peer=False it is enough that somebody answers."""
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as old, socket.create_server(("127.0.0.1", 0)) as server:
        old.bind(str(path))
        old.listen()
        port = server.getsockname()[1]
        with started(UnixSocket(path, check_peer=False), "line") as (child, probe):
            await ready_after(child, probe)
        with started(Tcp("127.0.0.1", port, check_peer=False), "line") as (child, probe):
            await ready_after(child, probe)
    path.unlink()


@pytest.mark.parametrize(
    "wrapped", [("wrapped", "same"), ("wrapped", "own"), ("wrapped", "own", "wrapped", "own")]
)
async def test_a_wrappers_server_is_the_childs(wrapped: tuple[str, ...], tmp_path: Path) -> None:
    """What a child of the child does counts, or a child of that, even from sessions of their own."""
    path = tmp_path / "socket"
    port = free_port()
    cases: list[tuple[object, tuple[str, ...], str]] = [
        (UnixSocket(path), ("unix", str(path)), "No such file"),
        (Tcp("127.0.0.1", port), ("tcp", "127.0.0.1", str(port)), "refused"),
        (Notify(), ("notify", "READY=1"), "it has not sent READY=1"),
    ]
    for given, argv, met in cases:
        with started(given, *wrapped, *argv) as (child, probe):
            await ready_after(child, probe, met)
    path.unlink(missing_ok=True)  # a grandchild in a session of its own may outlive the child


async def test_a_listener_that_was_handed_down_is_the_childs(tmp_path: Path) -> None:
    """The parent made the socket, but the child has it."""
    path = tmp_path / "socket"
    listener = Listener.unix(path)
    with started(UnixSocket(path), "accept", listener=listener) as (child, probe):
        await ready_after(child, probe)
    listener = Listener.tcp()
    with started(Tcp(*listener.address), "accept", listener=listener) as (child, probe):
        await ready_after(child, probe)


async def test_a_stranger_whose_listener_has_ended_is_a_stranger(tmp_path: Path) -> None:
    """Who called listen() is gone, but not the one it had the socket from: that is not the child."""
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as old:
        old.bind(str(path))
        code = f"import socket; socket.socket(fileno={old.fileno()}).listen()"
        argv = [sys.executable, "-S", "-c", code]
        subprocess.run(argv, pass_fds=[old.fileno()], check=True)  # noqa: ASYNC221 - it is brief
        with started(UnixSocket(path), "line") as (child, probe):
            await never_ready(child, probe, f"listens at {str(path)!r}, not the child")
    path.unlink()


@pytest.mark.parametrize("message", [b"READY=1", b"STATUS=x\nREADY=1"])
async def test_a_strangers_word_does_not_count(message: bytes) -> None:
    """A READY=1 from a process that is not the child's is refused, and the child's own is not."""
    with (
        started(Notify(), "notify", "READY=1") as (child, probe),
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock,
    ):
        sock.connect(probe._sock.getsockname())
        sock.send(message)
        await ready_after(child, probe, f"from process {os.getpid()}, which is not the child's")


def test_who_descends_from_whom() -> None:
    """This process descends from its parent and itself; of a process that is gone, nobody knows."""
    me = os.getpid()
    assert peer_identity.descends(me, me)
    assert peer_identity.descends(me, os.getppid())
    assert peer_identity.descends(os.getppid(), me) is False
    assert peer_identity.descends(0, me) is False
    with started(Notify(), "line") as (child, _):
        assert peer_identity.descends(child.pid, me)
        assert peer_identity.descends(me, child.pid) is False
    assert peer_identity.descends(child.pid, me) is None


def test_one_who_gets_another_parent_meanwhile_is_looked_at_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A script's helper may end between two looks; what it started is not a stranger's by that."""
    seen: list[int] = []

    def kin(pid: int) -> tuple[int, int, int] | None:
        seen.append(pid)
        if pid == 30:
            return (20, 30, 30) if seen.count(30) == 1 else (10, 30, 30)
        return None  # 20 has ended

    monkeypatch.setattr(peer_identity, "_kin", kin)
    assert peer_identity.descends(30, 10) is True
    assert seen == [30, 20, 30]
    monkeypatch.setattr(peer_identity, "_kin", lambda pid: (20, 30, 30) if pid == 30 else None)
    assert peer_identity.descends(30, 10) is False, "it is hidden, and not ended"


def test_of_an_unknown_socket_nobody_knows() -> None:
    """A socket that is in no table of this machine is not refused."""
    port = free_port()
    assert peer_identity.listeners_on("127.0.0.1", port) == set()
    assert peer_identity.listeners_at("nowhere") == set()
    assert peer_identity.holds(os.getpid(), set()) is None


def test_the_very_address_goes_before_all_addresses() -> None:
    """A socket for one address takes its connections, not the one for all."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        inode = os.fstat(server.fileno()).st_ino
        assert peer_identity.listeners_on("127.0.0.1", port) == {inode}
        assert peer_identity.listeners_on("127.0.0.2", port) == set()
        assert peer_identity.holds(os.getpid(), {inode})
    with (
        socket.create_server(("127.0.0.1", 0), reuse_port=True) as one,
        socket.create_server(("0.0.0.0", one.getsockname()[1]), reuse_port=True) as server,  # noqa: S104 - the case is all addresses
    ):
        port = one.getsockname()[1]
        assert peer_identity.listeners_on("127.0.0.1", port) == {os.fstat(one.fileno()).st_ino}
        assert peer_identity.listeners_on("127.0.0.2", port) == {os.fstat(server.fileno()).st_ino}
    with socket.create_server(("0.0.0.0", 0)) as server:  # noqa: S104 - the case is all addresses
        port = server.getsockname()[1]
        assert peer_identity.listeners_on("127.0.0.2", port) == {os.fstat(server.fileno()).st_ino}


def test_each_family_has_its_own() -> None:
    """Of two for all addresses, the one of IPv4 takes IPv4, and never IPv6."""
    with socket.create_server(("0.0.0.0", 0)) as four:  # noqa: S104 - the case is all addresses
        port = four.getsockname()[1]
        inode = os.fstat(four.fileno()).st_ino
        assert peer_identity.listeners_on("::ffff:127.0.0.1", port) == {inode}
        assert peer_identity.listeners_on("::1", port) == set()
        try:
            six = socket.create_server(("::", port), family=socket.AF_INET6)
        except OSError:
            pytest.skip("there is no IPv6 here")
        with six:
            assert peer_identity.listeners_on("127.0.0.1", port) == {inode}
            assert peer_identity.listeners_on("::1", port) == {os.fstat(six.fileno()).st_ino}
    with socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as both:
        port = both.getsockname()[1]
        assert peer_identity.listeners_on("127.0.0.1", port) == {os.fstat(both.fileno()).st_ino}
