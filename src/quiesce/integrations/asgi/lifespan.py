"""The lifespan: ours around the app's, which need not have one.

The app's own runs as a job of its scope. It hears of the shutdown when the drain is over, so that what
requests still use (pools, clients, queues) is closed after the last of them.
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
        self._answered = Latch(backend)  # the startup was answered, or the app has ended
        self._ended = Latch(backend)  # likewise the shutdown
        self._answers: dict[str, Message] = {}
        self._asked = 0
        self._error: Exception | None = None
        self._job: Job[None] | None = None

    async def run(self, receive: Receive, send: Send) -> None:
        """Start up, wait for the shutdown, drain, and shut down.

        *Cancel safety*: everything is closed before the cancellation is passed on.

        *Raises*: what the app raised in its own lifespan.
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
            raise self._error  # it has one, and that fell over: the server's to judge
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
        """Pass the shutdown on to the app, and wait for its answer as long as for a drain."""
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
        drain_of_server.set(self._application.parts)  # in the context of this job, and below it
        try:
            await awaitable(self._target, self._asgi, self._receive, self._send)
        except Exception as error:  # noqa: BLE001 - run() raises it, or says it
            self._error = error
        finally:
            self._answered.open()
            self._ended.open()

    async def _receive(self) -> Message:
        self._asked += 1
        if self._asked > 1:
            await self._shutdown.wait()
        if not self._messages:
            await anyio.sleep_forever()  # there is nothing after the shutdown
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
            text = f"an app's lifespan does not send {kind!r}"
            raise ValueError(text)
