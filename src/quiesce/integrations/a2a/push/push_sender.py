"""Pushes: written with the state that they tell of, sent in order, outside of everybody's way.

`DurablePushSender` is what a handler is given; `Pushes` is what a handler makes of it. How they are
sent is in push_lanes.py.

1. A push is in the outbox before the state that it tells of is stored, and is sent after.
2. The push of a state that could not be stored is not sent. Whether it was, an error does not always
   say: it stays in a durable outbox until the next state is stored, or until the next start, which
   looks at the store.
3. A state is stored, whatever becomes of its push.
4. What the server ends by itself after a crash is pushed as a whole task: with artifacts that were
   stored, and whose own pushes the crash may have prevented.
"""

from __future__ import annotations

import inspect
import logging
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import anyio

from quiesce.core import arguments
from quiesce.errors import ArgumentError, UsageError
from quiesce.integrations.a2a import versions
from quiesce.integrations.a2a.push.push_lanes import DeliveryRules, Lanes
from quiesce.integrations.a2a.push.push_outbox import (
    MemoryOutbox,
    Push,
    PushTarget,
    TaskNote,
)
from quiesce.integrations.a2a.push.push_post import (
    NotTaken,
    Poster,
    PushPolicy,
    Refused,
    lines,
)
from quiesce.integrations.a2a.push.push_signing import PushRequest
from quiesce.integrations.a2a.push.sqlite_outbox import SqliteOutbox
from quiesce.pool.backoff import Backoff

if TYPE_CHECKING:
    import os
    import ssl
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from quiesce.core.scope import Scope
    from quiesce.integrations.a2a.mesh.push_edges import PushEdge, PushEdges
    from quiesce.integrations.a2a.push.push_outbox import DeadLetter, Outbox
    from quiesce.integrations.a2a.push.push_signing import Sign

    Tell = Callable[[], Any]
    """A function that returns the text of a push, or None; it is called only if a push has a receiver."""

__all__ = ["DurablePushSender"]

_log = logging.getLogger("quiesce.a2a")
_ID_HEADER = "X-Quiesce-Push"
_BACKOFF = Backoff(first_seconds=0.2, factor=2.0, longest_seconds=60.0)
_DAY_SECONDS = 86_400.0


