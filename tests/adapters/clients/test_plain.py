"""Plain HTTP clients inside of hops: what they send to peers is noticed, or a message.

Not collected by itself: tests/integration/test_clients.py runs it with the newest of each client.
"""

from __future__ import annotations

import socket
from contextlib import nullcontext
from pathlib import Path

import pytest

from quiesce import detached
from quiesce.mesh import Settled, Unknown
from quiesce.testing import escapes
from tests.adapters.clients import kit
from tests.unit.mesh.clients.peering import peer, sender

pytestmark = pytest.mark.real_time


every_way = pytest.mark.parametrize("send", list(kit.WAYS.values()), ids=list(kit.WAYS))


@every_way
async def test_a_plain_request_to_a_peer_is_noticed(send: kit.Send) -> None:
    """Once, by the name of the client that was called."""
    with peer() as b:
        async with sender(b) as node:
            async with node.cascade("c") as cascade:
                assert await send(f"{b.url}/run") == 200
            found = await cascade.settled(5, require="participants")
    assert b.edges == [None]
    assert isinstance(found, Unknown)
    (missing,) = found.missing
    client = send.__name__.removeprefix("by_")
    assert f"plain {client}, " in missing
    assert "kit.py" in missing


@every_way
@pytest.mark.parametrize("method", ["POST", "GET"])
async def test_an_instrumented_request_to_a_peer_is_one_message(
    send: kit.Send, method: str
) -> None:
    """However many libraries it goes through."""
    with peer() as b:
        async with sender(b) as node:
            with node.instrument():
                async with node.cascade("c") as cascade:
                    assert await send(f"{b.url}/run", method) == 200
            found = await cascade.settled(5, require="participants")
    assert isinstance(found, Settled), str(found)
    assert found.receipt.hops == 2
    (request,) = b.requests
    assert request.edge is not None
    assert [name.lower() for name in request.headers].count("cascade") == 1


@every_way
async def test_no_other_server_is_sent_an_edge(send: kit.Send) -> None:
    """Nor one that a peer leads to."""
    with peer() as b, peer() as other:
        async with sender(b) as node:
            with node.instrument():
                async with node.cascade("c") as cascade:
                    await send(f"{other.url}/run")
                    await send(f"{b.url}/redirect/{other.url}/run")
            found = await cascade.settled(5, require="participants")
    assert other.edges == [None, None]
    assert isinstance(found, Settled), str(found)
    assert found.receipt.hops == 2


@every_way
async def test_an_instrumented_request_to_a_forgotten_peer_is_an_assumption(send: kit.Send) -> None:
    """Once for each server: it is on this machine, and may be an agent whose work no verdict waits for."""
    with peer() as b:
        async with sender() as node:
            with node.instrument():
                async with node.cascade("c") as cascade:
                    await send(f"{b.url}/run")
                    await send(f"{b.url}/run", "PUT")
            found = await cascade.settled(5, require="participants")
    assert b.edges == [None, None]
    assert found.ok, str(found)
    (assumption,) = found.assumptions
    assert f"assumes that POST {b.url}, sent at " in assumption
    assert "kit.py:" in assumption
    assert "The server is not in peers=: if it is an agent, add it there; if not, " in assumption
    assert "PUT" not in assumption


@every_way
@pytest.mark.parametrize("case", ["GET", "detached", "not instrumented", "opaque"])
async def test_a_request_that_hands_over_no_work_is_no_assumption(
    send: kit.Send, case: str
) -> None:
    """It only reads, or the program has said what it is."""
    with peer() as b:
        async with sender(opaque=[b.url] if case == "opaque" else ()) as node:
            instrumented = nullcontext() if case == "not instrumented" else node.instrument()
            with instrumented:
                async with node.cascade("c") as cascade:
                    with detached() if case == "detached" else nullcontext():
                        await send(f"{b.url}/run", "GET" if case == "GET" else "POST")
            found = await cascade.settled(5, require="participants")
    assert found.ok, str(found)
    assert found.assumptions == ()


@every_way
async def test_a_request_to_another_server_is_listed_by_escapes(send: kit.Send) -> None:
    """Once: a peer that was forgotten in `peers=` is found by it, because no verdict knows of it."""
    with peer() as b:
        async with escapes() as found:
            assert await send(f"{b.url}/run") == 200
        (listed,) = [one for one in found if one.fate != "covered"]
    assert (listed.fate, listed.route, listed.name) == ("possible", "request", f"POST {b.url}")
    assert Path(listed.where.partition(":")[0]).name == "kit.py"
    assert "peers=" in listed.instead
    found.raise_if_any()


@every_way
async def test_a_peer_that_is_not_there_was_sent_nothing(send: kit.Send) -> None:
    """The connection was never made: nothing is in doubt."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    async with sender(peers=[url]) as node:
        with node.instrument():
            async with node.cascade("c") as cascade:
                with pytest.raises(Exception, match=r"(?i)connect|refused"):
                    await send(f"{url}/run")
        found = await cascade.settled(5, require="participants")
    assert isinstance(found, Settled), str(found)
    assert found.receipt.hops == 1


@every_way
async def test_a_request_without_an_answer_is_in_doubt(send: kit.Send) -> None:
    """It has left, and nobody knows more."""
    with peer() as b:
        async with sender(b) as node:
            with node.instrument():
                async with node.cascade("c") as cascade:
                    with pytest.raises(Exception, match=r"(?i)disconnect|closed|reset|abort"):
                        await send(f"{b.url}/drop")
            found = await cascade.settled(5, require="participants")
    assert None not in b.edges
    assert isinstance(found, Unknown)
    assert found.receipt.untracked == 0


@every_way
async def test_a_peer_that_says_nothing_has_the_message(send: kit.Send) -> None:
    """It is asked, and cannot be reached here: its part is not known."""
    with peer() as b:
        async with sender(b) as node:
            with node.instrument():
                async with node.cascade("c") as cascade:
                    assert await send(f"{b.url}/silent") == 200
            assert isinstance(await cascade.settled(5, require="participants"), Unknown)
