"""An agent at the other end of a socket, or of a transport in memory, played by the test itself."""

from __future__ import annotations

import asyncio
import json
import socket
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Self

import acp
import pytest

from quiesce.integrations.acp import connect_to_agent

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

TEXT: Any = [acp.text_block("hi")]
PERMISSION = {"sessionId": "s", "options": [], "toolCall": {"toolCallId": "t"}}


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
        """Start without updates or a connection."""
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


class Memory:
    """A message transport, as the SDK has them from 0.12 on."""

    def __init__(self, *, close_hangs: bool = False, error: Exception | None = None) -> None:
        """Make two queues."""
        self._error = error
        self.sent: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.coming: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self.closed = 0
        self._close_hangs = close_hangs

    async def send(self, message: dict[str, Any]) -> None:
        """Take a message of the client."""
        await self.sent.put(message)

    async def receive(self) -> dict[str, Any] | None:
        """Return a message to the client."""
        return await self.coming.get()

    async def close(self) -> None:
        """Count it."""
        self.closed += 1
        if self._error is not None:
            raise self._error
        if self._close_hangs:
            await asyncio.Event().wait()


@asynccontextmanager
async def connected(client: Any = None, **options: Any) -> AsyncIterator[tuple[FakeAgent, Any]]:
    """Connect a client to a fake agent, for some seconds at most."""
    async with asyncio.timeout(5), FakeAgent() as agent:
        connection: Any = connect_to_agent(
            client or Client(), agent.writer, agent.reader, **options
        )
        try:
            yield agent, connection
        finally:
            await connection.close()


def prompt(connection: Any, session: str = "s") -> asyncio.Task[Any]:
    """Send a prompt, in a task."""
    return asyncio.create_task(connection.prompt(prompt=TEXT, session_id=session))


async def settle(task: asyncio.Task[Any]) -> None:
    """Cancel a task, and wait for it."""
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
