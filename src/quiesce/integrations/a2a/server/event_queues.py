"""The queues of a server of 0.3, between an executor and the task that stores its events.

They do what the SDK's own do, for less:

1. An event that is there is given at once. The SDK makes a task for each, to wait for it.
2. There is no lock to wait for: each change is one step.
3. There are no spans of what is done with them. Where a tracer is set up, the SDK's own queues are used.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import TYPE_CHECKING, Any

from quiesce.integrations.a2a import tracing

if TYPE_CHECKING:
    from collections.abc import Awaitable

__all__: list[str] = []

_log = logging.getLogger("quiesce.a2a")
_SHUTS_DOWN = sys.version_info >= (3, 13)  # before, a closed queue is one that is empty


class _Queue:
    """A queue of events; what is in it goes to its children as well."""

    queue: asyncio.Queue[Any]

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._taps: list[Any] = []
        self._over = False

    async def enqueue_event(self, event: Any) -> None:
        """Add an event, unless it is closed."""
        if self._over:
            _log.warning("the queue is closed: an event is not enqueued")
            return
        await self.queue.put(event)
        for child in self._taps:
            await child.enqueue_event(event)

    def dequeue_event(self, no_wait: bool = False) -> Awaitable[Any]:  # noqa: FBT001, FBT002 - as the SDK has it
        """Return an event, at once if there is one (1)."""
        if self.queue.empty():
            return self._next(no_wait=no_wait)
        ready: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        ready.set_result(self.queue.get_nowait())
        return ready

    async def _next(self, *, no_wait: bool) -> Any:
        if self._over and not _SHUTS_DOWN and self.queue.empty():
            message = "Queue is closed."
            raise asyncio.QueueEmpty(message)
        return self.queue.get_nowait() if no_wait else await self.queue.get()

    def task_done(self) -> None:
        """Record that an event was dealt with."""
        self.queue.task_done()

    def tap(self) -> Any:
        """Return a queue that gets what is enqueued from now on."""
        child = type(self)()
        self._taps.append(child)
        return child

    async def close(self, immediate: bool = False) -> None:  # noqa: FBT001, FBT002 - as the SDK has it
        """Take no more events; wait until all are dealt with, or forget them."""
        if self._over and not immediate:
            return
        self._over = True
        if _SHUTS_DOWN:
            self.queue.shutdown(immediate)  # type: ignore[attr-defined]  # since 3.13
        if immediate:
            await self.clear_events()
            for child in self._taps:
                await child.close(immediate=True)
        elif self._taps:
            await asyncio.gather(self.queue.join(), *(child.close() for child in self._taps))
        else:
            await self.queue.join()

    def is_closed(self) -> bool:
        """Return whether it takes no more events."""
        return self._over

    async def clear_events(self, clear_child_queues: bool = True) -> None:  # noqa: FBT001, FBT002 - as the SDK has it
        """Forget all events."""
        while not self.queue.empty():
            self.queue.get_nowait()
            self.queue.task_done()
        if clear_child_queues:
            for child in self._taps:
                await child.clear_events()


class _Queues:
    """The queues of a server, one for each task (2)."""

    def __init__(self, plain: Any, quick: Any, events: Any) -> None:
        self._plain = plain
        self._quick = quick
        self._events = events
        self._queues: dict[str, Any] = {}

    async def add(self, task_id: str, queue: Any) -> None:
        """Record the queue of a task."""
        if task_id in self._queues:
            raise self._events.TaskQueueExists
        self._queues[task_id] = queue

    async def get(self, task_id: str) -> Any:
        """Return the queue of a task."""
        return self._queues.get(task_id)

    async def tap(self, task_id: str) -> Any:
        """Return a child of the queue of a task."""
        queue = self._queues.get(task_id)
        return None if queue is None else queue.tap()

    async def close(self, task_id: str) -> None:
        """Close the queue of a task, and forget it."""
        queue = self._queues.pop(task_id, None)
        if queue is None:
            raise self._events.NoTaskQueue
        await queue.close()

    async def create_or_tap(self, task_id: str) -> Any:
        """Return the queue of a new task, or a child of what there is (3)."""
        queue = self._queues.get(task_id)
        if queue is not None:
            return queue.tap()
        queue = self._queues[task_id] = (self._plain if tracing.is_traced() else self._quick)()
        return queue


def queues() -> Any:
    """Return what keeps the queues of a server of 0.3."""
    from a2a.server import events  # noqa: PLC0415 - those of 1.x are others

    quick = type("Queue", (_Queue, events.EventQueue), {})
    manager = type("Queues", (_Queues, events.QueueManager), {})
    return manager(events.EventQueue, quick, events)
