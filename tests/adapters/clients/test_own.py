"""Clients that a node makes, of httpx and of httpx2, and its own calls with either.

Not collected by itself: tests/integration/test_clients.py runs it with the newest of each library.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from contextvars import Context, copy_context
from typing import Any

import httpx
import httpx2
import pytest

import quiesce
from quiesce.core.tree import current
from quiesce.errors import ArgumentError, PeerLost
from quiesce.mesh import Node, Settled, Unknown
from quiesce.mesh.clients.strays import notice_stray
from quiesce.mesh.protocol import codec
from quiesce.mesh.transport.http_transport import CascadeTransport, HttpTransport
from tests.adapters.clients import kit
from tests.unit.mesh.clients.peering import peer, sender

pytestmark = pytest.mark.real_time
LIBRARIES: list[Any] = [httpx, httpx2]
either = pytest.mark.parametrize("library", LIBRARIES, ids=["httpx", "httpx2"])


def client_of(node: Node, library: Any) -> Any:
    """Make a client of a library."""
    return node.client(library=library.__name__, trust_env=False, verify=kit.TLS)


async def serve(node: Node) -> None:
    """Let a node work on a message, so that its process is one that serves."""
    ids = (os.urandom(16), os.urandom(12), "0" * 12)
    async with node.handle(codec.Handed(*ids, int(time.time() + 60), None)):
        pass


@either
@pytest.mark.parametrize("method", ["POST", "GET", "HEAD"])
async def test_a_request_to_a_peer_is_a_message_whatever_its_method(
    library: Any, method: str
) -> None:
    """A GET may start work as well."""
    with peer() as b:
        async with sender(b) as node, client_of(node, library) as client:
            assert isinstance(client, library.AsyncClient)
            async with node.cascade("c") as cascade:
                assert (await client.request(method, f"{b.url}/run")).status_code == 200
            found = await cascade.settled(5, require="participants")
    assert isinstance(found, Settled), str(found)
    assert found.receipt.hops == 2
    assert len(b.requests) == 1


@either
async def test_a_safe_request_to_another_server_is_not(library: Any) -> None:
    """Until that has answered a message with a receipt."""
    with peer() as other:
        async with sender() as node, client_of(node, library) as client:
            async with node.cascade("c") as cascade:
                await client.get(f"{other.url}/one")
                await client.post(f"{other.url}/two")
                await client.get(f"{other.url}/three")
                await client.get(f"{other.url}/.well-known/agent-card.json")
            found = await cascade.settled(5, require="participants")
    assert [edge is None for edge in other.edges] == [True, False, False, True]
    assert isinstance(found, Settled), str(found)
    assert found.receipt.hops == 3


@either
async def test_instruments_do_not_make_a_second_message(library: Any) -> None:
    """What the node's own client sends goes through an instrumented library."""
    with peer() as b:
        async with sender(b) as node, client_of(node, library) as client:
            with node.instrument():
                async with node.cascade("c") as cascade:
                    await client.post(f"{b.url}/run")
            found = await cascade.settled(5, require="participants")
    assert isinstance(found, Settled), str(found)
    assert found.receipt.hops == 2
    assert len(b.requests) == 1


@either
async def test_methods_that_hand_over_nothing_are_not_noticed(library: Any) -> None:
    """Whoever says which methods hand over work has declared the others."""
    with peer() as b:
        async with sender(b) as node:
            transport: Any = CascadeTransport(node, methods=("POST",))
            async with library.AsyncClient(transport=transport) as client:
                async with node.cascade("c") as cascade:
                    await client.put(f"{b.url}/run")
                found = await cascade.settled(5, require="participants")
    assert b.edges == [None]
    assert isinstance(found, Settled), str(found)


@either
async def test_a_transport_is_of_the_library_of_its_requests(library: Any) -> None:
    """One that was given nothing to send with takes the library's own."""
    with peer() as b, socket.create_server(("127.0.0.1", 0)) as free:
        gone = f"http://127.0.0.1:{free.getsockname()[1]}"
        free.close()
        async with sender(b, peers=[b.url, gone]) as node:
            transport: Any = CascadeTransport(node)
            async with library.AsyncClient(transport=transport) as client:
                async with node.cascade("c") as cascade:
                    await client.post(f"{b.url}/run")
                    with pytest.raises(library.ConnectError):
                        await client.post(f"{gone}/run")
                found = await cascade.settled(5, require="participants")
            assert type(transport._inner) is library.AsyncHTTPTransport
    assert isinstance(found, Settled), str(found)
    assert found.receipt.hops == 2


