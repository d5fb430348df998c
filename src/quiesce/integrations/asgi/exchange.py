"""One request or WebSocket: a scope, the app as a job in it, and an end that the client understands.

The server's own task only waits for the job, so the app can be cancelled at the deadline while the
server's task goes on to end the response. If the server cancels its task, the app is cancelled, as it
would be without us. What the app has left running when it returns is handed to the scope of all requests.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import anyio

from quiesce.core.gate import Gate
from quiesce.core.node import State, current
from quiesce.core.report import Ended
from quiesce.errors import ScopeClosed
from quiesce.integrations.asgi import answers
from quiesce.integrations.asgi.settings import awaitable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from quiesce.core.job import Job
    from quiesce.core.scope import Scope
    from quiesce.integrations.asgi.application import Application
    from quiesce.integrations.asgi.settings import App, AsgiScope, Message, Receive, Send

__all__: list[str] = []

logger: logging.Logger = logging.getLogger("quiesce.asgi")

GOING_AWAY = 1001
# Bodies that are a row of messages: an early end is an end. Any other body that ends early must look
# broken to the client, or it would take a part for the whole.
_ROWS_OF_MESSAGES = (
    b"text/event-stream",
    b"application/x-ndjson",
    b"application/jsonl",
    b"application/json-seq",
    b"multipart/x-mixed-replace",
)


class Exchange:
    """One request and its response, or one WebSocket."""

    __slots__ = (
        "_accepted",
        "_app",
        "_asgi",
        "_closed",
        "_complete",
        "_error",
        "_headers",
        "_hung_up",
        "_is_websocket",
        "_job",
        "_raw_receive",
        "_raw_send",
        "_scope",
        "_service",
        "_started",
        "_taken",
        "_target",
        "_waiting",
        "over",
    )  # fmt: skip

    _job: Job[None]
    _scope: Scope
    over: Gate
    """Open when the app has ended, or nobody waits for that any more."""

    def __init__(
        self, app: Application, target: App, asgi: AsgiScope, receive: Receive, send: Send
    ) -> None:
        self._app = app
        self._target = target
        self._asgi = asgi
        self._raw_receive = receive
        self._raw_send = send
        self._is_websocket: bool = asgi["type"] == "websocket"
        self._waiting: set[anyio.CancelScope] = set()
        self._headers: Iterable[tuple[bytes, bytes]] = ()
        self._error: Exception | None = None
        self._started = False
        self._complete = False
        self._accepted = False
        self._closed = False
        self._hung_up = False
        self._taken = False

    async def run(self) -> None:
        """Have the app handle it.

        *Cancel safety*: the app is cancelled, and its end waited for, before it is passed on.

        *Raises*: what the app raised.
        """
        app, name = self._app, answers.name_of(self._asgi)
        self._service = bool(app.settings.is_service(name))
        try:
            self._scope = app.requests.child(
                name,
                adopt=app.adopts,
                on_error=app.failed,
                leftovers="parent",
            )
        except ScopeClosed:
            await answers.refuse(self._asgi, self._raw_send, app.settings.retry_after)
            return
        # The patterns were compiled once; all that a service starts is part of the service.
        like = app.lifespan if self._service else app.requests
        self._scope._service_pattern = like._service_pattern
        self.over = Gate(self._scope._backend)
        app.exchanges[self] = None
        self._job = self._scope.spawn(self._call, name=name, service=self._service)
        self._job._when_done(self.over.open)
        try:
            await self._wait()
            await self._end()
        finally:
            try:
                if not _dissolve(self._scope):
                    await self._scope.aclose()
            finally:
                app.left(self, self._scope.report)

    async def _call(self) -> None:
        try:
            await awaitable(self._target, self._asgi, self._receive, self._send)
        except Exception as error:
            if self._app.cut:
                raise  # it fell over when it was cancelled: that is for the report
            self._error = error

    async def _wait(self) -> None:
        try:
            await self.over.wait()
        except self._scope._backend.cancelled:
            self._job.cancel()
            await self.over.wait_shielded()
            if not (self._complete or self._closed):
                self._app.cut_by_server(self._as_lost())
            raise

    # The end.

    async def _end(self) -> None:
        """End the response if the app has not, and it was for us to end it."""
        if self._error is not None:
            raise self._error
        outcome = self._job.outcome
        returned = outcome is not None and outcome.status == "completed"
        if returned and not (self._app.cut or self._hung_up):
            return
        if not returned and not self._app.cut:
            message = f"the app has cancelled its own task in {self._job.name}"
            raise RuntimeError(message)
        self._taken = True
        half = self._started and not self._complete and not self._service
        if returned and self._app.cut and half:
            self._app.lose(self._as_lost())
        try:
            with anyio.move_on_after(self._app.settings.cleanup):
                await (self._end_websocket() if self._is_websocket else self._end_response())
        except Exception as error:  # noqa: BLE001 - the client, or its connection, is gone
            logger.debug("%s could not be ended: %r", self._job.name, error)

    async def _end_websocket(self) -> None:
        if not self._accepted and not self._closed:
            await answers.refuse(self._asgi, self._raw_send, self._app.settings.retry_after)
        elif not self._closed:
            reason = "the server is going away"
            await self._raw_send({"type": "websocket.close", "code": GOING_AWAY, "reason": reason})

    async def _end_response(self) -> None:
        if not self._started:
            await answers.refuse(self._asgi, self._raw_send, self._app.settings.retry_after)
        elif not self._complete and self._is_row_of_messages():
            await self._raw_send({"type": "http.response.body", "body": b"", "more_body": False})

    def _is_row_of_messages(self) -> bool:
        return any(
            bytes(value).lower().startswith(_ROWS_OF_MESSAGES)
            for name, value in self._headers
            if bytes(name).lower() == b"content-type"
        )

    def _as_lost(self) -> Ended:
        job = self._job
        age = self._scope._backend.clock() - job.since
        return Ended("response", job.name, self._app.requests.name, job.where, age, {})

    # What the app gets.

    async def _send(self, message: Message) -> None:
        if self._taken:
            text = "the server is shutting down, and has ended this response"
            raise OSError(text)  # as servers do it when the client is gone
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
        token = current.set(None)  # what the server starts in here is the server's, not the app's
        try:
            await self._raw_send(message)
        finally:
            current.reset(token)

    def _begin(self, message: Message) -> Message:
        self._started = True
        self._headers = message.get("headers", ())
        if self._app.draining and answers.wants_closing(self._asgi):
            return {**message, "headers": [*self._headers, (b"connection", b"close")]}
        return message

    async def _receive(self) -> Message:
        """Receive from the client; from a WebSocket's until we hang up."""
        token = current.set(None)  # as in _send
        try:
            if not self._is_websocket:
                return await self._raw_receive()
            if not (self._hung_up and self._accepted):
                with anyio.CancelScope() as waiting:
                    self._waiting.add(waiting)
                    try:
                        return await self._raw_receive()
                    finally:
                        self._waiting.discard(waiting)
        finally:
            current.reset(token)
        reason = "the server is going away"
        return {"type": "websocket.disconnect", "code": GOING_AWAY, "reason": reason}

    def hang_up(self) -> None:
        """Tell the app of a WebSocket that it is over, as if its client had left."""
        if self._is_websocket:
            self._hung_up = True
            for waiting in tuple(self._waiting) if self._accepted else ():
                waiting.cancel()


def _dissolve(scope: Scope) -> bool:
    """Close the scope of a request that has left nothing, which is nearly every one, in one step.

    A closing would come to the same, with a plan and two reports that nobody reads.
    """
    left = (
        scope._holds or scope._services or scope._children or scope._quiet or scope._contexts
        or scope._closers or scope._resources or scope._failed or scope._unasked
        or scope._undelivered
    )  # fmt: skip
    if left or scope._closing is not None:
        return False
    scope._state = State.CLOSED
    scope._closing_gate.open()
    scope._closed()
    scope._detach()
    return True
