"""The one drain of an A2A server: its times, its report, its exit code, and what it refuses to be made of."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING, Any

import pytest
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater

from quiesce.errors import ArgumentError
from quiesce.integrations.a2a import (
    DurablePushSender,
    MemoryOutbox,
    QuiescentRequestHandler,
    quiesce_app,
)
from tests.adapters.a2a import kit
from tests.adapters.a2a.handlers import first_only
from tests.adapters.a2a.server import serving
from tests.stress import turns

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.backends("asyncio"),
    pytest.mark.real_time,  # 0.3 polls
    pytest.mark.quiesce(allow=kit.LEFT_TO_THE_COLLECTOR),
]


class Leaving(kit.Agent):
    """Leaves a task running, which takes some turns of the loop to clean up."""

    def __init__(self) -> None:
        """Start with nothing left running."""
        super().__init__()
        self.left: asyncio.Task[None] | None = None
        self.cleaned = False

    async def execute(self, context: Any, event_queue: Any) -> None:
        """Leave it, and complete the task."""
        self.left = asyncio.create_task(self._work())
        await super().execute(context, event_queue)

    async def _work(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            self.cleaned = await _some_turns()


async def _some_turns(count: int = 3) -> bool:
    await turns(count)
    return True


async def handler_of(agent: Any, store: Any = None) -> QuiescentRequestHandler:
    """Open a handler without pushes."""
    more = {"agent_card": kit.card()} if kit.FIRST else {}
    made = QuiescentRequestHandler(
        agent_executor=agent, task_store=store or InMemoryTaskStore(), **more
    )
    return await made.open()


async def test_a_task_in_flight_is_counted_once() -> None:
    """Not the job of its request, nor what the SDK runs for it; and no loop of the SDK is a service of the user."""
    agent = kit.Agent()
    handler = await handler_of(agent)
    call = asyncio.create_task(
        handler.on_message_send(kit.request("wait k complete"), kit.call_context())
    )
    await agent.waits("k")
    scope = handler._scope
    assert scope is not None
    assert len(scope.frontier()) > 1  # what was counted before
    assert handler._in_flight().counts == {"a2a task": 1, "background task": 0}
    agent.release("k")
    await call
    report = await handler.drain()
    assert report.ok
    assert report.services == 0


class Early(kit.Agent):
    """Enqueues a state before the task itself: 1.x gives up the task, and drops what comes later."""

    async def execute(self, context: Any, event_queue: Any) -> None:
        """Go through the words without a task."""
        updater = TaskUpdater(event_queue, context.task_id, context.context_id)
        await updater.start_work()
        await self._do("wait", ["k"], updater)
        await updater.complete()


@first_only
async def test_an_event_that_the_sdk_drops_is_not_waited_for() -> None:
    """It is enqueued when the SDK has given up the task, which was in flight for ever."""
    agent = Early()
    handler = await handler_of(agent)
    with pytest.raises(Exception, match="should enqueue Task before"):
        await handler.on_message_send(kit.request("wait"), kit.call_context())
    await agent.waits("k")
    assert len(handler.frontier()) > 0
    agent.release("k")
    await asyncio.wait_for(handler.idle(), 10)
    assert (await handler.drain(grace=0, cleanup=5)).undelivered == ()


class Full(InMemoryTaskStore):  # type: ignore[misc]  # the SDK has no types here
    """Stores no end of a task."""

    async def save(self, task: Any, context: Any = None) -> None:
        """Save, unless it is an end."""
        if kit.state_of(task) == "failed":
            message = "the disk is full"
            raise OSError(message)
        await super().save(kit.copied(task), context)


@pytest.mark.parametrize("is_full", [False, True])
async def test_a_task_that_is_cut_is_named_once_with_what_is_stored(*, is_full: bool) -> None:
    """It was said to be stored as failed also if the store had refused that, and the task was named twice."""
    agent = kit.Agent()
    handler = await handler_of(agent, Full() if is_full else None)
    call = asyncio.create_task(
        handler.on_message_send(kit.request("wait k complete"), kit.call_context())
    )
    await agent.waits("k")
    report = await handler.drain(grace=0, cleanup=1)
    await asyncio.wait({call})
    call.exception()
    (lost,) = report.undelivered
    assert lost.kind == "a2a task"
    assert ("stored as failed" in str(lost)) is not is_full, str(lost)
    assert ("stored as" in str(lost)) is not is_full, str(lost)


async def test_what_an_executor_has_left_is_cut_at_the_deadline() -> None:
    """Not when the time for cleaning up is over: it has that time, and is in the report."""
    agent = Leaving()
    handler = await handler_of(agent)
    task = await handler.on_message_send(kit.request("complete"), kit.call_context())
    assert kit.state_of(task) == "completed"
    loop = asyncio.get_running_loop()
    began = loop.time()
    report = await handler.drain(grace=0.0, cleanup=1000.0)
    assert loop.time() - began < 100  # it would have waited for the half of it
    assert [item.name for item in report.cancelled] == ["Leaving._work"]
    assert agent.cleaned
    assert agent.left is not None
    assert agent.left.cancelled()


async def test_what_an_executor_starts_to_clean_up_is_not_cut_under_it() -> None:
    """It was told to stop, and has its time to do so."""
    cleaned: list[bool] = []

    class Tidy(Leaving):
        async def execute(self, context: Any, event_queue: Any) -> None:
            try:
                await super().execute(context, event_queue)
            finally:
                tasks = [asyncio.create_task(_some_turns(50)) for _ in range(2)]
                cleaned.extend(await asyncio.gather(*tasks))

    agent = Tidy()
    handler = await handler_of(agent)
    params = kit.request("wait k complete")
    sending = asyncio.ensure_future(handler.on_message_send(params, kit.call_context()))
    await agent.waits("k")
    report = await handler.drain(grace=0.0, cleanup=10.0)
    assert cleaned == [True, True]
    assert [item.kind for item in report.undelivered] == ["a2a task"]
    assert kit.state_of(await sending) == "failed"


@pytest.mark.parametrize(
    ("text", "seconds", "code"), [("complete", "5", 0), ("wait k complete", "0.1", 1)]
)
async def test_the_exit_code_tells_whether_a_task_was_cut(
    tmp_path: Path, text: str, seconds: str, code: int
) -> None:
    """With a stock uvicorn, which would die of the signal in any case."""
    async with serving("quiesce", tmp_path, f"grace={seconds}") as server:
        await server.send(text, blocking=False)
        if code:
            await server.waits("k")
        assert await server.stop(signal.SIGTERM) == code


async def test_an_interrupt_begins_the_drain_at_once(tmp_path: Path) -> None:
    """It is not held back: the server waits for its requests, and this one for its task."""
    async with serving("quiesce", tmp_path, "grace=0.2") as server:
        sending = asyncio.ensure_future(server.send("wait k complete"))
        await server.waits("k")
        await server.stop(signal.SIGINT)
        assert kit.state_of(await sending) == "failed"


@pytest.mark.parametrize(
    ("agent", "options", "text"),
    [
        (kit.Agent, {}, "not the class Agent: pass Agent()"),
        (None, {}, "must be an executor"),
        (kit.Agent(), {"card": {}}, "card must be an AgentCard of a2a.types, not dict"),
        (kit.Agent(), {"rest": "rest"}, "rest must be a path that begins with '/', not 'rest'"),
        (kit.Agent(), {"rpc": "rpc"}, "rpc must be a path that begins with '/'"),
        ("agent", {}, "must be an executor"),
        (kit.Agent(), {"node": "hotel"}, "node must be a Node"),
        (kit.Agent(), {"grace": "30"}, "grace must be a number of seconds"),
        (kit.Agent(), {"cleanup": -1}, "cleanup must be a number of seconds"),
        (kit.Agent(), {"allow_private": True}, "pass outbox="),
        (
            kit.Agent(),
            {"drain": 3},
            r"^'drain' is not an option of quiesce_app\(\), which has: card, .*exit_code; nor .*push_sender",
        ),
        (kit.Agent(), {"task_store": None}, "'task_store' is not an option .*: write store="),
        (
            kit.Agent(),
            {"allow_private": True, "outbox": DurablePushSender(MemoryOutbox())},
            "pass allow_private= to the DurablePushSender",
        ),
    ],
)
async def test_what_cannot_be_served_is_refused(agent: Any, options: Any, text: str) -> None:
    """Before anything is opened, and by the name of the option."""
    with pytest.raises(ArgumentError, match=text):
        quiesce_app(agent, **{"card": kit.card(), **options})


@pytest.mark.filterwarnings("ignore:'HTTP_4")  # the SDK's own, of 0.3
async def test_pushes_to_private_addresses_may_be_allowed() -> None:
    """By an option of the app: its own sender need not be made for that."""
    app = quiesce_app(kit.Agent(), card=kit.card(), outbox=MemoryOutbox(), allow_private=True)
    sender = app.state.push_sender
    assert isinstance(sender, DurablePushSender)
    assert sender._poster._policy._all is True
