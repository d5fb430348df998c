"""The A2A adapter's handler: when it is idle, what it says is in flight, and how it ends.

Not collected by itself: tests/integration/test_adapters.py runs it with versions of the SDK.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import pytest
from a2a.server.tasks import (
    InMemoryPushNotificationConfigStore,
    InMemoryTaskStore,
    TaskUpdater,
)
from a2a.types import TaskState

from quiesce.errors import ArgumentError, UsageError
from quiesce.integrations.a2a import QuiescentRequestHandler
from quiesce.testing import sweep
from tests.adapters import a2a_kit as kit

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.backends("asyncio", "uvloop"),
    pytest.mark.real_time,  # 0.3 polls
    pytest.mark.quiesce(allow=kit.LEFT_TO_THE_COLLECTOR),
]
first_only = pytest.mark.skipif(not kit.FIRST, reason="1.x alone has it")


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.getLogger("a2a").setLevel(logging.CRITICAL)
    yield
    logging.getLogger("a2a").setLevel(logging.NOTSET)


class House:
    """A handler, its agent and its store."""

    def __init__(self, agent: Any = None, store: Any = None, **options: Any) -> None:
        self.agent = agent or kit.Agent()
        self.store = store or InMemoryTaskStore()
        if kit.FIRST:
            options.setdefault("agent_card", kit.card())
        self.handler = QuiescentRequestHandler(
            agent_executor=self.agent,
            task_store=self.store,
            push_config_store=InMemoryPushNotificationConfigStore(),
            **options,
        )

    async def send(self, text: str, **options: Any) -> Any:
        """Send a message."""
        return await self.handler.on_message_send(kit.request(text, **options), kit.call_context())

    def stream(self, text: str, **options: Any) -> Any:
        """Send a message, and give the events."""
        return self.handler.on_message_send_stream(kit.request(text, **options), kit.call_context())

    async def stored(self, task_id: str) -> Any:
        """Return a task from the store."""
        return await self.store.get(task_id, kit.call_context())

    async def state(self, task_id: str) -> str:
        """Return the state that is stored."""
        return kit.state_of(await self.stored(task_id))

    async def busy(self, text: str = "wait k complete") -> Any:
        """Start a task whose executor waits for `k`."""
        task = await self.send(text, blocking=False)
        await self.agent.waits("k")
        while await self.state(task.id) == "submitted":  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0)
        return task


def told(event: Any) -> str:
    """Name the state that an event of a stream tells."""
    return kit.state_of(event) if hasattr(event, "status") else ""


def why(task: Any) -> str:
    """Return the text of a task's status."""
    return kit.text_of(task.status.message)


async def test_idle_waits_for_a_task_that_works() -> None:
    """It returns when the last state is stored, and not before."""
    house = House()
    task = await house.busy()
    waiting = asyncio.ensure_future(house.handler.idle())
    await asyncio.sleep(0)
    assert not waiting.done()
    house.agent.release("k")
    await waiting
    assert await house.state(task.id) == "completed"
    assert (await house.handler.drain()).ok


@pytest.mark.parametrize("text", ["park", pytest.param("auth", marks=first_only)])
async def test_a_parked_task_is_not_busy(text: str) -> None:
    """It waits for its client: nothing is in flight, and a drain leaves its state alone."""
    house = House()
    task = await house.send(text)
    await house.handler.idle()
    assert not house.handler.frontier().in_flight
    assert (await house.handler.drain(within=5)).ok
    assert await house.state(task.id) == ("input-required" if text == "park" else "auth-required")


@first_only
async def test_a_task_that_waits_for_authorization_in_its_executor_is_not_busy() -> None:
    """1.x lets an executor wait for what comes by another way; a stream of it is not busy either."""
    house = House()
    stream = house.stream("auth wait k complete")
    while told(event := await anext(stream)) != "auth-required":
        pass
    await house.agent.waits("k")
    await house.handler.idle()
    house.agent.release("k")
    assert [told(event) async for event in stream][-1] == "completed"
    await house.handler.idle()
    assert await house.state(event.task_id) == "completed"
    await house.handler.drain()


