"""The task store that is put around the user's: no state is stored without the push that tells it.

A push is written to the outbox before the state is stored, and is sent after. What a crash leaves
between the two is told apart at the next start, by a look at the store (recovering.py).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from quiesce.integrations.a2a import versions

if TYPE_CHECKING:
    from quiesce.integrations.a2a.pushing import Pushes
    from quiesce.integrations.a2a.tracking import Entry, Tracker

__all__: list[str] = []

_log = logging.getLogger("quiesce.a2a")


class Notified:
    """The push sender that the SDK is given: it only takes note, what it would send is on its way."""

    def __init__(self, tracker: Tracker, pushes: Pushes) -> None:
        self._tracker = tracker
        self._pushes = pushes

    async def send_notification(self, *told: Any) -> None:
        """Know that an event was stored; push it if it has no state, whose push `save` has written."""
        event = told[-1]
        task_id = told[0] if versions.FIRST else event.id
        entry = self._tracker.entries.get(task_id)
        context = entry.context if entry is not None else None
        try:
            if versions.FIRST:
                news = not versions.has_status(event)
            else:  # the whole task, at any time; artifacts come without a new state
                end = self._tracker.ends.get(task_id)
                stale = end is not None and event.status.state != end
                news = not stale and self._tracker.news(task_id, versions.payload(event))
            if news:
                await self._pushes.artifact(task_id, event, context)
        finally:
            self._tracker.consumed(task_id)


class TellingStore:
    """Stores through the user's store, and sees every state on its way."""

    def __init__(self, store: Any, tracker: Tracker, pushes: Pushes) -> None:
        self.inner = store
        self._tracker = tracker
        self._pushes = pushes

    async def save(self, task: Any, *args: Any, **options: Any) -> Any:
        """Store a task; if its status is a new one, the push of it is in the outbox before.

        One at a time for each task: in 0.3, a cancellation and the executor's events are stored by
        two tasks, and the older state must not come last.
        """
        entry = self._tracker.entry(task.id)
        entry.saving += 1
        try:
            async with entry.turn:
                return await self._save(entry, task, args, options)
        finally:
            entry.saving -= 1
            self._tracker.refresh(entry)

    async def _save(self, entry: Entry, task: Any, args: Any, options: dict[str, Any]) -> Any:
        if entry.ended and task.status.state != entry.state:
            return self._refuse(entry, task)
        context = options.get("context", args[-1] if args else None)
        entry.context = context if context is not None else entry.context
        key = versions.status_key(task.status)
        told = await self._tell(entry, task, key, context)
        try:
            result = await self.inner.save(task, *args, **options)
        except BaseException:
            self._pushes.drop(told)
            entry.queued = 0  # the SDK gives up its queue
            raise
        self._tracker.stored(entry, task.status.state, key)
        self._pushes.send(told)
        if entry.ended:
            self._pushes.ended(task.id)
        return result

    def _refuse(self, entry: Entry, task: Any) -> Any:
        """Leave a terminal state as it is: there is exactly one."""
        _log.warning(
            "task %s has ended as %s; that it is %s is not stored",
            task.id, versions.state_name(entry.state), versions.state_name(task.status.state),
        )  # fmt: skip

    async def put(self, task: Any, before: Any, context: Any) -> None:
        """Store a task on our own account, in the place of what the store has given before."""
        del before
        await self.save(task, context)

    async def _tell(self, entry: Entry, task: Any, key: bytes, context: Any) -> Any:
        if entry.status is None and not entry.fresh:
            before = await self.get(task.id, context)
            before = getattr(before, "task", before)  # the stores with versions wrap it
            if before is not None and before is not task:  # 0.3 changes what its store has
                entry.status = versions.status_key(before.status)
        new = entry.status is None
        if entry.status == key:
            return ()
        if not versions.FIRST:
            self._tracker.news(task.id, versions.payload(task))
        return await self._pushes.write(task, versions.told_of(task, new=new), context)

    async def get(self, task_id: str, context: Any = None) -> Any:
        """Give a task, as the user's store has it."""
        return await self.inner.get(task_id, context)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def telling(store: Any, tracker: Tracker, pushes: Pushes) -> Any:
    """Put a store around another; of the same kind, if it is one with versions."""
    versioned = versions.versioned_store()
    if versioned is not None and isinstance(store, versioned):
        versioned.register(TellingVersionedStore)
        return TellingVersionedStore(store, tracker, pushes)
    return TellingStore(store, tracker, pushes)


class TellingVersionedStore(TellingStore):
    """The same, for a store that several servers share: the SDK looks for its kind."""

    def _refuse(self, entry: Entry, task: Any) -> Any:
        """Say it as such a store does: the SDK then looks at what is stored."""
        super()._refuse(entry, task)
        raise versions.concurrent(task.id)

    async def put(self, task: Any, before: Any, context: Any) -> None:
        """Store a task, unless another server has stored it meanwhile."""
        event = versions.status_event(task.id, task.context_id, task.status)
        await self.save(
            task, event=event, prev=before.task, prev_version=before.version, context=context
        )
