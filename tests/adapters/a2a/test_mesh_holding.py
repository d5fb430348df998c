"""A2A agents in the mesh whose hops are held by scopes of other trees."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from quiesce import Scope
from quiesce.integrations.a2a import quiesce_client
from quiesce.integrations.asgi import Quiesce
from quiesce.mesh import CascadeFront, Settled
from tests.adapters.a2a import mesh_kit as mesh

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = mesh.MARKS


def in_scope(place: Any) -> Any:
    """Return an app that handles every request in a scope of its own, as a server does that is run in one."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await place.app(scope, receive, send)
            return
        async with Scope("server"):
            await place.app(scope, receive, send)

    return app


@pytest.mark.parametrize("around", ["plain", "in_scope", "quiesce", "front"])
async def test_what_an_executor_leaves_is_waited_for_whoever_holds_its_hop(
    tmp_path: Path, around: str
) -> None:
    """The hop is held by the scope of the request, and by the server's."""
    arounds: dict[str, Any] = {
        "plain": None,
        "in_scope": in_scope,
        "quiesce": lambda place: Quiesce(place.app),
        "front": lambda place: CascadeFront(place.node, Quiesce(place.app)),
    }
    async with mesh.town(tmp_path) as town, mesh.script() as node:
        place = await town.build("a", arounds[around])
        async with await quiesce_client(node, place.url, config=mesh.polling()) as client:
            async with node.cascade("one") as cascade:
                sent = mesh.send(client, "leave k complete")
                place.agent.release("k")
                await sent
            settled = await cascade.settled(5)
            assert isinstance(settled, Settled), str(settled)
