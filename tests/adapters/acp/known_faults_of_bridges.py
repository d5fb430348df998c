"""What goes wrong in servers of ACP agents, over WebSockets and HTTP."""

from __future__ import annotations

import asyncio
import importlib
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from websockets.asyncio.server import serve

from quiesce.integrations.acp.websocket_server import open_websocket_server
from tests.adapters.acp.bridge import INITIALIZE, PROMPT, Agent, by_hand, check_health, open_client
from tests.adapters.known_faults import Absent, KnownFaults

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from tests.adapters.known_faults import Way

known_fault = KnownFaults()
CHECKS = 50


@asynccontextmanager
async def bridge(way: Way, make: Callable[[], Agent]) -> AsyncIterator[int]:
    """Serve agents over WebSockets, one way or the other; gives the port."""
    if way == "bare":
        async with serve(by_hand(make), "127.0.0.1", 0, compression=None) as server:
            yield server.sockets[0].getsockname()[1]
        return
    bridge = await open_websocket_server(make, grace=0.1, cleanup=1)
    try:
        yield bridge.port
    finally:
        await bridge.aclose()


@known_fault("a WebSocket bridge: a health checker connects, initializes and leaves (issue 108)")
async def health_checks(way: Way) -> str | None:
    """Check the health of a bridge some times, politely and not."""
    async with bridge(way, Agent) as port:
        for number in range(CHECKS):
            await check_health(port, rude=number % 2 == 0)
    return None


@known_fault("a WebSocket bridge: the client leaves during a prompt", seconds=4)
async def leaves_in_prompt(way: Way) -> str | None:
    """Leave while a prompt runs that would go on for ever."""
    agent = Agent()
    async with bridge(way, lambda: agent) as port:
        client = await open_client(port)
        await client.send(PROMPT)
        await agent.asked.wait()
        await client.close()
    return None if agent.outcome == "cancelled" else "the prompt goes on"


@known_fault(
    "a WebSocket bridge: it leaves during one that turns cancellation into an answer", seconds=4
)
async def leaves_in_stubborn_prompt(way: Way) -> str | None:
    """Leave while a prompt runs that answers when it is cancelled."""
    agent = Agent()
    agent.stubborn = True
    async with bridge(way, lambda: agent) as port:
        client = await open_client(port)
        await client.send(PROMPT)
        await agent.asked.wait()
        await client.close()
    return None if agent.outcome == "cancelled" else "the prompt goes on"


@known_fault(
    f"`AcpServer`: {CHECKS} `initialize` without DELETE; with quiesce: the WebSocket bridge"
)
async def many_initialize(way: Way) -> str | None:
    """Initialize many times, and never come back."""
    try:
        acp_http = importlib.import_module("acp.http.server")
    except ImportError:
        acp_http = None
    if way == "bare":
        if acp_http is None:
            raise Absent
        server = acp_http.AcpServer(lambda _: Agent())
        options = {"content_type": "application/json", "connection_id": None, "session_id": None}
        before = len(asyncio.all_tasks())
        for _ in range(CHECKS):
            await server.handle_post(json.loads(INITIALIZE), **options)
        kept = len(asyncio.all_tasks()) - before
        await server.close()
        return f"{CHECKS} connections, {kept} tasks kept" if kept else None
    bridge = await open_websocket_server(Agent)
    before = len(asyncio.all_tasks())
    for _ in range(CHECKS):
        await check_health(bridge.port, rude=True)
    await bridge.idle()
    kept = len(asyncio.all_tasks()) - before
    await bridge.aclose()
    return f"{kept} tasks kept" if kept > 1 else None  # one may be closing its socket