async def test_the_frontier_names_the_task_its_state_and_where_it_waits() -> None:
    """Also as text, for whoever asks a server that does not stop."""
    house = House()
    task = await house.busy()
    (entry,) = [one for one in house.handler.frontier().in_flight if one.kind == "a2a task"]
    assert entry.name == task.id
    assert entry.details["state"] == "working"
    assert "Agent._do" in str(entry.details["waits_on"])
    assert entry.age >= 0
    assert task.id in str(house.handler.frontier())
    await house.handler.aclose()


async def test_a_drain_lets_an_accepted_task_end() -> None:
    """Nothing is lost, and nothing is cut."""
    house = House()
    task = await house.busy("wait k artifact turn turn complete")
    draining = asyncio.ensure_future(house.handler.drain())
    await asyncio.sleep(0)
    house.agent.release("k")
    report = await draining
    assert report.ok
    assert not report.undelivered
    assert await house.state(task.id) == "completed"


async def test_what_does_not_end_in_time_is_failed_in_the_store_and_says_why() -> None:
    """The report names it as well."""
    house = House()
    task = await house.busy()
    report = await house.handler.drain(within=0.05, cleanup=1)
    assert await house.state(task.id) == "failed"
    assert "shut down" in why(await house.stored(task.id))
    assert [lost.name for lost in report.undelivered] == [task.id]


@pytest.mark.parametrize("way", ["drain", "aclose"])
async def test_an_executor_that_does_not_stop_holds_up_the_end_for_the_cleanup(way: str) -> None:
    """Its task is failed in the store, and stays so whatever it does later."""
    house = House()
    task = await house.busy("stubborn k complete")
    end = house.handler.drain(0.05, cleanup=0.2) if way == "drain" else house.handler.aclose(0.2)
    report = await end
    assert report.seconds >= 0.2  # and it returns: the executor runs until it is released below
    assert await house.state(task.id) == "failed"
    assert report.undelivered
    house.agent.release("k")
    for _ in range(20):
        await asyncio.sleep(0)
    assert await house.state(task.id) == "failed"
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for one in left:  # in 0.3, it waits for somebody to read what it says
        one.cancel()
    await asyncio.gather(*left, return_exceptions=True)


@first_only
async def test_an_executor_that_stops_without_a_word_is_spoken_for() -> None:
    """Whoever reads its stream is told as well."""

    class Mute(kit.Agent):
        async def execute(self, context: Any, event_queue: Any) -> None:
            try:
                await super().execute(context, event_queue)
            except asyncio.CancelledError:
                return

    house = House(Mute())
    stream = house.stream("wait k complete")
    await anext(stream)
    await house.agent.waits("k")
    draining = asyncio.ensure_future(house.handler.drain(within=0.05, cleanup=1))
    assert [told(event) async for event in stream][-1] == "failed"
    await draining


async def test_whoever_waits_for_a_task_that_is_cut_is_answered() -> None:
    """With the failed task, not with one that works."""
    house = House()
    sending = asyncio.ensure_future(house.send("wait k complete"))
    await house.agent.waits("k")
    await house.handler.drain(within=0.05, cleanup=1)
    assert kit.state_of(await sending) == "failed"


async def test_whoever_reads_a_task_that_is_cut_is_told() -> None:
    """The last event of the stream is the terminal one."""
    house = House()
    stream = house.stream("wait k complete")
    events = [await anext(stream)]
    await house.agent.waits("k")
    draining = asyncio.ensure_future(house.handler.drain(within=0.05, cleanup=1))
    events += [event async for event in stream]
    await draining
    assert told(events[-1]) == "failed"


async def test_a_draining_server_refuses_messages_and_answers_questions() -> None:
    """What it has accepted can be asked for, and cancelled."""
    house = House()
    task = await house.busy()
    draining = asyncio.ensure_future(house.handler.drain())
    await asyncio.sleep(0)
    assert house.handler.draining
    with pytest.raises(Exception, match=r"shutting down|InternalError") as refused:
        await house.send("complete")
    assert "shutting down" in str(getattr(refused.value, "error", refused.value))
    with pytest.raises(Exception, match=r"shutting down|InternalError") as refused:
        await anext(house.stream("complete"))
    assert "shutting down" in str(getattr(refused.value, "error", refused.value))
    query = _by_id(task.id)
    found = await house.handler.on_get_task(query, kit.call_context())
    assert kit.state_of(found) == "working"
    cancelled = await house.handler.on_cancel_task(_to_cancel(task.id), kit.call_context())
    assert kit.state_of(cancelled) == "canceled"
    assert (await draining).ok
    assert await house.state(task.id) == "canceled"