class DurablePushSender:
    """Sends push notifications so that none is lost: give it to a `QuiescentRequestHandler`.

    A push is written to the outbox together with the state that it tells of, and then sent until
    its receiver has taken it, in the order of the task's states. It arrives at least once; the
    header `X-Quiesce-Push` is the same when it comes again.

    Args:
        outbox: A file for a `SqliteOutbox`, or an outbox.
        allow_private: Whether receivers may be at private and loopback addresses: False, True, or
            the networks (`["10.0.0.0/8"]`) that they may be in.
        sign: Signs pushes: a `HmacSigner`, or a function, async or not, that is given a
            `PushRequest` and returns headers. It is asked at each attempt. What the push configuration
            says, it cannot replace. If it raises, the push is tried again, like any other.
        attempts_max: After how many failures a push becomes a dead letter.
        keep_seconds: After how long it does so, if it fails again.
        pending_max: How many pushes may wait; then the oldest become dead letters.
        backoff: How long to wait between attempts; a receiver may ask for more (`Retry-After`).
        seconds_max: How long one attempt may take, from the look-up to the answer.
        bytes_max: How large a push may be; a larger one becomes a dead letter.
        connections: How many may be open at a time; a quarter of them to the same receiver.
        ssl_context: For receivers with certificates of an authority of your own, or that want to
            see one of yours.

    *Raises*: `ArgumentError`.
    """

    def __init__(  # noqa: PLR0913 - each has a default that does
        self,
        outbox: str | os.PathLike[str] | Outbox,
        *,
        allow_private: bool | Iterable[str] = False,
        sign: Sign | None = None,
        attempts_max: int = 16,
        keep_seconds: float = _DAY_SECONDS,
        pending_max: int = 100_000,
        backoff: Backoff = _BACKOFF,
        seconds_max: float = 10.0,
        bytes_max: int = 4 * 1024 * 1024,
        connections: int = 64,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        """Describe how pushes are sent; nothing is opened before the handler is."""
        known = hasattr(outbox, "write") and hasattr(outbox, "pending")
        self.outbox: Outbox = outbox if known else SqliteOutbox(outbox)  # type: ignore[assignment,arg-type]  # one or the other
        if min(attempts_max, connections, bytes_max, pending_max) < 1:
            message = "attempts_max, connections, bytes_max and pending_max must be 1 or more"
            raise ArgumentError(message)
        if sign is not None:
            arguments.check_callable(sign, "sign", "a function, or a HmacSigner")
        self._sign = sign
        keep_seconds = arguments.seconds("keep_seconds", keep_seconds)
        self._rules = DeliveryRules(attempts_max, keep_seconds, pending_max, backoff, connections)
        self._bytes_max = bytes_max
        self._seconds = arguments.seconds("seconds_max", seconds_max)
        self._poster = Poster(
            PushPolicy(allow_private), seconds=self._seconds, bytes_max=bytes_max,
            connections=connections, ssl_context=ssl_context,
        )  # fmt: skip
        self._lanes: Lanes | None = None

    async def dead_letters(self) -> list[DeadLetter]:
        """Return the pushes that were given up, oldest first."""
        return await self.outbox.dead_letters()

    async def resend(self, letters: Iterable[DeadLetter] | None = None) -> int:
        """Send dead letters again, or all of them: behind what waits, and as often as if new.

        Returns how many there were.

        *Raises*: `UsageError` if its handler is not open.
        """
        if self._lanes is None:
            message = "open the handler that this sender was given to, which sends"
            raise UsageError(message)
        ids = None if letters is None else [letter.id for letter in letters]
        found = await self.outbox.revive(ids)
        self._lanes.send(found)
        return len(found)

    async def discard(self, letters: Iterable[DeadLetter]) -> int:
        """Forget dead letters; return how many there were."""
        return await self.outbox.discard([letter.id for letter in letters])

    async def send_notification(self, *args: Any) -> None:
        """Refuse: only the handler that it is given to knows what is stored."""
        del args
        message = "give a DurablePushSender to a QuiescentRequestHandler, not to the SDK's handler"
        raise ArgumentError(message)

    async def _deliver(self, push: Push) -> None:
        headers = {_ID_HEADER: push.id} | push.headers
        if self._sign is not None:
            own = {name.lower() for name in headers} | {"content-type"}
            signed = await self._signed(self._sign, push)
            headers |= {name: value for name, value in signed.items() if name.lower() not in own}
        if push.edge is None:
            await self._poster.post(push.url, headers, push.body)
        else:
            await self._hand_over(push, push.edge, headers)

    async def _hand_over(self, push: Push, edge: PushEdge, headers: dict[str, str]) -> None:
        """Post a push that is part of a cascade; its edge knows how that has ended."""
        if edge.header:
            headers = {name: value for name, value in headers.items() if name.lower() != "cascade"}
            headers["Cascade"] = edge.header
        edge.begin()
        try:
            await self._poster.post(push.url, headers, push.body, edge.heard)
        except (Refused, NotTaken) as error:
            taken = edge.failed(error)
            push.cascade = edge.header
            if not taken:
                raise
        else:
            edge.taken()

    async def _signed(self, sign: Sign, push: Push) -> Mapping[str, str]:
        try:
            with anyio.fail_after(self._seconds):
                made = sign(PushRequest(push.task_id, push.url, push.id, push.body))
                headers = await made if inspect.isawaitable(made) else made
            lines(headers)
        except Exception as error:  # noqa: BLE001 - whatever it is; its text may have a secret in it
            message = f"it could not be signed: {type(error).__name__}"
            raise NotTaken(message) from None
        return headers

    async def _close(self) -> None:
        self._lanes = None
        try:
            await self._poster.close()
        finally:
            await self.outbox.close()


class Relay:
    """A sender of the user's own: it is asked once for each push, as the SDK would."""

    def __init__(self, sender: Any) -> None:
        self.outbox: Outbox = MemoryOutbox()
        self._sender = sender
        self._rules = DeliveryRules(1, math.inf, 10_000, _BACKOFF, 32 * 4)
        self._lanes: Lanes | None = None

    async def _deliver(self, push: Push) -> None:
        if push.edge is not None:
            push.edge.relayed()
        try:
            if versions.FIRST:
                await self._sender.send_notification(push.task_id, push.event)
            else:
                await self._sender.send_notification(push.event)
        except Exception as error:
            message = f"the sender raised {type(error).__name__}: {error}"
            raise Refused(message) from error

    async def _close(self) -> None:
        self._lanes = None
        await self.outbox.close()


class Pushes:
    """The pushes of one server."""

    def __init__(
        self,
        sender: DurablePushSender | Relay | None,
        config_store: Any,
        edges: PushEdges | None = None,
    ) -> None:
        self.sender = sender
        self._edges = edges
        self._relayed = config_store if isinstance(sender, Relay) else None
        self._configs = None if isinstance(sender, Relay) else config_store  # it asks by itself
        self._lanes: Lanes | None = None
        self._notes: dict[str, TaskNote] = {}
        self._ended: list[str] = []
        self._doubtful: dict[str, list[Push]] = {}
        self._whole: set[str] = set()
        self.latest: str | None = None
        """The task whose state was stored last, if its push is of all that there is to tell."""

    async def open(self, scope: Scope) -> None:
        """Open the outbox; nothing is sent before."""
        sender = self.sender
        if sender is not None:
            await sender.outbox.open()
            sender._lanes = Lanes(scope, sender.outbox, sender._deliver, sender._rules)
            self._lanes = sender._lanes

    def recall(self, notes: Sequence[TaskNote]) -> None:
        """Record the receivers of tasks that an earlier process had (4)."""
        self._notes |= {note.task_id: note for note in notes}
        self._whole |= {note.task_id for note in notes}

    def disown(self, task_ids: Iterable[str]) -> None:
        """Record that nothing is owed to such tasks any more."""
        for task_id in task_ids:
            self._notes.pop(task_id, None)
            self._whole.discard(task_id)

    def context(self, task_id: str) -> Any:
        """Return the context of the calls for a task of a process before this one."""
        note = self._notes.get(task_id)
        return versions.context_of(note.user, note.tenant) if note else versions.context_of("", "")

    def tell_whole(self, task_id: str) -> None:
        """Push all of a task with the next state of it (4)."""
        self._whole.add(task_id)

    async def write(self, task: Any, tell: Tell, context: Any) -> Sequence[Push]:
        """Write the pushes of a state that is about to be stored (1); none if the task has no receivers."""
        whole = task if task.id in self._whole else None
        self._whole.discard(task.id)
        return await self._write(task.id, tell, context, whole)

    async def _write(
        self, task_id: str, tell: Tell, context: Any, whole: Any = None, *, stored: bool = False
    ) -> Sequence[Push]:
        sender = self.sender
        if sender is None:
            return ()
        note = await self._note(task_id, context)
        pushes: Sequence[Push] = ()
        if note.targets or isinstance(sender, Relay):
            pushes = _pushes(sender, note, tell(), whole, stored=stored)
            if self._edges is not None and await self._has_receivers(task_id, context):
                for push in pushes:
                    self._edges.take(push)
        known = self._notes.get(task_id)
        if pushes or (known is not note and known != note):
            await self._keep(sender.outbox, note, pushes)
        return pushes

    async def _keep(self, outbox: Outbox, note: TaskNote, pushes: Sequence[Push]) -> None:
        ended, self._ended = self._ended, []
        try:
            await outbox.write(note, pushes, ended)
        except Exception:  # noqa: BLE001 - logged; a state that is not stored would be worse (3)
            self._ended = [*ended, *self._ended]
            _log.exception("the outbox takes nothing; pushes are kept in memory alone")
        except BaseException:
            self.drop(pushes)  # it may be written, and its state will not be stored
            raise
        else:
            self._notes[note.task_id] = note

    async def _note(self, task_id: str, context: Any) -> TaskNote:
        user, tenant = versions.user_and_tenant(context)
        targets = await self._targets(task_id, context)
        before = self._notes.get(task_id)
        if not targets and before is not None:
            if before.user == user and before.tenant == tenant:
                return before
            targets = before.targets  # from before a restart that the config store did not outlive
        return TaskNote(task_id, user, tenant, targets or ())

    async def _targets(self, task_id: str, context: Any) -> tuple[PushTarget, ...] | None:
        """Return the receivers of a task; None if they could not be read."""
        if self._configs is None:
            return ()
        try:
            found = await versions.configs(self._configs, task_id, context)
        except Exception:  # noqa: BLE001 - logged; the state is to be stored all the same
            _log.exception("the push configurations of task %s could not be read", task_id)
            return None
        return tuple([PushTarget(one.url, versions.push_headers(one)) for one in found])

    async def _has_receivers(self, task_id: str, context: Any) -> bool:
        """Return whether pushes are sent; one of the user's own sends them unless the task has no receivers."""
        try:
            return self._relayed is None or bool(
                await versions.configs(self._relayed, task_id, context)
            )
        except Exception:  # noqa: BLE001 - of the user's store, whose sender will log it
            return True

    async def retarget(self, task_id: str) -> None:
        """Record that a client has named a receiver of a task, or taken one away: a crash may be next.

        Before its first state a task has no receivers that are remembered, after its last it needs
        none.
        """
        self.latest = None
        note = self._notes.get(task_id)
        if self.sender is None or note is None:
            return
        targets = await self._targets(task_id, versions.context_of(note.user, note.tenant))
        if targets is not None and targets != note.targets and task_id in self._notes:
            await self._keep(self.sender.outbox, replace(note, targets=targets), ())

    def send(self, pushes: Sequence[Push]) -> None:
        """Send what tells of a state that is stored by now."""
        if self._lanes is None or not pushes:
            return
        if self._edges is not None:
            for push in pushes:
                if push.cascade and push.edge is None:
                    self._edges.restore(push)
        self._lanes.send(pushes)
        self._forget(self._doubtful.pop(pushes[0].task_id, ()))

    def drop(self, pushes: Sequence[Push]) -> None:
        """Do not send what tells of a state that could not be stored (2)."""
        if self.sender is None or not pushes:
            return
        if self.sender.outbox.durable:
            self._doubtful.setdefault(pushes[0].task_id, []).extend(pushes)
            for push in pushes:
                push.let_go()
        else:
            self._forget(pushes)

    def _forget(self, pushes: Iterable[Push]) -> None:
        if self.sender is not None and self._lanes is not None:
            for push in pushes:
                push.over()
                self._lanes.spawn(self.sender.outbox.sent, push, name="forget a push")

    def ended(self, task_id: str) -> None:
        """Record that a task's terminal state is stored: a crash has nothing to end any more."""
        if self._notes.pop(task_id, None) is not None:
            self._ended.append(task_id)

    async def artifact(self, task_id: str, tell: Tell, context: Any) -> None:
        """Write and send the push of an event that has no state, after it was stored."""
        self.send(await self._write(task_id, tell, context, stored=True))

    def drain(self) -> None:
        """Leave what keeps failing for the next start, if there the outbox still is."""
        if self._lanes is not None:
            self._lanes.drain()

    async def close(self) -> None:
        """Close the outbox."""
        if self.sender is None:
            return
        if self._edges is not None:
            self._edges.close()
        try:
            if self._ended and self.sender.outbox.durable:
                await self.sender.outbox.forget(self._ended)
        except Exception:  # noqa: BLE001 - logged; the next start looks at them in vain
            _log.exception("the outbox could not be changed")
        finally:
            self._lanes = None
            await self.sender._close()


def _pushes(
    sender: DurablePushSender | Relay, note: TaskNote, event: Any, whole: Any, *, stored: bool
) -> Sequence[Push]:
    """Return the pushes of an event, or of the whole task if that is what is to be told."""
    if event is None:
        return ()
    key = "" if stored or not versions.has_status(event) else versions.status_mark(event.status)
    if isinstance(sender, Relay):
        return [Push(note.task_id, "", {}, b"", key, event=versions.copied(whole or event))]
    body = b"" if whole is None else versions.payload(whole)
    if not body or len(body) > sender._bytes_max:
        body = versions.payload(event)
    return [Push(note.task_id, target.url, target.headers, body, key) for target in note.targets]
