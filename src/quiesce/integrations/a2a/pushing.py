"""Pushes: written with the state that they tell of, sent in order, outside of everybody's way.

`DurablePushSender` is what a handler is given; `Pushes` is what a handler makes of it.

1. A push is in the outbox before the state that it tells of is stored, and is sent after.
2. To one receiver, the pushes of one task are sent one after the other, in order. A push that is
   given up is a dead letter, and the next one is tried.
3. Nobody but the sending job waits for a receiver.
4. A drain waits for every push that was not tried yet. One that has failed stays in a durable outbox
   for the next start; an outbox in memory tries until the deadline.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from quiesce.core import arguments
from quiesce.errors import ArgumentError, ScopeClosed
from quiesce.integrations.a2a import versions
from quiesce.integrations.a2a.outbox import MemoryOutbox, Note, Push, Target
from quiesce.integrations.a2a.posting import NotTaken, Policy, Poster, Refused
from quiesce.integrations.a2a.sqlite_outbox import SqliteOutbox
from quiesce.resources.backoff import Backoff

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Sequence

    from quiesce.core.scope import Scope
    from quiesce.integrations.a2a.outbox import DeadLetter, Outbox

__all__ = ["DurablePushSender"]

_log = logging.getLogger("quiesce.a2a")
_NUMBER_HEADER = "X-Quiesce-Push"
_BACKOFF = Backoff(first_seconds=0.2, factor=2.0, longest_seconds=60.0)


class DurablePushSender:
    """Sends push notifications so that none is lost: give it to a `QuiescentRequestHandler`.

    A push is written to the outbox together with the state that it tells of, and then sent until
    its receiver has taken it, in the order of the task's states. It arrives at least once; the
    header `X-Quiesce-Push` is the same when it comes again.

    Args:
        outbox: A file for a `SqliteOutbox`, or an outbox.
        allow_private: Whether receivers may be at private and loopback addresses: False, True, or
            the networks (`["10.0.0.0/8"]`) that they may be in.
        attempts_max: After how many failures a push becomes a dead letter.
        backoff: How long to wait between them.
        seconds_max: How long one attempt may take, from the look-up to the answer.
        bytes_max: How large a push may be; a larger one becomes a dead letter.
        connections: How many receivers are talked to at a time.
    """

    def __init__(
        self,
        outbox: str | os.PathLike[str] | Outbox,
        *,
        allow_private: bool | Iterable[str] = False,
        attempts_max: int = 16,
        backoff: Backoff = _BACKOFF,
        seconds_max: float = 10.0,
        bytes_max: int = 4 * 1024 * 1024,
        connections: int = 32,
    ) -> None:
        """Describe how pushes are sent; nothing is opened before the handler is."""
        known = hasattr(outbox, "write") and hasattr(outbox, "pending")
        self.outbox: Outbox = outbox if known else SqliteOutbox(outbox)  # type: ignore[assignment,arg-type]  # one or the other
        if attempts_max < 1 or connections < 1 or bytes_max < 1:
            message = "attempts_max, connections and bytes_max must be 1 or more"
            raise ArgumentError(message)
        self._attempts_max = attempts_max
        self._backoff = backoff
        seconds = arguments.seconds("seconds_max", seconds_max)
        self._poster = Poster(
            Policy(allow_private), seconds=seconds, bytes_max=bytes_max, connections=connections
        )
        self._connections = connections

    async def dead_letters(self) -> list[DeadLetter]:
        """Give the pushes that were given up, oldest first."""
        return await self.outbox.dead_letters()

    async def send_notification(self, *args: Any) -> None:
        """Refuse: only the handler that it is given to knows what is stored."""
        del args
        message = "give a DurablePushSender to a QuiescentRequestHandler, not to the SDK's handler"
        raise ArgumentError(message)

    async def _deliver(self, push: Push) -> None:
        headers = push.headers | {_NUMBER_HEADER: f"{push.task_id}/{push.number}"}
        await self._poster.post(push.url, headers, push.body)

    async def _close(self) -> None:
        await self._poster.close()
        await self.outbox.close()


class Relay:
    """A sender of the user's own: it is asked once for each push, as the SDK would."""

    def __init__(self, sender: Any) -> None:
        self.outbox: Outbox = MemoryOutbox()
        self._sender = sender
        self._attempts_max = 1
        self._backoff = _BACKOFF
        self._connections = 32

    async def _deliver(self, push: Push) -> None:
        try:
            if versions.FIRST:
                await self._sender.send_notification(push.task_id, push.event)
            else:
                await self._sender.send_notification(push.event)
        except Exception as error:
            message = f"the sender raised {type(error).__name__}: {error}"
            raise Refused(message) from error

    async def _close(self) -> None:
        await self.outbox.close()


