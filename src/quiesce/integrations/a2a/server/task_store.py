"""The task store that wraps the user's store: it writes the push of each new state, then the state.

A push is written to the outbox before its state is stored, and is sent after that. A crash between the two
leaves a push without a state. The next start finds these pushes by reading the store (recovery.py).
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any

from quiesce.core.tree import current
from quiesce.integrations.a2a import versions

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from quiesce.integrations.a2a.push.push_outbox import Push
    from quiesce.integrations.a2a.push.push_sender import Pushes
    from quiesce.integrations.a2a.server.task_tracker import Entry, Tracker

__all__: list[str] = []

_log = logging.getLogger("quiesce.a2a")


class Notified:
    """The push sender for the SDK. It records stored events; `TellingStore.save` has written most pushes."""

    def __init__(self, tracker: Tracker, pushes: Pushes) -> None:
        self._tracker = tracker
        self._pushes = pushes

    async def send_notification(self, *sent: Any) -> None:
        """Record that an event was stored; push it unless it has a state, whose push `save` has written."""
        event = sent[-1]
        task_id = sent[0] if versions.FIRST else event.id
        try:
            if (
                not versions.FIRST
            ):  # the event is the whole task, also for an artifact without a new state
                if self._pushes.latest == task_id:
                    return
                await self._push(task_id, lambda: self._task_if_news(event))
            elif not versions.has_status(event):
                await self._push(task_id, lambda: event)
        finally:
            self._tracker.consumed(task_id)

    async def _push(self, task_id: str, tell: Callable[[], Any]) -> None:
        if self._pushes.sender is not None:
            entry = self._tracker.entries.get(task_id)
            context = entry.context if entry is not None else None
            await self._pushes.artifact(task_id, tell, context)

    def _task_if_news(self, task: Any) -> Any:
        end = self._tracker.ends.get(task.id)
        stale = end is not None and task.status.state != end
        return None if stale or not self._tracker.is_news(task.id, versions.payload(task)) else task


class TellingStore:
    """A store that saves in the user's store, and writes a push for every new state."""

    def __init__(self, store: Any, tracker: Tracker, pushes: Pushes) -> None:
        self.inner = store
        self.get: Callable[..., Awaitable[Any]] = store.get
        """Return a task from the user's store."""
        self._tracker = tracker
        self._pushes = pushes

    async def save(self, task: Any, *args: Any, **options: Any) -> Any:
        """Store a task; if its status is new, write the push to the outbox before.

        Each task has one running `save` at a time. In 0.3 two tasks of the event loop store a
        cancellation and the executor's events, and the older state must not be stored last.
        """
        entry = self._tracker.entry(task.id)
        entry.saving += 1
        try:
            async with entry.lock:
                return await self._save(entry, task, args, options)
        finally:
            entry.saving -= 1
            self._tracker.refresh(entry)

    async def _save(self, entry: Entry, task: Any, args: Any, options: dict[str, Any]) -> Any:
        state = task.status.state
        if entry.state in versions.TERMINAL and state != entry.state:
            return self._refuse(entry, task)
        context = options.get("context", args[-1] if args else None)
        entry.context = context if context is not None else entry.context
        key = b""
        pushes: Sequence[Push] = ()
        self._pushes.latest = None
        if self._pushes.sender is not None:
            key = versions.status_key(task.status)
            if entry.status != key:
                pushes = await self._write_pushes(entry, task, key, context)
        wrote = entry.status != key  # False if the store has the same status already
        token = current.set(self._tracker.scope)  # tasks that the user's store starts are work
        try:
            result = await self.inner.save(task, *args, **options)
        except BaseException as error:
            self._pushes.drop(pushes)
            if versions.is_concurrent(error):
                await self._overtaken(entry, context)
            else:
                entry.queued = 0  # the SDK gives up the task's queue
            raise
        finally:
            current.reset(token)
        self._tracker.stored(entry, state, key, None if versions.FIRST else task.status)
        self._pushes.send(pushes)
        if wrote and not versions.FIRST:
            self._pushes.latest = task.id
        if state in versions.TERMINAL:
            self._pushes.ended(task.id)
        return result

    async def _overtaken(self, entry: Entry, context: Any) -> None:
        """Record the end of a task that another server has stored; the SDK retries if it has not ended."""
        stored = await self.get(entry.task_id, context)
        if stored is not None and stored.task.status.state in versions.TERMINAL:
            self._tracker.stored(entry, stored.task.status.state, b"")
            self._pushes.ended(entry.task_id)

    def _refuse(self, entry: Entry, task: Any) -> Any:
        """Do not store a state after a terminal state."""
        _log.warning(
            "task %s has ended as %s; the later state %s is not stored",
            task.id, versions.state_name(entry.state), versions.state_name(task.status.state),
        )  # fmt: skip
        last = self._tracker.last_statuses.get(task.id)
        if last is not None:
            task.status = last  # the store may hold the same object

    async def put(self, task: Any, before: Any, context: Any) -> None:
        """Store a task that this adapter has changed; `before` is what the store has returned."""
        del before
        self._pushes.tell_whole(task.id)  # an artifact may be stored and not pushed
        await self.save(task, context)

    async def _write_pushes(
        self, entry: Entry, task: Any, key: bytes, context: Any
    ) -> Sequence[Push]:
        if entry.status is None and not entry.fresh:
            before = await self.get(task.id, context)
            before = getattr(
                before, "task", before
            )  # a versioned store returns the task in a wrapper
            if before is not None and before is not task:  # 0.3 may change the stored object itself
                entry.status = versions.status_key(before.status)
                if entry.status == key:
                    return ()
        return await self._pushes.write(
            task, partial(self._event_to_push, task, new=entry.status is None), context
        )

    def _event_to_push(self, task: Any, *, new: bool) -> Any:
        if not versions.FIRST:
            self._tracker.is_news(task.id, versions.payload(task))
        return versions.event_to_push(task, new=new)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def telling(store: Any, tracker: Tracker, pushes: Pushes) -> Any:
    """Return a `TellingStore` around a store; around a versioned store, a `TellingVersionedStore`."""
    versioned = versions.VersionedStore
    if versioned is not None and isinstance(store, versioned):
        versioned.register(TellingVersionedStore)
        return TellingVersionedStore(store, tracker, pushes)
    return TellingStore(store, tracker, pushes)


class TellingVersionedStore(TellingStore):
    """A `TellingStore` for a versioned store, which several servers share. The SDK checks for this class."""

    def _refuse(self, entry: Entry, task: Any) -> Any:
        """Raise the SDK's error for a concurrent change; the SDK then reads the stored task."""
        super()._refuse(entry, task)
        raise versions.concurrent(task.id)

    async def put(self, task: Any, before: Any, context: Any) -> None:
        """Store a task, unless another server has stored it since `before` was read."""
        event = versions.status_event(task.id, task.context_id, task.status)
        self._pushes.tell_whole(task.id)
        await self.save(
            task, event=event, prev=before.task, prev_version=before.version, context=context
        )
