"""The executor that wraps the user's executor: it tracks running tasks, and can cancel them.

The request handler gives it to the SDK in place of the user's executor.
"""

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
    """A wrapper of the SDK's queue that counts the events as the executor enqueues them."""

    def __init__(self, queue: Any, tracker: Tracker, entry: Entry) -> None:
        self._queue = queue
        self._tracker = tracker
        self._entry = entry

    def enqueue_event(self, event: Any) -> Coroutine[Any, Any, None]:
        """Count an event, then enqueue it, because the SDK may store the event before this returns.

        A closed queue drops the event, so the event is not counted. The SDK closes the queue when it gives
        up the task.
        """
        has_status = versions.has_status(event)
        is_kept = not self._queue.is_closed()
        if is_kept and (
            has_status or versions.is_artifact(event)
        ):  # plain messages are not counted
            entry = self._entry
            entry.queued += 1
            if has_status:
                entry.said = event.status.state
            if entry.hold is None:
                self._tracker.refresh(entry)
        enqueued: Coroutine[Any, Any, None] = self._queue.enqueue_event(event)
        return enqueued

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)


async def _enqueue(
    enqueue: Callable[[Any, Any], Awaitable[None]], queue: Any, entry: Entry, event: Any
) -> None:
    """Enqueue an event outside of the hop.

    The SDK reads the event, and must be able to store the end of a cancelled task. The tracker keeps the
    hop open until the event is stored.
    """
    if versions.has_status(event):
        entry.said = event.status.state
    with detached():
        await enqueue(queue, event)


class OwnedExecutor:
    """Runs the user's executor. A task is in flight from the executor's first step."""

    def __init__(self, executor: Any, tracker: Tracker) -> None:
        self._executor = executor
        self._tracker = tracker
        self.closed: bool = False
        self._one_ended = asyncio.Event()

    def _queue(self, queue: Any, entry: Entry) -> Any:
        # 0.3 needs an object of the queue's own class to tap it. Events of 0.3 are not counted.
        if not versions.FIRST:
            queue.enqueue_event = partial(_enqueue, type(queue).enqueue_event, queue, entry)
            return queue
        tracing.stop_tracing(queue)
        return CountingQueue(queue, self._tracker, entry)

    async def execute(self, context: Any, event_queue: Any) -> None:
        """Run the user's `execute`; if the server is closed, store the task as FAILED instead."""
        entry = self._tracker.entry(context.task_id)
        entry.context = context.call_context
        entry.executing += 1
        entry.runner = asyncio.current_task()
        entry.cut = entry.cut or self.closed
        entry.said = None
        entry.fresh = entry.state is None and context.current_task is None
        call = request.get()
        if call is not None:
            call.executes(context.task_id)
        self._tracker.refresh(entry)
        queue = self._queue(event_queue, entry)
        token = current.set(self._tracker.work)  # owns the tasks that the user's code starts
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
                # The executor was cancelled and returned without an event that ends the task.
                await _fail(context, queue, entry, STOPPED)
        except asyncio.CancelledError:
            if not entry.cut or entry.ended:
                if not versions.FIRST:  # 0.3 does not close the queue, and would poll it for ever
                    await close_queue(queue)
                raise
            # `cut()` has caused this cancellation. The event from `_fail` is stored, and sent to clients.
            if entry.runner is not None:
                entry.runner.uncancel()
            await _fail(context, queue, entry, STOPPED)
        except Exception as error:
            # 1.x stores FAILED by itself, after all queued events, and answers with the error.
            # 0.3 forgets the task and its queued events.
            if versions.FIRST or entry.state is None:
                entry.queued += versions.FIRST  # counts the FAILED of the SDK
                raise
            _log.exception("the executor of task %s raised; the task is FAILED", context.task_id)
            await _fail(context, queue, entry, BROKEN.format(error=error))

    async def cancel(self, context: Any, event_queue: Any) -> None:
        """Run the user's `cancel`."""
        entry = self._tracker.entry(context.task_id)
        token = current.set(self._tracker.work)
        try:
            await self._executor.cancel(context, self._queue(event_queue, entry))
        finally:
            current.reset(token)
            self._tracker.refresh(entry)

    def cut(self) -> list[Entry]:
        """Cancel all running executors, let no other begin, and return the tasks that were cut."""
        self.closed = True
        cut = [entry for entry in self._tracker.entries.values() if entry.busy and not entry.ended]
        for entry in cut:
            entry.cut = True
            if entry.runner is not None:
                entry.runner.cancel()
        return cut

    async def ended(self) -> None:
        """Wait until every executor that `cut` has cancelled has ended.

        *Cancel safety*: may be cancelled at any time; it has no effect.
        """
        while any(entry.cut and entry.executing for entry in self._tracker.entries.values()):
            self._one_ended.clear()
            await self._one_ended.wait()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._executor, name)


async def close_queue(queue: Any) -> None:
    """Close a queue of 0.3 when its events were read, or after a second.

    *Cancel safety*: if cancelled, the queue and its children are closed before the cancellation is raised.
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
        # 1.x requires the task itself before the events about its states.
        await queue.enqueue_event(versions.new_task(context))
    await queue.enqueue_event(versions.status_event(context.task_id, context.context_id, status))