@either
async def test_a_client_of_another_node_in_a_hop_is_noticed(library: Any) -> None:
    """What it sends belongs to no hop; the verdict says so, not only the log."""
    with peer() as b:
        async with sender(b) as node, sender(b) as other, client_of(other, library) as client:
            async with node.cascade("c") as cascade:
                await client.post(f"{b.url}/run")
            found = await cascade.settled(5, require="participants")
    assert isinstance(found, Unknown)
    assert f"plain {library.__name__}" in found.missing[0]


@either
async def test_a_send_outside_of_any_hop_is_in_every_verdict(
    library: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Of hops that are open, and of later ones; it is logged once, with what to write."""
    with peer() as b:
        async with sender(b) as node, client_of(node, library) as client:
            await serve(node)
            async with node.cascade("open") as before:
                with caplog.at_level(logging.WARNING, "quiesce"):
                    await stray(client, b.url)
                    await stray(client, b.url)
            async with node.cascade("later") as after:
                pass
            for cascade in (before, after):
                found = await cascade.settled(5, require="participants")
                assert isinstance(found, Unknown)
                assert found.receipt.untracked == 1
                assert "sent outside of any hop" in found.missing[0]
                assert "in stray" in found.missing[0]
    assert caplog.text.count("with quiesce.detached()") == 1
    assert b.edges == [None, None]


async def stray(client: Any, url: str) -> None:
    """Send in a task that belongs to no hop, as a worker of a queue does."""
    token = current.set(None)
    try:
        await client.post(f"{url}/run")
    finally:
        current.reset(token)


@either
async def test_a_send_that_is_declared_is_not(library: Any) -> None:
    """Nor one of a program that serves nothing, nor one that is no message."""
    with peer() as b:
        async with sender(b) as node, client_of(node, library) as client:
            await client.post(f"{b.url}/run")
            await serve(node)
            with quiesce.detached():
                await client.post(f"{b.url}/run")
            await client.get(f"{b.url}/.well-known/agent-card.json")
            async with node.cascade("c") as cascade:
                pass
            found = await cascade.settled(5, require="participants")
    assert isinstance(found, Settled), str(found)


@either
async def test_a_request_without_the_header_sends_what_it_likes(library: Any) -> None:
    """It is of no cascade, and spoils none; a task of it that outlives it may be a worker, and is noticed."""
    with peer() as b:
        async with sender(b) as node, client_of(node, library) as client:
            await serve(node)
            left: list[Context] = []

            async def app(scope: Any, receive: Any, send: Any) -> None:
                await client.post(f"{b.url}/run")
                left.append(copy_context())  # as of a task that it starts

            scope = {"type": "http", "path": "/", "method": "POST", "headers": []}
            await node.asgi(app)(scope, None, None)
            async with node.cascade("calm") as calm:
                pass
            found = await calm.settled(5, require="participants")
            assert isinstance(found, Settled), str(found)
            left[0].run(notice_stray, node)
            async with node.cascade("later") as after:
                pass
            assert isinstance(await after.settled(5, require="participants"), Unknown)


@either
async def test_a_node_calls_others_with_either(library: Any) -> None:
    """With a client that it is given, and it says of what was not reached."""
    with peer() as b:
        async with library.AsyncClient(trust_env=False, verify=kit.TLS) as client:
            http = HttpTransport(client)
            assert await http.call(b.url, "/quiesce/receipts", b"{}") == b""
            with pytest.raises(PeerLost, match="ConnectError"):
                await http.call("http://127.0.0.1:9", "/quiesce/receipts", b"{}")
            await http.aclose()
            assert not client.is_closed
    assert [request.path for request in b.requests] == ["/quiesce/receipts"]


def test_a_library_that_is_not_known_is_refused() -> None:
    """When the client is made."""
    with pytest.raises(ArgumentError, match="library"):
        Node("a").client(library="requests")
    assert isinstance(Node("a").client(), httpx.AsyncClient)
