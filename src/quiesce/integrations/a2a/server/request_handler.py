"""The request handler that wraps the SDK's: it can wait until it is idle, and drain.

1. The SDK's handler runs in jobs of one scope, which adopts the tasks that the SDK starts. A client that
   disconnects ends only its own wait.
2. Every accepted task reaches a terminal or waiting state, which is stored and pushed.
3. One job of the scope runs the shutdown. All callers of `drain` and `aclose` join that job.
4. If the handler has a node, an accepted message belongs to a hop at once (mesh/message_hops.py).
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
from quiesce.core.server_drain import InFlight, drain_of_server
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
_REFUSAL = "The server is shutting down and has not started the request. Send it to another server."


class QuiescentRequestHandler:
    """A request handler for the A2A SDK that drains without losing tasks or pushes.

    Use it in place of the SDK's `DefaultRequestHandler`, with the same arguments:

    ```python
    handler = QuiescentRequestHandler(
        agent_executor=agent, task_store=store, agent_card=card,
        push_config_store=configs, push_sender=DurablePushSender("pushes.db"),
    )
    async with handler:  # in the lifespan of the app
        ...
    ```

    Args:
        args: Positional arguments of the SDK's handler.
        handler_class: The SDK's handler class, or another class with the same arguments.
        grace: How many seconds the end of the `async with` block waits for tasks to end.
        cleanup: How many seconds cancelled tasks may take to clean up, and the last pushes to
            be sent.
        node: The node of this agent, if the agent takes part in cascades. A message that is part of
            a cascade is executed, stored and pushed in its hop. The handler neither opens nor closes
            the node: use `node.asgi()`.
        options: Keyword arguments of the SDK's handler.

    *Raises*: `ArgumentError` if the arguments do not fit the SDK's handler.
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
        """Make the SDK's handler and wrap its parts; open nothing before the first request."""
        self._grace = arguments.seconds("grace", grace)
        self._cleanup = arguments.seconds("cleanup", cleanup)
        factory = handler_class or versions.Default
        signature = inspect.signature(factory)
        try:
            arguments_given = signature.bind(*args, **options).arguments
        except TypeError as error:
            message = f"{getattr(factory, '__name__', factory)}: {error}"
            raise ArgumentError(message) from None
        arguments_given |= arguments_given.pop("kwargs", {})
        self._mesh: MeshTracker | None = None
        self._tracker = Tracker()
        agent = _checked(arguments_given["agent_executor"])
        if node is not None:
            from quiesce.integrations.a2a.mesh import message_hops  # noqa: PLC0415 - only with a node

            self._tracker = self._mesh = message_hops.MeshTracker(node)
            agent = message_hops.HopExecutor(agent, self._mesh)
        self._tracker.code = getattr(arguments_given["agent_executor"].execute, "__code__", None)
        edges = None if self._mesh is None else self._mesh.edges
        self._pushes = Pushes(
            _sender(arguments_given), arguments_given.get("push_config_store"), edges
        )
        self._executor = OwnedExecutor(agent, self._tracker)
        self._store = telling(arguments_given["task_store"], self._tracker, self._pushes)
        if self._mesh is not None:
            self._mesh.store = self._store
        wrapped = {
            "agent_executor": self._executor,
            "task_store": self._store,
            "push_sender": Notified(self._tracker, self._pushes),
        }
        if not versions.FIRST and "queue_manager" in signature.parameters:
            wrapped["queue_manager"] = arguments_given.get("queue_manager") or event_queues.queues()
        self._inner = factory(**(arguments_given | wrapped))
        self._scope: Scope | None = None
        self._opening: Job[None] | None = None
        self._end: shutdown.End | None = None
        self._has_joined = self._is_report_logged = False
        self.recovered: recovery.Recovery = recovery.Recovery()
        """What an earlier process has left; set when the handler opens."""
        self.draining: bool = False
        """Whether the handler refuses new messages."""

    # Opening.

    async def open(self) -> Self:
        """Open the outbox, and end the tasks that an earlier process has left; see `recover`.

        The first request opens the handler if you have not. You may call this any number of times.

        *Cancel safety*: if cancelled, the handler is closed again.

        *Raises*: `UsageError` if another process uses the outbox; errors of the store.
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

    def _in_flight(self) -> InFlight:
        """Count the tasks of the protocol, and the tasks of the event loop that executors have left running.

        The event loop's tasks of the SDK and of this handler are not counted: they work for a task of the
        protocol or for a request.
        """
        tracker = self._tracker
        held = [one.task_id for one in tracker.entries.values() if one.hold is not None]
        left = () if tracker.work is None else tracker.work.frontier().in_flight
        waiting = {scope for task_id in held for scope in tracker.stands_for(task_id)}
        tasks = sum(entry.kind != "scope" for entry in left)  # a scope here belongs to a hop
        return InFlight({"a2a task": len(held), "background task": tasks}, waiting)

    async def _drain_for_server(self, grace: float, cleanup: float) -> Report:
        """Drain as part of a server, which logs the report."""
        report = await self.drain(grace, cleanup=cleanup)
        self._is_report_logged = True
        return report

    async def _opened(self) -> Scope:
        if self._scope is None:
            with detached():  # the scope outlives the first request
                self._scope = await Scope.open("a2a", adopt=True)
            if versions.FIRST:  # 1.x runs loops for each task, busy or parked; 0.3 has none
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
        """Return the tasks and pushes that an earlier process has left, and what was done with them.

        Recovery runs when the handler opens. Tasks that the earlier process had accepted, and that have
        neither ended nor wait for their client, are stored and pushed as FAILED. Pushes that were not
        delivered are sent again.
        """
        await self._opened()
        return self.recovered

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Drain, and log the report, unless a `Quiesce` around the app has logged it."""
        report = await self.drain(grace=self._grace, cleanup=self._cleanup)
        if not self._is_report_logged:
            _log.log(logging.INFO if report.ok else logging.ERROR, "%s", report)

    # Asking, and closing.

    def frontier(self) -> Frontier:
        """Return what is in flight: each task with its state, its age, and what it waits on."""
        if self._scope is None:
            message = (
                "the handler is not open, so it has no frontier: call open() before, or use it in an"
                " `async with` block"
            )
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
        """Refuse new messages, wait until the accepted tasks have ended, and close.

        After `grace` seconds the tasks that have not ended are cancelled; with `grace=None` the drain waits
        without a limit. A cancelled task is stored as FAILED, its push is sent, and the clients that wait
        for it are answered. All that may take `cleanup` seconds. The report names these tasks as
        `undelivered`.

        *Cancel safety*: if cancelled, the drain becomes a close; the cancellation is raised when the
        close has ended.
        """
        end = await self._ending()
        try:
            return await end.join(grace, cleanup)
        finally:
            if self._mesh is not None:
                self._mesh.end_all()

    async def aclose(self, cleanup: float = 5.0) -> Report:
        """Cancel all tasks in flight, and close. Queued events are stored, and cancelled tasks are FAILED.

        *Cancel safety*: if cancelled, the close goes on; the cancellation is raised when it has ended.
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
        """Accept a message, which may be part of a cascade (4); return the scope that handles the message."""
        mesh = self._mesh
        work = None if mesh is None else await mesh.accept(params.message, context)
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
        """Cancel a task, as the SDK does, in a job (1); also while the handler drains."""
        scope = await self._opened()
        before = self._tracker.ends.get(
            params.id
        )  # 1.0 returns an ended task as if it was cancelled now
        task = await self._run(scope, "cancel", self._inner.on_cancel_task, params, context)
        state = self._tracker.ends.get(params.id)
        if task is not None and (
            before is not None or (state is not None and task.status.state != state)
        ):
            raise versions.not_cancelable(params.id, state)  # the task had ended by then
        return task

    async def _run(self, scope: Any, name: str, call: Any, params: Any, context: Any) -> Any:
        request = self._tracker.request(params)
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        try:
            with detached():  # the tracker keeps the hop open
                job = scope.spawn(self._call_sdk, call, params, context, request, answer, name=name)
        except ScopeClosed:
            self._tracker.gave_up(request)
            raise versions.refusal(_REFUSAL) from None
        job.add_done_callback(partial(_answered, answer))
        return await answer

    async def _call_sdk(
        self, call: Any, params: Any, context: Any, request: Request, answer: asyncio.Future[Any]
    ) -> None:
        self._tracker.calls.add(request)
        request.enter()
        try:
            result = await call(params, context)
            if not answer.done():  # done already if the client has disconnected
                answer.set_result(result)
        except Exception as error:  # noqa: BLE001 - raised to the client, unless it has disconnected
            self._give_up(request)
            if not answer.done():
                answer.set_exception(error)
        finally:
            request.leave()
            self._tracker.calls.discard(request)

    def _give_up(self, request: Request) -> None:
        """Record that the SDK has refused or given up a request; cancel what the SDK has started for it."""
        self._tracker.gave_up(request)
        request.end_orphans()

    async def _refuse_ended(self, params: Any, context: Any) -> None:
        """Refuse a message to a task that has ended: in 1.x it would leave two tasks of the event loop."""
        if not versions.FIRST:
            return
        task = await self._store.get(params.message.task_id, context)
        task = getattr(task, "task", task)
        if task is not None and task.status.state in versions.TERMINAL:
            raise versions.is_terminal_error(task)

    def on_message_send_stream(self, params: Any, context: Any = None) -> AsyncGenerator[Any, None]:
        """Handle a message in a job, and return its stream of events, as the SDK does (1)."""
        return FeedReader(partial(self._stream_message, params, context))

    def on_subscribe_to_task(self, params: Any, context: Any = None) -> AsyncGenerator[Any, None]:
        """Return the stream of a task's events, as 1.x does; a job reads the SDK's stream (1)."""
        return FeedReader(
            partial(self._start_stream, self._inner.on_subscribe_to_task, params, context)
        )

    def on_resubscribe_to_task(self, params: Any, context: Any = None) -> AsyncGenerator[Any, None]:
        """Return the stream of a task's events, as 0.3 does; a job reads the SDK's stream (1)."""
        return FeedReader(
            partial(self._start_stream, self._inner.on_resubscribe_to_task, params, context)
        )

    async def _stream_message(self, params: Any, context: Any) -> Feed:
        place = await self._accept(params, context)
        stream = self._inner.on_message_send_stream
        return await self._start_stream(stream, params, context, place=place, work=True)

    async def _start_stream(
        self, call: Any, params: Any, context: Any, *, place: Any = None, work: bool = False
    ) -> Feed:
        scope = place or await self._opened()
        feed, request = Feed(), self._tracker.request(params)
        # A stream without work of its own, or of a parked task, does not keep the server from being idle.
        # In 0.3 the events are stored as the stream is read.
        service = versions.FIRST or not work
        try:
            with detached():  # as in _run()
                scope.spawn(
                    self._pump, call, params, context, feed, request, name="stream", service=service
                )
                if work and versions.FIRST:
                    feed.hold = scope.hold("a2a stream", params.message.message_id)
        except ScopeClosed:
            self._tracker.gave_up(request)
            raise versions.refusal(_REFUSAL) from None
        return feed

    async def _pump(
        self, call: Any, params: Any, context: Any, feed: Feed, request: Request
    ) -> None:
        error: BaseException | None = None
        cut = True
        self._tracker.calls.add(request)
        request.enter()
        try:
            async for event in call(params, context):
                feed.put(event)
                if feed.hold is not None and versions.parks(event):
                    feed.hold.release()
            cut = False
        except Exception as raised:  # noqa: BLE001 - raised to the client, unless it has disconnected
            self._give_up(request)
            error = raised
            cut = False
        finally:
            request.leave()
            self._tracker.calls.discard(request)
            feed.end(versions.refusal(_REFUSAL) if cut else error)
            if feed.hold is not None:
                feed.hold.release()

    async def on_create_task_push_notification_config(
        self, params: Any, context: Any = None
    ) -> Any:
        """Store a push configuration, as 1.x does, and keep it in the outbox for a start after a crash."""
        made = await self._inner.on_create_task_push_notification_config(params, context)
        await self._pushes.retarget(params.task_id)
        return made

    async def on_set_task_push_notification_config(self, params: Any, context: Any = None) -> Any:
        """Store a push configuration, as 0.3 does, and keep it in the outbox for a start after a crash."""
        made = await self._inner.on_set_task_push_notification_config(params, context)
        await self._pushes.retarget(params.task_id)
        return made

    async def on_delete_task_push_notification_config(
        self, params: Any, context: Any = None
    ) -> None:
        """Remove a push configuration, as the SDK does, and from the outbox as well."""
        await self._inner.on_delete_task_push_notification_config(params, context)
        await self._pushes.retarget(getattr(params, "task_id", None) or params.id)

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the SDK's handler, which handles all other requests unchanged."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._inner, name)


def _answered(answer: asyncio.Future[Any], _: object) -> None:
    """Refuse the request of a client if its job has ended without an answer, or was cancelled before it began."""
    if not answer.done():
        answer.set_exception(versions.refusal(_REFUSAL))


def _checked(agent: Any) -> Any:
    """Return the agent, or raise an error if it is not an executor; the SDK does not check this.

    *Raises*: `ArgumentError`.
    """
    if isinstance(agent, type):
        message = (
            f"the agent must be an executor, not the class {agent.__name__}: pass"
            f" {agent.__name__}()"
        )
        raise ArgumentError(message)
    if not callable(getattr(agent, "execute", None)):
        message = (
            f"the agent must be an executor, not {agent!r}: pass an object with async execute() and"
            " cancel()"
        )
        raise ArgumentError(message)
    return agent


def _sender(arguments_given: dict[str, Any]) -> DurablePushSender | Relay | None:
    sender = arguments_given.get("push_sender")
    if sender is None or isinstance(sender, DurablePushSender):
        return sender
    return Relay(sender)


versions.Handler.register(QuiescentRequestHandler)
