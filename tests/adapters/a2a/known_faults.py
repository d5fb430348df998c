"""What goes wrong with A2A servers, each a program: with the SDK alone, and with the adapter.

Faults 2, 3, 4 and those after 9 have a server in a process of its own, HTTP, and a webhook that is
told; the others have the handler in this process, where tasks can be counted.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import tempfile
import threading
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import httpx
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.tasks import InMemoryPushNotificationConfigStore, InMemoryTaskStore

from quiesce.integrations.a2a import DurablePushSender, MemoryOutbox, QuiescentRequestHandler
from tests.adapters.a2a import kit
from tests.adapters.a2a.server import serving, webhook
from tests.adapters.known_faults import Absent, KnownFaults

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.adapters.a2a.server import Server, Webhook
    from tests.adapters.known_faults import Way

known_fault = KnownFaults()
logging.getLogger("a2a").setLevel(logging.CRITICAL)
_SERVED_SECONDS = 45.0  # servers are started, some twice; no SDK hangs in any of these
_SHORT = {
    "bare": 1.5,
    "quiesce": 30.0,
}  # to wait for a push: one of them comes, or the fault is there
_ANSWERED = kit.LEFT_TO_THE_COLLECTOR
_ANSWERS = 300  # of a server that could have done something else in the meantime


@asynccontextmanager
async def folder() -> AsyncIterator[Path]:
    """Make a folder for the block."""
    with tempfile.TemporaryDirectory(prefix="quiesce-a2a-") as path:
        yield Path(path)


@asynccontextmanager
async def served(way: Way, *options: str) -> AsyncIterator[tuple[Server, Webhook]]:
    """Start a server and a webhook for the block."""
    async with folder() as place, webhook() as hook, serving(way, place, *options) as server:
        yield server, hook


def only(states: dict[str, str]) -> str:
    """Return the state of the one task that there is."""
    (state,) = states.values()
    return state


def judged(stored: str, told: list[str], wanted: str) -> str | None:
    """Say what is wrong with a state that was stored, and those that were told."""
    wrong = []
    if stored != wanted:
        wrong.append(f"stored {stored}")
    if told.count(wanted) > 1:
        wrong.append("pushed twice")
    if wanted not in told:
        wrong.append("never pushed")
    return ", ".join(wrong) or None


class Subject:
    """A handler of either way, in this process."""

    def __init__(self, way: Way, store: Any = None) -> None:
        """Make it; it is closed by `close`."""
        self.way = way
        self.agent = kit.Agent()
        self.store = store or InMemoryTaskStore()
        self.configs = InMemoryPushNotificationConfigStore()
        self.client = httpx.AsyncClient(trust_env=False)
        self.handler: Any
        if way == "bare":
            sender = kit.bare_sender(self.client, self.configs)
            self.handler = kit.bare_handler(
                self.agent, self.store, configs=self.configs, sender=sender
            )
        else:
            options = {"agent_card": kit.card()} if kit.FIRST else {}
            self.handler = QuiescentRequestHandler(
                agent_executor=self.agent,
                task_store=self.store,
                push_config_store=self.configs,
                push_sender=DurablePushSender(MemoryOutbox(), allow_private=True),
                **options,
            )

    async def send(self, text: str, **options: Any) -> Any:
        """Send a message."""
        return await self.handler.on_message_send(kit.request(text, **options), kit.call_context())

    def stream(self, text: str, **options: Any) -> Any:
        """Send a message, and give the events."""
        return self.handler.on_message_send_stream(kit.request(text, **options), kit.call_context())

    async def state(self, task_id: str) -> str:
        """Return the state that is stored."""
        context = kit.call_context()
        return kit.state_of(await self.store.get(task_id, context))

    async def close(self, within: float = 2.0) -> None:
        """Close as its way does: the SDK's has only `aclose()`, from 1.1.2 on."""
        if self.way == "quiesce":
            await self.handler.drain(grace=within)
        elif hasattr(self.handler, "aclose"):
            await self.handler.aclose()
        await self.client.aclose()


def consumers() -> list[asyncio.Task[Any]]:
    """Return the tasks that go on reading events after the answer, in 0.3."""
    return [
        task
        for task in asyncio.all_tasks()
        if "_continue_consuming" in getattr(task.get_coro(), "__qualname__", "")
    ]


async def turns() -> None:
    """Let all that is ready run, and what that makes ready."""
    for _ in range(100):
        await asyncio.sleep(0)


@known_fault("1. the task that stores what comes after the answer has an owner", seconds=4)
async def _untracked(way: Way) -> str | None:
    if kit.FIRST:
        raise Absent
    subject = Subject(way)
    task = await subject.send("wait k complete", blocking=False)
    (consumer,) = consumers()
    if way == "bare":
        owned = consumer in subject.handler._background_tasks
    else:
        owned = any("_continue_consuming" in entry.name for entry in subject.handler.frontier())
        owned = owned or consumer.get_name() in str(subject.handler.frontier())
    subject.agent.release("k")
    await asyncio.wait([consumer])
    stored = await subject.state(task.id)
    await subject.close()
    return None if owned and stored == "completed" else "nobody owns it"


