"""The A2A adapter's handler: when it is idle, what it says is in flight, and how it ends."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import pytest
from a2a.server.tasks import (
    InMemoryTaskStore,
    TaskUpdater,
)
from a2a.types import TaskState

from quiesce.errors import ArgumentError, UsageError
from quiesce.integrations.a2a import QuiescentRequestHandler
from quiesce.testing import sweep
from tests.adapters.a2a import kit
from tests.adapters.a2a.handlers import ServedAgent, first_only, told

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.backends("asyncio", "uvloop"),
    pytest.mark.real_time,  # 0.3 polls
    pytest.mark.quiesce(allow=kit.LEFT_TO_THE_COLLECTOR),
]


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.getLogger("a2a").setLevel(logging.CRITICAL)
    yield
    logging.getLogger("a2a").setLevel(logging.NOTSET)


def why(task: Any) -> str:
    """Return the text of a task's status."""
    return kit.text_of(task.status.message)


async def test_idle_waits_for_a_task_that_works() -> None:
    """It returns when the last state is stored, and not before."""
    served = ServedAgent()
    task = await served.busy()
    waiting = asyncio.ensure_future(served.handler.idle())
    await asyncio.sleep(0)
    assert not waiting.done()
    served.agent.release("k")
    await waiting
    assert await served.state(task.id) == "completed"
    assert (await served.handler.drain()).ok


@pytest.mark.parametrize("text", ["park", pytest.param("auth", marks=first_only)])
async def test_a_parked_task_is_not_busy(text: str) -> None:
    """It waits for its client: nothing is in flight, and a drain leaves its state alone."""
    served = ServedAgent()
    task = await served.send(text)
    await served.handler.idle()
    assert not served.handler.frontier().in_flight
    assert (await served.handler.drain(grace=5)).ok
    assert await served.state(task.id) == ("input-required" if text == "park" else "auth-required")


@first_only
async def test_a_task_that_waits_for_authorization_in_its_executor_is_not_busy() -> None:
    """1.x lets an executor wait for what comes by another way; a stream of it is not busy either."""
    served = ServedAgent()
    stream = served.stream("auth wait k complete")
    while told(event := await anext(stream)) != "auth-required":
        pass
    await served.agent.waits("k")
    await served.handler.idle()
    served.agent.release("k")
    assert [told(event) async for event in stream][-1] == "completed"
    await served.handler.idle()
    assert await served.state(event.task_id) == "completed"
    await served.handler.drain()


async def test_the_frontier_names_the_task_its_state_and_where_it_waits() -> None:
    """Also as text, for whoever asks a server that does not stop."""
    served = ServedAgent()
    task = await served.busy()
    (entry,) = [one for one in served.handler.frontier().in_flight if one.kind == "a2a task"]
    assert entry.name == task.id
    assert entry.details["state"] == "working"
    assert "Agent._do" in str(entry.details["waits_on"])
    assert kit.__file__ in str(entry.where)  # where the user's executor is
    assert entry.age >= 0
    assert task.id in str(served.handler.frontier())
    await served.handler.aclose()


async def test_a_drain_lets_an_accepted_task_end() -> None:
    """Nothing is lost, and nothing is cut."""
    served = ServedAgent()
    task = await served.busy("wait k artifact turn turn complete")
    draining = asyncio.ensure_future(served.handler.drain())
    await asyncio.sleep(0)
    served.agent.release("k")
    report = await draining
    assert report.ok
    assert not report.undelivered
    assert await served.state(task.id) == "completed"


async def test_what_does_not_end_in_time_is_failed_in_the_store_and_says_why() -> None:
    """The report names it as well."""
    served = ServedAgent()
    task = await served.busy()
    report = await served.handler.drain(grace=0.05, cleanup=1)
    assert await served.state(task.id) == "failed"
    assert "shut down" in why(await served.stored(task.id))
    assert [lost.name for lost in report.undelivered] == [task.id]


@pytest.mark.parametrize("way", ["drain", "aclose"])
async def test_an_executor_that_does_not_stop_holds_up_the_end_for_the_cleanup(way: str) -> None:
    """Its task is failed in the store, and stays so whatever it does later."""
    served = ServedAgent()
    task = await served.busy("stubborn k complete")
    end = served.handler.drain(0.05, cleanup=0.2) if way == "drain" else served.handler.aclose(0.2)
    report = await end
    assert report.seconds >= 0.199  # and it returns: the executor runs until it is released below
    assert await served.state(task.id) == "failed"
    assert report.undelivered
    served.agent.release("k")
    for _ in range(20):
        await asyncio.sleep(0)
    assert await served.state(task.id) == "failed"
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

    served = ServedAgent(Mute())
    stream = served.stream("wait k complete")
    await anext(stream)
    await served.agent.waits("k")
    draining = asyncio.ensure_future(served.handler.drain(grace=0.05, cleanup=1))
    assert [told(event) async for event in stream][-1] == "failed"
    await draining


