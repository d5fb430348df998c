"""urllib and http.client inside of hops, in the event loop's thread and in others, on every event loop."""

from __future__ import annotations

import contextvars
import http.client
import socket
import threading
import urllib.request
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import pytest

from quiesce.mesh import Settled, Unknown, current_hop
from tests.unit.mesh.clients.peering import peer, sender

if TYPE_CHECKING:
    from collections.abc import Callable

    from quiesce.mesh import Cascade, Settlement

pytestmark = pytest.mark.real_time
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def post(url: str, **headers: str) -> int:
    """Post something, and wait for the answer."""
    request = urllib.request.Request(url, b"work", headers)  # noqa: S310 - loopback
    with OPENER.open(request, timeout=5) as response:
        status: int = response.status
        return status


def get(url: str) -> int:
    """Get something."""
    with OPENER.open(url, timeout=5) as response:
        status: int = response.status
        return status


async def in_thread(call: Callable[..., Any], *args: Any) -> Any:
    """Call something in a thread that has the context of the hop."""
    return await anyio.to_thread.run_sync(partial(call, *args))


async def verdict(cascade: Cascade) -> Settlement:
    """Wait for what is known of a cascade, whoever has no journal."""
    return await cascade.settled(5, require="participants")


async def test_a_plain_request_to_a_peer_is_noticed() -> None:
    """The verdict is not green, and names the client, the line, and what to write instead."""
    with peer() as b:
        async with sender(b) as node:
            async with node.cascade("c") as cascade:
                await in_thread(post, f"{b.url}/run")
            found = await verdict(cascade)
    assert b.edges == [None]
    assert isinstance(found, Unknown)
    assert found.receipt.untracked == 1
    (missing,) = found.missing
    assert "plain urllib.request" in missing
    assert "test_stdlib.py" in missing
    assert missing.endswith(" in post. Write node.instrument() once, or send it with node.client()")


@pytest.mark.parametrize("call", [post, get])
async def test_an_instrumented_request_is_a_message(call: Callable[[str], int]) -> None:
    """Whatever its method, in the thread of the event loop and in another."""
    with peer() as b:
        async with sender(b) as node:
            with node.instrument():
                async with node.cascade("c") as cascade:
                    assert await in_thread(call, f"{b.url}/run") == 200
                    assert call(f"{b.url}/run") == 200
            found = await verdict(cascade)
    assert None not in b.edges
    assert len(set(b.edges)) == 2
    assert isinstance(found, Settled), str(found)
    assert found.receipt.hops == 3


async def test_no_other_server_is_sent_anything() -> None:
    """One that is no peer sees the request as it was made, and nothing is untracked."""
    with peer() as b, peer() as other:
        async with sender(b) as node:
            with node.instrument():
                async with node.cascade("c") as cascade:
                    await in_thread(post, f"{other.url}/run")
            found = await verdict(cascade)
    assert other.edges == [None]
    assert isinstance(found, Settled)
    assert found.receipt.hops == 1


async def test_a_redirect_away_from_a_peer_takes_no_edge_along() -> None:
    """The peer that redirects has its message; where it leads is sent none."""
    with peer() as b, peer() as other:
        async with sender(b) as node:
            with node.instrument():
                async with node.cascade("c") as cascade:
                    await in_thread(get, f"{b.url}/redirect/{other.url}/run")
            found = await verdict(cascade)
    assert None not in b.edges
    assert other.edges == [None]
    assert isinstance(found, Settled), str(found)


async def test_outside_of_hops_nothing_is_changed() -> None:
    """Neither with nor without instruments."""
    with peer() as b:
        async with sender(b) as node:
            post(f"{b.url}/run")
            with node.instrument():
                await in_thread(post, f"{b.url}/run")
    assert b.edges == [None, None]


async def test_a_header_that_is_there_is_left_alone() -> None:
    """Whatever has put it there sees to its edge."""
    with peer() as b:
        async with sender(b) as node:
            with node.instrument():
                async with node.cascade("c") as cascade:
                    hop = current_hop()
                    assert hop is not None
                    with hop.delegate(b.url) as handing:
                        header = handing.header
                        await in_thread(partial(post, f"{b.url}/silent", Cascade=header))
                        handing.not_sent()
            found = await verdict(cascade)
    assert b.edges == [header]
    assert isinstance(found, Settled)
    assert found.receipt.hops == 1