@known_fault(
    "2. a streaming client leaves: the final state is stored and pushed", seconds=_SERVED_SECONDS
)
async def _disconnected(way: Way) -> str | None:
    async with served(way) as (server, hook):
        async with server.stream("wait k complete", webhook=hook.url) as events:
            await anext(events)
            await server.waits("k")
        await server.release("k")
        await hook.until("completed", seconds=_SHORT[way])
        return judged(only(server.store.states()), hook.states(), "completed")


@known_fault("3. the executor raises: FAILED is stored and pushed, once", seconds=_SERVED_SECONDS)
async def _raised(way: Way) -> str | None:
    async with served(way) as (server, hook):
        await server.send("wait k raise", blocking=False, webhook=hook.url)
        await server.waits("k")
        await server.release("k")
        await hook.until("failed", seconds=_SHORT[way])
        await server.stop()  # what is pushed twice has been by now
        return judged(only(server.store.states()), hook.states(), "failed")


@known_fault(
    "4. SIGTERM, a task that would take too long: a terminal state", seconds=_SERVED_SECONDS
)
async def _terminated(way: Way) -> str | None:
    async with served(way, "grace=0.3") as (server, hook):
        await server.send("wait k complete", blocking=False, webhook=hook.url)
        await server.waits("k")
        await server.stop()
        return judged(only(server.store.states()), hook.states(), "failed")


@known_fault("4. SIGTERM, a task that soon ends: it does", seconds=_SERVED_SECONDS)
async def _finished(way: Way) -> str | None:
    async with served(way, "grace=5") as (server, hook):
        await server.send("wait k sleep 0.3 complete", blocking=False, webhook=hook.url)
        await server.waits("k")
        await server.release("k")
        await server.stop()
        return judged(only(server.store.states()), hook.states(), "completed")


@known_fault("4. SIGTERM and timeout_graceful_shutdown, a blocking send", seconds=_SERVED_SECONDS)
async def _graceful(way: Way) -> str | None:
    async with served(way, "grace=0.2", "graceful=1") as (server, hook):
        send = asyncio.create_task(server.send("wait k complete", webhook=hook.url))
        await server.waits("k")
        await server.stop()
        answer = None
        with suppress(httpx.HTTPError, KeyError, ValueError):
            answer = kit.state_of(await send)
        wrong = [f"answers {answer}"] if answer not in {None, *kit.TERMINAL} else []
        wrong += filter(None, [judged(only(server.store.states()), hook.states(), "failed")])
        return ", ".join(wrong) or None


@known_fault(
    "5. a stream that nobody reads on, nor closes: the task's end is not held up",
    seconds=4,
    allow=_ANSWERED,
)
async def _abandoned(way: Way) -> str | None:
    if not kit.FIRST:
        raise Absent
    before = asyncio.all_tasks()
    subject = Subject(way)
    stream = subject.stream("wait k update update complete")
    await anext(stream)  # and then it is only kept
    subject.agent.release("k")
    begun = asyncio.all_tasks() - before
    if way == "quiesce":
        await subject.close()
    _, left = await asyncio.wait(begun, timeout=0.7)
    await subject.client.aclose()
    for task in left:
        task.cancel()
    await stream.aclose()
    return "teardown wedged" if left else None


def _embedded(way: Way, complaints: list[str]) -> None:
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda _loop, context: complaints.append(context["message"]))

    async def embedder() -> None:
        subject = Subject(way)
        await subject.send("wait k complete", blocking=False)
        await subject.send("park")
        if way == "quiesce":
            await subject.handler.aclose()
        await subject.client.aclose()

    loop.run_until_complete(embedder())
    loop.close()
    gc.collect()


@known_fault(
    "6. an embedder closes the loop: no task is destroyed while it is pending",
    seconds=6,
    allow=_ANSWERED,
)
async def _destroyed(way: Way) -> str | None:
    complaints: list[str] = []
    thread = threading.Thread(target=_embedded, args=(way, complaints))
    thread.start()
    await anyio.to_thread.run_sync(thread.join)
    gc.collect()
    destroyed = [text for text in complaints if "destroyed" in text]
    return "tasks destroyed while pending" if destroyed else None


@known_fault(
    "7. aclose() while the push of a task that had a follow-up is in flight",
    seconds=5,
    allow=_ANSWERED,
)
async def _replaced(way: Way) -> str | None:
    if not hasattr(DefaultRequestHandler, "aclose"):
        raise Absent
    subject = Subject(way)
    async with webhook() as hook:
        hook.gate = asyncio.Event()
        hook.gate.set()
        task = await subject.send("wait k complete", blocking=False, webhook=hook.url)
        await hook.until("working")
        hook.gate.clear()
        subject.agent.release("k")
        while await subject.state(task.id) != "completed":  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0)
        follow_up = asyncio.ensure_future(subject.send("complete", task_id=task.id))
        await asyncio.wait([follow_up], timeout=0.3)  # 1.2 lets it wait for the push
        if way == "bare":
            await subject.handler.aclose()
        else:
            await subject.handler.aclose(cleanup=0.3)
        left = [task for task in asyncio.all_tasks() if task.get_name().startswith("consumer:")]
        hook.gate.set()
        await asyncio.gather(follow_up, return_exceptions=True)
        for one in left:
            one.cancel()
        await asyncio.wait(left, timeout=0.3) if left else None
        await subject.client.aclose()
    return "consumer left" if left else None


