"""One WebSocket as a way for messages, and the listener that hands out such WebSockets.

Only this module knows the `websockets` library (13 or newer). A message is a text frame.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, ClassVar

from quiesce.core.current import detached
from quiesce.integrations import sdk

sdk.require("websockets", extra="acp", oldest="13.0")

from websockets.asyncio.server import ServerConnection, serve  # noqa: E402 - it is there
from websockets.exceptions import ConnectionClosed  # noqa: E402 - likewise

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

    from websockets.asyncio.server import Server
    from websockets.http11 import Request, Response

__all__: list[str] = []

NORMAL, GOING_AWAY, UNSUPPORTED, FAILED, TRY_LATER = 1000, 1001, 1003, 1011, 1013
_SPARE_SOCKETS = 32  # beyond the open connections, for those that are just being refused


class WebSocketTransport:
    """A WebSocket, as an agent is served over it; see `AgentTransport`."""

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
            clock: the event loop's.
            close_seconds: how long it may take to close it politely.
            going_away: tells whether it is closed because the whole bridge is.
        """
        self._socket = socket
        self._clock = clock
        self._close_seconds = close_seconds
        self._going_away = going_away
        self.code: int = NORMAL
        """The code to close it with."""
        self.reason: str = ""
        self.last: float = clock()
        """When something was received or sent for the last time."""

    async def receive(self) -> str | None:
        """Return the next text frame; None when the peer has closed, or is gone."""
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
        """Close it: politely for a while, then at once. Idempotent."""
        if self.code == NORMAL and self._going_away():
            self.code, self.reason = GOING_AWAY, "shutting down"
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._close_seconds):
                    await self._socket.close(self.code, self.reason)
        finally:
            self._socket.transport.abort()


class ListenerSockets:
    """The TCP connections of one listener, also those whose handshake is not over."""

    def __init__(self, open_max: int) -> None:
        """Allow some more than are served."""
        self._max = open_max + _SPARE_SOCKETS
        self._all: set[ServerConnection] = set()
        self.dropped: int = 0
        """How many were dropped without an answer, because there were too many."""

    def __len__(self) -> int:
        """Count them."""
        return len(self._all)

    def made(self, *args: Any, **options: Any) -> ServerConnection:
        """Make the object for a new TCP connection; what `create_connection=` is."""
        return _Socket(self, *args, **options)

    def add(self, socket: ServerConnection) -> None:
        """Take in a socket that is connected; drop it if there are too many."""
        self._all.add(socket)
        if len(self._all) > self._max:
            self.dropped += 1
            socket.transport.abort()

    def discard(self, socket: ServerConnection) -> None:
        """Forget a socket that is closed."""
        self._all.discard(socket)

    def abort(self) -> None:
        """Drop all that are left."""
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
    """Listen, for the time of the block; no socket is left open at its end.

    Args:
        handle: is called with each WebSocket, in a task of the library's.
        check: is called with each request, and may refuse it.
        sockets: knows the connections.
        close_seconds: that those have to close politely.
        options: for the library.
    """
    with detached():  # its tasks are its own: it awaits them when it is closed
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