def _by_id(task_id: str) -> Any:
    if kit.FIRST:
        from a2a.types import GetTaskRequest  # noqa: PLC0415 - not in 0.3

        return GetTaskRequest(id=task_id)
    from a2a.types import TaskQueryParams  # noqa: PLC0415 - not in 1.x

    return TaskQueryParams(id=task_id)


def _to_cancel(task_id: str) -> Any:
    if kit.FIRST:
        from a2a.types import CancelTaskRequest  # noqa: PLC0415 - not in 0.3

        return CancelTaskRequest(id=task_id)
    from a2a.types import TaskIdParams  # noqa: PLC0415 - not in 1.x

    return TaskIdParams(id=task_id)


async def test_a_terminal_state_is_the_last_one() -> None:
    """Whoever comes later, be it the SDK's own cancellation, does not change it."""
    house = House()
    done = await house.send("complete")
    await house.handler.idle()
    other = kit.copied(done)
    if kit.FIRST:
        other.status.state = TaskState.TASK_STATE_CANCELED
    else:
        other.status.state = TaskState.canceled
    await house.handler._store.save(other, kit.call_context())
    assert await house.state(done.id) == "completed"
    with pytest.raises(Exception, match=r"(?i)cancel"):
        await house.handler.on_cancel_task(_to_cancel(done.id), kit.call_context())
    await house.handler.drain()


async def test_everybody_who_closes_gets_the_same_report() -> None:
    """A drain that waits is hurried by a close, and asking again is answered at once."""
    house = House()
    task = await house.busy()
    draining = asyncio.ensure_future(house.handler.drain(within=None))
    await asyncio.sleep(0)
    closed = await house.handler.aclose(within=1)
    assert await draining is closed
    assert await house.handler.drain() is closed
    assert await house.state(task.id) == "failed"


async def test_a_cancelled_drain_becomes_a_close_and_passes_the_cancellation_on() -> None:
    """What was in flight has its terminal state when the cancellation comes out."""
    house = House()
    task = await house.busy()
    draining = asyncio.ensure_future(house.handler.drain(within=None, cleanup=1))
    await asyncio.sleep(0)
    draining.cancel()
    with pytest.raises(asyncio.CancelledError):
        await draining
    assert await house.state(task.id) == "failed"


async def test_a_client_that_leaves_costs_nothing() -> None:
    """Its blocking send is cancelled; the task is not."""
    house = House()
    sending = asyncio.ensure_future(house.send("wait k complete"))
    await house.agent.waits("k")
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    (entry,) = [one for one in house.handler.frontier().in_flight if one.kind == "a2a task"]
    house.agent.release("k")
    await house.handler.idle()
    assert await house.state(entry.name) == "completed"
    await house.handler.drain()


async def test_a_stream_that_is_left_goes_on_without_its_reader() -> None:
    """The task ends, is stored, and nothing waits for the reader."""
    house = House()
    stream = house.stream("wait k update update complete")
    first = await anext(stream)
    await stream.aclose()
    house.agent.release("k")
    await house.handler.idle()
    assert await house.state(first.id) == "completed"
    assert (await house.handler.drain(within=5)).ok


@pytest.mark.parametrize("text", ["raise-first", "say"])
async def test_a_request_without_a_task_leaves_nothing_in_flight(text: str) -> None:
    """A plain message is given; an error before any task goes to the client."""
    house = House()
    if text == "say":
        assert kit.text_of(await house.send(text)) == "said"
    else:
        with pytest.raises(Exception, match="broke"):
            await house.send(text)
    await house.handler.idle()
    assert (await house.handler.drain(within=5)).ok


async def test_a_raising_executor_is_failed_in_the_store() -> None:
    """Also when nobody waits for it any more."""
    house = House()
    task = await house.busy("wait k raise")
    house.agent.release("k")
    await house.handler.idle()
    assert await house.state(task.id) == "failed"
    await house.handler.drain()


@first_only
async def test_events_that_the_sdk_refuses_leave_nothing_in_flight() -> None:
    """A state before there is a task: the client gets the error, and the handler is idle."""

    class Hasty(kit.Agent):
        async def execute(self, context: Any, event_queue: Any) -> None:
            updater = TaskUpdater(event_queue, context.task_id, context.context_id)
            await updater.start_work()

    house = House(Hasty())
    with pytest.raises(Exception, match="before"):
        await house.send("hasty")
    await house.handler.idle()
    assert (await house.handler.drain(within=5)).ok


