"""A2A agents in the mesh whose hops are held by scopes of other trees."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from a2a.client import ClientConfig

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


@pytest.mark.parametrize("words", ["work wait k complete", "work leave l wait k complete"])
async def test_a_stream_in_a_cascade_gets_the_end_of_a_task_that_the_drain_cuts(
    tmp_path: Path, words: str
) -> None:
    """The drain cancels what the executor has left behind after the stream of its task has ended."""
    events: list[str] = []
    is_working = asyncio.Event()

    async def stream(client: Any) -> None:
        async for event in client.send_message(mesh.outgoing(words)):
            events.append(str(event).lower())
            if "working" in events[-1]:
                is_working.set()

    async with mesh.one(tmp_path, ClientConfig(streaming=True)) as (place, node, client):
        async with node.cascade("one") as cascade:
            streaming = asyncio.create_task(stream(client))
            await is_working.wait()
            await place.agent.waits("k")
            report = await place.handler.drain(grace=0, cleanup=60)
            await streaming
        assert "failed" in events[-1]
        assert report.seconds < 30, str(report)  # it does not wait for the half of cleanup
        settled = await cascade.settled(5)
        assert settled.receipt.cancelled == 1, str(settled)
