"""Which hop the executor works for: that of the message that it was called with.

A message may be executed long after its request was answered, by a task that an older request has started,
and its events are stored later still. What holds:

1. The hop of a message does not end between its acceptance and its execution, nor before the events of that
   are stored: each push of them is handed over in the hop.
2. What the executor starts belongs to the hop of the message that it was called with, whichever task calls it.
3. A message whose hop has ended, or was told to end, before its execution is not executed: no verdict
   would know of it.
4. Ids that come with a message by no other way than its metadata open a hop, once.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from quiesce.core.hold import NOTHING, Hold
from quiesce.core.visitors import Bond, Visitor
from quiesce.errors import CascadeCancelled, EdgeRefused, RemoteProtocolError, ScopeClosed
from quiesce.integrations.a2a import versions
from quiesce.integrations.a2a.mesh import extension
from quiesce.integrations.a2a.mesh.push_edges import PushEdges
from quiesce.integrations.a2a.server.executor import BROKEN, enqueue_end
from quiesce.integrations.a2a.server.shutdown import end_task
from quiesce.integrations.a2a.server.task_tracker import Request, Tracker, request
from quiesce.mesh.runtime.hop import current_hop

if TYPE_CHECKING:
    from quiesce.core.scope import Scope
    from quiesce.integrations.a2a.server.task_store import TellingStore
    from quiesce.integrations.a2a.server.task_tracker import Entry
    from quiesce.mesh.runtime.hop import Hop
    from quiesce.mesh.runtime.node import Node

__all__: list[str] = []

_LOOPS = ("_shutdown_watcher",)  # of sse-starlette: one for all streams, begun by the first of them
_LOOK_SECONDS = 0.02  # between two looks at the responses that are open
_MARK = "quiesce.mesh"  # in the state of a call: what its messages are part of
CANCELLED = "The cascade that it was part of was cancelled."
WAITING, CALLED_OFF, RUNNING, EXECUTED, OVER = (
    "waiting", "called off", "running", "executed", "over"
)  # fmt: skip


class MessageWork:
    """A message that was accepted as part of a hop."""

    __slots__ = ("_hold", "error", "hop", "message", "message_id", "stage", "task_id")

    def __init__(self, hop: Hop, message: Any) -> None:
        self.hop: Hop = hop
        self.message: Any = message
        self.message_id: str = message.message_id
        self.task_id: str = ""
        self.stage: str = WAITING
        self.error: Exception | None = None
        name, code = message.message_id, hop._code
        self._hold = Hold(hop, "a2a message", name, NOTHING, code, 0, self._told_to_end)
        hop._admit()
        hop._insert(self._hold, self._hold)  # (1)

    def _told_to_end(self) -> None:
        """Record that it need not be executed.

        As the first of its task it is about to be: the task is then stored as CANCELED, and that is pushed.
        """
        if self.stage == WAITING:
            if self.task_id:
                self.end()
            else:
                self.stage = CALLED_OFF

    def end(self) -> None:
        """Hold the hop no more (1); it is not executed after this (3)."""
        if self.stage != OVER:
            self.stage = OVER
            self._hold.release()


class MeshTracker(Tracker):
    """A tracker that also knows the hops of messages."""

    def __init__(self, node: Node) -> None:
        super().__init__()
        self._node = node
        node._services = (*node._services, *_LOOPS)
        self._waiting: dict[int, MessageWork] = {}
        self._works: dict[str, list[MessageWork]] = {}
        self.edges: PushEdges = PushEdges(node, self)

    store: TellingStore

    # Accepting.

    def accept(self, message: Any, context: Any) -> MessageWork | None:
        """Take note of a message, in the step in which it is accepted; None if it is in no hop."""
        header = extension.take_ids(message, self._node.url)
        hop = current_hop()
        if hop is not None and hop._mesh is self._node:
            work = self._work(hop, message)
        elif header is not None:
            work = self._open(header, message)
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
            return MessageWork(hop, message)
        except ScopeClosed:  # it was told to end
            raise versions.refusal(CANCELLED) from None

    def _open(self, header: str, message: Any) -> MessageWork:
        """Open the hop of a message that came without a header (4)."""
        node = self._node
        try:
            part = node.handle(header)
        except (EdgeRefused, RemoteProtocolError) as error:
            raise versions.error("InvalidParamsError", str(error)) from None
        hop = part.enter()
        try:
            return self._work(hop, message)
        finally:
            part.leave(None)
            node.answer(hop)  # no answer carries it: the receipt is posted, or asked for

    def place(self, work: MessageWork) -> Scope:
        """Return the scope in which the SDK handles a message.

        0.3 stores events in tasks that it starts for the message alone: its own scope is idle when all
        is stored. In 1.x they are counted.
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
                # 0.3 leaves it as it is, and the end of the server would tell of it: after the hop's.
                why = BROKEN.format(error=work.error)
                await end_task(self.store, entry.task_id, entry.context, why)
        finally:
            self.end(work)
        await own.aclose()

    def request(self, params: Any) -> Request:
        """Return the call that is made for a message, or for anything else."""
        message = getattr(params, "message", None)
        made = MeshRequest(getattr(message, "task_id", None) or None, self.scope, self.loops)
        made.tracker, made.work = self, self._waiting.get(id(message))
        made.message_id = getattr(message, "message_id", None)
        return made

    def gave_up(self, failed: Request) -> None:
        """Record that the SDK has given up a request: what it has not begun by then, it will not."""
        super().gave_up(failed)
        if isinstance(failed, MeshRequest) and failed.work is not None:
            self.refused(failed.work)

    def refused(self, work: MessageWork) -> None:
        """Record that a message will not be executed, unless it is already."""
        if work.stage in {WAITING, CALLED_OFF, OVER}:
            self.end(work)

    # Executing.

    def begin(self, context: Any) -> MessageWork | None:
        """Return the message that is about to be executed, if it is part of a hop (2)."""
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
        """Find what is known of a message; also if it is over, as long as it may be executed (3)."""
        asked = request.get()
        name = message.message_id
        marks = getattr(context, "state", None) or {}
        candidates = [self._waiting.get(id(message)), marks.get(_MARK, {}).get(name)]
        if isinstance(asked, MeshRequest) and asked.message_id == name:
            candidates.append(asked.work)  # or it is not ours, and has the id of one that is
        else:
            candidates += (
                self._waiting.values()
            )  # the builder of the context has copied the message
        same = (one for one in candidates if one is not None and one.message_id == name)
        return next(same, None)

    def executed(self, work: MessageWork) -> None:
        """Record that an executor has returned; what it has left running is in flight here, too."""
        if work.stage in {CALLED_OFF, RUNNING}:
            work.stage = EXECUTED
        if self.work is not None:
            _bind(work.hop, self.work)

    async def streams_ended(self) -> None:
        """Wait until the handlers of all hops that `work` holds have ended.

        `work` holds whole hops (see `_bind`), also the responses that stream the ends of tasks.

        *Cancel safety*: may be cancelled at any time; it has no effect.
        """
        work = self.work
        while work is not None and any(map(_is_handled, list(work._holds.values()))):  # noqa: ASYNC110 - a visit tells nobody of its end
            await asyncio.sleep(_LOOK_SECONDS)

    def refresh(self, entry: Entry) -> None:
        """Release the hops of executed messages, too, when their events are stored (1).

        In 0.3 that is known by the end of the tasks that store them, and told by `end`.
        """
        super().refresh(entry)
        works = self._works.get(entry.task_id)
        if works and versions.FIRST and not entry.executing and not entry.busy:
            for work in tuple(works):
                is_due = (
                    work.error is not None and entry.owed
                )  # 1.0 stores its end after all others
                if (work.stage not in {WAITING, CALLED_OFF} and not is_due) or entry.ended:
                    self.end(work)

    def end_all(self) -> None:
        """Record that the server is closed: nothing is executed or stored any more."""
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

    # Pushing.

    def hop_of(self, task_id: str) -> Hop | None:
        """Return the hop in which the states of a task are stored and pushed now."""
        for work in reversed(self._works.get(task_id, ())):
            if work.stage in {CALLED_OFF, RUNNING, EXECUTED} and not work.hop._ended:
                return work.hop
        return None


