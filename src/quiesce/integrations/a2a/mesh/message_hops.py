"""Which hop the executor works for: the hop of the message that it executes.

The SDK may execute a message long after it has answered the request, in a task that an older request has
started. The message's events are stored even later. So this module tracks each message. What holds:

1. The hop of a message stays open from the message's acceptance until its events are stored. Each push of
   these events is a message of the hop.
2. What the executor starts belongs to the hop of the executed message, whichever task calls the executor.
3. A message is not executed if its hop has ended or was cancelled before. Otherwise the cascade's verdict
   would not cover the work.
4. If the ids of an edge come in the metadata alone, without a header, they open a hop, once.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from quiesce.core.callsites import Callsite
from quiesce.core.hold import NOTHING, Hold
from quiesce.core.visitors import Bond, Visitor
from quiesce.errors import (
    CascadeCancelled,
    EdgeRefused,
    RemoteProtocolError,
    ReplicaBuried,
    ScopeClosed,
    StoreLost,
)
from quiesce.integrations.a2a import versions
from quiesce.integrations.a2a.mesh import extension
from quiesce.integrations.a2a.mesh.push_edges import PushEdges
from quiesce.integrations.a2a.server.executor import BROKEN, enqueue_end
from quiesce.integrations.a2a.server.shutdown import end_task
from quiesce.integrations.a2a.server.task_tracker import Request, Tracker, request
from quiesce.mesh.runtime.hop import current_hop
from quiesce.mesh.runtime.hop_parts import claimed

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import CodeType

    from quiesce.core.scope import Scope
    from quiesce.integrations.a2a.server.task_store import TellingStore
    from quiesce.integrations.a2a.server.task_tracker import Entry
    from quiesce.mesh.runtime.hop import Hop
    from quiesce.mesh.runtime.hop_parts import Part
    from quiesce.mesh.runtime.node import Node

__all__: list[str] = []

_POLL_SECONDS = 0.02  # the interval at which `streams_ended` looks at the open responses
_MARK = "quiesce.mesh"  # the key in a call's state under which its `MessageWork` is
CANCELLED = "The cascade that this message belongs to was cancelled."
WAITING, CALLED_OFF, RUNNING, EXECUTED, OVER = (
    "waiting", "called off", "running", "executed", "over"
)  # fmt: skip


class MessageWork:
    """A message that the server has accepted as part of a hop."""

    __slots__ = ("_hold", "error", "hop", "message", "message_id", "stage", "task_id")

    def __init__(self, hop: Hop, message: Any, code: CodeType | None) -> None:
        self.hop: Hop = hop
        self.message: Any = message
        self.message_id: str = message.message_id
        self.task_id: str = ""
        self.stage: str = WAITING
        self.error: Exception | None = None
        name, place = message.message_id, code or hop.place_code
        self._hold = Hold(hop, "a2a message", name, NOTHING, place, 0, self._call_off)
        hop.check_may_start()
        hop.insert_hold(self._hold, self._hold)  # (1)

    def _call_off(self) -> None:
        """Record that the hop was cancelled before the message was executed (3).

        The first message of a task still reaches the executor, which stores and pushes the task as CANCELED.
        """
        if self.stage == WAITING:
            if self.task_id:
                self.end()
            else:
                self.stage = CALLED_OFF

    def end(self) -> None:
        """Release the hop (1). The message is not executed after this (3)."""
        if self.stage != OVER:
            self.stage = OVER
            self._hold.release()


class MeshTracker(Tracker):
    """A tracker that also tracks the hops of messages."""

    def __init__(self, node: Node) -> None:
        super().__init__()
        self._node = node
        self._waiting: dict[int, MessageWork] = {}
        self._works: dict[str, list[MessageWork]] = {}
        self.edges: PushEdges = PushEdges(node, self)

    store: TellingStore

    # Accepting.

    async def accept(self, message: Any, context: Any) -> MessageWork | None:
        """Record an accepted message; return None if it is in no hop.

        The event loop runs nothing else before. But a message without a header waits for a shared store.

        *Cancel safety*: if cancelled, the message does not run, and a copy of it may.
        """
        header = extension.take_ids(message, self._node.url)
        hop = current_hop()
        if hop is not None and hop.mesh_node is self._node:
            work = self._work(hop, message)
        elif header is not None:
            work = await self._open(header, message)
        else:
            return None
        work.task_id = message.task_id
        self._waiting[id(message)] = work
        if context is not None:
            context.state.setdefault(_MARK, {})[work.message_id] = work
        if work.task_id:
            self._works.setdefault(work.task_id, []).append(work)
        return work

    def _work(self, hop: Hop, message: Any) -> MessageWork:
        try:
            return MessageWork(hop, message, self.code)
        except ScopeClosed:  # the hop was cancelled
            raise versions.refusal(CANCELLED) from None

    async def _open(self, header: str, message: Any) -> MessageWork:
        """Open the hop of a message that came without a header (4)."""
        node = self._node
        try:
            part = await claimed(node.handle(header))
        except (EdgeRefused, RemoteProtocolError) as error:
            raise versions.error("InvalidParamsError", str(error)) from None
        except (ReplicaBuried, StoreLost) as error:
            raise versions.refusal(str(error)) from None
        hop = part.enter()
        try:
            return self._work(hop, message)
        finally:
            part.leave(None)
            node.opened.answer(
                hop
            )  # the answer has no receipt header: the receipt is posted, or queried

    def place(self, work: MessageWork) -> Scope:
        """Return the scope in which the SDK handles a message.

        0.3 stores the events in tasks that it starts for each message. So the message gets a scope of its
        own, which is idle when all events are stored. For 1.x the tracker counts the events.
        """
        scope = self.scope
        assert scope is not None  # noqa: S101 - the handler is open
        if versions.FIRST:
            return scope
        own = scope.child(f"message {work.message.message_id}", adopt=True, leftovers="parent")
        scope.spawn(self._see_off, own, work, name="see off a message", service=True)
        return own

    async def _see_off(self, own: Scope, work: MessageWork) -> None:
        try:
            await own.idle()
            entry = self.entries.get(work.task_id)
            if work.error is not None and entry is not None and entry.owed and not entry.executing:
                # 0.3 stores no end here. The server's shutdown would, but only after the hop has ended.
                why = BROKEN.format(error=work.error)
                await end_task(self.store, entry.task_id, entry.context, why)
        finally:
            self.end(work)
        await own.aclose()

    def request(self, params: Any) -> Request:
        """Return a new call for the parameters of a request, of any kind."""
        message = getattr(params, "message", None)
        made = MeshRequest(getattr(message, "task_id", None) or None, self.scope, self.loops)
        made.tracker, made.work = self, self._waiting.get(id(message))
        made.message_id = getattr(message, "message_id", None)
        return made

    def gave_up(self, failed: Request) -> None:
        """Record that the SDK has given up a request: if it has not executed the message yet, it will not."""
        super().gave_up(failed)
        if isinstance(failed, MeshRequest) and failed.work is not None:
            self.refused(failed.work)

    def refused(self, work: MessageWork) -> None:
        """Record that a message will not be executed, unless its execution has begun."""
        if work.stage in {WAITING, CALLED_OFF, OVER}:
            self.end(work)

    # Executing.

    def begin(self, context: Any) -> MessageWork | None:
        """Return the message that the executor is about to execute, if it is part of a hop (2)."""
        message = context.message
        work = None if message is None else self._found(message, context.call_context)
        if work is None:
            return None
        self._waiting.pop(id(work.message), None)
        if work.stage == WAITING:
            work.stage = RUNNING
        if not work.task_id:
            work.task_id = context.task_id
            self._works.setdefault(work.task_id, []).append(work)
        return work

    def _found(self, message: Any, context: Any) -> MessageWork | None:
        """Return the record of a message, also of an ended hop, as long as the SDK may execute it (3)."""
        call = request.get()
        name = message.message_id
        marks = getattr(context, "state", None) or {}
        candidates = [self._waiting.get(id(message)), marks.get(_MARK, {}).get(name)]
        if isinstance(call, MeshRequest) and call.message_id == name:
            candidates.append(call.work)  # otherwise it is another message with the same id
        else:
            candidates += (
                self._waiting.values()
            )  # the builder of the context has copied the message
        same = (one for one in candidates if one is not None and one.message_id == name)
        return next(same, None)

    def part(self, hop: Hop, task_id: str) -> Part:
        """Return the part of a hop in which the executor runs; reports show the user's code as its place."""
        part = hop.working(task_id, kind="a2a task")
        if self.code is not None:
            part.place = Callsite(self.code, 0)
        return part

    def executed(self, work: MessageWork) -> None:
        """Record that an executor has returned, and hold its hop in `work` while it has left work running."""
        if work.stage in {CALLED_OFF, RUNNING}:
            work.stage = EXECUTED
        if self.work is not None:
            _bind(work.hop, self.work)

    async def streams_ended(self) -> None:
        """Wait until the request handlers of all hops that `work` holds have returned.

        `work` holds whole hops (see `_bind`), and so also the responses that stream the ends of tasks.

        *Cancel safety*: may be cancelled at any time; it has no effect.
        """
        work = self.work
        while work is not None and any(map(_is_handled, list(work.holds.values()))):  # noqa: ASYNC110 - a visit has no event for its end
            await asyncio.sleep(_POLL_SECONDS)

    def refresh(self, entry: Entry) -> None:
        """Update the hold of a task, and release the hops of its messages when their events are stored (1).

        In 0.3, `_see_off` releases the hops, when the tasks that store the events have ended.
        """
        super().refresh(entry)
        works = self._works.get(entry.task_id)
        if works and versions.FIRST and not entry.executing and not entry.busy:
            for work in tuple(works):
                # After an error, 1.0 stores FAILED only after all other events.
                is_due = work.error is not None and entry.owed
                if (work.stage not in {WAITING, CALLED_OFF} and not is_due) or entry.ended:
                    self.end(work)

    def end_all(self) -> None:
        """Release all hops: the server is closed, so no message is executed or stored any more."""
        for work in [
            *self._waiting.values(),
            *(one for some in self._works.values() for one in some),
        ]:
            self.end(work)

    def end(self, work: MessageWork) -> None:
        """Release the hop of a message."""
        self._waiting.pop(id(work.message), None)
        works = self._works.get(work.task_id)
        if works is not None and work in works:
            works.remove(work)
            if not works:
                del self._works[work.task_id]
        work.end()

    def stands_for(self, task_id: str) -> Iterable[object]:
        """Return the scopes that wait for a task, and the hops of its messages, whose requests may be answered already."""
        works = self._works.get(task_id, ())
        return [*super().stands_for(task_id), *(work.hop for work in works)]

    # Pushing.

    def hop_of(self, task_id: str) -> Hop | None:
        """Return the hop whose work stores and pushes the states of a task now."""
        for work in reversed(self._works.get(task_id, ())):
            if work.stage in {CALLED_OFF, RUNNING, EXECUTED} and not work.hop.has_ended:
                return work.hop
        return None


