"""An agent at the other end of a socket, played by the test itself."""

from __future__ import annotations

import asyncio
import json
import socket
from contextlib import suppress
from typing import Any, Self


class FakeAgent:
    """Two ends of a socket: the client's streams, and what the test says and hears as the agent."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def __aenter__(self) -> Self:
        """Open both ends."""
        ours, theirs = socket.socketpair()
        self.reader, self.writer = await asyncio.open_connection(sock=ours)
        self._heard, self._said = await asyncio.open_connection(sock=theirs, limit=1 << 26)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close both ends."""
        for writer in (self.writer, self._said):
            writer.transport.abort()
            with suppress(OSError):
                await writer.wait_closed()

    async def hear(self) -> dict[str, Any]:
        """Wait for the next message of the client."""
        message: dict[str, Any] = json.loads(await self._heard.readline())
        return message

    async def say(self, **message: Any) -> None:
        """Send a message to the client."""
        await self.say_bytes(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    async def say_bytes(self, data: bytes) -> None:
        """Send whatever it is."""
        self._said.write(data)
        await self._said.drain()

    async def leave(self) -> None:
        """Hang up."""
        self._said.close()
        with suppress(OSError):
            await self._said.wait_closed()


class Client:
    """A client that notes what it is told."""

    def __init__(self) -> None:
        """Know nothing."""
        self.updates: list[str] = []
        self.updated = asyncio.Event()
        self.connection: Any = None

    def on_connect(self, connection: Any) -> None:
        """Note the connection."""
        self.connection = connection

    async def session_update(self, session_id: str, update: Any, **_: Any) -> None:
        """Note an update."""
        self.updates.append(f"{session_id} {update.content.text}")
        self.updated.set()

    async def request_permission(self, **_: Any) -> Any:
        """Refuse, by raising."""
        message = "no"
        raise ValueError(message)
