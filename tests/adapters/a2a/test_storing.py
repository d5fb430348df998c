"""The A2A adapter's store: one state of a task at a time, in order; and stores that servers share."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import pytest
from a2a.server.tasks import InMemoryTaskStore

from quiesce.integrations.a2a import versions
from quiesce.integrations.a2a.push.push_sender import Pushes
from quiesce.integrations.a2a.server.task_store import telling
from quiesce.integrations.a2a.server.task_tracker import Tracker
from tests.adapters.a2a import kit
from tests.adapters.a2a.handlers import ServedAgent
from tests.adapters.a2a.pushing_handler import PushingAgent
from tests.adapters.a2a.server import webhook

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [
    pytest.mark.backends("asyncio", "uvloop"),
    pytest.mark.real_time,  # 0.3 polls
    pytest.mark.quiesce(allow=kit.LEFT_TO_THE_COLLECTOR),
    pytest.mark.filterwarnings("ignore:A VersionedTaskStore was configured"),
]
Versioned: Any = versions.VersionedStore
shared_only = pytest.mark.skipif(Versioned is None, reason="this version has no shared stores")


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.getLogger("a2a").setLevel(logging.CRITICAL)
    yield
    logging.getLogger("a2a").setLevel(logging.NOTSET)


def state(name: str) -> Any:
    """Return a state in the words of the version."""
    name = name.replace("-", "_")
    return (
        versions._STATE.Value(f"TASK_STATE_{name.upper()}") if kit.FIRST else versions._STATE[name]
    )


def task_in(name: str, task_id: str = "one") -> Any:
    """Return a task that is in a state."""
    from a2a.types import Task, TaskStatus  # noqa: PLC0415 - the same in all versions

    return Task(id=task_id, context_id="c", status=TaskStatus(state=state(name)))


# One at a time.


class Slow(InMemoryTaskStore):  # type: ignore[misc]  # the SDK has no types here
    """Takes its time, and sees who is in it."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = 0
        self.most = 0
        self.stored: list[str] = []
        self.gate = asyncio.Event()

    async def save(self, task: Any, *args: Any) -> None:
        """Store when it may."""
        self.inside += 1
        self.most = max(self.most, self.inside)
        try:
            await self.gate.wait()
            self.stored.append(task.context_id)
        finally:
            self.inside -= 1


class Queue:
    """Saves of one task, each known by a name."""

    def __init__(self) -> None:
        self.inner = Slow()
        self.tracker = Tracker()
        self.store = telling(self.inner, self.tracker, Pushes(None, None))
        self.saves: dict[str, asyncio.Task[Any]] = {}

    async def begin(self, *names: str) -> None:
        """Begin saves, in this order."""
        for name in names:
            task = task_in("working")
            task.context_id = name
            self.saves[name] = asyncio.ensure_future(self.store.save(task, kit.call_context()))
            await asyncio.sleep(0)

    async def end(self) -> list[str]:
        """Let the store go on; gives what was stored, in order."""
        self.inner.gate.set()
        await asyncio.wait(self.saves.values())
        return self.inner.stored


async def test_the_states_of_a_task_are_stored_one_at_a_time_in_order() -> None:
    """However slow the store is; and nobody is in anybody's way afterwards."""
    queue = Queue()
    await queue.begin(*"abcd")
    assert await queue.end() == list("abcd")
    assert queue.inner.most == 1
    await queue.begin("e")
    assert (await queue.end())[-1] == "e"


@pytest.mark.parametrize("leaving", ["a", "b", "c", "bc", "abcd"])
async def test_who_leaves_neither_holds_up_the_others_nor_changes_their_order(leaving: str) -> None:
    """Whether it is its turn, or it waits for it."""
    queue = Queue()
    await queue.begin(*"abcd")
    for name in leaving:
        queue.saves[name].cancel()
    assert await queue.end() == [name for name in "abcd" if name not in leaving]
    assert queue.inner.most == 1
    await queue.begin("e")
    assert (await queue.end())[-1] == "e"


async def test_who_leaves_in_the_turn_in_which_it_is_named_passes_it_on() -> None:
    """It was woken, and is cancelled before it runs."""
    queue = Queue()
    await queue.begin(*"abc")
    refresh = queue.tracker.refresh

    def refreshed(entry: Any) -> None:
        queue.saves["b"].cancel()
        refresh(entry)

    queue.tracker.refresh = refreshed  # type: ignore[method-assign]  # to be there in that step
    assert await queue.end() == ["a", "c"]
    assert queue.inner.most == 1


async def test_what_waits_for_its_turn_is_not_forgotten() -> None:
    """A terminal state is stored before it, and what is known of that still counts."""
    queue = Queue()
    await queue.begin("a")
    ended = asyncio.ensure_future(queue.store.save(task_in("completed"), kit.call_context()))
    await queue.begin("b")
    refresh, kept = queue.tracker.refresh, []

    def refreshed(entry: Any) -> None:
        refresh(entry)
        kept.append("one" in queue.tracker.entries)

    queue.tracker.refresh = refreshed  # type: ignore[method-assign]  # to be there in that step
    await queue.end()
    await ended
    assert kept == [True, True, False]


async def test_tasks_do_not_wait_for_each_other() -> None:
    """Each has its own turn."""
    queue = Queue()
    saves = [
        asyncio.ensure_future(queue.store.save(task_in("working", name), kit.call_context()))
        for name in "abc"
    ]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert queue.inner.inside == 3
    queue.inner.gate.set()
    await asyncio.gather(*saves)


# Stores that servers share.


