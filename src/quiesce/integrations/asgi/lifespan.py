"""The lifespan of the middleware, around the app's own lifespan, if the app has one.

The app's lifespan runs as a job. It gets the shutdown message when the drain is over, so that it closes its
resources (pools, clients, queues) after the last request that uses them.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import anyio

from quiesce.core.announce import say
from quiesce.core.latch import Latch
from quiesce.core.server_drain import drain_of_server
from quiesce.integrations.asgi.middleware_settings import awaitable

if TYPE_CHECKING:
    from quiesce.core.asgi_types import App, AsgiScope, Message, Receive, Send
    from quiesce.core.job import Job
    from quiesce.integrations.asgi.application import Application

__all__: list[str] = []

logger: logging.Logger = logging.getLogger("quiesce.asgi")


class Lifespan:
    """One lifespan of one app."""

    def __init__(self, application: Application, target: App, asgi: AsgiScope) -> None:
        backend = application.root.backend
        self._application = application
        self._target = target
        self._asgi = asgi
        self._shutdown = Latch(backend)
        self._messages: list[Message] = []
        self._answered = Latch(backend)  # the app has answered the startup, or has returned
        self._ended = Latch(backend)  # the app has answered the shutdown, or has returned
        self._answers: dict[str, Message] = {}
        self._asked = 0
        self._error: Exception | None = None
        self._job: Job[None] | None = None

    async def run(self, receive: Receive, send: Send) -> None:
        """Start up, wait for the shutdown, drain, and shut down.

        *Cancel safety*: if cancelled, everything is closed before the cancellation is passed on.

        *Raises*: the error of the app's own lifespan.
        """
        try:
            started = await self._start(await receive(), send)
            if started:
                message = await receive()
                self._application.tell_unread()
                await self._drain()
                await self._stop(message)
        finally:
            await self._application.close()
        if started:
            await self._say_goodbye(send)

    async def _start(self, message: Message, send: Send) -> bool:
        self._messages.append(message)
        self._job = self._application.lifespan.spawn(self._call, name="lifespan", service=True)
        await self._answered.wait()
        answer = self._answers.get("startup")
        if answer is None and self._error is not None and self._asked:
            raise self._error  # the app has a lifespan, which failed: the server decides
        if answer is None:
            logger.info("the app has no lifespan of its own: %r", self._error)
            self._error = None
            answer = {"type": "lifespan.startup.complete"}
        failed = bool(answer["type"] == "lifespan.startup.failed")
        if failed:
            await self._application.stopped("the startup failed", notice=0)
            self._shutdown.open()
        await send(answer)
        if failed and self._error is not None:
            raise self._error
        return not failed

    async def _drain(self) -> None:
        application = self._application
        application.server_stops = True
        if application.draining and application.report is None:
            application.hurry("the server shuts down")
        await application.stopped("the server shuts down", notice=0)

    async def _stop(self, message: Message) -> None:
        """Pass the shutdown on to the app, and wait for its answer, at most for the time of a drain."""
        self._messages.append(message)
        self._shutdown.open()
        limit = self._application.settings.grace + self._application.settings.cleanup
        with anyio.move_on_after(limit) as waited:
            await self._ended.wait()
        if waited.cancelled_caught:
            say(
                logger, logging.ERROR,
                f"WORK LOST: the app's own shutdown has not ended in {limit:g} s, and is cancelled",
            )  # fmt: skip
            self._application.shutdown_was_cut()

    async def _say_goodbye(self, send: Send) -> None:
        answer = self._answers.get("shutdown", {"type": "lifespan.shutdown.complete"})
        if self._error is None or answer["type"] == "lifespan.shutdown.failed":
            await send(answer)
        if self._error is not None:
            raise self._error

    # The app's side.

    async def _call(self) -> None:
        drain_of_server.set(self._application.parts)  # for this job and the tasks that it starts
        try:
            await awaitable(self._target, self._asgi, self._receive, self._send)
        except Exception as error:  # noqa: BLE001 - run() raises or logs it
            self._error = error
        finally:
            self._answered.open()
            self._ended.open()

    async def _receive(self) -> Message:
        self._asked += 1
        if self._asked > 1:
            await self._shutdown.wait()
        if not self._messages:
            await anyio.sleep_forever()  # no message follows the shutdown
        return self._messages.pop(0)

    async def _send(self, message: Message) -> None:
        kind: Any = message["type"]
        if kind in {"lifespan.startup.complete", "lifespan.startup.failed"}:
            self._answers["startup"] = message
            self._answered.open()
        elif kind in {"lifespan.shutdown.complete", "lifespan.shutdown.failed"}:
            self._answers["shutdown"] = message
            self._ended.open()
        else:
            text = f"an app must not send {kind!r} in its lifespan"
            raise ValueError(text)