class MeshRequest(Request):
    """One call of the SDK's handler, with the message that it is for."""

    __slots__ = ("message_id", "tracker", "work")

    message_id: str | None
    tracker: MeshTracker
    work: MessageWork | None

    def leave(self) -> None:
        """Record that the call has ended; its message may have come too late for its task."""
        super().leave()
        if self.work is not None and self.work.task_id in self.tracker.ends:
            self.tracker.refused(self.work)


class HopExecutor:
    """Runs the user's executor as part of the hop of its message (2)."""

    def __init__(self, executor: Any, tracker: MeshTracker) -> None:
        self._executor = executor
        self._tracker = tracker

    async def execute(self, context: Any, event_queue: Any) -> None:
        """Run the user's `execute`; cut short with its cascade, its task is CANCELED."""
        work = self._tracker.begin(context)
        if work is None:
            await self._executor.execute(context, event_queue)
            return
        try:
            if work.stage in {CALLED_OFF, OVER}:  # (3); a task that there is stays as it is
                if context.current_task is None:
                    await self._cancel(context, event_queue)
            else:
                await self._execute(work, context, event_queue)
        finally:
            self._tracker.executed(work)

    async def _execute(self, work: MessageWork, context: Any, event_queue: Any) -> None:
        try:
            async with work.hop.working(context.task_id, kind="a2a task"):
                await self._executor.execute(context, event_queue)
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
    """Hold a hop in which something was left running, in the scope of what executors start."""
    plain = (held for held in list(hop._holds.values()) if type(held) is not Hold)
    left = [held for held in plain if not isinstance(held, Visitor)]
    if left and not hop._ended:
        with suppress(ScopeClosed):  # it is closed: the node waits for them
            scope._admit()
            bond = Bond(scope, hop)
            scope._insert(bond, bond)
            hop._bond = bond if hop._bond is None else _Both(hop._bond, bond)  # type: ignore[assignment]  # ended, no more


def _is_handled(held: object) -> bool:
    """Return whether this is the bond of a hop whose handler still runs."""
    holds = held.scope._holds.values() if isinstance(held, Bond) else ()
    return any(isinstance(one, Visitor) for one in holds)


class _Both:
    """Two who hold one hop."""

    def __init__(self, first: Any, second: Any) -> None:
        self._two = (first, second)

    def end(self) -> None:
        """Release both, as a bond does when its scope is closed."""
        for one in self._two:
            one.end()
