"""Clients of A2A in the mesh: what they know of a message, however its sending has ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from quiesce.errors import ArgumentError
from quiesce.integrations.a2a import CASCADE_EXTENSION, quiesce_app, quiesce_client
from quiesce.mesh import Node, Settled, Unknown
from tests.adapters.a2a import kit
from tests.adapters.a2a import mesh_kit as mesh

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
        behind = Node("old", url=url, store=tmp_path / "old")
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
            assert isinstance(settled, Settled), str(settled)
            assert settled.receipt.undelivered == 1
        assert not place.agent.executed


async def test_what_is_asked_of_a_task_inside_of_a_hop_is_no_work(tmp_path: Path) -> None:
    """To poll a task is no message, and nothing untracked."""
    async with mesh.one(tmp_path, mesh.polling()) as (place, node, client):
        async with node.cascade("one") as cascade:
            (event,) = await mesh.send(client, "wait k complete")
            task_id = mesh.task_of(event).id
            assert (await client.get_task(_query(task_id))).id == task_id
            place.agent.release("k")
        settled = await cascade.settled(5)
        assert isinstance(settled, Settled), str(settled)
        assert settled.receipt.hops == 2


def _query(task_id: str) -> Any:
    if kit.FIRST:
        from a2a.types import GetTaskRequest  # noqa: PLC0415 - not in 0.3

        return GetTaskRequest(id=task_id)
    from a2a.types import TaskQueryParams  # noqa: PLC0415 - not in 1.x

    return TaskQueryParams(id=task_id)


async def test_a_card_cannot_make_a_client_ask_an_address_of_its_choice() -> None:
    """The receipts have to be where the messages are sent, or at a peer."""
    card = mesh.declared("http://127.0.0.1:9", receipts="http://10.0.0.1:9")
    for peers in ((), ("http://10.0.0.1:9",)):
        async with mesh.script(peers=peers) as node, await quiesce_client(node, card) as client:
            assert client.takes_part == bool(peers)


async def test_a_second_interface_does_not_make_an_address_one_that_is_asked(
    tmp_path: Path,
) -> None:
    """The receipts are to be where this message is sent, not where another could be."""
    victim = "http://127.0.0.1:9"
    async with mesh.town(tmp_path) as town, mesh.script() as node:
        town.plan("a")
        place = await town.build("a", around=mesh.failing)
        card = mesh.declared(place.url, receipts=victim)
        if hasattr(card, "supported_interfaces"):
            more = {"url": f"{victim}/x", "protocol_binding": "HTTP+JSON"}
            card.supported_interfaces.add(protocol_version="1.0", **more)
        else:
            from a2a.types import AgentInterface  # noqa: PLC0415 - of 0.3

            card.additional_interfaces = [AgentInterface(url=f"{victim}/x", transport="HTTP+JSON")]
        asked: list[str] = []
        call = node.opened.exchange.transport_used.call

        async def listen(to: str, path: str, body: bytes) -> bytes:
            asked.append(to)
            return await call(to, path, body)

        node.opened.exchange.transport_used.call = listen  # type: ignore[method-assign]  # for the test
        async with await quiesce_client(node, card, config=mesh.blocking()) as client:
            async with node.cascade("one") as cascade:
                with pytest.raises(Exception, match="500"):
                    await mesh.send(client, "complete")
            await cascade.settled(3)
        assert asked
        assert victim not in asked


async def test_what_is_no_node_is_refused() -> None:
    """The error says what to write, and not that a string has no such attribute."""
    hotel: Any = "hotel"
    for make in (
        lambda: quiesce_client(hotel, "http://127.0.0.1:9"),
        lambda: quiesce_app(kit.Agent(), card=kit.card("http://127.0.0.1:9/"), node=hotel),
    ):
        with pytest.raises(ArgumentError, match=r"node must be a .*Node"):
            await make()


@pytest.mark.parametrize("url", ["http://[", "[::1"])
async def test_a_card_with_an_address_that_is_none_leaves_nothing_open(url: str) -> None:
    """The client is made, or it is not: its connections are closed then."""
    card = mesh.declared(url, receipts="http://127.0.0.1:9")
    async with mesh.script() as node:
        client = await quiesce_client(node, card)
        assert not client.takes_part
        await client.close()
