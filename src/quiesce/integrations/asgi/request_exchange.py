"""One request or WebSocket: its scope, the app as a job in it, and the end of its response.

The server's own task only waits for the job. So at the deadline the app can be cancelled while the server's
task ends the response. If the server cancels its task, the app is cancelled, as without this middleware.
Work that the app has left running when it returns is handed to the scope of all requests.
"""

from __future__ import annotations

import logging
from asyncio import Task
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import anyio

from quiesce.core import named_once
from quiesce.core.backends.asyncio.awaiters import host_of
from quiesce.core.backends.asyncio.swallowing import coro_of
from quiesce.core.backends.asyncio.tasks import _task_done, was_cut
from quiesce.core.handler_naming import HandlerCode
from quiesce.core.light_scope import LightScope
from quiesce.core.report import ReportEntry
from quiesce.core.scope import Scope
from quiesce.core.tree import ScopeState, current
from quiesce.errors import ScopeClosed
from quiesce.integrations.asgi import answers
from quiesce.integrations.asgi.idle_streams import is_idle_stream
from quiesce.integrations.asgi.middleware_settings import awaitable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from quiesce.core.asgi_types import App, AsgiScope, Message, Receive, Send
    from quiesce.core.backends import Waiter
    from quiesce.core.job import Job
    from quiesce.core.tree import TreeNode
    from quiesce.integrations.asgi.application import Application

__all__: list[str] = []

logger: logging.Logger = logging.getLogger("quiesce.asgi")

GOING_AWAY = 1001
_OPEN = ScopeState.OPEN
# The content types of bodies that are sequences of messages, which may end after any message. Any other body
# that ends early must look broken to the client, or the client would take a part for the whole.
_ROWS_OF_MESSAGES = (
    b"text/event-stream",
    b"application/x-ndjson",
    b"application/jsonl",
    b"application/json-seq",
    b"multipart/x-mixed-replace",
)


class RequestScope(LightScope):
    """The scope of a request, below the scope of all requests.

    If the middleware is called inside another scope (other middleware has opened one for this request), that scope
    holds this one until everything that the request has started has ended.
    """

    __slots__ = ("parts",)

    parts: list[Any]
    """The tasks in task groups of the request that still ran when it was handed over; the drain may cut them."""

    def hand_over_to(self, parent: TreeNode) -> int:
        """Hand everything over. If the drain cuts the request and tasks in its task groups, the report has one entry for all."""
        hosts = {held: host_of(held) for held in self.holds.values() if isinstance(held, Task)}
        self.parts = [task for task in hosts if _is_in_request(task, hosts)]
        for task in self.parts:
            named_once.name_once(self, task, parent)
        return super().hand_over_to(parent)

    def name_parts(self, node: TreeNode) -> None:
        """Add the cancelled parts to the report after all, because the request went on without them."""
        node.cancelled_holds += [task for task in getattr(self, "parts", ()) if task.cancelled()]

    async def closing(self) -> None:
        """Wait for the drain of the app. The end of the request does not count: work that it has left goes on.

        *Cancel safety*: may be cancelled at any time.
        """
        requests = self.parent
        assert isinstance(requests, Scope)  # noqa: S101 - its parent since it was opened
        await requests.closing()


def _is_in_request(task: Any, hosts: dict[Any, Any]) -> bool:
    """Return whether a task is in a task group of a request's job, directly or in a nested group."""
    outer = task
    while hosts[outer] in hosts:
        outer = hosts[outer]
    is_request = getattr(coro_of(outer), "cr_code", None) is RequestExchange.call.__code__
    return is_request and outer is not task


