"""Sockets that code in a hop connects to a peer by itself."""

from __future__ import annotations

import http.client
import socket
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import pytest
import websockets

from quiesce.mesh import Settled, Unknown
from tests.unit.mesh.clients.peering import peer, sender

if TYPE_CHECKING:
    from tests.unit.mesh.clients.peering import Peer

pytestmark = pytest.mark.real_time


async def by_loop(b: Peer) -> None:
    """Connect as asyncio, uvloop and trio do."""
    stream = await anyio.connect_tcp(*b.address)
    await stream.aclose()


async def by_name(b: Peer) -> None:
    """Connect to a name, which is looked up."""
    stream = await anyio.connect_tcp("localhost", b.address[1])
    await stream.aclose()


async def by_thread(b: Peer) -> None:
    """Connect in a thread."""

    def connect() -> None:
        socket.create_connection(b.address, timeout=5).close()

    await anyio.to_thread.run_sync(connect)


async def by_hand(b: Peer) -> None:
    """Connect, and ask for an error as a number."""
    with socket.socket() as sock:
        assert sock.connect_ex(b.address) == 0


@pytest.mark.parametrize("connect", [by_loop, by_name, by_thread, by_hand])
async def test_a_raw_socket_to_a_peer_is_noticed(connect: Any) -> None:
    """Whatever makes the connection."""
    with peer() as b:
        async with sender(b) as node:
            async with node.cascade("c") as cascade:
                await connect(b)
            found = await cascade.settled(5, require="participants")
    assert isinstance(found, Unknown)
    assert found.receipt.untracked == 1
    assert "raw socket" in found.missing[0]
    in_a_task = connect in {by_loop, by_name}  # anyio connects in tasks of its own
    place = "a task or thread that anyio started" if in_a_task else "test_sockets.py"
    assert place in found.missing[0]


@pytest.mark.backends("asyncio", "uvloop")
async def test_a_websocket_names_the_users_line() -> None:
    """The place is where the user's code connects, not a line of the library."""
    with peer() as b:
        async with sender(b) as node:
            async with node.cascade("c") as cascade:
                with pytest.raises((OSError, websockets.WebSocketException)):
                    await websockets.connect(f"ws://{b.address[0]}:{b.address[1]}", open_timeout=60)
            found = await cascade.settled(5, require="participants")
    assert isinstance(found, Unknown)
    assert "raw socket" in found.missing[0]
    assert "test_sockets.py" in found.missing[0]


@pytest.mark.parametrize("connect", [by_loop, by_thread])
async def test_a_raw_socket_to_another_server_is_not(connect: Any) -> None:
    """Nor is one to a peer outside of hops."""
    with peer() as b, peer() as other:
        async with sender(b) as node:
            await connect(b)
            async with node.cascade("c") as cascade:
                await connect(other)
            found = await cascade.settled(5, require="participants")
    assert isinstance(found, Settled)


async def test_the_name_of_a_peer_is_found_behind_its_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A peer that is known by name is noticed where its address is connected to."""
    real = socket.getaddrinfo

    def getaddrinfo(host: Any, port: Any, *args: Any, **options: Any) -> Any:
        return real("127.0.0.1" if host == "hotel.example" else host, port, *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    with peer() as b:
        port = b.address[1]
        async with sender(peers=[f"http://hotel.example:{port}"]) as node:
            async with node.cascade("c") as cascade:
                socket.create_connection(("hotel.example", port), timeout=5).close()
            found = await cascade.settled(5, require="participants")
    assert isinstance(found, Unknown)
    assert "raw socket" in found.missing[0]


async def test_a_connection_of_an_http_client_is_no_raw_socket() -> None:
    """Also one that is made before its request: that is what is looked at."""
    with peer() as b:
        async with sender(b) as node:
            async with node.cascade("c") as cascade:
                connection = http.client.HTTPConnection(*b.address, timeout=5)
                connection.connect()
                connection.close()
            found = await cascade.settled(5, require="participants")
    assert isinstance(found, Settled), str(found)
