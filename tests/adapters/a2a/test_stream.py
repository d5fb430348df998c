"""Event streams of an A2A server that is told to end: they get their end, and the process tells how it went."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING

import pytest
from a2a.server.tasks import InMemoryTaskStore

from quiesce.integrations.a2a import QuiescentRequestHandler
from tests.adapters.a2a import kit
from tests.adapters.a2a.server import serving

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.backends("asyncio"),
    pytest.mark.real_time,
    pytest.mark.quiesce(allow=kit.LEFT_TO_THE_COLLECTOR),
]


async def test_an_open_stream_gets_the_end_of_its_task(tmp_path: Path) -> None:
    """SIGTERM is held back from the server, whose SSE library would cut the stream at once."""
    async with serving("wrapped", tmp_path) as server:
        async with server.stream("wait k complete") as events:
            await server.waits("k")
            server.process.send_signal(signal.SIGTERM)
            while (await server.client.get("/quiesce/ready")).status_code != 503:  # noqa: ASYNC110 - it is another process
                await asyncio.sleep(0)
            await server.release("k")
            told = [str(event).lower() async for event in events]
        assert "completed" in told[-1]
        assert await server.ended() == 0
    assert list(server.store.states().values()) == ["completed"]


@pytest.mark.parametrize("way", ["wrapped", "quiesce"])
async def test_a_stream_that_has_ended_holds_up_nothing(tmp_path: Path, way: str) -> None:
    """The task that sse-starlette has left behind is not the work of that request."""
    async with serving(way, tmp_path) as server:
        async with server.stream("complete") as events:
            told = [str(event).lower() async for event in events]
        assert "completed" in told[-1]
        assert await server.stop() == 0


async def test_a_report_has_the_time_of_the_whole_end() -> None:
    """The waiting for tasks is part of it, and so is the time in which cut ones may clean up."""
    agent = kit.Agent()
    more = {"agent_card": kit.card()} if kit.FIRST else {}
    handler = QuiescentRequestHandler(agent_executor=agent, task_store=InMemoryTaskStore(), **more)
    params = kit.request("wait k complete")
    sending = asyncio.ensure_future(handler.on_message_send(params, kit.call_context()))
    await agent.waits("k")
    report = await handler.drain(grace=0.2, cleanup=5)
    assert report.seconds >= 0.199  # a timer may be early by the resolution of its clock
    await asyncio.wait({sending})
