"""A2A in the mesh under cancellation, at every suspension of whoever sends and whoever serves."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest
from a2a.server.tasks import InMemoryTaskStore

from quiesce.integrations.a2a import QuiescentRequestHandler, quiesce_client
from quiesce.integrations.a2a.mesh import message_edges
from quiesce.mesh import Memory, Node
from quiesce.mesh.protocol.states import EdgeState
from quiesce.testing import sweep
from tests.adapters.a2a import kit
from tests.adapters.a2a import mesh_kit as mesh

URL = "http://agent.example"
# 0.3 finds out by polling, and time does not pass while a scope is being cancelled.
first_only = pytest.mark.skipif(not kit.FIRST, reason="1.x is told of a failure at once")


def answer(request: httpx.Request) -> dict[str, Any]:
    """Return what an agent says to a message that it has dealt with."""
    state = "TASK_STATE_COMPLETED" if kit.FIRST else "completed"
    task = {"id": "1", "contextId": "2", "status": {"state": state}}
    result = {"task": task} if kit.FIRST else task | {"kind": "task"}
    return {"jsonrpc": "2.0", "id": json.loads(request.content)["id"], "result": result}


async def agent(request: httpx.Request) -> httpx.Response:
    """Answer after some turns of the loop, as one that was restarted and takes no part any more."""
    for _ in range(3):
        await asyncio.sleep(0)
    return httpx.Response(200, json=answer(request))


@pytest.mark.parametrize("declared", [True, False])
def test_a_send_that_is_cancelled_anywhere_leaves_no_edge_unresolved(*, declared: bool) -> None:
    """It is in doubt, opaque, or not sent; and nothing is remembered of it."""
    unresolved: list[Any] = []

    async def scenario() -> None:
        card = mesh.declared(URL) if declared else kit.card(f"{URL}/")
        transport = httpx.MockTransport(agent)
        async with (
            Node("script", transport=Memory()) as node,
            httpx.AsyncClient(transport=transport) as http,
        ):
            client = await quiesce_client(node, card, config=mesh.blocking(httpx_client=http))
            cascade = node.cascade("one")
            try:
                async with cascade:
                    await mesh.send(client, "complete")
            finally:
                edges = cascade._record.edges.values() if cascade._record else ()
                unresolved.extend(one for one in edges if one.state is EdgeState.SENDING)
                await node.aclose()

    found = sweep(scenario, clock="mock", runs_max=60, allow=kit.LEFT_TO_THE_COLLECTOR)
    assert not found.failures, str(found)
    assert found.points > 3, str(found)
    assert not unresolved
    assert not message_edges._under_way


@pytest.mark.parametrize("text", ["complete", "park", pytest.param("raise", marks=first_only)])
def test_a_request_that_is_cancelled_anywhere_leaves_no_hop_open(text: str) -> None:
    """What was accepted is executed, and its hop ends with that; what was not, ends at once."""
    left: list[Any] = []

    async def scenario() -> None:
        async with Node("agent", url=URL, transport=Memory()) as node:
            handler = QuiescentRequestHandler(
                agent_executor=kit.Agent(),
                task_store=InMemoryTaskStore(),
                node=node,
                **({"agent_card": kit.card()} if kit.FIRST else {}),
            )
            hops = []
            try:
                async with node.handle(mesh.edge(node)) as hop:
                    hops.append(hop)
                    await handler.on_message_send(kit.request(text), kit.call_context())
            except Exception:  # noqa: S110 - the SDK's, as the executor raises
                pass
            finally:
                await handler.drain(1)
                await asyncio.sleep(0)
                left.extend(hop for hop in hops if not hop.has_ended)
                assert handler._mesh is not None
                left.extend(handler._mesh._waiting.values())
                left.extend(handler._mesh._works.values())

    found = sweep(scenario, clock="mock", runs_max=80, allow=kit.LEFT_TO_THE_COLLECTOR)
    assert not found.failures, str(found)
    assert not left
