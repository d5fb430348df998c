"""Probes that connect: ready when the child answers, and not before."""

from __future__ import annotations

import socket
import sys
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from quiesce.processes.descriptors import readable
from quiesce.processes.readiness import addresses, connect
from quiesce.processes.readiness.connect import Http, Tcp, UnixSocket
from quiesce.processes.readiness.probe import Launch
from tests.unit.processes.ready_children import (
    free_port,
    never_ready,
    nothing_left,
    obstacle,
    ready_after,
    started,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.real_time

OK = r"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
NOT_YET = r"HTTP/1.1 503 Starting\r\n\r\n"


@pytest.fixture(autouse=True)
def _nothing_left(tmp_path: Path) -> Iterator[None]:
    with nothing_left(tmp_path):
        yield


async def test_a_unix_socket_is_ready_when_the_child_listens(tmp_path: Path) -> None:
    """The probe waits for the file and the listener, and the file goes with the process."""
    path = tmp_path / "socket"
    with started(UnixSocket(path), "unix", str(path)) as (child, probe):
        await ready_after(child, probe, "No such file")
        assert path.is_socket()
    assert not path.exists()


@pytest.mark.skipif(sys.platform != "linux", reason="abstract names are Linux's")
async def test_an_abstract_unix_socket_is_ready_when_the_child_listens() -> None:
    """A name without a file works as well."""
    name = f"quiesce-test-{free_port()}"
    with started(UnixSocket(f"\0{name}"), "unix", f"@{name}") as (child, probe):
        await ready_after(child, probe, "refused")


async def test_a_dead_socket_file_is_not_ready(tmp_path: Path) -> None:
    """A file that a server left behind is no server, and is not ours to remove."""
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as old:
        old.bind(str(path))
    with started(UnixSocket(path), "line") as (child, probe):
        await never_ready(child, probe, "refused")
    assert path.is_socket()
    path.unlink()


def test_a_socket_that_somebody_listens_at_stays(tmp_path: Path) -> None:
    """A successor at the path keeps its socket for as long as it is alive."""
    path = tmp_path / "socket"
    launch = Launch([])
    UnixSocket(path).prepare(launch)
    with socket.socket(socket.AF_UNIX) as successor:
        successor.bind(str(path))
        successor.listen()
        launch.cleanup[0]()
        assert path.is_socket()
    launch.cleanup[0]()
    assert not path.exists()


async def test_a_full_queue_is_tried_again(tmp_path: Path) -> None:
    """A listener that takes no more connections for now is no failure."""
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as first:
        server.bind(str(path))
        server.listen(0)
        first.connect(str(path))
        with started(UnixSocket(path, check_peer=False), "line") as (child, probe):
            with anyio.fail_after(10):
                async with anyio.create_task_group() as group:
                    group.start_soon(probe.wait, child)
                    await obstacle(probe, "unavailable")
                    server.accept()[0].close()
            assert probe.obstacle is None
        assert path.is_socket(), "somebody listens there"
    path.unlink()


@pytest.mark.parametrize(
    ("host", "bound"),
    [("127.0.0.1", "127.0.0.1"), ("localhost", "127.0.0.1"), ("127.0.0.1", "0.0.0.0")],  # noqa: S104 - a case
)
async def test_a_port_is_ready_when_the_child_listens(host: str, bound: str) -> None:
    """The probe waits until the port takes connections."""
    port = free_port()
    with started(Tcp(host, port), "tcp", bound, str(port)) as (child, probe):
        await ready_after(child, probe, "refused")


async def test_a_name_is_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that is neither an address nor localhost is asked for, and each address is tried."""

    async def lookup(*args: object, **options: object) -> list[object]:
        assert args == ("service.test", None)
        return [(0, 0, 0, "", (address, 0)) for address in ("127.0.0.2", "127.0.0.1")]

    monkeypatch.setattr(anyio, "getaddrinfo", lookup)
    port = free_port()
    with started(Tcp("service.test", port), "tcp", "127.0.0.1", str(port)) as (child, probe):
        await ready_after(child, probe, "refused")


def test_a_socket_that_reached_itself_is_nobody() -> None:
    """TCP can connect a socket to itself, and then nobody listens."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.connect(sock.getsockname())
        assert addresses.connected_to_itself(sock)
        port = sock.getsockname()[1]
    with socket.socket() as next_one:
        next_one.bind(("127.0.0.1", port))  # nothing lingers on it
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as sock:
        sock.connect(server.getsockname())
        assert not addresses.connected_to_itself(sock)


async def test_a_connection_to_itself_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """An attempt that reached nobody but itself goes on to the next address, and then fails."""
    monkeypatch.setattr(addresses, "connected_to_itself", lambda sock: True)
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        pytest.raises(ConnectionRefusedError),
    ):
        await connect.dialled("127.0.0.1", server.getsockname()[1])


