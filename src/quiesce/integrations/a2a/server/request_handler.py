"""The request handler that is put around the SDK's: it can say when it is idle, and drain.

1. The SDK runs in jobs of one scope, which adopts what it starts. A client that leaves ends its own
   wait, and nothing else.
2. What was accepted is answered for: each task reaches a state that is stored, and pushed.
3. A job of the scope makes the end, once, however often callers ask for it.
4. With a node, a message belongs to a hop from the step in which it is accepted (mesh/message_hops.py).
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from quiesce.core import arguments
from quiesce.core.current import detached
from quiesce.core.scope import Scope
from quiesce.core.server_drain import drain_of_server
from quiesce.errors import ArgumentError, ScopeClosed, UsageError
from quiesce.integrations.a2a import versions
from quiesce.integrations.a2a.push.push_sender import DurablePushSender, Pushes, Relay
from quiesce.integrations.a2a.server import event_queues, recovery, shutdown
from quiesce.integrations.a2a.server.event_feed import Feed, FeedReader
from quiesce.integrations.a2a.server.executor import OwnedExecutor
from quiesce.integrations.a2a.server.task_store import Notified, telling
from quiesce.integrations.a2a.server.task_tracker import Tracker

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable
    from types import TracebackType

    from quiesce.core.frontier import Frontier
    from quiesce.core.job import Job
    from quiesce.core.report import Report
    from quiesce.integrations.a2a.mesh.message_hops import MeshTracker
    from quiesce.integrations.a2a.server.recovery import Recovery
    from quiesce.integrations.a2a.server.task_tracker import Request
    from quiesce.mesh.runtime.node import Node

__all__ = ["QuiescentRequestHandler"]

_log = logging.getLogger("quiesce.a2a")
_REFUSAL = "The server is shutting down; nothing was started. Send it again, to another server."


class QuiescentRequestHandler:
    """A request handler of the A2A SDK that drains, and loses neither tasks nor pushes.

    It takes what the SDK's `DefaultRequestHandler` takes, and is used in its place:

    ```python
    handler = QuiescentRequestHandler(
        agent_executor=agent, task_store=store, agent_card=card,
        push_config_store=configs, push_sender=DurablePushSender("pushes.db"),
    )
    async with handler:  # in the lifespan of the app
        ...
    ```

    Args:
        args: As the SDK's handler takes them.
        handler_class: The SDK's handler, or one with the same arguments.
        grace: How long the end of an `async with` waits for tasks to end.
        cleanup: How long what was cut short may take to clean up, and the last pushes to
            be sent.
        node: The node of this agent, if it takes part in cascades: a message that is part of one is
            executed, stored and pushed in its hop. It is opened and closed by others: `node.asgi()`.
        options: As the SDK's handler takes them.

    *Raises*: `ArgumentError` if the SDK's handler would not take the arguments.
    """

    def __init__(
        self,
        *args: Any,
        handler_class: Callable[..., Any] | None = None,
        grace: float = 30.0,
        cleanup: float = 5.0,
        node: Node | None = None,
        **options: Any,
    ) -> None:
        """Put everything around the SDK's handler; nothing is opened before the first request."""
        self._grace = arguments.seconds("grace", grace)
        self._cleanup = arguments.seconds("cleanup", cleanup)
        factory = handler_class or versions.Default
        signature = inspect.signature(factory)
        try:
            given = signature.bind(*args, **options).arguments
        except TypeError as error:
            message = f"{getattr(factory, '__name__', factory)}: {error}"
            raise ArgumentError(message) from None
        given |= given.pop("kwargs", {})
        self._mesh: MeshTracker | None = None
        self._tracker = Tracker()
        agent = _checked(given["agent_executor"])
        if node is not None:
            from quiesce.integrations.a2a.mesh import message_hops  # noqa: PLC0415 - for those alone

            self._tracker = self._mesh = message_hops.MeshTracker(node)
            agent = message_hops.HopExecutor(agent, self._mesh)
        self._tracker.code = getattr(given["agent_executor"].execute, "__code__", None)
        edges = None if self._mesh is None else self._mesh.edges
        self._pushes = Pushes(_sender(given), given.get("push_config_store"), edges)
        self._executor = OwnedExecutor(agent, self._tracker)
        self._store = telling(given["task_store"], self._tracker, self._pushes)
        if self._mesh is not None:
            self._mesh.store = self._store
        wrapped = {
            "agent_executor": self._executor,
            "task_store": self._store,
            "push_sender": Notified(self._tracker, self._pushes),
        }
        if not versions.FIRST and "queue_manager" in signature.parameters:
            wrapped["queue_manager"] = given.get("queue_manager") or event_queues.queues()
        self._inner = factory(**(given | wrapped))
        self._scope: Scope | None = None
        self._opening: Job[None] | None = None
        self._end: shutdown.End | None = None
        self._has_joined = self._is_told = False
        self.recovered: recovery.Recovery = recovery.Recovery()
        """What a process before this one has left, once the handler is open."""
        self.draining: bool = False
        """Whether new messages are refused."""

    # Opening.

    async def open(self) -> Self:
        """Open the outbox, and end what a process before this one has left; see `recover`.

        The first request does it, if no caller has. It may be called any number of times.

        *Cancel safety*: cancelled, it is closed again.

        *Raises*: `UsageError` if another process has the outbox; what the store raises.
        """
        try:
            await self._opened()
        except BaseException:
            await self.aclose()
            raise
        owner = drain_of_server.get()
        if owner is not None and not self._has_joined:
            self._has_joined = True
            owner.join("a2a", self._drain_for_server, self._in_flight)
        return self

    def _in_flight(self) -> dict[str, int]:
        """Count the tasks of the protocol; of the tasks of the event loop those that executors have left behind.

        Those of the SDK, and of the handler itself, work for a task of the protocol, or for a request.
        """
        found = () if self._scope is None else self._scope.frontier().in_flight
        tasks = sum(entry.kind == "a2a task" for entry in found)
        work = self._tracker.work
        left = 0 if work is None else len(work.frontier())
        return {"a2a task": tasks, "background task": left}

    async def _drain_for_server(self, grace: float, cleanup: float) -> Report:
        """Drain as part of a server, which then tells the report."""
        report = await self.drain(grace, cleanup=cleanup)
        self._is_told = True
        return report

    async def _opened(self) -> Scope:
        if self._scope is None:
            with detached():  # it outlives the request that happens to be the first
                self._scope = await Scope.open("a2a", adopt=True)
            if versions.FIRST:  # it has loops for each task, busy or parked; 0.3 has none
                self._tracker.loops = self._scope.child(
                    "loops of the SDK", adopt=True, services=("*",)
                )
            self._tracker.scope = self._scope
            self._tracker.work = self._scope.child("work", adopt=True)
            with detached():
                self._opening = self._scope.spawn(self._open, name="open")
        if self._opening is not None:
            await self._opening
            self._opening = None
        return self._scope

    async def _open(self) -> None:
        if self._scope is None:
            return
        await self._pushes.open(self._scope)
        self.recovered = await recovery.recover(self._store, self._pushes)

    async def recover(self) -> Recovery:
        """Return what a process before this one has left, and what became of it.

        It is done when the handler is opened: tasks that the process had accepted, and that are
        neither ended nor waiting for their client, are FAILED now, and pushed; pushes that were not
        delivered are on their way.
        """
        await self._opened()
        return self.recovered

    async def __aenter__(self) -> Self:
        """Open."""
        return await self.open()

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Drain; the report is logged, unless a `Quiesce` around the app has told it."""
        report = await self.drain(grace=self._grace, cleanup=self._cleanup)
        if not self._is_told:
            _log.log(logging.INFO if report.ok else logging.ERROR, "%s", report)

    # Asking, and closing.

    def frontier(self) -> Frontier:
        """List what is in flight: each task with its state, age, and what it waits on."""
        if self._scope is None:
            message = "the handler was not opened yet: open() it, or enter it"
            raise UsageError(message)
        return self._scope.frontier()

    async def idle(self) -> None:
        """Wait until no task is busy, all events are stored, and all pushes are delivered.

        A task that waits for its client (input-required, auth-required) is not busy.

        *Cancel safety*: may be cancelled at any time; it has no effect.
        """
        if self._scope is not None:
            await self._scope.idle()

    async def drain(self, grace: float | None = 30.0, *, cleanup: float = 5.0) -> Report:
        """Refuse new messages, let the accepted tasks end, and close.

        What has not ended after `grace` seconds (None: never) is cancelled, and FAILED: stored,
        pushed, and told to the clients that wait for it. All that has `cleanup` seconds. The report
        names these tasks as `undelivered`.

        *Cancel safety*: the drain then turns into a close, which is waited for before the
        cancellation is passed on.
        """
        end = await self._ending()
        try:
            return await end.join(grace, cleanup)
        finally:
            if self._mesh is not None:
                self._mesh.end_all()

    async def aclose(self, cleanup: float = 5.0) -> Report:
        """Cancel all that is in flight; what was queued is stored, what was cut is FAILED.

        *Cancel safety*: the close goes on, and is waited for, before the cancellation is passed on.
        """
        return await self.drain(0.0, cleanup=cleanup)

    async def _ending(self) -> shutdown.End:
        self.draining = True
        scope = self._scope
        if scope is None:
            with detached():
                scope = self._scope = await Scope.open("a2a")
        if self._end is None:
            self._end = shutdown.End(
                scope, self._tracker, self._executor, self._store, self._pushes, self._inner
            )
        return self._end

    # Requests.

    def _check_open(self) -> None:
        if self.draining:
            raise versions.refusal(_REFUSAL)

    async def on_message_send(self, params: Any, context: Any = None) -> Any:
        """Handle a message, as the SDK does, in a job (1)."""
        scope = await self._accept(params, context)
        return await self._run(scope, "send", self._inner.on_message_send, params, context)

    async def _accept(self, params: Any, context: Any) -> Scope:
        """Take a message, which may be part of a cascade (4); return the scope in which it is handled."""
        mesh = self._mesh
        work = None if mesh is None else mesh.accept(params.message, context)
        try:
            self._check_open()
            scope = await self._opened()
            if params.message.task_id:
                await self._refuse_ended(params, context)
            return scope if mesh is None or work is None else mesh.place(work)
        except BaseException as error:
            if mesh is not None and work is not None:
                mesh.refused(work)
            if isinstance(error, ScopeClosed):
                raise versions.refusal(_REFUSAL) from None
            raise

    async def on_cancel_task(self, params: Any, context: Any = None) -> Any:
        """Cancel a task, as the SDK does, in a job (1); also while it drains."""
        scope = await self._opened()
        before = self._tracker.ends.get(params.id)  # 1.0 gives it back as if it had cancelled it
        task = await self._run(scope, "cancel", self._inner.on_cancel_task, params, context)
        state = self._tracker.ends.get(params.id)
        if task is not None and (
            before is not None or (state is not None and task.status.state != state)
        ):
            raise versions.not_cancelable(params.id, state)  # it had ended in the meantime
        return task

    async def _run(self, scope: Any, name: str, call: Any, params: Any, context: Any) -> Any:
        asked = self._tracker.request(params)
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        try:
            with detached():  # the tracker sees to the hop
                job = scope.spawn(self._attempt, call, params, context, asked, answer, name=name)
        except ScopeClosed:
            self._tracker.gave_up(asked)
            raise versions.refusal(_REFUSAL) from None
        job.add_done_callback(partial(_answered, answer))
        return await answer

    async def _attempt(
        self, call: Any, params: Any, context: Any, asked: Request, answer: asyncio.Future[Any]
    ) -> None:
        asked.enter()
        try:
            result = await call(params, context)
            if not answer.done():  # or its client has left
                answer.set_result(result)
        except Exception as error:  # noqa: BLE001 - the client's, if it is still there
            self._give_up(asked)
            if not answer.done():
                answer.set_exception(error)
        finally:
            asked.leave()

    def _give_up(self, asked: Request) -> None:
        """Record that the SDK has refused, or given up, a request; end what it has begun for it."""
        self._tracker.gave_up(asked)
        asked.end_orphans()

    async def _refuse_ended(self, params: Any, context: Any) -> None:
        """Refuse a message to a task that has ended: in 1.x each would leave two tasks behind."""
        if not versions.FIRST:
            return
        task = await self._store.get(params.message.task_id, context)
        task = getattr(task, "task", task)
        if task is not None and task.status.state in versions.TERMINAL:
            raise versions.is_terminal_error(task)

    def on_message_send_stream(self, params: Any, context: Any = None) -> AsyncGenerator[Any, None]:
        """Handle a message, and give its events, as the SDK does, through a job (1)."""
        return FeedReader(partial(self._begin_work, params, context))

    def on_subscribe_to_task(self, params: Any, context: Any = None) -> AsyncGenerator[Any, None]:
        """Return the events of a task, as 1.x does, through a job (1)."""
        return FeedReader(partial(self._begin, self._inner.on_subscribe_to_task, params, context))

    def on_resubscribe_to_task(self, params: Any, context: Any = None) -> AsyncGenerator[Any, None]:
        """Return the events of a task, as 0.3 does, through a job (1)."""
        return FeedReader(partial(self._begin, self._inner.on_resubscribe_to_task, params, context))

    async def _begin_work(self, params: Any, context: Any) -> Feed:
        place = await self._accept(params, context)
        stream = self._inner.on_message_send_stream
        return await self._begin(stream, params, context, place=place, work=True)

    async def _begin(
        self, call: Any, params: Any, context: Any, *, place: Any = None, work: bool = False
    ) -> Feed:
        scope = place or await self._opened()
        feed = Feed()
        # One who only listens, or listens to a parked task, is not in the way of being idle.
        # In 0.3 it is the reading of a stream that stores.
        service = versions.FIRST or not work
        try:
            with detached():  # as in _run()
                scope.spawn(self._pump, call, params, context, feed, name="stream", service=service)
                if work and versions.FIRST:
                    feed.hold = scope.hold("a2a stream", params.message.message_id)
        except ScopeClosed:
            self._tracker.gave_up(self._tracker.request(params))
            raise versions.refusal(_REFUSAL) from None
        return feed

    async def _pump(self, call: Any, params: Any, context: Any, feed: Feed) -> None:
        error: BaseException | None = None
        cut = True
        asked = self._tracker.request(params)
        asked.enter()
        try:
            async for event in call(params, context):
                feed.put(event)
                if feed.hold is not None and versions.parks(event):
                    feed.hold.release()
            cut = False
        except Exception as raised:  # noqa: BLE001 - the client's, if it is still there
            self._give_up(asked)
            error = raised
            cut = False
        finally:
            asked.leave()
            feed.end(versions.refusal(_REFUSAL) if cut else error)
            if feed.hold is not None:
                feed.hold.release()

    async def on_create_task_push_notification_config(
        self, params: Any, context: Any = None
    ) -> Any:
        """Take a receiver, as 1.x does; a crash does not forget it."""
        made = await self._inner.on_create_task_push_notification_config(params, context)
        await self._pushes.retarget(params.task_id)
        return made

    async def on_set_task_push_notification_config(self, params: Any, context: Any = None) -> Any:
        """Take a receiver, as 0.3 does; a crash does not forget it."""
        made = await self._inner.on_set_task_push_notification_config(params, context)
        await self._pushes.retarget(params.task_id)
        return made

    async def on_delete_task_push_notification_config(
        self, params: Any, context: Any = None
    ) -> None:
        """Take a receiver away, as the SDK does."""
        await self._inner.on_delete_task_push_notification_config(params, context)
        await self._pushes.retarget(getattr(params, "task_id", None) or params.id)

    def __getattr__(self, name: str) -> Any:
        """Return what the SDK's handler has: all other requests go to it as they are."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._inner, name)


def _answered(answer: asyncio.Future[Any], _: object) -> None:
    """Answer a client whose request was cut, also if it was cut before it had begun."""
    if not answer.done():
        answer.set_exception(versions.refusal(_REFUSAL))


def _checked(agent: Any) -> Any:
    """Refuse what cannot be an executor: the SDK would only find out with the first message.

    *Raises*: `ArgumentError`.
    """
    if isinstance(agent, type):
        message = f"the agent must be an executor, not the class {agent.__name__}: make one"
        raise ArgumentError(message)
    if not callable(getattr(agent, "execute", None)):
        message = f"the agent must be an executor, with async execute() and cancel(), not {agent!r}"
        raise ArgumentError(message)
    return agent


def _sender(given: dict[str, Any]) -> DurablePushSender | Relay | None:
    sender = given.get("push_sender")
    if sender is None or isinstance(sender, DurablePushSender):
        return sender
    return Relay(sender)


versions.Handler.register(QuiescentRequestHandler)
