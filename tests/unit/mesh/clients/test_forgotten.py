"""A request of an instrumented client to a server near by that the node does not know: a forgotten peer, perhaps."""

from __future__ import annotations

import pytest

from quiesce.mesh.clients import sending
from quiesce.mesh.protocol.receipt import WHY_MAX
from tests.unit.mesh.clients.peering import peer, sender
from tests.unit.mesh.clients.test_stdlib import in_thread, post
from tests.unit.mesh.meshing import here

pytestmark = pytest.mark.real_time


async def test_its_assumption_comes_after_all_others() -> None:
    """The first one has the most room in a receipt."""
    with peer() as b:
        async with sender() as node:
            with node.instrument():
                async with node.cascade("c") as cascade:
                    await in_thread(post, f"{b.url}/run")
                    here().assume("assumes that it rains")
            found = await cascade.settled(5, require="participants")
    (assumption,) = found.assumptions
    assert assumption.startswith(f"sender assumes that it rains; and assumes that POST {b.url}, ")


async def test_as_many_servers_are_named_as_there_is_room_for() -> None:
    """A sentence is left out rather than cut."""
    async with sender() as node:
        with node.instrument():
            async with node.cascade("c") as cascade:
                for port in range(1, 100):
                    target = sending.SendTarget("POST", "http", "::1", port, "/")
                    assert sending.begin_request(here(), target) is None
        found = await cascade.settled(5, require="participants")
    (note,) = found.receipt.notes
    assert note.why.startswith("assumes that POST http://[::1]:1, sent at ")
    assert len(note.why) <= WHY_MAX
    assert note.why.endswith("`quiesce.detached()`")


@pytest.mark.parametrize("host", ["api.model.example", "8.8.8.8"])
async def test_nothing_is_assumed_of_a_public_server(host: str) -> None:
    """It could be any web site: `escapes()` lists it."""
    async with sender() as node:
        with node.instrument():
            async with node.cascade("c") as cascade:
                target = sending.SendTarget("POST", "https", host, None, "/v1/chat")
                assert sending.begin_request(here(), target) is None
        found = await cascade.settled(5, require="participants")
    assert found.ok
    assert found.assumptions == ()
