"""Requests that the SDK refuses half way, and streams that are left: nothing of them stays."""

from __future__ import annotations

import asyncio
import gc
import logging
from typing import TYPE_CHECKING, Any

import pytest
from a2a.server.agent_execution import SimpleRequestContextBuilder
from a2a.server.tasks import InMemoryTaskStore

from quiesce.integrations.a2a import versions
from tests.adapters.a2a import kit
from tests.adapters.a2a.handlers import ServedAgent, first_only, told
from tests.adapters.a2a.test_storing import state, task_in

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.backends("asyncio", "uvloop"),
    pytest.mark.real_time,  # 0.3 polls
    pytest.mark.quiesce(allow=kit.LEFT_TO_THE_COLLECTOR),
]
RACES = 200


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


async def turns() -> None:
    """Let what is about to end do so."""
    for _ in range(20):
        await asyncio.sleep(0)


class Meanwhile(SimpleRequestContextBuilder):  # type: ignore[misc]  # the SDK has no types here
    """Ends the task between the SDK's first look at it and the second."""

    def __init__(self, store: Any) -> None:
        super().__init__()
        self.store = store

    async def build(self, *args: Any, **options: Any) -> Any:
        """End the task in the midst of a request."""
        task = task_in("completed", options["task_id"])
        await self.store.save(task, kit.call_context())
        return await super().build(*args, **options)


@first_only
@pytest.mark.parametrize("kind", ["send", "stream"])
async def test_a_message_that_comes_as_its_task_ends_leaves_nothing(kind: str) -> None:
    """The SDK has made queues by the time that it sees the end; they are ended as well."""
    store = InMemoryTaskStore()
    served = ServedAgent(store=store, request_context_builder=Meanwhile(store))
    await served.handler.open()
    before = len(asyncio.all_tasks())
    for number in range(RACES):
        name = f"task {number}"
        await store.save(task_in("input-required", name), kit.call_context())
        asking = served.send if kind == "send" else lambda *a, **b: anext(served.stream(*a, **b))
        with pytest.raises(Exception, match=r"terminal"):
            await asking("complete", task_id=name)
    await turns()
    assert len(asyncio.all_tasks()) == before
    assert not served.handler._tracker.entries
    assert (await served.handler.drain()).ok


async def test_messages_that_race_with_the_ends_of_their_tasks_leave_nothing() -> None:
    """At every turn of the loop around the end: each is answered, and no task of asyncio stays."""
    served = ServedAgent()
    await served.handler.open()
    before = len(asyncio.all_tasks())
    for number in range(RACES):
        task = await served.busy(f"wait {number} complete" if number else "wait k complete")
        served.agent.release(str(number) if number else "k")
        for _ in range(number % 25):
            await asyncio.sleep(0)
        await asyncio.gather(
            served.send("complete", task_id=task.id, context_id=task.context_id),
            return_exceptions=True,
        )
        await served.handler.idle()
        assert await served.state(task.id) == "completed"
    await turns()
    gc.collect()
    await turns()
    assert len(asyncio.all_tasks()) <= before
    assert (await served.handler.drain()).ok


@first_only
async def test_a_store_that_cannot_be_read_leaves_nothing() -> None:
    """The SDK gives up before it has begun, with an error that goes to the client."""

    class Unread(InMemoryTaskStore):  # type: ignore[misc]  # the SDK has no types here
        async def get(self, *args: Any) -> Any:
            raise OSError("no such database")

    served = ServedAgent(store=Unread())
    await served.handler.open()
    before = len(asyncio.all_tasks())
    for _ in range(20):
        with pytest.raises(OSError, match="database"):
            await served.send("complete")
    await turns()
    assert len(asyncio.all_tasks()) == before
    assert (await served.handler.drain()).ok


async def test_what_an_executor_begins_and_leaves_running_is_waited_for() -> None:
    """It is work of the server, although the task has ended."""
    gate = asyncio.Event()
    done: list[str] = []

    class Starter(kit.Agent):
        async def execute(self, context: Any, event_queue: Any) -> None:
            async def later() -> None:
                await gate.wait()
                done.append(context.task_id)

            self.kept = asyncio.create_task(later())
            await super().execute(context, event_queue)

    served = ServedAgent(Starter())
    task = await served.send("complete")
    idle = asyncio.ensure_future(served.handler.idle())
    await turns()
    assert not idle.done()
    gate.set()
    await idle
    assert done == [task.id]
    assert (await served.handler.drain()).ok


async def test_what_a_store_begins_and_leaves_running_is_waited_for() -> None:
    """One that writes behind, for example."""
    gate = asyncio.Event()
    behind: list[asyncio.Task[Any]] = []

    class Behind(InMemoryTaskStore):  # type: ignore[misc]  # the SDK has no types here
        async def save(self, *args: Any) -> None:
            behind.append(asyncio.create_task(gate.wait()))
            await super().save(*args)

    served = ServedAgent(store=Behind())
    await served.send("complete")
    idle = asyncio.ensure_future(served.handler.idle())
    await turns()
    assert not idle.done()
    gate.set()
    await idle
    assert all(task.done() for task in behind)
    assert (await served.handler.drain()).ok


@pytest.mark.parametrize("way", ["aclose", "athrow", "dropped", "cancelled"])
async def test_a_stream_may_be_left_in_any_way(way: str) -> None:
    """The task goes on; what was left gives nothing more."""
    served = ServedAgent()
    stream = served.stream("wait k update complete")
    first = await anext(stream)
    while told(await anext(stream)) != "working":
        pass
    if way == "aclose":
        await stream.aclose()
    elif way == "athrow":
        with pytest.raises(KeyError):
            await stream.athrow(KeyError("thrown"))
    elif way == "cancelled":
        reading = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
    else:
        stream = None
    if stream is not None:
        with pytest.raises(StopAsyncIteration):
            await anext(stream)
    served.agent.release("k")
    await served.handler.idle()
    assert await served.state(first.id) == "completed"
    assert (await served.handler.drain(grace=5)).ok


async def test_a_stream_has_one_reader() -> None:
    """A second one is refused, as by any generator; and one that was never read begins nothing."""
    served = ServedAgent()
    await served.stream("complete").aclose()
    assert served.agent.executed == 0
    stream = served.stream("wait k complete")
    await anext(stream)
    await served.agent.waits("k")
    while told(await anext(stream)) != "working":
        pass
    reading = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    with pytest.raises(RuntimeError, match="another task is reading"):
        await anext(stream)
    served.agent.release("k")
    assert told(await reading) == "completed"
    assert [event async for event in stream] == []
    assert state("completed") in versions.TERMINAL
    await served.handler.drain()
