"""A WebSocket bridge for ACP agents: one agent for each connection, with limits, checks, and a drain.

Rules:

1. A connection is a job of the bridge's scope, and its agent's requests are holds in it.
2. A client that leaves, at any time and in any way, leaves nothing behind.
3. A connection is refused in its handshake, before an agent is made for it.
4. In a drain, running requests finish and their answers are sent. Idle connections are closed at
   once (1001), and new ones are asked to come back later (503). The listener closes last.
"""

from __future__ import annotations

import asyncio
import contextvars
import itertools
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Unpack

from quiesce.core.current import current_scope
from quiesce.core.python_private import get_frame
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

_CLOSE_SECONDS = 2.0  # how long the closing handshake may take
_GOING_AWAY = 1001
_NO_CONTEXT = contextvars.Context()
_RETRY_SECONDS = 5  # when a client that got 503 may try again


@dataclass(frozen=True, slots=True)
class WebSocketStats:
    """The figures of a bridge."""

    open: int
    """Connections that are being served."""
    served: int
    """Connections that have been served and have ended."""
    refused: int
    """Handshakes that were refused, and sockets that were dropped."""
    failed: int
    """Connections whose agent could not be made, or failed."""


class WebSocketServer:
    """A running bridge; made by `open_websocket_server()`."""

    def __init__(
        self, factory: Callable[[Any], Any], settings: WebSocketSettings, scope: Scope, library: Any
    ) -> None:
        """Prepare the bridge; `library` is the module `quiesce.integrations.acp.websocket`."""
        self._websocket = library
        self._factory = factory
        self._settings = settings
        self._scope = scope
        self._sockets = library.ListenerSockets(settings.connections_max)
        self._numbers = itertools.count(1)
        self._open = self._served = self._refused = self._failed = 0
        self.port: int = 0
        """The port of the listener; the first one if there are several."""

    # Inspecting.

    @property
    def stats(self) -> WebSocketStats:
        """The bridge's figures now."""
        refused = self._refused + self._sockets.dropped
        return WebSocketStats(self._open, self._served, refused, self._failed)

    @property
    def report(self) -> Report | None:
        """The report: how everything has ended; None until the bridge is closed."""
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
        """Wait until the bridge or a scope around it has begun to drain or close."""
        await self._scope.closing()

    async def drain(self, grace: float | None = 30.0) -> Report:
        """Refuse new requests, wait at most `grace` seconds for running ones, then close.

        *Cancel safety*: if cancelled, the drain turns into a close; the cancellation is passed on after it.
        """
        return await self._scope.drain(grace, cleanup=self._settings.cleanup)

    async def aclose(self) -> Report:
        """Close from any task: cancel running requests, and close all connections (1001).

        *Cancel safety*: if cancelled, the close continues; the cancellation is passed on after it.
        """
        return await self._scope.aclose(cleanup=self._settings.cleanup)

    def make_listener(self) -> AbstractAsyncContextManager[Server]:
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
        """Return the response that refuses a handshake; None to let it pass."""
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
        """Serve a WebSocket; called in a task of the library, which closes the socket afterwards."""
        if self._open >= self._settings.connections_max:  # other handshakes were faster
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
        job.call_when_done(self._ended)
        with suppress(JobCancelled):  # the bridge was closed
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
        except Exception:  # noqa: BLE001 - one client's agent must not end the others
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
    """Close a connection without messages and running requests, after `idle_seconds`."""
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
    """Sleep without keeping the connection alive afterwards.

    asyncio keeps a cancelled timer and its context until a hundred timers are cancelled.
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
    """Serve agents over WebSockets, until the surrounding scope is drained or closed.

    ```python
    async def main():
        await serve_websocket(MyAgent, port=8765, token=os.environ["TOKEN"])


    quiesce.run(main, grace=30)  # SIGTERM drains
    ```

    Args:
        agent_factory: Returns the agent of a connection. If it takes an argument, it is called with
            the SDK's connection.
        host: The address to listen on; None: all addresses.
        port: The port; 0: any free port; None: with a Unix socket.
        ready: Called with the server when it listens; `server.port` is the port then.
        drain_seconds: How long the server's own drain may take; None: as long as the surrounding
            scope allows.
        options: `WebSocketOptions`: who may connect, limits, and times.

    Returns:
        The report: how everything has ended.

    *Cancel safety*: if cancelled, all requests are cancelled and awaited, and all connections are
    closed, before the cancellation is passed on.

    Raises:
        OSError: It cannot listen there.
        ArgumentError: An argument cannot work.
    """
    server = await _open(agent_factory, host, port, get_frame(1), options)
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
    """Start to serve agents over WebSockets, until `drain()`, `aclose()`, or the end of the scope.

    Args:
        agent_factory: Returns the agent of a connection. If it takes an argument, it is called with
            the SDK's connection.
        host: The address to listen on; None: all addresses.
        port: The port; 0: any free port; None: with a Unix socket.
        options: `WebSocketOptions`.

    *Cancel safety*: if cancelled, the listener is closed before the cancellation is passed on.

    Raises:
        OSError: It cannot listen there.
        ArgumentError: An argument cannot work.
        SdkMissing: The library `websockets` is missing or too old.
    """
    return await _open(agent_factory, host, port, get_frame(1), options)


async def _open(
    factory: Any, host: str | None, port: int | None, frame: FrameType, options: WebSocketOptions
) -> WebSocketServer:
    check_asyncio()
    settings, make = settings_of(host, port, options), factory_of(factory)
    from quiesce.integrations.acp import websocket  # noqa: PLC0415 - imports an optional library

    own = Scope("websocket bridge", cleanup=settings.cleanup)
    own.open_under(options.get("scope") or current_scope(), frame)
    server = WebSocketServer(make, settings, own, websocket)
    try:
        listener = await own.enter(server.make_listener())
    except BaseException:
        await own.aclose(cleanup=settings.cleanup)
        raise
    address = listener.sockets[0].getsockname()
    if isinstance(address, tuple):  # otherwise it is a Unix socket
        server.port = address[1]
    return server