class MeshRequest(Request):
    """One call of the SDK's handler, with the message that the call handles."""

    __slots__ = ("message_id", "tracker", "work")

    message_id: str | None
    tracker: MeshTracker
    work: MessageWork | None

    def leave(self) -> None:
        """Record that the call has ended; release its message if the task had ended before the message."""
        super().leave()
        if self.work is not None and self.work.task_id in self.tracker.ends:
            self.tracker.refused(self.work)


class HopExecutor:
    """Runs the user's executor as part of the hop of the executed message (2)."""

    def __init__(self, executor: Any, tracker: MeshTracker) -> None:
        self._executor = executor
        self._tracker = tracker

    async def execute(self, context: Any, event_queue: Any) -> None:
        """Run the user's `execute`; if the cascade is cancelled, store the task as CANCELED."""
        work = self._tracker.begin(context)
        if work is None:
            await self._executor.execute(context, event_queue)
            return
        try:
            if work.stage in {CALLED_OFF, OVER}:  # (3); a task that exists already keeps its state
                if context.current_task is None:
                    await self._cancel(context, event_queue)
            else:
                await self._execute(work, context, event_queue)
        finally:
            self._tracker.executed(work)

    async def _execute(self, work: MessageWork, context: Any, event_queue: Any) -> None:
        try:
            entry = self._tracker.entry(context.task_id)
            async with self._tracker.part(work.hop, context.task_id):
                try:
                    await self._executor.execute(context, event_queue)
                except asyncio.CancelledError:
                    if entry.cut:
                        work.hop.note_cut_short()
                    raise
                if entry.cut and entry.said not in versions.TERMINAL:
                    # The executor has caught its cancellation: the task will be stored as FAILED.
                    work.hop.note_cut_short()
        except CascadeCancelled:
            if not work.hop.is_cancelled:
                raise
            await self._cancel(context, event_queue)
        except Exception as error:
            work.error = error
            raise

    async def _cancel(self, context: Any, event_queue: Any) -> None:
        entry = self._tracker.entry(context.task_id)
        if entry.ended or entry.said in versions.TERMINAL:
            return
        await enqueue_end("canceled", context, event_queue, entry, CANCELLED)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._executor, name)


def _bind(hop: Hop, scope: Scope) -> None:
    """Hold a hop in the scope `work` if an executor has left work running in the hop."""
    plain = (held for held in list(hop.holds.values()) if type(held) is not Hold)
    left = [held for held in plain if not isinstance(held, Visitor)]
    if left and not hop.has_ended:
        with suppress(ScopeClosed):  # if the scope is closed, the node waits for the hop's work
            scope.check_may_start()
            bond = Bond(scope, hop)
            scope.insert_hold(bond, bond)
            hop.bond = bond if hop.bond is None else _TwoBonds(hop.bond, bond)  # type: ignore[assignment]  # only `end` is called on it


def _is_handled(held: object) -> bool:
    """Return whether this is the bond of a hop whose request handler still runs."""
    holds = held.scope.holds.values() if isinstance(held, Bond) else ()
    return any(isinstance(one, Visitor) for one in holds)


class _TwoBonds:
    """Two bonds that hold the same hop."""

    def __init__(self, first: Any, second: Any) -> None:
        self._bonds = (first, second)

    def end(self) -> None:
        """Release both bonds; called when the hop's scope is closed."""
        for bond in self._bonds:
            bond.end()
