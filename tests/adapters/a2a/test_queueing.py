"""What the A2A adapter does for less than the SDK: queues of 0.3, and no spans that nobody sees."""

from __future__ import annotations

import asyncio
import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from a2a.server import events
from a2a.server.tasks import InMemoryTaskStore

from quiesce.integrations.a2a import tracing
from quiesce.integrations.a2a.server import event_queues, executor
from tests.adapters.a2a import kit
from tests.adapters.a2a import pushing_handler as pushing
from tests.adapters.a2a.handlers import ServedAgent
from tests.adapters.a2a.server import webhook

if TYPE_CHECKING:
    from collections.abc import Iterator

trace = pytest.importorskip("opentelemetry.trace")

pytestmark = [
    pytest.mark.backends("asyncio", "uvloop"),
    pytest.mark.real_time,  # 0.3 polls
    # Names are looked up by threads of the event loop's own.
    pytest.mark.quiesce(allow=[*kit.LEFT_TO_THE_COLLECTOR, "thread:asyncio_*"]),
]
old_only = pytest.mark.skipif(kit.FIRST, reason="0.3 alone has it")
both = pytest.mark.parametrize("whose", ["the SDK", "quiesce"])
CLOSED = getattr(asyncio, "QueueShutDown", asyncio.QueueEmpty)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def manager(whose: str) -> Any:
    """Return what keeps queues."""
    return events.InMemoryQueueManager() if whose == "the SDK" else event_queues.queues()


async def made(whose: str) -> Any:
    """Return a queue."""
    return await manager(whose).create_or_tap("a task")


async def read(queue: Any) -> Any:
    """Read an event, as the SDK's consumer does."""
    return await asyncio.wait_for(queue.dequeue_event(), timeout=5)


async def taken(queue: Any) -> Any:
    """Read an event, and deal with it."""
    event = await read(queue)
    queue.task_done()
    return event


@old_only
@both
@pytest.mark.parametrize("times", [1, 2, 3, 5])
async def test_a_close_that_is_cancelled_again_and_again_closes_those_that_tap(
    whose: str, times: int
) -> None:
    """A client that follows the task would wait for ever."""
    queue = await made(whose)
    child = queue.tap()
    await queue.enqueue_event("first")
    reading = asyncio.create_task(taken(child))
    closing = asyncio.create_task(executor.close_queue(queue))
    for _ in range(times):
        await asyncio.sleep(0)
        closing.cancel()
    await asyncio.wait([closing, reading])
    assert closing.cancelled()
    assert queue.is_closed()
    assert child.is_closed()


@old_only
@both
async def test_events_come_in_order_and_to_those_who_have_tapped(whose: str) -> None:
    """One that is there as well as one that is waited for; a child has what came after it."""
    queue = await made(whose)
    assert isinstance(queue, events.EventQueue)
    await queue.enqueue_event("first")
    child = queue.tap()
    await queue.enqueue_event("second")
    assert [await taken(queue), await taken(queue), await taken(child)] == [
        "first", "second", "second",
    ]  # fmt: skip
    waiting = asyncio.ensure_future(taken(child.tap()))
    await asyncio.sleep(0)
    await child.enqueue_event("third")
    assert await waiting == "third"
    with pytest.raises(asyncio.QueueEmpty):
        await queue.dequeue_event(no_wait=True)
    await child.enqueue_event("fourth")
    assert await child.dequeue_event(no_wait=True) == "third"


@old_only
@both
async def test_a_closed_queue_takes_nothing_and_gives_what_it_has(whose: str) -> None:
    """The close ends when all was dealt with, also by those who have tapped."""
    queue = await made(whose)
    child = queue.tap()
    await queue.enqueue_event("first")
    closing = asyncio.ensure_future(queue.close())
    for _ in range(5):
        await asyncio.sleep(0)
    assert queue.is_closed()
    assert child.is_closed()
    await queue.enqueue_event("late")
    assert await taken(queue) == "first"
    await asyncio.sleep(0)
    assert not closing.done()
    assert await taken(child) == "first"
    await closing
    await queue.close()  # again
    for closed in (queue, child):
        with pytest.raises(CLOSED):
            await read(closed)


