"""Requests about tasks that have ended: whatever their kind, and however many, nothing is left of them.

By hand, `QUIESCE_A2A_FOLLOWUPS=10000` makes them many, and
`python -m tests.adapters.a2a.test_followups 10000` prints what grows with the SDK alone, and with the adapter.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import logging
import os
import sys
from contextlib import aclosing
from dataclasses import astuple, dataclass, fields
from typing import TYPE_CHECKING, Any

import pytest
from a2a.server.tasks import InMemoryPushNotificationConfigStore, InMemoryTaskStore

from quiesce.integrations.a2a import QuiescentRequestHandler
from tests.adapters.a2a import kit
from tests.adapters.a2a.server import Refused, serving

if kit.FIRST:
    from a2a.types import CancelTaskRequest, GetTaskRequest, SubscribeToTaskRequest
else:
    from a2a.types import TaskIdParams, TaskQueryParams

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [
    pytest.mark.backends("asyncio"),
    pytest.mark.real_time,
    pytest.mark.quiesce(allow=kit.LEFT_TO_THE_COLLECTOR),
]
KINDS = ("send", "stream", "subscribe", "cancel", "get")
COUNT = int(os.environ.get("QUIESCE_A2A_FOLLOWUPS", "300"))
_TURNS = 50
_AT_A_TIME = 10  # tasks, for one request


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


class CountedStore(InMemoryTaskStore):  # type: ignore[misc]  # the SDK has no types here
    """Counts what is stored, and how often."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.saves = 0

    async def save(self, task: Any, *args: Any, **options: Any) -> None:
        """Store, and count."""
        self.ids.add(task.id)
        self.saves += 1
        await super().save(task, *args, **options)


@dataclass(frozen=True)
class Growth:
    """By how much something is more than it was."""

    refused: int
    most: int
    """Tasks of asyncio, at any time: the garbage collector may take those that nobody refers to."""
    destroyed: int
    """Of these, those that it has taken while they waited; asyncio complains."""
    tasks: int
    """Tasks of asyncio, in the end."""
    stored: int
    """Tasks in the store."""
    saves: int
    objects: int
    """Of Python, that the garbage collector knows and cannot collect; in a third of the requests, and
    the least of three: caches grow now and then, what leaks grows all the time."""


class Subject:
    """A handler, the SDK's own or the adapter, and a task of it that has ended."""

    def __init__(self, way: str) -> None:
        self.store = CountedStore()
        self.task_id = ""
        if way == "bare":
            self.handler: Any = kit.bare_handler(kit.Agent(), self.store)
        else:
            self.handler = QuiescentRequestHandler(
                agent_executor=kit.Agent(),
                task_store=self.store,
                push_config_store=InMemoryPushNotificationConfigStore(),
                **({"agent_card": kit.card()} if kit.FIRST else {}),
            )

    async def open(self) -> None:
        """Make a task that has ended."""
        task = await self.handler.on_message_send(kit.request("complete"), kit.call_context())
        assert kit.state_of(task) == "completed"
        self.task_id = task.id

    async def follow_up(self, kind: str) -> bool:
        """Ask something of the task that has ended; False if it was refused."""
        context = kit.call_context()
        try:
            if kind == "send":
                params = kit.request("complete", task_id=self.task_id)
                await self.handler.on_message_send(params, context)
            elif kind == "stream":
                params = kit.request("complete", task_id=self.task_id)
                await _read(self.handler.on_message_send_stream(params, context))
            elif kind == "subscribe":
                await _read(self._subscribed(context))
            elif kind == "cancel":
                params = CancelTaskRequest if kit.FIRST else TaskIdParams
                await self.handler.on_cancel_task(params(id=self.task_id), context)
            else:
                params = GetTaskRequest if kit.FIRST else TaskQueryParams
                await self.handler.on_get_task(params(id=self.task_id), context)
        except Exception:
            return False
        return True

    def _subscribed(self, context: Any) -> Any:
        if kit.FIRST:
            params = SubscribeToTaskRequest(id=self.task_id)
            return self.handler.on_subscribe_to_task(params, context)
        return self.handler.on_resubscribe_to_task(TaskIdParams(id=self.task_id), context)

    async def counted(self) -> tuple[int, int, int, int]:
        """Count tasks, what is stored, and objects, when what is about to end has."""
        await turns()
        gc.collect()
        await turns()
        stored = len(self.store.ids), self.store.saves
        return len(asyncio.all_tasks()), *stored, len(gc.get_objects())

    async def close(self) -> None:
        """End it; what the SDK alone has left is cancelled."""
        close = getattr(self.handler, "aclose", None)
        if close is not None:
            await close()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)


async def _read(events: Any) -> None:
    async with aclosing(events):
        async for _ in events:
            pass


