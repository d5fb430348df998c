"""Probes that connect refuse an address at which a process listens before the child has begun."""

from __future__ import annotations

import errno
import socket
from typing import TYPE_CHECKING

import pytest

from quiesce.processes.readiness import addresses
from quiesce.processes.readiness.connect import Http, Tcp, UnixSocket
from quiesce.processes.readiness.listener import Listener
from quiesce.processes.readiness.probe import Launch
from tests.unit.processes.ready_children import (
    free_port,
    nothing_left,
    ready_after,
    started,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.real_time

TAKEN = "a process already listens at"


@pytest.fixture(autouse=True)
def _nothing_left(tmp_path: Path) -> Iterator[None]:
    with nothing_left(tmp_path):
        yield


def refused(probe: UnixSocket | Tcp | Http) -> None:
    """See the probe refuse a start."""
    with pytest.raises(OSError, match=TAKEN) as caught:
        probe.prepare(Launch([]))
    assert caught.value.errno == errno.EADDRINUSE


@pytest.mark.parametrize("backlog", [0, 5])
def test_a_server_at_the_path_is_not_taken_for_the_child(backlog: int, tmp_path: Path) -> None:
    """The start is refused, also if the old server's queue is full; its socket is not removed."""
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as old, socket.socket(socket.AF_UNIX) as first:
        old.bind(str(path))
        old.listen(backlog)
        first.connect(str(path))
        refused(UnixSocket(path))
        refused(Http("http://x/", unix=path))
        assert path.is_socket()
    path.unlink()


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_a_server_at_the_port_is_not_taken_for_the_child(host: str) -> None:
    """The start is refused, on each address that `localhost` has."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        server = socket.create_server((host, 0), family=family)
    except OSError:
        pytest.skip("there is no IPv6 here")
    with server:
        port = server.getsockname()[1]
        shown = f"[{host}]" if ":" in host else host
        refused(Tcp(host, port))
        refused(Http(f"http://{shown}:{port}/"))


def test_other_machines_and_names_are_not_looked_at() -> None:
    """That could take its time, in the step of the fork."""
    for host in ("192.0.2.1", "service.test"):
        Tcp(host, 80).prepare(Launch([]))


def test_a_server_counts_if_asked_for(tmp_path: Path) -> None:
    """With check_peer=False it may be there before the child."""
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as old, socket.create_server(("127.0.0.1", 0)) as server:
        old.bind(str(path))
        old.listen()
        UnixSocket(path, check_peer=False).prepare(Launch([]))
        Tcp("127.0.0.1", server.getsockname()[1], check_peer=False).prepare(Launch([]))
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
    ]
    for given, argv, met in cases:
        with started(given, *wrapped, *argv) as (child, probe):
            await ready_after(child, probe, met)
    path.unlink(missing_ok=True)  # a grandchild in a session of its own may outlive the child


async def test_a_listener_that_is_handed_down_is_not_refused(tmp_path: Path) -> None:
    """The parent made the socket, for the child."""
    path = tmp_path / "socket"
    listener = Listener.unix(path)
    with started(UnixSocket(path), "accept", listener=listener) as (child, probe):
        await ready_after(child, probe)
    listener = Listener.tcp()
    with started(Tcp(*listener.address), "accept", listener=listener) as (child, probe):
        await ready_after(child, probe)


def test_a_look_that_reached_itself_has_found_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """TCP can connect a socket to itself, and then nobody listens."""
    monkeypatch.setattr(addresses, "connected_to_itself", lambda sock: True)
    with socket.create_server(("127.0.0.1", 0)) as server:
        Tcp(*server.getsockname()).prepare(Launch([]))
