"""The executor that is put around the user's: it knows what runs, and can cut it short."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, Any

from quiesce.core.current import detached
from quiesce.core.tree import current
from quiesce.integrations.a2a import tracing, versions
from quiesce.integrations.a2a.outlasting import outlast
from quiesce.integrations.a2a.server.task_tracker import request

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from quiesce.integrations.a2a.server.task_tracker import Entry, Tracker

__all__: list[str] = []

_log = logging.getLogger("quiesce.a2a")
_CLOSE_SECONDS = 1.0
STOPPED = "The server was shut down before the task had ended."
BROKEN = "The agent failed: {error}"


class CountingQueue:
    """The SDK's queue, whose events are counted as they are enqueued."""

    def __init__(self, queue: Any, tracker: Tracker, entry: Entry) -> None:
        self._queue = queue
        self._tracker = tracker
        self._entry = entry

    def enqueue_event(self, event: Any) -> Coroutine[Any, Any, None]:
        """Enqueue, and count: before, because it may be stored by the time this returns."""
        telling = versions.has_status(event)
        if telling or versions.is_artifact(event):  # else it is a plain message
            entry = self._entry
            entry.queued += 1
            if telling:
                entry.said = event.status.state
            if entry.hold is None:
                self._tracker.refresh(entry)
        enqueued: Coroutine[Any, Any, None] = self._queue.enqueue_event(event)
        return enqueued

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)


async def _enqueue(enqueue: Callable[[Any, Any], Awaitable[None]], queue: Any, event: Any) -> None:
    """Enqueue an event without the hop: its reader is the SDK's, and has to store the end of a cancelled task.

    The tracker holds the hop until the event is stored.
    """
    with detached():
        await enqueue(queue, event)


class OwnedExecutor:
    """Runs the user's executor; a task is in flight from the first step of it."""

    def __init__(self, executor: Any, tracker: Tracker) -> None:
        self._executor = executor
        self._tracker = tracker
        self.closed: bool = False
        self._one_ended = asyncio.Event()

    def _queue(self, queue: Any, entry: Entry) -> Any:
        # 0.3 looks for the queue's own class when it taps; its events need no count.
        if not versions.FIRST:
            queue.enqueue_event = partial(_enqueue, type(queue).enqueue_event, queue)
            return queue
        tracing.hush(queue)
        return CountingQueue(queue, self._tracker, entry)

    async def execute(self, context: Any, event_queue: Any) -> None:
        """Run the user's `execute`, unless the server has been closed."""
        entry = self._tracker.entry(context.task_id)
        entry.context = context.call_context
        entry.executing += 1
        entry.runner = asyncio.current_task()
        entry.cut = entry.cut or self.closed
        entry.said = None
        entry.fresh = entry.state is None and context.current_task is None
        asked = request.get()
        if asked is not None:
            asked.executes(context.task_id)
        self._tracker.refresh(entry)
        queue = self._queue(event_queue, entry)
        token = current.set(self._tracker.work)  # what the user's code begins is work
        try:
            if entry.cut:
                await _fail(context, queue, entry, STOPPED)
            else:
                await self._execute(context, queue, entry)
        finally:
            current.reset(token)
            entry.executing -= 1
            entry.runner = None if not entry.executing else entry.runner
            self._tracker.refresh(entry)
            self._one_ended.set()

    async def _execute(self, context: Any, queue: Any, entry: Entry) -> None:
        try:
            await self._executor.execute(context, queue)
            if entry.cut and versions.FIRST and entry.said not in versions.ENDS:
                # It was told to stop, and did, without an event that says so.
                await _fail(context, queue, entry, STOPPED)
        except asyncio.CancelledError:
            if not entry.cut or entry.ended:
                if not versions.FIRST:  # 0.3 does not close it, and polls it without an end
                    await close_queue(queue)
                raise
            # This cancellation is ours: the event that `_fail` enqueues is stored, and sent to clients.
            if entry.runner is not None:
                entry.runner.uncancel()
            await _fail(context, queue, entry, STOPPED)
        except Exception as error:
            # 1.x stores FAILED by itself, after all that was enqueued, and answers with the error.
            # 0.3 forgets the task, and whatever was still queued for it.
            if versions.FIRST or entry.state is None:
                entry.queued += versions.FIRST  # that FAILED
                raise
            _log.exception("the executor of task %s has failed", context.task_id)
            await _fail(context, queue, entry, BROKEN.format(error=error))

    async def cancel(self, context: Any, event_queue: Any) -> None:
        """Pass on the wish of a client."""
        entry = self._tracker.entry(context.task_id)
        token = current.set(self._tracker.work)
        try:
            await self._executor.cancel(context, self._queue(event_queue, entry))
        finally:
            current.reset(token)
            self._tracker.refresh(entry)

    def cut(self) -> list[Entry]:
        """Cancel every executor that runs, and refuse to begin; return their tasks."""
        self.closed = True
        cut = [entry for entry in self._tracker.entries.values() if entry.busy and not entry.ended]
        for entry in cut:
            entry.cut = True
            if entry.runner is not None:
                entry.runner.cancel()
        return cut

    async def ended(self) -> None:
        """Wait until no executor runs that was told to stop.

        *Cancel safety*: may be cancelled at any time; it has no effect.
        """
        while any(entry.cut and entry.executing for entry in self._tracker.entries.values()):
            self._one_ended.clear()
            await self._one_ended.wait()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._executor, name)


async def close_queue(queue: Any) -> None:
    """Close a queue of 0.3, when what is in it was read; or soon, if nothing reads it.

    *Cancel safety*: the queue is closed, and those that tap it, before the cancellation is passed on.
    """
    with detached():
        closing = asyncio.create_task(_close_in_time(queue))
    await outlast(closing)


async def _close_in_time(queue: Any) -> None:
    try:
        async with asyncio.timeout(_CLOSE_SECONDS):
            await queue.close()
    except TimeoutError:
        await queue.close(immediate=True)


async def _fail(context: Any, queue: Any, entry: Entry, why: str) -> None:
    await enqueue_end("failed", context, queue, entry, why)


async def enqueue_end(state: str, context: Any, queue: Any, entry: Entry, why: str) -> None:
    """Enqueue the event that ends a task."""
    status = versions.new_status(state, context.task_id, context.context_id, why)
    if versions.FIRST and context.current_task is None and entry.said is None:
        # 1.x wants to see a task before it hears of its states.
        await queue.enqueue_event(versions.new_task(context))
    await queue.enqueue_event(versions.status_event(context.task_id, context.context_id, status))