def shared() -> Any:
    """Return a store with versions, as several servers have it, and a way to act as another one."""
    from a2a.server.cluster.task_store import StoredTask  # noqa: PLC0415 - not in all
    from a2a.server.cluster.version import TaskVersion  # noqa: PLC0415 - the same

    class Shared(Versioned):  # type: ignore[misc]  # the SDK has no types here
        """Compares and swaps, as the SDK asks of such a store."""

        def __init__(self) -> None:
            self.tasks: dict[str, tuple[Any, int]] = {}
            self.states: list[str] = []
            self.before: Callable[[Any], None] | None = None

        async def get(self, task_id: str, context: Any) -> Any:
            del context
            if task_id not in self.tasks:
                return None
            task, version = self.tasks[task_id]
            return StoredTask(versions.copied(task), TaskVersion(version))

        async def save(
            self, task: Any, *, event: Any, prev: Any, prev_version: Any, context: Any
        ) -> Any:
            del event, prev, context
            if self.before is not None:
                self.before(task)
            stored, version = self.tasks.get(task.id, (None, 0))
            ended = stored is not None and stored.status.state in versions.TERMINAL
            canceled = task.status.state == state("canceled")
            if ended or (not canceled and prev_version != TaskVersion(version)):
                raise versions.concurrent(task.id)
            self.put(task)
            return TaskVersion(version + 1)

        def put(self, task: Any) -> None:
            """Store, whoever asks."""
            self.tasks[task.id] = (versions.copied(task), self.tasks.get(task.id, (None, 0))[1] + 1)
            self.states.append(kit.state_of(task))

        def change(self, task_id: str, name: str) -> None:
            """Store another state, as another server does."""
            task = versions.copied(self.tasks[task_id][0])
            task.status.state = state(name)
            self.put(task)

        async def list(self, params: Any, context: Any) -> Any:
            raise NotImplementedError

        async def delete(self, task_id: str, context: Any) -> None:
            raise NotImplementedError

    return Shared()


@shared_only
@pytest.mark.parametrize("text", ["complete", "fail", "artifact complete", "raise"])
async def test_a_shared_store_has_every_state_and_each_is_pushed_once(text: str) -> None:
    """The SDK takes ours for one of its kind, and hands versions through."""
    async with webhook() as hook:
        served = PushingAgent(store=shared())
        await served.handler.open()
        task = await served.send(text, blocking=False, webhook=hook.url)
        await served.handler.idle()
        assert (await served.handler.drain(grace=5)).ok
    final = "completed" if "complete" in text else "failed"
    assert served.store.states[-1] == final == kit.state_of(served.store.tasks[task.id][0])
    told = hook.states()
    assert (told[0], told[-1]) == ("submitted", final)
    assert told.count(final) == 1
    assert told == list(dict.fromkeys(served.store.states))


@shared_only
async def test_a_parked_task_of_a_shared_store_goes_on_with_its_next_message() -> None:
    """Its version is read again."""
    served = ServedAgent(store=shared())
    task = await served.send("park")
    done = await served.send("complete", task_id=task.id, context_id=task.context_id)
    assert kit.state_of(done) == "completed"
    assert (await served.handler.drain(grace=5)).ok


@shared_only
async def test_what_another_server_has_ended_stays_as_it_is_and_holds_up_nobody() -> None:
    """Whatever our executor says afterwards: it is not stored, and nothing is in flight."""
    served = ServedAgent(store=shared())
    task = await served.send("wait k update artifact complete", blocking=False)
    await served.agent.waits("k")
    served.store.change(task.id, "canceled")
    served.agent.release("k")
    await served.handler.idle()
    assert kit.state_of(served.store.tasks[task.id][0]) == "canceled"
    assert not served.handler._tracker.entries
    assert (await served.handler.drain(grace=5)).ok


@shared_only
async def test_idle_waits_for_a_state_that_is_stored_at_the_second_try() -> None:
    """Another server has changed the task meanwhile; the SDK reads it, and tries again."""
    store = shared()
    served = ServedAgent(store=store)
    seen: list[str] = []

    def meddle(task: Any) -> None:
        if kit.state_of(task) == "completed" and not seen:
            seen.append(task.id)
            store.change(task.id, "working")

    store.before = meddle
    task = await served.send("update update complete", blocking=False)
    await served.handler.idle()
    assert seen == [task.id]
    assert store.states[-1] == "completed"
    assert (await served.handler.drain(grace=5)).ok


@shared_only
@pytest.mark.parametrize("other", ["working", "completed"])
async def test_a_drain_ends_what_others_have_not_ended_meanwhile(other: str) -> None:
    """Changed by another server while it is failed, it is looked at again."""
    store = shared()
    served = ServedAgent(store=store)
    task = await served.send("update", blocking=False)
    await served.handler.idle()
    seen: list[str] = []

    def meddle(task: Any) -> None:
        if kit.state_of(task) == "failed" and not seen:
            seen.append(task.id)
            store.change(task.id, other)

    store.before = meddle
    await served.handler.drain(grace=1)
    assert seen == [task.id]
    assert store.states[-1] == ("completed" if other == "completed" else "failed")


@shared_only
async def test_a_terminal_state_of_a_shared_store_is_the_last_one() -> None:
    """Whoever comes later is told as such a store tells it: the SDK then looks at what is stored."""
    served = ServedAgent(store=shared())
    done = await served.send("complete")
    await served.handler.idle()
    other = versions.copied(done)
    other.status.state = state("failed")
    version = (await served.handler._store.get(done.id, kit.call_context())).version
    with pytest.raises(Exception, match="concurrently"):
        await served.handler._store.save(
            other, event=None, prev=done, prev_version=version, context=kit.call_context()
        )
    assert served.store.states[-1] == "completed"
    await served.handler.drain()
