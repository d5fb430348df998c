"""A transport over one WebSocket, and the listener that accepts WebSockets.

Only this module uses the `websockets` library (13 or newer). A message is a text frame.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, ClassVar

from quiesce.core.current import detached
from quiesce.integrations import sdk

sdk.require("websockets", extra="acp", oldest="13.0")

from websockets.asyncio.server import ServerConnection, serve  # noqa: E402 - the library is checked first
from websockets.exceptions import ConnectionClosed  # noqa: E402 - likewise

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

    from websockets.asyncio.server import Server
    from websockets.http11 import Request, Response

__all__: list[str] = []

NORMAL, GOING_AWAY, UNSUPPORTED, FAILED, TRY_LATER = 1000, 1001, 1003, 1011, 1013
_SPARE_SOCKETS = 32  # sockets beyond the limit, for connections that are being refused


class WebSocketTransport:
    """A transport over a WebSocket; see `AgentTransport`."""

    decoded: ClassVar[bool] = False

    def __init__(
        self,
        socket: ServerConnection,
        clock: Callable[[], float],
        *,
        close_seconds: float,
        going_away: Callable[[], bool],
    ) -> None:
        """Own the socket.

        Args:
            socket: the WebSocket.
            clock: the event loop's clock.
            close_seconds: how long the closing handshake may take.
            going_away: returns whether the whole bridge is being closed.
        """
        self._socket = socket
        self._clock = clock
        self._close_seconds = close_seconds
        self._going_away = going_away
        self.code: int = NORMAL
        """The code to close the WebSocket with."""
        self.reason: str = ""
        self.last: float = clock()
        """When a message was last received or sent."""

    async def receive(self) -> str | None:
        """Return the next text frame; None when the peer has closed or is gone."""
        try:
            frame = await self._socket.recv()
        except ConnectionClosed:
            return None
        self.last = self._clock()
        if isinstance(frame, bytes):
            self.code, self.reason = UNSUPPORTED, "messages are text frames"
            return None
        return frame

    async def send(self, messages: Sequence[bytes]) -> None:
        """Send each message as a text frame."""
        for message in messages:
            await self._socket.send(message.decode())
            self.last = self._clock()

    async def close(self) -> None:
        """Close the WebSocket with a handshake; after `close_seconds`, abort it. Idempotent."""
        if self.code == NORMAL and self._going_away():
            self.code, self.reason = GOING_AWAY, "shutting down"
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._close_seconds):
                    await self._socket.close(self.code, self.reason)
        finally:
            self._socket.transport.abort()


class ListenerSockets:
    """The TCP connections of one listener, including those in their handshake."""

    def __init__(self, open_max: int) -> None:
        """Set the limit: some more sockets than can be served."""
        self._max = open_max + _SPARE_SOCKETS
        self._all: set[ServerConnection] = set()
        self.dropped: int = 0
        """The number of sockets that were dropped without an answer because there were too many."""

    def __len__(self) -> int:
        return len(self._all)

    def made(self, *args: Any, **options: Any) -> ServerConnection:
        """Create the object for a new TCP connection; used for the library's `create_connection=`."""
        return _Socket(self, *args, **options)

    def add(self, socket: ServerConnection) -> None:
        """Add a connected socket; drop it if there are too many."""
        self._all.add(socket)
        if len(self._all) > self._max:
            self.dropped += 1
            socket.transport.abort()

    def discard(self, socket: ServerConnection) -> None:
        """Forget a socket that is closed."""
        self._all.discard(socket)

    def abort(self) -> None:
        """Drop all sockets that are left."""
        for socket in list(self._all):
            socket.transport.abort()


class _Socket(ServerConnection):
    def __init__(self, sockets: ListenerSockets, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._sockets = sockets

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._sockets.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._sockets.discard(self)
        super().connection_lost(exc)


@asynccontextmanager
async def listening(
    handle: Callable[[ServerConnection], Awaitable[None]],
    check: Callable[[ServerConnection, Request], Response | None],
    sockets: ListenerSockets,
    *,
    close_seconds: float,
    options: Mapping[str, Any],
) -> AsyncIterator[Server]:
    """Listen for the time of the block; no socket is left open at its end.

    Args:
        handle: called with each WebSocket, in a task of the library.
        check: called with each request; may refuse it.
        sockets: keeps the open connections.
        close_seconds: how long the closing handshakes may take.
        options: options of the library.
    """
    with detached():  # the library's tasks stay outside the scope: it awaits them when it closes
        create: Any = sockets.made
        server = await serve(
            handle, process_request=check, create_connection=create,
            close_timeout=close_seconds, **options,
        )  # fmt: skip
    try:
        yield server
    finally:
        server.close()
        try:
            async with asyncio.timeout(close_seconds):
                await server.wait_closed()
        except TimeoutError:
            sockets.abort()
            async with asyncio.timeout(close_seconds):
                await server.wait_closed()
