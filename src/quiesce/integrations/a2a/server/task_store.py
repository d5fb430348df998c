"""The task store that is put around the user's: no state is stored without the push that tells it.

A push is written to the outbox before the state is stored, and is sent after. What a crash leaves
between the two is told apart at the next start, by a look at the store (recovery.py).
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
    """The push sender that the SDK is given: it only takes note, what it would send is on its way."""

    def __init__(self, tracker: Tracker, pushes: Pushes) -> None:
        self._tracker = tracker
        self._pushes = pushes

    async def send_notification(self, *told: Any) -> None:
        """Record that an event was stored; push it if it has no state, whose push `save` has written."""
        event = told[-1]
        task_id = told[0] if versions.FIRST else event.id
        try:
            if not versions.FIRST:  # the whole task; artifacts come without a new state
                if self._pushes.latest == task_id:
                    return
                await self._push(task_id, lambda: self._news(event))
            elif not versions.has_status(event):
                await self._push(task_id, lambda: event)
        finally:
            self._tracker.consumed(task_id)

    async def _push(self, task_id: str, tell: Callable[[], Any]) -> None:
        if self._pushes.sender is not None:
            entry = self._tracker.entries.get(task_id)
            context = entry.context if entry is not None else None
            await self._pushes.artifact(task_id, tell, context)

    def _news(self, task: Any) -> Any:
        end = self._tracker.ends.get(task.id)
        stale = end is not None and task.status.state != end
        return None if stale or not self._tracker.news(task.id, versions.payload(task)) else task


class TellingStore:
    """Stores through the user's store, and sees every state on its way."""

    def __init__(self, store: Any, tracker: Tracker, pushes: Pushes) -> None:
        self.inner = store
        self.get: Callable[..., Awaitable[Any]] = store.get
        """Return a task, as the user's store has it."""
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
        told: Sequence[Push] = ()
        self._pushes.latest = None
        if self._pushes.sender is not None:
            key = versions.status_key(task.status)
            if entry.status != key:
                told = await self._tell(entry, task, key, context)
        wrote = entry.status != key  # not so if what the store has says the same
        token = current.set(self._tracker.scope)  # what the user's store begins is work
        try:
            result = await self.inner.save(task, *args, **options)
        except BaseException as error:
            self._pushes.drop(told)
            if versions.is_concurrent(error):
                await self._overtaken(entry, context)
            else:
                entry.queued = 0  # the SDK gives up its queue
            raise
        finally:
            current.reset(token)
        self._tracker.stored(entry, state, key, None if versions.FIRST else task.status)
        self._pushes.send(told)
        if wrote and not versions.FIRST:
            self._pushes.latest = task.id
        if state in versions.TERMINAL:
            self._pushes.ended(task.id)
        return result

    async def _overtaken(self, entry: Entry, context: Any) -> None:
        """Record what another server has made of a task; the SDK tries again, unless the task has ended."""
        stored = await self.get(entry.task_id, context)
        if stored is not None and stored.task.status.state in versions.TERMINAL:
            self._tracker.stored(entry, stored.task.status.state, b"")
            self._pushes.ended(entry.task_id)

    def _refuse(self, entry: Entry, task: Any) -> Any:
        """Leave a terminal state as it is: there is exactly one."""
        _log.warning(
            "task %s has ended as %s; that it is %s is not stored",
            task.id, versions.state_name(entry.state), versions.state_name(task.status.state),
        )  # fmt: skip
        last = self._tracker.last.get(task.id)
        if last is not None:
            task.status = last  # the store may have this very task

    async def put(self, task: Any, before: Any, context: Any) -> None:
        """Store a task on our own account, in the place of what the store has given before."""
        del before
        self._pushes.tell_whole(task.id)  # an artifact may be stored, and not pushed
        await self.save(task, context)

    async def _tell(self, entry: Entry, task: Any, key: bytes, context: Any) -> Sequence[Push]:
        if entry.status is None and not entry.fresh:
            before = await self.get(task.id, context)
            before = getattr(before, "task", before)  # the stores with versions wrap it
            if before is not None and before is not task:  # 0.3 changes what its store has
                entry.status = versions.status_key(before.status)
                if entry.status == key:
                    return ()
        return await self._pushes.write(
            task, partial(self._told, task, new=entry.status is None), context
        )

    def _told(self, task: Any, *, new: bool) -> Any:
        if not versions.FIRST:
            self._tracker.news(task.id, versions.payload(task))
        return versions.told_of(task, new=new)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def telling(store: Any, tracker: Tracker, pushes: Pushes) -> Any:
    """Put a store around another; of the same kind, if it is one with versions."""
    versioned = versions.VersionedStore
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
        self._pushes.tell_whole(task.id)
        await self.save(
            task, event=event, prev=before.task, prev_version=before.version, context=context
        )
