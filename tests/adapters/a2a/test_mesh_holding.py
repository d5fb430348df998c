"""A2A agents in the mesh whose hops are held by scopes of other trees."""

from __future__ import annotations

import asyncio
import contextlib
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
        assert "(its agent was shut down)" in str(settled)


@pytest.mark.parametrize("words", ["work obey k artifact", "work obey k complete"])
async def test_an_executor_that_catches_the_cancellation_of_a_drain(
    tmp_path: Path, words: str
) -> None:
    """Its hop is done if it has completed its task all the same, and else cancelled, as its task is failed."""
    async with mesh.one(tmp_path, mesh.polling()) as (place, node, client):
        async with node.cascade("one") as cascade:
            await mesh.sent(client, words)
            await place.agent.waits("k")
            report = await place.handler.drain(grace=0, cleanup=60)
        settled = await cascade.settled(5)
        is_completed = words.endswith("complete")
        assert settled.ok is is_completed, str(settled)
        assert report.ok is is_completed, str(report)


async def test_a_task_at_work_is_named_by_its_executor(tmp_path: Path) -> None:
    """Not by a line of quiesce: neither the message, nor the hop that the drain cuts."""
    async with mesh.one(tmp_path, mesh.polling()) as (place, node, client):
        async with node.cascade("one") as cascade:
            await mesh.sent(client, "work leave l wait k complete")
            await place.agent.waits("k")
            open_yet = ""
            while "a2a message" not in open_yet:  # the agent is asked now and then
                open_yet = str(await cascade.settled(within=0.5))
            report = await place.handler.drain(grace=0, cleanup=60)
        assert "a2a task" in open_yet
        assert "/mesh_kit.py:" in open_yet
        assert "src/quiesce" not in open_yet, open_yet
        (cut,) = report.cancelled
        assert "in_flight" in cut.details
        assert "src/quiesce" not in str(cut), str(cut)
        await cascade.settled(5)


@pytest.mark.parametrize("way", ["blocking", "polling", "streaming", "plain"])
async def test_a_drain_counts_a_message_once(tmp_path: Path, way: str) -> None:
    """It was counted as a request, as a hop and as a task; what its executor has left is a part of the hop."""
    outer: list[Quiesce] = []

    def around(place: mesh.Place) -> Any:
        outer.append(Quiesce(place.app, grace=5, hold_signal=False, exit_code=False))
        return outer[0]

    async with mesh.town(tmp_path) as town, mesh.script() as node:
        place = await town.build("a", around)
        config = mesh.polling() if way == "polling" else mesh.blocking()
        if way == "streaming":
            config = None
        async with (
            await quiesce_client(node, place.url, config=config) as client,
            contextlib.AsyncExitStack() as stack,
        ):
            if way != "plain":
                await stack.enter_async_context(node.cascade("one"))
            sending = asyncio.create_task(mesh.send(client, "leave l wait k complete"))
            await place.agent.waits("k")
            await place.agent.waits("l")
            if way == "polling":
                await sending
            application = outer[0]._application
            assert application is not None
            seen = [application._in_flight()]
            place.agent.release("k")
            await sending
            while place.handler._tracker.entries or application.exchanges:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0)
            seen.append(application._in_flight())
            place.agent.release("l")
    one = "1 background task, 1 a2a task" if way == "plain" else "1 a2a task"
    left = "1 background task" if way == "plain" else "1 hop"
    assert seen == [f"{one} in flight", f"{left} in flight"]