@old_only
@both
async def test_a_queue_without_children_waits_for_its_events_too(whose: str) -> None:
    """And is left alone by whoever gives up waiting for its close."""
    queue = await made(whose)
    await queue.enqueue_event("first")
    closing = asyncio.ensure_future(queue.close())
    for _ in range(5):
        await asyncio.sleep(0)
    assert not closing.done()
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert await taken(queue) == "first"


@old_only
@both
async def test_a_queue_that_is_closed_at_once_forgets_what_it_has(whose: str) -> None:
    """So do those who have tapped it; whoever waits for it to be dealt with goes on."""
    queue = await made(whose)
    child = queue.tap()
    await queue.enqueue_event("first")
    closing = asyncio.ensure_future(queue.close())
    await asyncio.sleep(0)
    await queue.close(immediate=True)
    await closing
    for closed in (queue, child):
        assert closed.is_closed()
        with pytest.raises(CLOSED):
            await read(closed)


@old_only
@pytest.mark.parametrize("turns", range(4))
@pytest.mark.parametrize("there", [True, False])
async def test_whoever_leaves_takes_no_event_along(turns: int, there: bool) -> None:  # noqa: FBT001 - a parameter
    """Cancelled at any turn, one has the event, or the next one gets it."""
    queue = await made("quiesce")
    if there:
        await queue.enqueue_event("first")
    reading = asyncio.ensure_future(read(queue))
    for _ in range(turns):
        await asyncio.sleep(0)
    if not there:
        await queue.enqueue_event("first")
    reading.cancel()
    got = list(await asyncio.gather(reading, return_exceptions=True))
    if got != ["first"]:
        assert isinstance(got[0], asyncio.CancelledError)
        assert await taken(queue) == "first"


@old_only
@both
async def test_queues_are_kept_by_task(whose: str) -> None:
    """One for each, until it is closed; those who come later tap it."""
    queues = manager(whose)
    assert isinstance(queues, events.QueueManager)
    assert await queues.get("a task") is None
    assert await queues.tap("a task") is None
    with pytest.raises(events.NoTaskQueue):
        await queues.close("a task")
    queue = await queues.create_or_tap("a task")
    assert await queues.get("a task") is queue
    with pytest.raises(events.TaskQueueExists):
        await queues.add("a task", queue)
    children = [await queues.create_or_tap("a task"), await queues.tap("a task")]
    await queue.enqueue_event("first")
    assert [await taken(one) for one in (queue, *children)] == ["first"] * 3
    await queues.close("a task")
    assert queue.is_closed()
    assert await queues.get("a task") is None
    await queues.add("a task", queue)
    assert await queues.get("a task") is queue


@old_only
async def test_a_close_that_takes_long_holds_up_no_other_task() -> None:
    """The SDK keeps its lock meanwhile."""
    queues = manager("quiesce")
    slow = await queues.create_or_tap("slow")
    await slow.enqueue_event("first")
    closing = asyncio.ensure_future(queues.close("slow"))
    await asyncio.sleep(0)
    await asyncio.wait_for(queues.create_or_tap("quick"), timeout=5)
    assert not closing.done()
    await taken(slow)
    await closing


@old_only
async def test_the_queues_of_the_user_are_used() -> None:
    """Whoever gives a manager of their own has their reasons."""
    asked: list[str] = []

    class Own(events.InMemoryQueueManager):  # type: ignore[misc]  # the SDK has no types here
        async def create_or_tap(self, task_id: str) -> Any:
            asked.append(task_id)
            return await super().create_or_tap(task_id)

    served = ServedAgent(queue_manager=Own())
    task = await served.send("complete")
    assert asked == [task.id]
    assert (await served.handler.drain()).ok


