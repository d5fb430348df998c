"""Requests in flight with the ACP adapter: seen, drained, cancelled by their ids, and swept."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

import quiesce
from quiesce.integrations.acp import REFUSED, REQUEST_CANCELLED
from quiesce.testing import sweep
from tests.adapters.acp.agents import (
    PROMPT,
    Agent,
    cancelled,
    forever,
    memory,
    quick,
    run,
    waiting,
    wire,
)

if TYPE_CHECKING:
    from quiesce.core.report import Report

pytestmark = [pytest.mark.backends("asyncio", "uvloop"), pytest.mark.real_time]


async def test_the_frontier_shows_method_id_and_age() -> None:
    """A request is a hold of its own kind, below the session's scope."""
    agent = Agent(forever)
    async with (
        quiesce.Scope("outer") as scope,
        quick(agent, scope=scope, name="one") as (task, peer),
    ):
        peer.prompt(7)
        await agent.begun.wait()
        (entry,) = scope.frontier().in_flight
        assert (entry.kind, entry.name, entry.details) == ("request", "session/prompt", {"id": 7})
        assert entry.age >= 0
        assert entry.waiting_on is not None
        assert "forever" in entry.waiting_on
        await cancelled(task)


async def test_a_drain_lets_prompts_finish_and_refuses_new_ones() -> None:
    """The new one has an answer at once, the running one its own, and nothing is lost."""
    released = asyncio.Event()
    agent = Agent(waiting(released))
    async with wire() as (writer, reader, peer):
        scope = await quiesce.Scope.open("outer")
        job = scope.spawn(partial(run, agent, writer, reader))
        peer.prompt(1)
        await agent.begun.wait()
        draining = asyncio.create_task(scope.drain(grace=5))
        await scope.closing()
        peer.prompt(2)
        assert await peer.error(2) == REFUSED
        peer.send({"method": "_note", "params": {}})
        released.set()
        assert await peer.result(1) == {"stopReason": "end_turn"}
        assert await peer.receive() is None
        assert (await draining).ok
        report: Report = await job
        assert report.ok
        assert report.completed >= 1


async def test_work_that_is_drained_may_start_what_it_needs() -> None:
    """A handler may still spawn in its scope; a task that it makes is held, too."""
    released = asyncio.Event()
    spawned = []

    async def work(_: Agent) -> None:
        await released.wait()
        scope = quiesce.current_scope()
        assert scope is not None
        spawned.append(scope.spawn(asyncio.sleep, 0))

    agent = Agent(work)
    async with wire() as (writer, reader, peer):
        scope = await quiesce.Scope.open("outer")
        job = scope.spawn(partial(run, agent, writer, reader))
        peer.prompt(1)
        await agent.begun.wait()
        draining = asyncio.create_task(scope.drain(grace=5))
        await scope.closing()
        released.set()
        assert "result" in (await peer.answer(1) or {})
        assert (await draining).ok
        assert (await job).ok
    assert spawned[0].outcome is not None


async def test_what_a_drain_cuts_short_is_answered_and_reported() -> None:
    """The peer is told that the request was cancelled; the report names it."""
    agent = Agent(forever)
    async with quiesce.Scope("outer") as scope, quick(agent, scope=scope) as (task, peer):
        peer.prompt(7)
        await agent.begun.wait()
        report = await scope.drain(grace=0.05)
        assert await peer.error(7) == REQUEST_CANCELLED
        (cut,) = (await task).cancelled
        assert (cut.kind, cut.name, cut.details) == ("request", "session/prompt", {"id": 7})
        assert len(report.cancelled) == 1


async def test_a_request_is_cancelled_by_its_id_even_before_it_has_begun() -> None:
    """Request and cancellation in one piece: there is one answer, and nothing is lost."""
    request = {"id": 7, "method": "session/prompt", "params": {"sessionId": "s", "prompt": []}}
    notice = {"method": "$/cancel_request", "params": {"requestId": 7}}
    agent = Agent(forever)
    async with quick(agent) as (task, peer):
        peer.send(request, notice, notice, {**notice, "params": {"requestId": "7"}})
        assert await peer.error(7) == REQUEST_CANCELLED
        peer.send({"id": 8, "method": "_echo", "params": {}})
        assert await peer.receive() == await _echo(8)
        peer.writer.write_eof()
        report = await task
        assert (report.ok, report.withdrawn, report.completed) == (True, 1, 1)


async def _echo(number: int) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "result": {"method": "echo"}}


async def test_a_cancelled_request_may_have_an_answer_of_its_own() -> None:
    """What the handler makes of its cancellation is the answer."""

    async def convert(_: Agent) -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "cancelled"
        return "end_turn"

    agent = Agent(convert)
    async with quick(agent) as (task, peer):
        peer.prompt(7)
        await agent.begun.wait()
        peer.send({"method": "$/cancel_request", "params": {"requestId": 7}})
        assert await peer.result(7) == {"stopReason": "cancelled"}
        await cancelled(task)


async def test_a_handler_that_is_cancelled_by_the_agent_itself_is_answered_for() -> None:
    """The bare SDK leaves such a request without an answer."""
    tasks: list[Any] = []

    async def prompt(_: Agent) -> None:
        tasks.append(asyncio.current_task())
        await asyncio.Event().wait()

    agent = Agent(prompt)
    async with quick(agent) as (task, peer):
        peer.prompt(7)
        await agent.begun.wait()
        tasks[0].cancel()
        assert await peer.error(7) == REQUEST_CANCELLED
        await cancelled(task)


# --- sweeps -------------------------------------------------------------------------------------


async def scenario() -> None:
    """Serve an agent that starts a task and calls its client, to a peer that hangs up."""

    async def prompt(agent: Agent) -> None:
        helper = asyncio.create_task(asyncio.sleep(0))
        await agent.update()
        await helper

    prompted = {"id": 1, "method": "session/prompt", "params": PROMPT}
    stream, reader = memory(prompted, prompted, {"method": "_note", "params": {}})
    await run(Agent(prompt), stream.writer, reader, grace=1, cleanup=1)
    assert stream.closed


@pytest.mark.parametrize("depth", [1, 2])
def test_cancellation_at_every_suspension_leaves_nothing(depth: int) -> None:
    """Once, and twice; of the caller, and of every task of the session."""
    swept = sweep(scenario, depth=depth, where="all")
    swept.raise_if_failed()
    assert not swept.not_covered
    assert swept.runs > 10
