"""The push sender: writes the push of a state before the state is stored, and sends pushes in order.

You pass a `DurablePushSender` to the request handler, which makes a `Pushes` from it. The lanes that send
the pushes are in push_lanes.py.

1. A push is in the outbox before its state is stored, and is sent after that.
2. If a state could not be stored, its push is not sent. After an error of the store, the state may be
   stored or not. So the push stays in a durable outbox until the next state of the task is stored, or
   until the next start, which reads the store.
3. An error with a push never keeps its state from being stored.
4. A task that a start ends after a crash is pushed as a whole. The push then has artifacts that were
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
from quiesce.errors import ArgumentError, QuiesceError, UsageError
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
    """A function that returns the event to push, or None; it is called only if the task has a receiver."""

__all__ = ["DurablePushSender"]

_log = logging.getLogger("quiesce.a2a")
_ID_HEADER = "X-Quiesce-Push"
_BACKOFF = Backoff(first_seconds=0.2, factor=2.0, longest_seconds=60.0)
_DAY_SECONDS = 86_400.0


class DurablePushSender:
    """A sender of push notifications that loses none; pass it to a `QuiescentRequestHandler`.

    The handler writes a push to the outbox before it stores the push's state. The sender then sends the
    push until its receiver has accepted it. Pushes of a task arrive in the order of its states. A push may
    arrive more than once, with the same header `X-Quiesce-Push`.

    Args:
        outbox: The file of a `SqliteOutbox`, or an outbox.
        allow_private: Whether receivers may be at private and loopback addresses: False, True, or
            the networks (`["10.0.0.0/8"]`) that they may be in.
        sign: Signs pushes: a `HmacSigner`, or a function, async or not, that gets a `PushRequest`
            and returns headers. The sender calls it at each attempt. It cannot replace headers of the
            push configuration. If it raises, the attempt counts as failed.
        attempts_max: After how many failed attempts a push becomes a dead letter.
        keep_seconds: After how many seconds a push becomes a dead letter if another attempt fails.
        pending_max: How many pushes may wait; beyond that, the oldest become dead letters.
        backoff: How long to wait between attempts; a receiver may ask for more (`Retry-After`).
        seconds_max: How many seconds an attempt may take, from the name look-up to the answer.
        bytes_max: How many bytes a push may have; a larger push becomes a dead letter.
        connections: How many connections may be open at a time; to one receiver, a quarter of them.
        ssl_context: For receivers whose certificates come from your own authority, or that require a
            client certificate.

    *Raises*: `ArgumentError`.
    """

    def __init__(  # noqa: PLR0913 - each option has a useful default
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
        """Check the options; the outbox is opened with the handler."""
        known = hasattr(outbox, "write") and hasattr(outbox, "pending")
        self.outbox: Outbox = outbox if known else SqliteOutbox(outbox)  # type: ignore[assignment,arg-type]  # one or the other
        if min(attempts_max, connections, bytes_max, pending_max) < 1:
            message = "attempts_max, connections, bytes_max and pending_max must be 1 or more"
            raise ArgumentError(message)
        if sign is not None:
            arguments.check_callable(sign, "sign", "a function, or a HmacSigner")
        self._sign = sign
        keep_seconds = arguments.seconds("keep_seconds", keep_seconds)
        self.delivery_rules: DeliveryRules = DeliveryRules(
            attempts_max, keep_seconds, pending_max, backoff, connections
        )
        self.bytes_max = bytes_max
        self._seconds = arguments.seconds("seconds_max", seconds_max)
        self._poster = Poster(
            PushPolicy(allow_private), seconds=self._seconds, bytes_max=bytes_max,
            connections=connections, ssl_context=ssl_context,
        )  # fmt: skip
        self.lanes: Lanes | None = None

    async def dead_letters(self) -> list[DeadLetter]:
        """Return the pushes that were given up, oldest first."""
        return await self.outbox.dead_letters()

    async def resend(self, letters: Iterable[DeadLetter] | None = None) -> int:
        """Send dead letters again, without `letters` all of them; return their number.

        They are sent after the waiting pushes, and their attempts are counted from zero.

        *Raises*: `UsageError` if the handler of this sender is not open.
        """
        if self.lanes is None:
            message = (
                "this sender cannot send, because its handler is not open: call open() of the"
                " QuiescentRequestHandler that has this push_sender"
            )
            raise UsageError(message)
        ids = None if letters is None else [letter.id for letter in letters]
        found = await self.outbox.revive(ids)
        self.lanes.send(found)
        return len(found)

    async def discard(self, letters: Iterable[DeadLetter]) -> int:
        """Remove dead letters from the outbox; return the number removed."""
        return await self.outbox.discard([letter.id for letter in letters])

    async def send_notification(self, *args: Any) -> None:
        """Raise an error: the SDK's handler cannot use this sender, which writes pushes before states."""
        del args
        message = (
            "the SDK's handler cannot use a DurablePushSender: pass it to a QuiescentRequestHandler"
        )
        raise ArgumentError(message)

    async def deliver_push(self, push: Push) -> None:
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
        """Post a push that is part of a cascade, and record the outcome at its edge."""
        try:
            await edge.written()
        except QuiesceError as error:  # of a shared store
            push.cascade = edge.header
            raise NotTaken(str(error)) from error
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
        except Exception as error:  # noqa: BLE001 - of the user's function; its text may have a secret
            message = f"sign() raised {type(error).__name__}"
            raise NotTaken(message) from None
        return headers

    async def close_lanes(self) -> None:
        self.lanes = None
        try:
            await self._poster.close()
        finally:
            await self.outbox.close()