@old_only
async def test_a_task_that_has_ended_stays_so_in_a_store_that_has_the_very_task() -> None:
    """0.3 changes the task that its store has, and only then wants to store it."""
    store = InMemoryTaskStore()
    served = ServedAgent(store=store)
    task = await served.send("complete")
    last = task.status
    task.status = type(last)(state=type(last.state).working)
    await served.handler._store.save(task, kit.call_context())
    assert task.status is last
    assert await served.state(task.id) == "completed"
    assert (await served.handler.drain()).ok


async def test_each_event_of_a_stream_is_pushed_once() -> None:
    """In 0.3, whose notifications are of all of a task, after each event."""
    async with webhook() as hook:
        served = pushing.PushingAgent()
        params = kit.request("artifact update artifact complete", webhook=hook.url)
        async for _ in served.handler.on_message_send_stream(params, kit.call_context()):
            pass
        await served.handler.idle()
        assert len(hook.heard) == 6  # submitted, working, and the four of these
        if not kit.FIRST:
            made = [len(body.get("artifacts") or ()) for body in hook.heard]
            assert made == [0, 0, 1, 1, 2, 2]
        assert (await served.handler.drain()).ok


class Tracer(trace.NoOpTracer):  # type: ignore[misc,name-defined]  # it may not be installed
    """Takes note of the spans that it is asked for."""

    def __init__(self) -> None:
        self.names: list[str] = []

    @contextmanager
    def start_as_current_span(self, name: str, **options: Any) -> Iterator[Any]:
        """Note the name."""
        del options
        self.names.append(name.rpartition(".")[2])
        yield trace.INVALID_SPAN


async def counted(handler: Any, tracer: Tracer, monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Send a message, and count the spans of what is done with queues."""
    tracer.names.clear()
    with monkeypatch.context() as patched:
        patched.setattr(trace, "get_tracer", lambda *_, **__: tracer)
        await handler.on_message_send(kit.request("artifact complete"), kit.call_context())
        if hasattr(handler, "idle"):
            await handler.idle()
        for _ in range(50):
            await asyncio.sleep(0)
    return {name: tracer.names.count(name) for name in ("enqueue_event", "dequeue_event")}


@pytest.mark.parametrize("tracing_is_on", [True, False])
async def test_all_spans_are_made_where_somebody_traces(
    tracing_is_on: bool,  # noqa: FBT001 - a parameter
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As many as by the SDK's own handler; without a tracer there are fewer, and nobody misses them."""
    tracer, served, handler = Tracer(), ServedAgent(), kit.bare_handler(kit.Agent())
    if tracing_is_on:

        class Provider(trace.TracerProvider):  # type: ignore[misc,name-defined]  # the same
            def get_tracer(self, *_: Any, **__: Any) -> Any:
                return tracer

        monkeypatch.setattr(trace, "get_tracer_provider", Provider)
    assert tracing.is_traced() is tracing_is_on
    theirs = await counted(handler, tracer, monkeypatch)
    ours = await counted(served.handler, tracer, monkeypatch)
    assert theirs["enqueue_event"] >= 4
    if tracing_is_on:
        assert ours == theirs
    else:
        assert ours["enqueue_event"] <= theirs["enqueue_event"] - 4
    if hasattr(handler, "aclose"):
        await handler.aclose()
    assert (await served.handler.drain()).ok


async def test_a_class_without_spans_is_the_same_in_all_else() -> None:
    """Only what the SDK has wrapped is taken out of its wrapping."""

    class Plain:
        def said(self) -> str:
            return "said"

    assert tracing.untraced(Plain) is Plain
    traced: Any = events.InMemoryQueueManager
    kind = tracing.untraced(traced)
    assert issubclass(kind, traced)
    assert kind.__name__ == traced.__name__
    assert kind.get is traced.get.__wrapped__
    assert tracing.untraced(traced) is kind
    assert tracing.untraced(kind) is kind