async def test_a_peer_that_is_not_there_was_sent_nothing() -> None:
    """Nothing is in doubt: the connection was never made."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    async with sender(peers=[f"http://127.0.0.1:{port}"]) as node:
        with node.instrument():
            async with node.cascade("c") as cascade:
                with pytest.raises(OSError, match="refused"):
                    await in_thread(post, f"http://127.0.0.1:{port}/run")
        found = await verdict(cascade)
    assert isinstance(found, Settled), str(found)
    assert found.receipt.hops == 1


async def test_a_request_that_is_not_answered_is_in_doubt() -> None:
    """The peer may have begun: it is asked, and does not answer here."""
    with peer() as b:
        async with sender(b) as node:
            with node.instrument():
                async with node.cascade("c") as cascade:
                    with pytest.raises((http.client.RemoteDisconnected, ConnectionError)):
                        await in_thread(post, f"{b.url}/drop")
            found = await verdict(cascade)
    assert None not in b.edges
    assert isinstance(found, Unknown)
    assert found.receipt.untracked == 0


async def test_an_answer_that_is_never_read_leaves_its_message_in_doubt() -> None:
    """Also where the connection is only closed."""
    with peer() as b:
        async with sender(b) as node:
            with node.instrument():
                async with node.cascade("c") as cascade:
                    connection = http.client.HTTPConnection(*b.address, timeout=5)
                    connection.request("POST", "/run", b"work")
                    connection.close()
            found = await verdict(cascade)
    assert isinstance(found, Unknown)


async def test_answers_that_threads_got_are_recorded(caplog: pytest.LogCaptureFixture) -> None:
    """In the event loop, but in no task of it: also those after which the peer is asked."""
    with peer() as b:
        async with sender(b) as node:
            with node.instrument():
                async with node.cascade("c") as cascade:
                    await in_thread(post, f"{b.url}/silent")
                    await in_thread(post, f"{b.url}/silent")
                    await in_thread(post, f"{b.url}/run")
            found = await verdict(cascade)
    assert isinstance(found, Unknown)
    assert "could not be recorded" not in caplog.text


async def test_descriptions_of_a_peer_are_not_work() -> None:
    """A card is read without an edge, and is not untracked."""
    with peer() as b:
        async with sender(b) as node:
            async with node.cascade("plain") as plain:
                await in_thread(get, f"{b.url}/.well-known/agent-card.json")
            with node.instrument():
                async with node.cascade("instrumented") as instrumented:
                    await in_thread(get, f"{b.url}/.well-known/agent-card.json")
            for cascade in (plain, instrumented):
                found = await verdict(cascade)
                assert isinstance(found, Settled)
                assert found.receipt.hops == 1
    assert b.edges == [None, None]


async def test_each_hop_uses_the_instruments_of_its_own_node() -> None:
    """Another node of the process that is instrumented changes nothing for it."""
    with peer() as b:
        async with sender(b) as node, sender(b) as other:
            with other.instrument():
                async with node.cascade("c") as cascade:
                    await in_thread(post, f"{b.url}/run")
            assert isinstance(await verdict(cascade), Unknown)
    assert b.edges == [None]


async def test_a_blocked_event_loop_gets_no_edge_and_no_deadlock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The loop waits for the thread, and the thread for the loop: the request leaves untracked."""
    monkeypatch.setattr("quiesce.mesh.clients.sending._WAIT_SECONDS", 0.01)
    with peer() as b:
        async with sender(b) as node:
            with node.instrument():
                async with node.cascade("c") as cascade:
                    thread = threading.Thread(
                        target=contextvars.copy_context().run, args=(post, f"{b.url}/run")
                    )
                    thread.start()
                    thread.join()
            found = await verdict(cascade)
    assert b.edges == [None]
    assert isinstance(found, Unknown)
    assert found.receipt.untracked == 1
    assert found.receipt.unknown == 0  # no edge was made after the request had left