async def test_a_task_that_is_left_working_is_ended_by_the_drain() -> None:
    """Its executor returned without a terminal state: somebody has to say one."""
    house = House()
    task = await house.send("update", blocking=False)
    await house.handler.idle()
    assert await house.state(task.id) == "working"
    await house.handler.drain(within=5)
    assert await house.state(task.id) == "failed"


class BrokenStore(InMemoryTaskStore):  # type: ignore[misc]  # the SDK has no types here
    """Fails while it is told to."""

    broken = False

    async def save(self, task: Any, context: Any = None) -> None:
        """Save, unless it fails."""
        if self.broken:
            raise OSError("the disk is full")
        await super().save(kit.copied(task), context)


async def test_a_store_that_fails_keeps_nobody_waiting() -> None:
    """The handler is idle; when the store works again, the drain ends the task there."""
    house = House(store=BrokenStore())
    task = await house.busy()
    house.store.broken = True
    house.agent.release("k")
    await house.handler.idle()
    house.store.broken = False
    await house.handler.drain(within=5)
    assert await house.state(task.id) == "failed"


async def test_messages_to_a_task_that_has_ended_leave_no_tasks() -> None:
    """However many: they are refused as the SDK does it, and cost nothing."""
    house = House()
    task = await house.send("complete")
    await house.handler.idle()
    await asyncio.sleep(0)
    before = len(asyncio.all_tasks())
    for _ in range(200):
        with pytest.raises(Exception, match=r"terminal|InvalidParams") as refused:
            await house.send("complete", task_id=task.id)
        assert "terminal" in str(getattr(refused.value, "error", refused.value))
    assert len(asyncio.all_tasks()) <= before
    assert not house.handler._tracker.entries
    await house.handler.drain()


async def test_a_parked_task_goes_on_with_its_next_message() -> None:
    """The same task, by the same handler."""
    house = House()
    task = await house.send("park")
    done = await house.send("complete", task_id=task.id, context_id=task.context_id)
    assert done.id == task.id
    assert kit.state_of(done) == "completed"
    assert (await house.handler.drain(within=5)).ok


async def test_nothing_is_kept_of_tasks_that_have_ended() -> None:
    """Neither by the tracker, nor in the scope."""
    house = House()
    for text in ("complete", "park", "fail", "say", "complete"):
        await house.send(text)
    await house.handler.idle()
    assert not house.handler._tracker.entries
    assert not house.handler.frontier().in_flight
    await house.handler.drain()


async def test_wrong_arguments_are_refused_with_the_names_of_the_sdk() -> None:
    """Before anything is opened."""
    with pytest.raises(ArgumentError, match="agent_executor"):
        QuiescentRequestHandler()
    with pytest.raises(ArgumentError, match="no_such_option"):
        House(no_such_option=1)
    with pytest.raises(ArgumentError, match="grace"):
        House(grace=-1)


async def test_a_handler_that_was_never_used_closes_at_once() -> None:
    """And says that it has no frontier yet."""
    house = House()
    with pytest.raises(UsageError, match="open"):
        house.handler.frontier()
    await house.handler.idle()
    assert (await house.handler.drain()).ok


async def test_as_a_context_manager_it_opens_and_drains() -> None:
    """With the seconds that it was made with."""
    house = House(grace=0.05, cleanup=1)
    async with house.handler:
        task = await house.busy()
    assert await house.state(task.id) == "failed"


@pytest.mark.parametrize("depth", [1, 2])
def test_a_drain_may_be_cancelled_anywhere(depth: int) -> None:
    """At every await, once and twice: the task has a terminal state, and nothing is left."""
    owed: list[Any] = []

    async def scenario() -> None:
        house = House()
        handler = await house.handler.open()
        try:
            await house.busy()
            await handler.drain(within=0.01, cleanup=0.2)
        finally:
            await handler.aclose()
            owed.extend(entry for entry in handler._tracker.entries.values() if entry.owed)

    found = sweep(
        scenario, clock="mock", depth=depth, runs_max=100, allow=kit.LEFT_TO_THE_COLLECTOR
    )
    assert not found.failures, str(found)
    assert not owed