class Relay:
    """The lanes' view of the user's own push sender, which is called once for each push, as the SDK does."""

    def __init__(self, sender: Any) -> None:
        self.outbox: Outbox = MemoryOutbox()
        self._sender = sender
        self.delivery_rules: DeliveryRules = DeliveryRules(1, math.inf, 10_000, _BACKOFF, 32 * 4)
        self.lanes: Lanes | None = None

    async def deliver_push(self, push: Push) -> None:
        if push.edge is not None:
            await push.edge.relayed()
        try:
            if versions.FIRST:
                await self._sender.send_notification(push.task_id, push.event)
            else:
                await self._sender.send_notification(push.event)
        except Exception as error:
            message = f"the sender raised {type(error).__name__}: {error}"
            raise Refused(message) from error

    async def close_lanes(self) -> None:
        self.lanes = None
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
        # The user's own sender reads the push configurations by itself.
        self._configs = None if isinstance(sender, Relay) else config_store
        self._lanes: Lanes | None = None
        self._notes: dict[str, TaskNote] = {}
        self._ended: list[str] = []
        self._unstored: dict[str, list[Push]] = {}
        self._push_whole: set[str] = set()
        self.latest: str | None = None
        """The task that `save` stored last, if that wrote a push of the whole task (0.3)."""

    async def open(self, scope: Scope) -> None:
        """Open the outbox and the lanes; no push is sent before."""
        sender = self.sender
        if sender is not None:
            await sender.outbox.open()
            sender.lanes = Lanes(scope, sender.outbox, sender.deliver_push, sender.delivery_rules)
            self._lanes = sender.lanes

    def recall(self, notes: Sequence[TaskNote]) -> None:
        """Record the receivers of an earlier process's tasks, whose next push is of the whole task (4)."""
        self._notes |= {note.task_id: note for note in notes}
        self._push_whole |= {note.task_id for note in notes}

    def disown(self, task_ids: Iterable[str]) -> None:
        """Remove the notes of tasks that have ended."""
        for task_id in task_ids:
            self._notes.pop(task_id, None)
            self._push_whole.discard(task_id)

    def context(self, task_id: str) -> Any:
        """Return the call context for a task of an earlier process."""
        note = self._notes.get(task_id)
        return versions.context_of(note.user, note.tenant) if note else versions.context_of("", "")

    def tell_whole(self, task_id: str) -> None:
        """Make the next push of a task contain the whole task (4)."""
        self._push_whole.add(task_id)

    async def write(self, task: Any, tell: Tell, context: Any) -> Sequence[Push]:
        """Write the pushes of a state that is about to be stored, and return them (1)."""
        whole = task if task.id in self._push_whole else None
        self._push_whole.discard(task.id)
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
        except Exception:  # noqa: BLE001 - logged; the state has to be stored (3)
            self._ended = [*ended, *self._ended]
            _log.exception(
                "the outbox cannot be written; the pushes of task %s are in memory only, and a crash"
                " would lose them", note.task_id,
            )  # fmt: skip
        except BaseException:
            self.drop(pushes)  # they may be written, and their state will not be stored
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
            targets = before.targets  # the config store was in memory, and a restart has emptied it
        return TaskNote(task_id, user, tenant, targets or ())

    async def _targets(self, task_id: str, context: Any) -> tuple[PushTarget, ...] | None:
        """Return the receivers of a task; None if they could not be read."""
        if self._configs is None:
            return ()
        try:
            found = await versions.configs(self._configs, task_id, context)
        except Exception:  # noqa: BLE001 - logged; the state has to be stored (3)
            _log.exception(
                "the push configurations of task %s could not be read; its last known receivers are"
                " used", task_id,
            )  # fmt: skip
            return None
        return tuple([PushTarget(one.url, versions.push_headers(one)) for one in found])

    async def _has_receivers(self, task_id: str, context: Any) -> bool:
        """Return whether the pushes of a task have receivers; the user's own sender looks them up by itself."""
        try:
            return self._relayed is None or bool(
                await versions.configs(self._relayed, task_id, context)
            )
        except Exception:  # noqa: BLE001 - of the user's store; the user's sender will see it as well
            return True

    async def retarget(self, task_id: str) -> None:
        """Store the changed receivers of a task in the outbox, for a start after a crash.

        Before its first state a task has no note, and after its last state it needs none.
        """
        self.latest = None
        note = self._notes.get(task_id)
        if self.sender is None or note is None:
            return
        targets = await self._targets(task_id, versions.context_of(note.user, note.tenant))
        if targets is not None and targets != note.targets and task_id in self._notes:
            await self._keep(self.sender.outbox, replace(note, targets=targets), ())

    def send(self, pushes: Sequence[Push]) -> None:
        if self._lanes is None or not pushes:
            return
        if self._edges is not None:
            for push in pushes:
                if push.cascade and push.edge is None:
                    self._edges.restore(push)
        self._lanes.send(pushes)
        self._forget(self._unstored.pop(pushes[0].task_id, ()))

    def drop(self, pushes: Sequence[Push]) -> None:
        """Do not send pushes whose state could not be stored (2)."""
        if self.sender is None or not pushes:
            return
        if self.sender.outbox.durable:
            self._unstored.setdefault(pushes[0].task_id, []).extend(pushes)
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
        """Record that a task's terminal state is stored, so that its note can be removed."""
        if self._notes.pop(task_id, None) is not None:
            self._ended.append(task_id)

    async def artifact(self, task_id: str, tell: Tell, context: Any) -> None:
        """Write and send the push of an event without a state, after the event was stored."""
        self.send(await self._write(task_id, tell, context, stored=True))

    def drain(self) -> None:
        """Leave failing pushes for the next start, if the outbox is durable."""
        if self._lanes is not None:
            self._lanes.drain()

    async def close(self) -> None:
        if self.sender is None:
            return
        if self._edges is not None:
            self._edges.close()
        try:
            if self._ended and self.sender.outbox.durable:
                await self.sender.outbox.forget(self._ended)
        except Exception:  # noqa: BLE001 - logged; the next start finds that these tasks have ended
            _log.exception("the notes of ended tasks could not be removed from the outbox")
        finally:
            self._lanes = None
            await self.sender.close_lanes()


def _pushes(
    sender: DurablePushSender | Relay, note: TaskNote, event: Any, whole: Any, *, stored: bool
) -> Sequence[Push]:
    """Return the pushes of an event, or of the whole task if `whole` is a task."""
    if event is None:
        return ()
    key = "" if stored or not versions.has_status(event) else versions.status_mark(event.status)
    if isinstance(sender, Relay):
        return [Push(note.task_id, "", {}, b"", key, event=versions.copied(whole or event))]
    body = b"" if whole is None else versions.payload(whole)
    if not body or len(body) > sender.bytes_max:
        body = versions.payload(event)
    return [Push(note.task_id, target.url, target.headers, body, key) for target in note.targets]