async def turns() -> None:
    """Let what is ready go on."""
    for _ in range(_TURNS):
        await asyncio.sleep(0)


async def grown(way: str, kind: str, count: int) -> Growth:
    """Ask so often; gives what has grown."""
    complaints: list[str] = []
    loop = asyncio.get_running_loop()
    usual = loop.get_exception_handler()
    loop.set_exception_handler(lambda _, context: complaints.append(context["message"]))
    subject = Subject(way)
    await subject.open()
    for _ in range(20):  # what is made once is made by now
        await subject.follow_up(kind)
    counts = [await subject.counted()]
    complaints.clear()
    refused = most = 0
    for number in range(count):
        refused += not await subject.follow_up(kind)
        most = max(most, len(asyncio.all_tasks()))
        if number in {count // 3, 2 * count // 3, count - 1}:
            counts.append(await subject.counted())
    tasks, stored, saves, _ = (now - then for now, then in zip(counts[-1], counts[0], strict=True))
    objects = min(now[-1] - then[-1] for then, now in itertools.pairwise(counts))
    destroyed = len([text for text in complaints if "destroyed" in text])
    await subject.close()
    loop.set_exception_handler(usual)
    return Growth(refused, most - counts[0][0], destroyed, tasks, stored, saves, objects)


@pytest.mark.usefixtures("unwatched")  # the notes of a census are objects too
@pytest.mark.timeout(max(60, COUNT // 20))
@pytest.mark.parametrize("kind", KINDS)
async def test_nothing_is_left_of_requests_about_a_task_that_has_ended(kind: str) -> None:
    """No task, nothing stored, and no object for each; what makes no sense is refused."""
    growth = await grown("quiesce", kind, COUNT)
    assert (growth.tasks, growth.stored, growth.saves, growth.destroyed) == (0, 0, 0, 0)
    assert growth.most < _AT_A_TIME
    assert growth.objects < COUNT / 6
    assert growth.refused == (0 if kind == "get" else COUNT)


@pytest.mark.quiesce(guard="off")
@pytest.mark.skipif(kit.VERSION < (1, 3), reason="before 1.3 it is three in all, not two each")
async def test_with_the_sdk_alone_each_message_leaves_tasks() -> None:
    """What the test above is for: they wait for ever, until the garbage collector destroys them."""
    gc.disable()
    try:
        growth = await grown("bare", "send", 100)
    finally:
        gc.enable()
    assert growth.most > 100
    assert growth.destroyed > 100


@pytest.mark.parametrize("rest", [False, True], ids=["JSON-RPC", "REST"])
async def test_nothing_is_left_of_them_in_a_server(tmp_path: Path, rest: bool) -> None:  # noqa: FBT001 - a parameter
    """Over HTTP, with connections of their own that are hung up: no task, and no open file."""
    async with serving("quiesce", tmp_path) as server:
        task = await server.send("complete")
        found = []
        for round_ in range(2):
            for _ in range(20 * round_ + 5):
                params = kit.sending("complete", task_id=task["id"])
                for request in (
                    server.ask(params, rest=rest),
                    server.cancel(task["id"], rest=rest),
                ):
                    with pytest.raises(Refused):
                        await request
                with pytest.raises((Refused, StopAsyncIteration)):  # REST of 0.3 says nothing
                    async with server.reading(params, rest=rest) as events:
                        await anext(events)
                await server.hang_up(params, rest=rest)
            found.append(await _settled(server))
        assert found[1]["tasks"] <= found[0]["tasks"]
        assert found[1]["files"] <= found[0]["files"]
        assert len(server.store.states()) == 1
        await server.stop()


async def _settled(server: Any) -> dict[str, int]:
    """Count what a server has, when two counts agree; connections take their time to end."""
    last: dict[str, int] = {}
    for _ in range(200):
        tasks = (await server.client.get("/tasks-alive")).json()["tasks"]
        now = {"tasks": tasks, "files": kit.measured(server.process.pid)["files"]}
        if now == last:
            break
        last = now
    return last


def main() -> None:
    """Print what grows."""
    logging.disable(logging.CRITICAL)
    count = int(sys.argv[1]) if len(sys.argv) > 1 else COUNT
    version = ".".join(map(str, kit.VERSION))
    sys.stdout.write(f"a2a-sdk {version}, {count} of each about a task that has ended\n")
    line = "{:<10} {:<8}" + " {:>9}" * 7 + "\n"
    sys.stdout.write(line.format("", "", *(entry.name for entry in fields(Growth))))
    for kind in KINDS:
        for way in ("bare", "quiesce"):
            # The SDK's own are few: each makes all that follow slower.
            growth = asyncio.run(grown(way, kind, count if way == "quiesce" else min(count, 1000)))
            sys.stdout.write(line.format(kind, way, *astuple(growth)))
            sys.stdout.flush()


if __name__ == "__main__":
    main()
