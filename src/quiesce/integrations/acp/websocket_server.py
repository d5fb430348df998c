"""A WebSocket bridge for ACP agents: one agent a connection, with limits, checks, and a drain.

What holds:

1. A connection is a job of the bridge's scope, and its agent's requests are holds below it.
2. Whoever leaves, whenever and however, leaves nothing behind.
3. A request is refused at the handshake, before an agent is made for it.
4. In a drain, running requests finish, and their answers are sent; idle connections are closed at
   once (1001), and new ones are told to come back later (503). The listener closes last.
"""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Unpack

from quiesce.core.current import current_scope
from quiesce.core.scope import Scope
from quiesce.core.tree import logger
from quiesce.errors import JobCancelled, ScopeClosed
from quiesce.integrations.acp import agent
from quiesce.integrations.acp.sdk_connection import check_asyncio
from quiesce.integrations.acp.websocket_settings import (
    WebSocketOptions,
    factory_of,
    settings_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager
    from types import FrameType

    from websockets.asyncio.server import Server, ServerConnection
    from websockets.http11 import Request, Response

    from quiesce.core.frontier import Frontier
    from quiesce.core.report import Report
    from quiesce.integrations.acp.websocket import WebSocketTransport
    from quiesce.integrations.acp.websocket_settings import Refusal, WebSocketSettings

__all__ = [
    "WebSocketServer",
    "WebSocketStats",
    "open_websocket_server",
    "serve_websocket",
]

_CLOSE_SECONDS = 2.0  # for the closing handshake
_GOING_AWAY = 1001
_NO_CONTEXT = contextvars.Context()
_RETRY_SECONDS = 5  # after which a client that was told 503 may try again


@dataclass(frozen=True, slots=True)
class WebSocketStats:
    """What a bridge has seen so far."""

    open: int
    """Connections that are served now."""
    served: int
    """Connections that were served and have ended."""
    refused: int
    """Handshakes that were refused, and sockets that were dropped."""
    failed: int
    """Connections whose agent could not be made, or failed."""


class WebSocketServer:
    """A running bridge; made by `open_websocket_server()`."""

    def __init__(
        self, factory: Callable[[Any], Any], settings: WebSocketSettings, scope: Scope, library: Any
    ) -> None:
        """Describe what is to be served; `library` is our module for WebSockets."""
        self._websocket = library
        self._factory = factory
        self._settings = settings
        self._scope = scope
        self._sockets = library.ListenerSockets(settings.connections_max)
        self._numbers = itertools.count(1)
        self._open = self._served = self._refused = self._failed = 0
        self.port: int = 0
        """The port that it listens on; the first one, if there are several."""

    # Asking.

    @property
    def stats(self) -> WebSocketStats:
        """What it has seen so far."""
        refused = self._refused + self._sockets.dropped
        return WebSocketStats(self._open, self._served, refused, self._failed)

    @property
    def report(self) -> Report | None:
        """What became of everything; None until it is closed."""
        return self._scope.report

    def frontier(self) -> Frontier:
        """List what is in flight: connections, and their requests."""
        return self._scope.frontier()

    async def idle(self) -> None:
        """Wait until no connection is open.

        *Cancel safety*: may be cancelled at any time; it has no effect.
        """
        await self._scope.idle()

    # Ending.

    async def closing(self) -> None:
        """Wait until a drain or close of it, or of a scope around it, has begun."""
        await self._scope.closing()

    async def drain(self, grace: float | None = 30.0) -> Report:
        """Wait for running requests, `grace` seconds at most; refuse new ones; then close.

        *Cancel safety*: the drain turns into a close, and the cancellation is passed on after it.
        """
        return await self._scope.drain(grace, cleanup=self._settings.cleanup)

    async def aclose(self) -> Report:
        """Close: cancel what is in flight, and close all connections (1001). From any task.

        *Cancel safety*: the close goes on, and is waited for, before the cancellation is passed on.
        """
        return await self._scope.aclose(cleanup=self._settings.cleanup)

    def _listening(self) -> AbstractAsyncContextManager[Server]:
        manager: AbstractAsyncContextManager[Server] = self._websocket.listening(
            self._handle,
            self._check,
            self._sockets,
            close_seconds=_CLOSE_SECONDS,
            options=self._settings.listener_options,
        )
        return manager

    # The handshake.

    def _check(self, socket: ServerConnection, request: Request) -> Response | None:
        """Refuse a request, or let it pass."""
        refusal = self._refusal(request)
        if refusal is None:
            return None
        self._refused += 1
        status, text = refusal
        response = socket.respond(status, text + "\n")
        if status == 401:  # noqa: PLR2004 - unauthorized
            response.headers["WWW-Authenticate"] = "Bearer"
        if status == 503:  # noqa: PLR2004 - unavailable
            response.headers["Retry-After"] = str(_RETRY_SECONDS)
        return response

    def _refusal(self, request: Request) -> Refusal | None:
        if self._scope.state != "open":
            return 503, "shutting down"
        headers = request.headers
        origins, tokens = headers.get_all("Origin"), headers.get_all("Authorization")
        refusal = self._settings.refusal(request.path, origins, tokens)
        if refusal is None and self._open >= self._settings.connections_max:
            return 503, "too many connections"
        return refusal

    # The connections.

    async def _handle(self, socket: ServerConnection) -> None:
        """Serve a WebSocket; called in a task of the library's, which closes the socket after it."""
        if self._open >= self._settings.connections_max:  # several handshakes at once
            self._refused += 1
            await socket.close(self._websocket.TRY_LATER, "too many connections")
            return
        try:
            name = f"connection {next(self._numbers)} from {_address(socket)}"
            job = self._scope.spawn(self._converse, socket, name=name)
        except ScopeClosed:
            self._refused += 1
            await socket.close(self._websocket.GOING_AWAY, "shutting down")
            return
        self._open += 1
        job._when_done(self._ended)
        with suppress(JobCancelled):  # by the close of the bridge
            await job

    def _ended(self) -> None:
        self._open -= 1
        self._served += 1

    async def _converse(self, socket: ServerConnection) -> None:
        """Serve one agent to one client."""
        settings = self._settings
        transport = self._websocket.WebSocketTransport(
            socket,
            asyncio.get_running_loop().time,
            close_seconds=_CLOSE_SECONDS,
            going_away=lambda: self._scope.state != "open",
        )
        scope = self._scope.child("session", cleanup=settings.cleanup)
        if settings.idle_seconds is not None:
            seconds = settings.idle_seconds
            scope.spawn(_watch, scope, transport, seconds, service=True, name="idle watch")

        def make(connection: Any) -> Any:
            transport.code, transport.reason = self._websocket.FAILED, "the agent failed"
            made = self._factory(connection)
            transport.code, transport.reason = self._websocket.NORMAL, ""
            return made

        try:
            await agent.serve_agent(
                make, transport, scope=scope,
                grace=settings.grace, cleanup=settings.cleanup, **settings.agent_options,
            )  # fmt: skip
        except Exception:  # noqa: BLE001 - one client's agent is no reason to lose the others
            self._failed += 1
            logger.exception("the agent of a WebSocket connection failed")
        finally:
            try:
                await scope.aclose(cleanup=settings.cleanup)
            finally:
                await transport.close()


def _address(socket: ServerConnection) -> str:
    address = socket.remote_address
    return ":".join(str(part) for part in address[:2]) if isinstance(address, tuple) else "nowhere"


async def _watch(scope: Scope, transport: WebSocketTransport, idle_seconds: float) -> None:
    """Close a connection on which nothing happens, and for which nothing is done."""
    clock = asyncio.get_running_loop().time
    while True:
        await scope.idle()
        left = transport.last + idle_seconds - clock()
        if left <= 0:
            break
        await _pause(left)
    transport.code, transport.reason = _GOING_AWAY, "idle"
    await transport.close()


async def _pause(seconds: float) -> None:
    """Sleep, and keep nothing of the connection alive afterwards.

    asyncio keeps a cancelled timer, and its context, until it has a hundred of them.
    """
    loop = asyncio.get_running_loop()
    over = loop.create_future()
    timer = loop.call_later(seconds, _wake, over, context=_NO_CONTEXT)
    try:
        await over
    finally:
        timer.cancel()


def _wake(over: asyncio.Future[None]) -> None:
    if not over.done():
        over.set_result(None)


async def serve_websocket(
    agent_factory: Callable[..., Any],
    host: str | None = "127.0.0.1",
    port: int | None = 0,
    *,
    ready: Callable[[WebSocketServer], object] | None = None,
    drain_seconds: float | None = None,
    **options: Unpack[WebSocketOptions],
) -> Report:
    """Serve agents over WebSockets, until the scope around is drained or closed.

    ```python
    async def main():
        await serve_websocket(MyAgent, port=8765, token=os.environ["TOKEN"])


    quiesce.run(main, grace=30)  # SIGTERM drains
    ```

    Args:
        agent_factory: Makes the agent of a connection. It is given the SDK's connection, if it
            takes an argument.
        host: Where to listen; None: everywhere.
        port: The port; 0: any; None: with a Unix socket.
        ready: Is called with the server when it listens; `server.port` is the port then.
        drain_seconds: How long its own drain may take; None: as long as the scope around allows.
        options: `WebSocketOptions`: who may connect, limits, and times.

    Returns:
        What became of everything.

    *Cancel safety*: everything is cancelled, closed, and awaited, before the cancellation is
    passed on.

    Raises:
        OSError: It cannot listen there.
        ArgumentError: An argument that cannot work.
    """
    server = await _open(agent_factory, host, port, sys._getframe(1), options)
    try:
        if ready is not None:
            ready(server)
        await server.closing()
        return await server.drain(drain_seconds)
    finally:
        await server.aclose()


async def open_websocket_server(
    agent_factory: Callable[..., Any],
    host: str | None = "127.0.0.1",
    port: int | None = 0,
    **options: Unpack[WebSocketOptions],
) -> WebSocketServer:
    """Start to serve agents over WebSockets; ended by `drain()` or `aclose()`, or with its scope.

    Args:
        agent_factory: Makes the agent of a connection. It is given the SDK's connection, if it
            takes an argument.
        host: Where to listen; None: everywhere.
        port: The port; 0: any; None: with a Unix socket.
        options: `WebSocketOptions`.

    *Cancel safety*: cancelled, it listens no more before the cancellation is passed on.

    Raises:
        OSError: It cannot listen there.
        ArgumentError: An argument that cannot work.
        SdkMissing: The library `websockets` is missing, or too old.
    """
    return await _open(agent_factory, host, port, sys._getframe(1), options)


async def _open(
    factory: Any, host: str | None, port: int | None, frame: FrameType, options: WebSocketOptions
) -> WebSocketServer:
    check_asyncio()
    settings, make = settings_of(host, port, options), factory_of(factory)
    from quiesce.integrations.acp import websocket  # noqa: PLC0415 - another library, not for all

    own = Scope("websocket bridge", cleanup=settings.cleanup)
    own._open(options.get("scope") or current_scope(), frame)
    server = WebSocketServer(make, settings, own, websocket)
    try:
        listener = await own.enter(server._listening())
    except BaseException:
        await own.aclose(cleanup=settings.cleanup)
        raise
    address = listener.sockets[0].getsockname()
    if isinstance(address, tuple):  # else it is a Unix socket
        server.port = address[1]
    return server
