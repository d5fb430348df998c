"""A listener that the parent binds and hands down."""

from __future__ import annotations

import errno
import os
import socket
import stat
import sys
from typing import TYPE_CHECKING

import anyio
import pytest

from quiesce.errors import UsageError
from quiesce.processes.descriptors import readable
from quiesce.processes.readiness import addresses
from quiesce.processes.readiness.listener import Listener
from quiesce.processes.readiness.probe import Fd, Launch, Line
from tests.unit.processes.ready_children import nothing_left, ready_after, started

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.real_time


@pytest.fixture(autouse=True)
def _nothing_left(tmp_path: Path) -> Iterator[None]:
    with nothing_left(tmp_path):
        yield


@pytest.mark.parametrize("kind", ["unix", "tcp", "abstract"])
async def test_a_client_may_come_before_the_child(kind: str, tmp_path: Path) -> None:
    """A connection made before the child has begun is served by it, and all goes with it."""
    if kind == "abstract" and sys.platform != "linux":
        pytest.skip("abstract names are Linux's")
    path = str(tmp_path / "socket") if kind == "unix" else f"\0{tmp_path.name}-quiesce"
    listener = Listener.tcp() if kind == "tcp" else Listener.unix(path)
    address = listener.address if kind == "tcp" else path
    with socket.socket(socket.AF_INET if kind == "tcp" else socket.AF_UNIX) as client:
        client.connect(address)
        client.setblocking(False)  # noqa: FBT003 - that is its only argument
        with started(Line("done"), "accept", listener=listener) as (child, probe):
            await ready_after(child, probe, "no line")
            with anyio.fail_after(10):
                await readable(client.fileno())
            assert client.recv(100) == b"hello"
    assert listener.closed
    with pytest.raises(UsageError, match="closed"):
        listener.fileno()
    assert repr(listener) == "<Listener, closed>"


async def test_a_kept_listener_serves_the_next_process(tmp_path: Path) -> None:
    """With keep=True a process's end is not the listener's: who waits is served by the next."""
    with Listener.unix(tmp_path / "socket", keep=True) as listener:
        with started(Line("done"), "line", listener=listener):
            pass
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(tmp_path / "socket"))
            with started(Line("done"), "accept", listener=listener) as (child, probe):
                await ready_after(child, probe, "no line")
    assert listener.closed


def test_only_our_own_user_may_connect(tmp_path: Path) -> None:
    """The socket file is private unless another mode is asked for."""
    with Listener.unix(tmp_path / "a") as listener:
        assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o600
        assert repr(listener) == f"<Listener at {str(tmp_path / 'a')!r}>"
        with pytest.raises(UsageError, match="has no port: use its path"):
            _ = listener.port
    with Listener.unix(tmp_path / "b", mode=0o666):
        assert stat.S_IMODE((tmp_path / "b").stat().st_mode) == 0o666, "whatever the umask is"


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere it is bound with the umask's")
def test_nobody_else_may_connect_for_a_moment_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is private from its first moment on, not only in the end."""
    seen: list[int] = []
    monkeypatch.setattr(os, "chmod", lambda path, _: seen.append(os.stat(path).st_mode))  # noqa: PTH116 - as it was given
    mask = os.umask(0)
    try:
        Listener.unix(tmp_path / "socket").close()
    finally:
        os.umask(mask)
    assert [stat.S_IMODE(mode) for mode in seen] == [0o600]


def test_a_dead_socket_file_is_replaced(tmp_path: Path) -> None:
    """What a server that was killed left behind is no hindrance."""
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as old:
        old.bind(str(path))
    with Listener.unix(path), socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))


def test_a_live_server_or_a_file_is_left_alone(tmp_path: Path) -> None:
    """What is in use, and what is no socket, is an error that names the path."""
    path = tmp_path / "socket"
    with Listener.unix(path), pytest.raises(OSError, match=str(path)) as caught:
        Listener.unix(path)
    assert caught.value.errno == errno.EADDRINUSE
    path.write_text("precious")
    with pytest.raises(OSError, match=str(path)):
        Listener.unix(path)
    assert path.read_text() == "precious"
    path.unlink()
    with pytest.raises(FileNotFoundError, match="no-such-folder"):
        Listener.unix(tmp_path / "no-such-folder" / "socket")


@pytest.mark.parametrize("call", ["listen", "chmod"])
def test_a_listener_that_fails_leaves_no_file(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was bound already is removed if the rest cannot be had."""

    def fail(*_: object) -> None:
        raise OSError(errno.ENOBUFS, "no room")

    monkeypatch.setattr(socket.socket if call == "listen" else os, call, fail)
    with pytest.raises(OSError, match=r"no room: .*socket"):
        Listener.unix(tmp_path / "socket")


def test_a_queue_as_long_as_can_be(tmp_path: Path) -> None:
    """However many may wait, the system's own limit is the limit."""
    with Listener.unix(tmp_path / "socket", backlog=2**40), Listener.tcp(backlog=2**40):
        pass


def test_the_child_gets_a_blocking_socket(tmp_path: Path) -> None:
    """As from others who hand sockets down: a simple server's accept() waits."""
    with Listener.unix(tmp_path / "socket") as unix, Listener.tcp() as tcp:
        assert [os.get_blocking(one.fileno()) for one in (unix, tcp)] == [True, True]


def test_what_a_child_inherits_is_beyond_its_input_and_outputs() -> None:
    """A daemon's standard input is closed, so the next file has its number; in a child it has not."""
    launch = Launch([], {})
    spare = os.dup(0)
    os.close(0)
    try:
        listener = Listener.tcp()
        Fd().prepare(launch)
    finally:
        os.dup2(spare, 0)
        os.close(spare)
    number = listener.fileno()
    listener.close()
    launch.cleanup[0]()
    assert number > 2
    assert launch.pass_fds[0] > 2


def test_another_socket_at_the_path_is_left_alone(tmp_path: Path) -> None:
    """A listener removes its own file only, not its successor's."""
    path = tmp_path / "socket"
    first = Listener.unix(path)
    path.unlink()
    with Listener.unix(path):
        first.close()
        first.close()
        assert path.is_socket()
    assert not addresses.abandoned(str(path)), "there is nothing"


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
def test_a_free_port_is_found(host: str) -> None:
    """Port 0 takes a free one, and the listener tells which."""
    try:
        listener = Listener.tcp(host)
    except OSError:
        pytest.skip("there is no IPv6 here")
    with listener:
        assert listener.port > 0
        assert repr(listener) == "<Listener at {}:{}>".format(*listener.address)
        launch = Launch([], {})
        listener.prepare(launch)
        assert launch.pass_fds == [listener.fileno()]
        assert launch.env == {"LISTEN_FD": str(listener.fileno())}
        with pytest.raises(OSError, match=f"in use: '{listener.address[0]}:{listener.port}'"):
            Listener.tcp(host, listener.port)
    assert listener.port > 0, "it is told also when all is over"
