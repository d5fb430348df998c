"""A node that hands messages to itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from quiesce.mesh.protocol import codec
from quiesce.mesh.protocol.scheduler import NodeCall
from quiesce.mesh.transport.node_transport import RECEIPTS
from tests.unit.mesh.meshing import World, questions, until

if TYPE_CHECKING:
    from quiesce.mesh import Hop


async def test_what_a_node_tells_itself_does_not_go_over_its_transport() -> None:
    """Its own server may have stopped listening by then, and the drain waits for the receipt."""
    gate = anyio.Event()
    async with World() as world:
        node = await world.add("a")
        world.lines.cut.add("http://a")

        async def handler(hop: Hop) -> None:
            hop.spawn(gate.wait)

        async with node.cascade("c") as cascade:
            await world.hand("a", handler)
        gate.set()
        assert (await cascade.settled(5, require="participants")).ok
        assert world.lines.calls == []


async def test_a_question_waits_for_what_a_node_has_handed_to_itself() -> None:
    """After the signal, that is work here like any other: nobody else can tell of it."""
    gate = anyio.Event()
    async with World() as world:
        node = await world.add("a")

        async def handler(hop: Hop) -> None:
            hop.spawn(gate.wait)

        async with node.cascade("c") as _kept:
            (edge,) = node.opened.running_hops
            await world.hand("a", handler)
        await until(lambda: edge not in node.opened.running_hops)
        node.opened.exchange.told_to_end(1000.0)
        body = codec.call_body(NodeCall("", (), ((edge, False),), 50.0))
        asking = world.servers.spawn(node.serve_call, RECEIPTS, body)
        await until(lambda: questions(node) == 1)
        gate.set()
        ((_, answer),) = codec.parse_reply(await asking).answers
        assert answer.receipt is not None
        assert answer.receipt.hops == 2