class Pushes:
    """The pushes of one server."""

    def __init__(self, sender: DurablePushSender | Relay | None, config_store: Any) -> None:
        self.sender = sender
        self._configs = config_store
        self._lanes: dict[tuple[str, str], deque[Push]] = {}
        self._left: set[tuple[str, str]] = set()
        self._draining = asyncio.Event()
        self._slots: asyncio.Semaphore | None = None
        self._scope: Scope | None = None
        self._notes: dict[str, Note] = {}
        self._ended: list[str] = []

    async def open(self, scope: Scope) -> None:
        """Open the outbox; nothing is sent before."""
        self._scope = scope
        if self.sender is not None:
            await self.sender.outbox.open()
            self._slots = asyncio.Semaphore(self.sender._connections)

    def recall(self, notes: Iterable[Note]) -> None:
        """Know the receivers of tasks that a process before this one has had."""
        self._notes.update((note.task_id, note) for note in notes)

    def context(self, task_id: str) -> Any:
        """Give the context of the calls for a task of a process before this one."""
        note = self._notes.get(task_id)
        return versions.context_of(note.user, note.tenant) if note else versions.context_of("", "")

    async def write(self, task: Any, event: Any, context: Any) -> Sequence[Push]:
        """Write the pushes of a state that is about to be stored (1); none if nobody is told."""
        key = versions.status_mark(event.status) if versions.has_status(event) else ""
        return await self._write(task.id, event, context, key)

    async def _write(self, task_id: str, event: Any, context: Any, key: str) -> Sequence[Push]:
        sender = self.sender
        if sender is None:
            return ()
        pushes: list[Push] = []
        note = await self._note(task_id, context)
        if isinstance(sender, Relay):
            pushes = [Push(task_id, "", {}, b"", key, event=versions.copied(event))]
        elif note.targets:
            body = versions.payload(event)
            pushes = [
                Push(task_id, target.url, target.headers, body, key) for target in note.targets
            ]
        if pushes or self._notes.get(task_id) != note:
            ended, self._ended = self._ended, []
            try:
                await sender.outbox.write(note, pushes, ended)
            except (OSError, sqlite3.Error):
                # Worse than a push that a crash may lose is a state that is not stored.
                _log.exception("the outbox takes nothing; pushes are kept in memory alone")
            self._notes[task_id] = note
        return pushes

    async def _note(self, task_id: str, context: Any) -> Note:
        user, tenant = versions.owner_of(context)
        targets: tuple[Target, ...] = ()
        if self._configs is not None and not isinstance(self.sender, Relay):
            try:
                found = await versions.configs(self._configs, task_id, context)
            except Exception:  # noqa: BLE001 - logged; the state is to be stored all the same
                _log.exception("the push configurations of task %s could not be read", task_id)
                found = []
            targets = tuple(Target(one.url, versions.push_headers(one)) for one in found)
        before = self._notes.get(task_id)
        if not targets and before is not None:
            targets = before.targets  # from before a restart that the config store did not outlive
        return Note(task_id, user, tenant, targets)

    async def forget_targets(self, task_id: str) -> None:
        """Know that a client has taken a receiver away."""
        self._notes.pop(task_id, None)

    def send(self, pushes: Sequence[Push]) -> None:
        """Send what tells of a state that is stored by now (2, 3)."""
        for push in pushes or ():
            lane = (push.task_id, push.url)
            if lane in self._left:
                continue  # behind one that is left for the next start, so is this (2)
            waiting = self._lanes.get(lane)
            if waiting is not None:
                waiting.append(push)
                continue
            self._lanes[lane] = deque([push])
            self._spawn(self._run, lane, name=f"push {push.task_id}")

    def _spawn(self, call: Any, *args: Any, name: str) -> None:
        if self._scope is not None:
            with suppress(ScopeClosed):  # too late: what it was about stays in the outbox
                self._scope.spawn(call, *args, name=name)

    def drop(self, pushes: Sequence[Push]) -> None:
        """Do not send what tells of a state that could not be stored.

        In a file it stays; the next start looks at the store, and drops it then.
        """
        if self.sender is not None and not self.sender.outbox.durable:
            for push in pushes or ():
                self._spawn(self.sender.outbox.sent, push, name="forget a push")

    def ended(self, task_id: str) -> None:
        """Know that a task's terminal state is stored: a crash has nothing to end any more."""
        if self._notes.pop(task_id, None) is not None:
            self._ended.append(task_id)

    async def artifact(self, task_id: str, event: Any, context: Any) -> None:
        """Write and send the push of an event that has no state, after it was stored."""
        self.send(await self._write(task_id, event, context, ""))

    async def _run(self, lane: tuple[str, str]) -> None:
        waiting = self._lanes[lane]
        try:
            while waiting:
                if not await self._deliver(waiting[0]):
                    self._left.add(lane)
                    return
                waiting.popleft()
        finally:
            del self._lanes[lane]

    async def _deliver(self, push: Push) -> bool:
        """Deliver a push, or give it up; False if it is left for the next start (4)."""
        sender, slots = self.sender, self._slots
        if sender is None or slots is None:
            return False
        while True:
            try:
                async with slots:
                    await sender._deliver(push)
            except (Refused, NotTaken) as error:
                push.attempts += 1
                if isinstance(error, Refused) or push.attempts >= sender._attempts_max:
                    _log.error("push of task %s to %s given up: %s", push.task_id, push.url, error)
                    await sender.outbox.dead(push, str(error))
                    return True
                _log.info("push of task %s to %s failed: %s", push.task_id, push.url, error)
                await sender.outbox.failed(push, str(error))
            else:
                await sender.outbox.sent(push)
                return True
            if not await self._back_off(push, sender):
                return False

    async def _back_off(self, push: Push, sender: DurablePushSender | Relay) -> bool:
        delay = sender._backoff.delay(push.attempts)
        if not sender.outbox.durable:
            await asyncio.sleep(delay)
            return True
        try:
            async with asyncio.timeout(delay):
                await self._draining.wait()
        except TimeoutError:
            return True
        return False

    def drain(self) -> None:
        """Leave what keeps failing for the next start, if there the outbox still is (4)."""
        self._draining.set()

    async def close(self) -> None:
        """Close the outbox."""
        if self.sender is not None:
            if self._ended and self.sender.outbox.durable:
                await self.sender.outbox.forget(self._ended)
            await self.sender._close()