async def test_a_connection_that_is_reset_at_once_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A server may take a connection and throw it away before it was looked at: nothing is left."""
    made: list[socket.socket] = []
    connected = connect.connected

    async def then_reset(*args: Any) -> socket.socket:
        made.append(await connected(*args))
        taken, _ = server.accept()
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, addresses.RESET)
        taken.close()
        return made[0]

    monkeypatch.setattr(connect, "connected", then_reset)
    with socket.create_server(("127.0.0.1", 0)) as server, pytest.raises(OSError, match="not conn"):
        await connect.dialled("127.0.0.1", server.getsockname()[1])
    assert made[0].fileno() == -1


async def test_http_is_ready_at_the_right_status() -> None:
    """Other answers, broken ones and none at all are no readiness."""
    port = free_port()
    answers = (NOT_YET, "", "nonsense", r"HTTP/1.1 100 Continue\r\n\r\n", OK)
    with started(Http(f"http://127.0.0.1:{port}/up?x=1"), "http", str(port), *answers) as (
        child,
        probe,
    ):
        await ready_after(child, probe, "refused")


@pytest.mark.parametrize(
    ("answer", "met"),
    [
        (NOT_YET, "answers 503, not 200 or 204"),
        ("", "has no HTTP/1 status: it ends"),
        ("SSH-2.0-x", "begins with b'SSH-2.0-x'"),
        ("HTTP/1.1 2000 x", "no HTTP/1 status"),
        (r"HTTP/1.1 103 Hints\r\n\r\n", "has no HTTP/1 status: it ends"),
    ],
)
async def test_http_says_what_it_got(answer: str, met: str) -> None:
    """What stands in the way is in the obstacle."""
    port = free_port()
    probe = Http(f"http://127.0.0.1:{port}", (200, 204))
    with started(probe, "http", str(port), answer) as (child, waiting):
        await never_ready(child, waiting, met)


async def test_http_skips_interim_answers(tmp_path: Path) -> None:
    """The status that counts comes after 1xx ones; a unix socket serves as well."""
    path = tmp_path / "socket"
    answer = rf"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nLink: x\r\n\r\n{OK}"
    probe = Http("http://child/", unix=path)
    with started(probe, "http", str(path), answer) as (child, waiting):
        await ready_after(child, waiting, "No such file")
    assert not path.exists(), "the file of the socket goes with the process"


async def test_http_asks_for_the_target() -> None:
    """The request is a plain GET that any server understands."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        probe = Http(f"http://127.0.0.1:{port}/a/b?c=d#e", check_peer=False)
        with started(probe, "line") as (child, waiting):
            async with anyio.create_task_group() as group:
                group.start_soon(waiting.wait, child)
                await readable(server.fileno())
                connection, _ = server.accept()
                with connection:
                    await readable(connection.fileno())
                    request = connection.recv(65536).decode()
                    connection.sendall(b"HTTP/1.0 200\r\n\r\n")
    lines = request.split("\r\n")
    assert lines[0] == "GET /a/b?c=d HTTP/1.1"
    assert f"Host: 127.0.0.1:{port}" in lines
    assert "Connection: close" in lines
    assert lines[-2:] == ["", ""]


async def test_a_head_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is a limit to what is read."""
    monkeypatch.setattr(connect, "HEAD_BYTES_MAX", 100)
    port = free_port()
    answer = "HTTP/1.1 200 OK" + "x" * 200
    with started(Http(f"http://127.0.0.1:{port}/"), "http", str(port), answer) as (child, probe):
        await never_ready(child, probe, "longer than 100 bytes")


async def test_an_attempt_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that takes the connection and is silent is asked again, with more patience."""
    monkeypatch.setattr(connect, "ATTEMPT_SECONDS", 0.01)
    with socket.create_server(("127.0.0.1", 0)) as server:
        probe = Http(f"http://127.0.0.1:{server.getsockname()[1]}/", check_peer=False)
        with started(probe, "line") as (child, waiting):
            await never_ready(child, waiting, "within 0.01 s", "within 0.02 s", "within 0.04 s")


async def test_what_an_attempt_waits_for_is_told() -> None:
    """A deadline in the middle of an attempt finds an obstacle, too, and not an older one."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        probe = Http(f"http://127.0.0.1:{server.getsockname()[1]}/", check_peer=False)
        with started(probe, "line") as (child, waiting):
            await never_ready(child, waiting, "has accepted the connection, but does not answer")
            waiting.obstacle = None
            with anyio.move_on_after(0) as scope:
                await waiting.wait(child)
    assert scope.cancelled_caught
    assert waiting.obstacle


async def test_many_statuses_are_not_listed() -> None:
    """The obstacle stays short, however many would do."""
    port = free_port()
    probe = Http(f"http://127.0.0.1:{port}", range(200, 300))
    with started(probe, "http", str(port), NOT_YET) as (child, waiting):
        await never_ready(child, waiting, "answers 503, not one of the given statuses")