class RequestExchange:
    """One request and its response, or one WebSocket."""

    __slots__ = (
        "_accepted",
        "_app",
        "_asgi",
        "_closed",
        "_complete",
        "_dealt_with_cut",
        "_error",
        "_headers",
        "_hung_up",
        "_is_websocket",
        "_job",
        "_outer",
        "_over",
        "_raw_receive",
        "_raw_send",
        "_returned",
        "_scope",
        "_service",
        "_settled",
        "_started",
        "_taken",
        "_target",
        "_waiter",
        "_waiting",
    )  # fmt: skip

    _job: Job[None]
    _scope: RequestScope

    def __init__(
        self, app: Application, target: App, asgi: AsgiScope, receive: Receive, send: Send
    ) -> None:
        self._app = app
        self._target = target
        self._asgi = asgi
        self._raw_receive = receive
        self._raw_send = send
        self._is_websocket: bool = asgi["type"] == "websocket"
        self._waiting: list[anyio.CancelScope] = []
        self._waiter: Waiter | None = None
        self._headers: Iterable[tuple[bytes, bytes]] = ()
        self._error: BaseException | None = None
        self._outer: TreeNode | None = None
        self._service = False
        self._started = False
        self._complete = False
        self._dealt_with_cut = False
        self._accepted = False
        self._closed = False
        self._hung_up = False
        self._taken = False
        self._over = False
        self._returned = False
        self._settled = False

    @property
    def is_service(self) -> bool:
        """Whether the request is a service: it does not end by itself, and a drain does not wait for it."""
        return self._service

    @property
    def scope(self) -> RequestScope:
        return self._scope

    async def run(self) -> None:
        """Call the app with the request.

        *Cancel safety*: if cancelled, the app is cancelled, and has ended before the cancellation is passed on.

        *Raises*: the error of the app.
        """
        app, name = self._app, answers.request_name(self._asgi)
        self._service = is_idle_stream(self._asgi) or bool(
            app.settings.services and app.settings.is_service(name)
        )
        model = app.service_model if self._service else app.model
        try:
            code: Any = HandlerCode(app.settings.code, self._asgi)
            self._scope = RequestScope(model, name, code)
            if current.get() is not None:
                self._be_held()
        except ScopeClosed:  # the app drains
            await answers.refuse_request(self._asgi, self._raw_send, app.settings.retry_after)
            return
        if app.adopts and not self._service:
            self._job = self._scope.begin(self.call(), self._seen)
        else:
            self._spawn(name)
        app.exchanges[self] = None
        try:
            try:
                while not self._over:
                    self._waiter = app.waiter()
                    await self._waiter
            except app.cancelled:
                await self._outlast()
                raise
            if self._error is not None:
                raise self._error
            if app.cut or self._hung_up or not self._returned:
                await self._end()
        finally:
            try:
                if not self._scope.dissolve():
                    await self._leave()
            finally:
                app.left(self)

    def _be_held(self) -> None:
        """Make the scope around the request, if there is one, hold everything that the request starts."""
        self._outer = outer = self._app.outer()
        if outer is not None:
            try:
                self._scope.held_by(outer)
            except ScopeClosed:
                self._scope.dissolve()
                raise

    def _spawn(self, name: str) -> None:
        job: Any = self._scope.spawn(self.call, name=name, service=self._service)
        job.started_code, job.started_offset = self._scope.place_code, 0
        self._job = job
        self._job.call_when_done(self.release)

    async def _leave(self) -> None:
        """Hand the work that the request has left running to the app's scope, unless an outer scope waits for it."""
        app, scope = self._app, self._scope
        if self._outer is not None and scope.close_plan is None and app.root.phase is _OPEN:
            app.see_off(scope)
        else:
            await scope.aclose()
            app.left_over(scope)

    async def call(self) -> None:
        try:
            await awaitable(self._target, self._asgi, self._receive, self._send)
        except (Exception, BaseExceptionGroup) as error:
            if self._app.cut:
                raise  # the app failed when it was cancelled, which the report lists
            self._error = error
        self._returned = True
        while self._dealt_with_cut and isinstance(self._job, Task) and self._job.cancelling():
            self._job.uncancel()  # the response is complete, so the cancellation cost nothing
        if self._app.adopts and self._scope.settle(self._job):
            self._settled = True
            self.release()

    def _seen(self, job: Any) -> None:
        """Record the end of a job that has not settled itself, because it was cancelled or has failed."""
        if not self._settled:
            ended_well = not job.cancelled() and job.exception() is None
            if ended_well and not was_cut(job.owner_node, job):
                self._scope.name_parts(job.owner_node)
            if ended_well and named_once.is_named(job.owner_node, job):
                job.owner_node.discard_hold(job)  # the report lists it as the handler of a hop
            else:
                _task_done(job)
            self.release()

    async def _outlast(self) -> None:
        """Cancel the app, and again whenever the server cancels its own task; wait until the app has ended."""
        app = self._app
        self._job.cancel()
        with anyio.CancelScope(shield=True):  # anyio and trio repeat a cancellation
            while not self._over:
                self._waiter = app.waiter()
                try:
                    await self._waiter
                except app.cancelled:
                    self._job.cancel()
        if self._service:
            return  # ending a service is not a loss
        if not (self._complete or self._closed):
            app.cut_by_server(self._as_lost())
        elif self._error is not None or not self._returned:  # cut in its work after the response
            app.cut_by_server(replace(self._as_lost(), kind="job", error=self._error))

    def release(self) -> None:
        """Wake the server's task: the app has ended, or no task waits for it."""
        self._over = True
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    # The end.

    async def _end(self) -> None:
        """End the response if the app was cut before it has ended the response itself."""
        if not self._returned and not self._app.cut:
            message = f"the app has cancelled its own task in {self._job.name}"
            raise RuntimeError(message)
        self._taken = True
        try:
            with anyio.move_on_after(self._app.settings.cleanup):
                await (self._end_websocket() if self._is_websocket else self._end_response())
        except Exception as error:  # noqa: BLE001 - the client, or its connection, is gone
            logger.debug("%s could not be ended: %r", self._job.name, error)

    async def _end_websocket(self) -> None:
        if not self._accepted and not self._closed:
            await answers.cut(self._asgi, self._raw_send)
        elif not self._closed:
            reason = "the server is going away"
            await self._raw_send({"type": "websocket.close", "code": GOING_AWAY, "reason": reason})

    async def _end_response(self) -> None:
        if not self._started:
            await answers.cut(self._asgi, self._raw_send)
        elif not self._complete and self._is_row_of_messages():
            await self._raw_send({"type": "http.response.body", "body": b"", "more_body": False})

    def _is_row_of_messages(self) -> bool:
        return any(
            bytes(value).lower().startswith(_ROWS_OF_MESSAGES)
            for name, value in self._headers
            if bytes(name).lower() == b"content-type"
        )

    def _as_lost(self) -> ReportEntry:
        job = self._job
        age = self._scope.backend.clock() - job.since
        return ReportEntry("response", job.name, self._app.requests.name, job.where, age, {})

    # The functions that the app gets.

    async def _send(self, message: Message) -> None:
        if self._taken:
            text = "the server is shutting down, and has ended this response"
            raise OSError(text)  # as servers do when the client is gone
        kind = message["type"]
        if kind == "http.response.start":
            message = self._begin(message)
        elif kind in {"http.response.body", "http.response.zerocopysend"}:
            self._complete = not message.get("more_body", False)
        elif kind == "http.response.pathsend":
            self._complete = True
        elif kind == "websocket.accept":
            self._accepted = True
        elif kind in {"websocket.close", "websocket.http.response.start"}:
            self._closed = True
        if self._app.cut and (self._complete or self._closed):
            self._dealt_with_cut = True
        # Tasks that the server starts in this call belong to the server, not to the app.
        token = current.set(self._outer)
        try:
            await self._raw_send(message)
        finally:
            current.reset(token)

    def _begin(self, message: Message) -> Message:
        self._started = True
        self._headers = headers = message.get("headers", ())
        if type(headers) is not list:  # an iterator can be read only once
            self._headers = list(headers)
            message = {**message, "headers": self._headers}
        if self._app.draining and answers.wants_closing(self._asgi):
            return {**message, "headers": [*self._headers, (b"connection", b"close")]}
        return message

    async def _receive(self) -> Message:
        """Receive a message from the client; after `hang_up()`, return a disconnect to the app of a WebSocket."""
        token = current.set(self._outer)  # as in _send
        try:
            if not self._is_websocket:
                return await self._raw_receive()
            if not (self._hung_up and self._accepted):
                with anyio.CancelScope() as waiting:
                    self._waiting.append(waiting)
                    try:
                        return await self._raw_receive()
                    finally:
                        self._waiting.remove(waiting)
        finally:
            current.reset(token)
        reason = "the server is going away"
        return {"type": "websocket.disconnect", "code": GOING_AWAY, "reason": reason}

    def hang_up(self) -> None:
        """Send the app of a WebSocket a disconnect, as if the client had left."""
        if self._is_websocket:
            self._hung_up = True
            for waiting in tuple(self._waiting) if self._accepted else ():
                waiting.cancel()