async def test_whoever_waits_for_a_task_that_is_cut_is_answered() -> None:
    """With the failed task, not with one that works."""
    served = ServedAgent()
    sending = asyncio.ensure_future(served.send("wait k complete"))
    await served.agent.waits("k")
    await served.handler.drain(grace=0.05, cleanup=1)
    assert kit.state_of(await sending) == "failed"


async def test_whoever_reads_a_task_that_is_cut_is_told() -> None:
    """The last event of the stream is the terminal one."""
    served = ServedAgent()
    stream = served.stream("wait k complete")
    events = [await anext(stream)]
    await served.agent.waits("k")
    draining = asyncio.ensure_future(served.handler.drain(grace=0.05, cleanup=1))
    events += [event async for event in stream]
    await draining
    assert told(events[-1]) == "failed"


async def test_a_draining_server_refuses_messages_and_answers_questions() -> None:
    """What it has accepted can be asked for, and cancelled."""
    served = ServedAgent()
    task = await served.busy()
    draining = asyncio.ensure_future(served.handler.drain())
    await asyncio.sleep(0)
    assert served.handler.draining
    with pytest.raises(Exception, match=r"shutting down|InternalError") as refused:
        await served.send("complete")
    assert "shutting down" in str(getattr(refused.value, "error", refused.value))
    with pytest.raises(Exception, match=r"shutting down|InternalError") as refused:
        await anext(served.stream("complete"))
    assert "shutting down" in str(getattr(refused.value, "error", refused.value))
    query = _by_id(task.id)
    found = await served.handler.on_get_task(query, kit.call_context())
    assert kit.state_of(found) == "working"
    cancelled = await served.handler.on_cancel_task(_to_cancel(task.id), kit.call_context())
    assert kit.state_of(cancelled) == "canceled"
    assert (await draining).ok
    assert await served.state(task.id) == "canceled"


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
    served = ServedAgent()
    done = await served.send("complete")
    await served.handler.idle()
    other = kit.copied(done)
    if kit.FIRST:
        other.status.state = TaskState.TASK_STATE_CANCELED
    else:
        other.status.state = TaskState.canceled
    await served.handler._store.save(other, kit.call_context())
    assert await served.state(done.id) == "completed"
    with pytest.raises(Exception, match=r"(?i)cancel"):
        await served.handler.on_cancel_task(_to_cancel(done.id), kit.call_context())
    await served.handler.drain()


async def test_everybody_who_closes_gets_the_same_report() -> None:
    """A drain that waits is hurried by a close, and asking again is answered at once."""
    served = ServedAgent()
    task = await served.busy()
    draining = asyncio.ensure_future(served.handler.drain(grace=None))
    await asyncio.sleep(0)
    closed = await served.handler.aclose(cleanup=1)
    assert await draining is closed
    assert await served.handler.drain() is closed
    assert await served.state(task.id) == "failed"


async def test_a_cancelled_drain_becomes_a_close_and_passes_the_cancellation_on() -> None:
    """What was in flight has its terminal state when the cancellation comes out."""
    served = ServedAgent()
    task = await served.busy()
    draining = asyncio.ensure_future(served.handler.drain(grace=None, cleanup=1))
    await asyncio.sleep(0)
    draining.cancel()
    with pytest.raises(asyncio.CancelledError):
        await draining
    assert await served.state(task.id) == "failed"


async def test_a_client_that_leaves_costs_nothing() -> None:
    """Its blocking send is cancelled; the task is not."""
    served = ServedAgent()
    sending = asyncio.ensure_future(served.send("wait k complete"))
    await served.agent.waits("k")
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    (entry,) = [one for one in served.handler.frontier().in_flight if one.kind == "a2a task"]
    served.agent.release("k")
    await served.handler.idle()
    assert await served.state(entry.name) == "completed"
    await served.handler.drain()


async def test_a_stream_that_is_left_goes_on_without_its_reader() -> None:
    """The task ends, is stored, and nothing waits for the reader."""
    served = ServedAgent()
    stream = served.stream("wait k update update complete")
    first = await anext(stream)
    await stream.aclose()
    served.agent.release("k")
    await served.handler.idle()
    assert await served.state(first.id) == "completed"
    assert (await served.handler.drain(grace=5)).ok


@pytest.mark.parametrize("text", ["raise-first", "say"])
async def test_a_request_without_a_task_leaves_nothing_in_flight(text: str) -> None:
    """A plain message is given; an error before any task goes to the client."""
    served = ServedAgent()
    if text == "say":
        assert kit.text_of(await served.send(text)) == "said"
    else:
        with pytest.raises(Exception, match="broke"):
            await served.send(text)
    await served.handler.idle()
    assert (await served.handler.drain(grace=5)).ok


