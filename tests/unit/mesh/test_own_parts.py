"""The frontier of a node: the user's work, and not the parts of quiesce."""

from __future__ import annotations

from typing import Any

import anyio

from quiesce import Scope
from tests.unit.mesh.meshing import World, here, leaves, until
from tests.unit.mesh.serving import Exchange, answers


async def test_the_frontier_of_a_node_lists_the_scope_of_its_hops_alone() -> None:
    """Its calls, its questions and its connections are quiesce's own."""
    async with World() as world:
        node = await world.add("a")
        assert [entry.name for entry in node.frontier()] == ["hops"]
        assert str(node.frontier()).splitlines()[0] == "scope 'node a' (open): nothing in flight"


async def test_a_drain_that_has_nothing_to_post_lists_no_receipts() -> None:
    """Until there are some: then they are in flight."""
    async with World() as world, Scope("draining") as scope:
        node, other = await world.add("a"), await world.add("b")
        async with node.cascade("c"):
            await world.hand("b", leaves)
        job = scope.spawn(other.drain, 1000)
        await until(lambda: other.opened.exchange.is_ending)
        (work,) = other.frontier().in_flight
        assert work.kind != "receipts"
        world.lines.cut.add("http://a")
        for hop in list(other.opened.running_hops.values()):
            hop.cancel_work()
        await until(lambda: other.opened.engine.unposted)
        (work,) = other.frontier().in_flight
        assert (work.kind, work.details["count"]) == ("receipts", 1)
        world.lines.cut.clear()
        await job


async def test_a_hop_shows_its_request_and_the_place_of_its_endpoint() -> None:
    """While its handler runs, and after that; and its kind is said once."""
    gate, answered = anyio.Event(), anyio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        scope["endpoint"] = app
        await answers(scope, receive, send)
        await answered.wait()
        here().spawn(gate.wait)

    async with World() as world:
        node, other = await world.add("a"), await world.add("b")
        async with node.cascade("c") as cascade:
            with here().delegate("http://b") as handing:
                header = (b"cascade", handing.header.encode())
                made = Exchange(other.asgi(app), "POST", "/pick", headers=[header])
                job = world.servers.spawn(made.run)
                await until(lambda: made.sent)
                handing.answered(made.told)
        place = f"{__file__}:{app.__code__.co_firstlineno}"
        for event in (answered, gate):
            (hop,) = other.opened.running_hops.values()
            (line,) = [one for one in str(other.frontier()).splitlines() if hop.mark in one]
            assert f"─ hop {hop.mark} · " in line
            assert f" · started {place} · request=POST /pick" in line
            event.set()
            if event is answered:
                await job
        assert (await cascade.settled(5, require="participants")).ok
