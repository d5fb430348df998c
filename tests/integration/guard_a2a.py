"""Programs for test_guard_packages.py, with a2a-sdk: an agent in this process, without a network.

`one`, `three`: so many messages to a task that has been completed; each is refused. `answered`: a
message that is answered, read to the end of the stream. `owned_three`: the same as `three`, in a
scope. All of them close the SDK's handler in the end.
"""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING, Any

from a2a.helpers.proto_helpers import new_task_from_user_message, new_text_message
from a2a.server.context import ServerCallContext
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types.a2a_pb2 import AgentCapabilities, AgentCard, Role, SendMessageRequest, TaskState
from a2a.utils.errors import UnsupportedOperationError

from quiesce import Scope
from tests.integration import guard_programs

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

SERVICES = ["EventQueueSource._dispatch_loop"]


class Executor:
    """The agent: what it is asked is done at once."""

    async def execute(self, context: Any, queue: Any) -> None:
        """Do a task."""
        await queue.enqueue_event(new_task_from_user_message(context.message))
        await TaskUpdater(queue, context.task_id, context.context_id).complete()


def ask(**ids: str) -> Any:
    """Return a request with one message."""
    return SendMessageRequest(message=new_text_message("hello", role=Role.ROLE_USER, **ids))


def serve(store: Any) -> Any:
    """Return the SDK's handler."""
    card = AgentCard(name="agent", capabilities=AgentCapabilities(streaming=True))
    return DefaultRequestHandler(Executor(), store, card)


async def refused(messages: int) -> None:
    """Send messages to a task that has been completed."""
    store = InMemoryTaskStore()
    task = new_task_from_user_message(ask().message)
    task.status.state = TaskState.TASK_STATE_COMPLETED
    await store.save(task, ServerCallContext())
    handler = serve(store)
    for _ in range(messages):
        request = ask(task_id=task.id, context_id=task.context_id)
        try:
            await handler.on_message_send(request, ServerCallContext())
        except UnsupportedOperationError:
            await asyncio.sleep(0)  # the SDK forgets what it has made for the message
        else:
            raise AssertionError(task)
    await handler.aclose()


async def answered() -> None:
    """Send a message, and read what comes of it."""
    handler = serve(InMemoryTaskStore())
    stream = handler.on_message_send_stream(ask(), ServerCallContext())
    states = [event.status.state async for event in stream]
    if states[-1] != TaskState.TASK_STATE_COMPLETED:
        raise AssertionError(states)
    await handler.aclose()


async def owned_three() -> None:
    """Send three in a scope that adopts what the SDK starts."""
    async with Scope("agent", adopt=True, services=SERVICES):
        await refused(3)


SCENARIOS: dict[str, Callable[[], Awaitable[None]]] = {
    "one": functools.partial(refused, 1),
    "three": functools.partial(refused, 3),
    "answered": answered,
    "owned_three": owned_three,
}

if __name__ == "__main__":
    guard_programs.main(SCENARIOS)