async def test_a_raising_executor_is_failed_in_the_store() -> None:
    """Also when nobody waits for it any more."""
    served = ServedAgent()
    task = await served.busy("wait k raise")
    served.agent.release("k")
    await served.handler.idle()
    assert await served.state(task.id) == "failed"
    await served.handler.drain()


@first_only
async def test_events_that_the_sdk_refuses_leave_nothing_in_flight() -> None:
    """A state before there is a task: the client gets the error, and the handler is idle."""

    class Hasty(kit.Agent):
        async def execute(self, context: Any, event_queue: Any) -> None:
            updater = TaskUpdater(event_queue, context.task_id, context.context_id)
            await updater.start_work()

    served = ServedAgent(Hasty())
    with pytest.raises(Exception, match="before"):
        await served.send("hasty")
    await served.handler.idle()
    assert (await served.handler.drain(grace=5)).ok


async def test_a_task_that_is_left_working_is_ended_by_the_drain() -> None:
    """Its executor returned without a terminal state: somebody has to say one."""
    served = ServedAgent()
    task = await served.send("update", blocking=False)
    await served.handler.idle()
    assert await served.state(task.id) == "working"
    await served.handler.drain(grace=5)
    assert await served.state(task.id) == "failed"


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
    served = ServedAgent(store=BrokenStore())
    task = await served.busy()
    served.store.broken = True
    served.agent.release("k")
    await served.handler.idle()
    served.store.broken = False
    await served.handler.drain(grace=5)
    assert await served.state(task.id) == "failed"


async def test_messages_to_a_task_that_has_ended_leave_no_tasks() -> None:
    """However many: they are refused as the SDK does it, and cost nothing."""
    served = ServedAgent()
    task = await served.send("complete")
    await served.handler.idle()
    await asyncio.sleep(0)
    before = len(asyncio.all_tasks())
    for _ in range(200):
        with pytest.raises(Exception, match=r"terminal|InvalidParams") as refused:
            await served.send("complete", task_id=task.id)
        assert "terminal" in str(getattr(refused.value, "error", refused.value))
    assert len(asyncio.all_tasks()) <= before
    assert not served.handler._tracker.entries
    await served.handler.drain()


async def test_a_parked_task_goes_on_with_its_next_message() -> None:
    """The same task, by the same handler."""
    served = ServedAgent()
    task = await served.send("park")
    done = await served.send("complete", task_id=task.id, context_id=task.context_id)
    assert done.id == task.id
    assert kit.state_of(done) == "completed"
    assert (await served.handler.drain(grace=5)).ok


async def test_nothing_is_kept_of_tasks_that_have_ended() -> None:
    """Neither by the tracker, nor in the scope."""
    served = ServedAgent()
    for text in ("complete", "park", "fail", "say", "complete"):
        await served.send(text)
    await served.handler.idle()
    assert not served.handler._tracker.entries
    assert not served.handler.frontier().in_flight
    await served.handler.drain()


async def test_wrong_arguments_are_refused_with_the_names_of_the_sdk() -> None:
    """Before anything is opened."""
    with pytest.raises(ArgumentError, match="agent_executor"):
        QuiescentRequestHandler()
    with pytest.raises(ArgumentError, match="no_such_option"):
        ServedAgent(no_such_option=1)
    with pytest.raises(ArgumentError, match="grace"):
        ServedAgent(grace=-1)


async def test_a_handler_that_was_never_used_closes_at_once() -> None:
    """And says that it has no frontier yet."""
    served = ServedAgent()
    with pytest.raises(UsageError, match="open"):
        served.handler.frontier()
    await served.handler.idle()
    assert (await served.handler.drain()).ok


async def test_as_a_context_manager_it_opens_and_drains() -> None:
    """With the seconds that it was made with."""
    served = ServedAgent(grace=0.05, cleanup=1)
    async with served.handler:
        task = await served.busy()
    assert await served.state(task.id) == "failed"


@pytest.mark.parametrize("depth", [1, 2])
def test_a_drain_may_be_cancelled_anywhere(depth: int) -> None:
    """At every await, once and twice: the task has a terminal state, and nothing is left."""
    owed: list[Any] = []

    async def scenario() -> None:
        served = ServedAgent()
        handler = await served.handler.open()
        try:
            await served.busy()
            await handler.drain(grace=0.01, cleanup=0.2)
        finally:
            await handler.aclose()
            owed.extend(entry for entry in handler._tracker.entries.values() if entry.owed)

    found = sweep(
        scenario, clock="mock", depth=depth, runs_max=100, allow=kit.LEFT_TO_THE_COLLECTOR
    )
    assert not found.failures, str(found)
    assert not owed
