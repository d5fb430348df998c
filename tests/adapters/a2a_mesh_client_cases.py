"""Clients of A2A in the mesh: what they know of a message, however its sending has ended.

Not collected by itself: tests/integration/test_adapters.py runs it with versions of the SDK.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from quiesce.integrations.a2a import CASCADE_EXTENSION, quiesce_client
from quiesce.mesh import Node, Settled, SettledWithLosses, Unknown
from tests.adapters import a2a_kit as kit
from tests.adapters import a2a_mesh_kit as mesh

if TYPE_CHECKING:
    from pathlib import Path

    import httpx

pytestmark = mesh.MARKS


async def test_a_message_has_one_edge_also_through_a_client_of_the_node(tmp_path: Path) -> None:
    """The header and the metadata say the same, and are asked for by an extension header."""
    async with mesh.town(tmp_path) as town, mesh.script() as node:
        place = await town.build("a")
        seen: list[httpx.Request] = []

        async def see(request: httpx.Request) -> None:
            seen.append(request)

        hooks = {"request": [see]}
        async with node.client(headers=mesh.VERSION, event_hooks=hooks) as http:
            config = mesh.blocking(httpx_client=http)
            async with await quiesce_client(node, place.url, config=config) as client:
                async with node.cascade("one") as cascade:
                    await mesh.send(client, "complete")
                settled = await cascade.settled(5)
                assert isinstance(settled, Settled), str(settled)
                assert settled.receipt.hops == 2
        (sent,) = [one for one in seen if one.method == "POST"]
        assert sent.headers["Cascade"].encode() in sent.content
        name = "A2A-Extensions" if kit.FIRST else "X-A2A-Extensions"
        assert CASCADE_EXTENSION in sent.headers[name]


async def test_an_agent_that_takes_no_part_is_opaque(tmp_path: Path) -> None:
    """It is sent no ids, and its part is not known; what others did is."""
    async with mesh.town(tmp_path) as town, mesh.script() as node:
        town.plan("old")
        app, agent = mesh.bare_app(f"{town.urls['old']}/")
        await town.serve("old", app)
        async with await quiesce_client(node, town.urls["old"], config=mesh.blocking()) as client:
            assert not client.takes_part
            async with node.cascade("one") as cascade:
                await mesh.send(client, "complete")
            settled = await cascade.settled(5, require="participants")
            assert isinstance(settled, Settled), str(settled)
            assert settled.receipt.opaque == 1
            assert isinstance(await cascade.settled(5), Unknown)
        assert not mesh.metadata_of(agent.heard[0])


async def test_an_agent_whose_answer_says_so_takes_part_whatever_its_card_says(
    tmp_path: Path,
) -> None:
    """A server of the SDK alone, behind the mesh; by the head of its answer, also of a stream."""
    async with mesh.town(tmp_path) as town, mesh.script() as node:
        town.plan("old")
        url = town.urls["old"]
        app, _ = mesh.bare_app(f"{url}/")
        behind = Node("old", url=url, journal=tmp_path / "old", services=["_shutdown_watcher"])
        await town.serve("old", behind.asgi(app))
        for config in (mesh.blocking(), None):
            async with await quiesce_client(node, url, config=config) as client:
                assert not client.takes_part
                async with node.cascade("one") as cascade:
                    await mesh.send(client, "complete")
                settled = await cascade.settled(5)
                assert isinstance(settled, Settled), str(settled)
                assert settled.receipt.hops == 2


async def test_an_agent_that_is_not_there_was_sent_nothing(tmp_path: Path) -> None:
    """The SDK hides the error in one of its own; nothing is in doubt all the same."""
    async with mesh.town(tmp_path) as town, mesh.script() as node:
        town.plan("a")
        town.close()
        card = mesh.declared(town.urls["a"])
        for config in (mesh.blocking(), None):
            async with await quiesce_client(node, card, config=config) as client:
                assert client.takes_part
                async with node.cascade("one") as cascade:
                    with pytest.raises(Exception, match=r"(?i)connect"):
                        await mesh.send(client, "complete")
                settled = await cascade.settled(1)
                assert isinstance(settled, Settled), str(settled)
                assert settled.receipt.hops == 1


async def test_an_answer_that_says_nothing_of_the_message_leaves_it_in_doubt(
    tmp_path: Path,
) -> None:
    """Something stands before the agent, and fails; the agent says that it never will take it."""
    async with mesh.town(tmp_path) as town, mesh.script() as node:
        town.plan("a")
        place = await town.build("a", around=mesh.failing)
        async with await quiesce_client(node, place.url, config=mesh.blocking()) as client:
            async with node.cascade("one") as cascade:
                with pytest.raises(Exception, match="500"):
                    await mesh.send(client, "complete")
            settled = await cascade.settled(5)
            assert isinstance(settled, SettledWithLosses), str(settled)
            assert settled.receipt.lost == 1
        assert not place.agent.executed


async def test_a_card_cannot_make_a_client_ask_an_address_of_its_choice() -> None:
    """The receipts have to be where the messages are sent, or at a peer."""
    card = mesh.declared("http://127.0.0.1:9", receipts="http://10.0.0.1:9")
    for peers in ((), ("http://10.0.0.1:9",)):
        async with mesh.script(peers=peers) as node, await quiesce_client(node, card) as client:
            assert client.takes_part == bool(peers)


@pytest.mark.parametrize("url", ["http://[", "[::1"])
async def test_a_card_with_an_address_that_is_none_leaves_nothing_open(url: str) -> None:
    """The client is made, or it is not: its connections are closed then."""
    card = mesh.declared(url, receipts="http://127.0.0.1:9")
    async with mesh.script() as node:
        client = await quiesce_client(node, card)
        assert not client.takes_part
        await client.close()
