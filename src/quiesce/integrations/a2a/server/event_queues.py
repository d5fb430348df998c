"""The queues of a server of 0.3, between an executor and the task that stores its events.

They behave like the SDK's own queues, and cost less:

1. A queue returns an event at once if it has one. The SDK starts a task for each event.
2. The queues need no lock: each change is one step of the event loop.
3. The queues make no tracing spans. If a tracer is configured, the SDK's own queues are used instead.
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
_SHUTS_DOWN = sys.version_info >= (3, 13)  # before, asyncio.Queue has no shutdown()


class _Queue:
    """A queue of events that copies each event to its children."""

    queue: asyncio.Queue[Any]

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._tapped: list[Any] = []
        self._has_closed = False

    async def enqueue_event(self, event: Any) -> None:
        """Add an event, unless the queue is closed."""
        if self._has_closed:
            _log.warning("an event was dropped: its queue is closed, because its task has ended")
            return
        await self.queue.put(event)
        for child in self._tapped:
            await child.enqueue_event(event)

    def dequeue_event(self, no_wait: bool = False) -> Awaitable[Any]:  # noqa: FBT001, FBT002 - as the SDK has it
        """Return the next event, at once if the queue has one (1)."""
        if self.queue.empty():
            return self._next(no_wait=no_wait)
        ready: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        ready.set_result(self.queue.get_nowait())
        return ready

    async def _next(self, *, no_wait: bool) -> Any:
        if self._has_closed and not _SHUTS_DOWN and self.queue.empty():
            message = "Queue is closed."
            raise asyncio.QueueEmpty(message)
        return self.queue.get_nowait() if no_wait else await self.queue.get()

    def task_done(self) -> None:
        """Record that the reader has processed an event."""
        self.queue.task_done()

    def tap(self) -> Any:
        """Return a child queue, which gets all later events."""
        child = type(self)()
        self._tapped.append(child)
        return child

    async def close(self, immediate: bool = False) -> None:  # noqa: FBT001, FBT002 - as the SDK has it
        """Refuse more events; then wait until all events are processed, or drop them if `immediate`."""
        if self._has_closed and not immediate:
            return
        self._has_closed = True
        if _SHUTS_DOWN:
            self.queue.shutdown(immediate)  # type: ignore[attr-defined]  # since 3.13
        if immediate:
            await self.clear_events()
            for child in self._tapped:
                await child.close(immediate=True)
        elif self._tapped:
            await asyncio.gather(self.queue.join(), *(child.close() for child in self._tapped))
        else:
            await self.queue.join()

    def is_closed(self) -> bool:
        return self._has_closed

    async def clear_events(self, clear_tapped: bool = True) -> None:  # noqa: FBT001, FBT002 - as the SDK has it
        while not self.queue.empty():
            self.queue.get_nowait()
            self.queue.task_done()
        if clear_tapped:
            for child in self._tapped:
                await child.clear_events()


class _Queues:
    """The queues of a server, one for each task (2)."""

    def __init__(self, plain: Any, quick: Any, events: Any) -> None:
        self._plain = plain
        self._quick = quick
        self._events = events
        self._queues: dict[str, Any] = {}

    async def add(self, task_id: str, queue: Any) -> None:
        if task_id in self._queues:
            raise self._events.TaskQueueExists
        self._queues[task_id] = queue

    async def get(self, task_id: str) -> Any:
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
        """Return the queue of a new task, or a child of the queue that the task has (3)."""
        queue = self._queues.get(task_id)
        if queue is not None:
            return queue.tap()
        queue = self._queues[task_id] = (self._plain if tracing.is_traced() else self._quick)()
        return queue


def queues() -> Any:
    """Return a queue manager for a server of 0.3."""
    from a2a.server import events  # noqa: PLC0415 - 1.x has other queues

    quick = type("Queue", (_Queue, events.EventQueue), {})
    manager = type("Queues", (_Queues, events.QueueManager), {})
    return manager(events.EventQueue, quick, events)