@known_fault("8. messages to a terminal task: nothing is left of them", seconds=6, allow=_ANSWERED)
async def _follow_ups(way: Way) -> str | None:
    subject = Subject(way)
    task = await subject.send("complete")
    await turns()
    before = len(asyncio.all_tasks())
    refused = 0
    for _ in range(20):
        try:
            await subject.send("complete", task_id=task.id)
        except Exception:
            refused += 1
    gc.collect()
    await turns()
    left = len(asyncio.all_tasks()) - before
    await subject.close()
    for one in asyncio.all_tasks() - {asyncio.current_task()}:
        one.cancel()
    await turns()
    return "tasks left of messages that were refused" if left or refused != 20 else None


class SlowStore(InMemoryTaskStore):  # type: ignore[misc]  # the SDK has no types here
    """Takes its time over a state until it may go on."""

    def __init__(self) -> None:
        """Start with nothing saved."""
        super().__init__()
        self.gate = asyncio.Event()
        self.reached = asyncio.Event()

    async def save(self, task: Any, context: Any = None) -> None:
        """Save, when it may."""
        if kit.state_of(task) == "working":
            self.reached.set()
            await self.gate.wait()
        await super().save(task, context)


@known_fault(
    "9. COMPLETED is queued when the server shuts down: it is stored", seconds=5, allow=_ANSWERED
)
async def _queued(way: Way) -> str | None:
    if not kit.FIRST:
        raise Absent
    store = SlowStore()
    subject = Subject(way, store)
    task = await subject.send("complete", blocking=False)
    await store.reached.wait()
    while subject.agent.executed == 0:  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(0)
    await turns()
    asyncio.get_running_loop().call_later(0.1, store.gate.set)
    if way == "bare" and not hasattr(subject.handler, "aclose"):
        doomed = asyncio.all_tasks() - {asyncio.current_task()}
        for one in doomed:  # as asyncio.run does at its end
            one.cancel()
        await asyncio.wait(doomed, timeout=1)
    await subject.close()
    stored = await subject.state(task.id)
    return None if stored == "completed" else f"stored {stored}"


@known_fault("10. SIGKILL, and a new start: a terminal state", seconds=_SERVED_SECONDS)
async def _killed(way: Way) -> str | None:
    async with folder() as place, webhook() as hook:
        async with serving(way, place) as server:
            await server.send("wait k complete", blocking=False, webhook=hook.url)
            await server.waits("k")
            await server.stop(signal.SIGKILL)
        async with serving(way, place) as server:
            await hook.until("failed", seconds=_SHORT[way])
            await server.stop()
            return judged(only(server.store.states()), hook.states(), "failed")


@known_fault(
    "11. SIGKILL while the webhook is down, and a new start: the push", seconds=_SERVED_SECONDS
)
async def _lost_push(way: Way) -> str | None:
    async with folder() as place, webhook() as hook:
        hook.statuses = [503] * 50
        async with serving(way, place) as server:
            await server.send("complete", webhook=hook.url)
            await server.stop(signal.SIGKILL)
        hook.statuses = []
        async with serving(way, place) as server:
            await hook.until("completed", seconds=_SHORT[way])
            await server.stop()
            return judged(only(server.store.states()), hook.states(), "completed")


@known_fault("12. the webhook fails once: the push arrives all the same", seconds=_SERVED_SECONDS)
async def _failing(way: Way) -> str | None:
    async with served(way) as (server, hook):
        hook.statuses = [503] * 3
        await server.send("complete", webhook=hook.url)
        await hook.until("completed", seconds=_SHORT[way])
        return judged(only(server.store.states()), hook.states(), "completed")


@known_fault(
    "13. a slow webhook delays neither an answer nor what is stored", seconds=_SERVED_SECONDS
)
async def _slow(way: Way) -> str | None:
    async with served(way) as (server, hook):
        hook.gate = asyncio.Event()
        try:
            async with asyncio.timeout(2):
                await server.send("wait k complete", blocking=False, webhook=hook.url)
        except TimeoutError:
            return "the answer waits for it, too"
        await server.waits("k")
        await server.release("k")
        for _ in range(_ANSWERS):
            stored = only(server.store.states())
            if stored == "completed":
                break
            await server.client.get("/tasks-alive")
        hook.gate.set()
        await server.stop()
        return None if stored == "completed" else f"stored {stored}"
