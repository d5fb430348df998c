"""An agent and clients for the tests of the WebSocket bridge, and a bridge as people write it."""

from __future__ import annotations

import asyncio
import json
import socket
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import acp
from acp.schema import InitializeResponse, NewSessionResponse, PromptResponse
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from quiesce.integrations.acp import open_websocket_server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from websockets.asyncio.client import ClientConnection
    from websockets.asyncio.server import ServerConnection

    from quiesce.integrations.acp import WebSocketServer
_HANGS_SECONDS = 240.0  # a guard: less than pytest's, so that the server is closed


class Agent:
    """An agent whose prompts wait for an event, and which notes what becomes of them."""

    def __init__(self) -> None:
        """Start with nothing to do."""
        self.asked = asyncio.Event()
        self.go_on = asyncio.Event()
        self.outcome = "none"
        self.stubborn = False

    async def initialize(self, protocol_version: int, **_: Any) -> InitializeResponse:
        """Agree to whatever version it is."""
        return InitializeResponse(protocol_version=protocol_version)

    async def new_session(self, **_: Any) -> NewSessionResponse:
        """Return the only session."""
        return NewSessionResponse(session_id="s")

    async def prompt(self, **_: Any) -> PromptResponse:
        """Wait until it may go on."""
        self.asked.set()
        try:
            await self.go_on.wait()
        except asyncio.CancelledError:
            self.outcome = "cancelled"
            if self.stubborn:
                return PromptResponse(stop_reason="cancelled")
            raise
        self.outcome = "done"
        return PromptResponse(stop_reason="end_turn")


def message(number: int, method: str, **params: Any) -> str:
    """Return a request as a frame."""
    return json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params})


INITIALIZE = message(0, "initialize", protocolVersion=1)
PROMPT = message(1, "session/prompt", sessionId="s", prompt=[{"type": "text", "text": "hi"}])


async def open_client(port: int, **options: Any) -> ClientConnection:
    """Connect, and initialize."""
    client = await connect(f"ws://127.0.0.1:{port}/", compression=None, **options)
    await client.send(INITIALIZE)
    await client.recv()
    return client


async def check_health(port: int, *, rude: bool = False, **options: Any) -> None:
    """Connect, initialize and leave, with a closing handshake or without."""
    client = await open_client(port, **options)
    if rude:
        client.transport.abort()
    await client.close()


@asynccontextmanager
async def serving(make: Any = Agent, **options: Any) -> AsyncIterator[WebSocketServer]:
    """Serve for the time of a block."""
    server = await open_websocket_server(make, **{"cleanup": 2, "grace": 0.1, **options})
    try:
        async with asyncio.timeout(_HANGS_SECONDS):
            yield server
    finally:
        await server.aclose()


async def status_of(port: int, path: str = "/", **headers: str) -> int:
    """Try to connect; gives the status of the answer, 101 if it is let in."""
    try:
        async with connect(f"ws://127.0.0.1:{port}{path}", additional_headers=headers):
            return 101
    except InvalidStatus as refusal:
        return refusal.response.status_code


async def closed(client: Any) -> int | None:
    """Wait until the other side has closed; gives the code."""
    with suppress(ConnectionClosed):
        while True:
            await client.recv()
    code: int | None = client.protocol.close_code
    return code


def by_hand(make: Callable[[], Agent]) -> Callable[[ServerConnection], Any]:
    """Return a handler that bridges a WebSocket to the SDK's `run_agent`, as in python-sdk's issue 108."""

    async def handle(client: ServerConnection) -> None:
        ours, theirs = socket.socketpair()
        reader, writer = await asyncio.open_connection(sock=ours)
        agent_reader, agent_writer = await asyncio.open_connection(sock=theirs)

        async def to_agent() -> None:
            with suppress(ConnectionClosed):
                async for frame in client:
                    writer.write(str(frame).encode() + b"\n")

        async def to_client() -> None:
            while line := await reader.readline():
                await client.send(line.decode())

        run: Any = acp.run_agent
        tasks = {
            asyncio.create_task(work)
            for work in (run(make(), agent_writer, agent_reader), to_agent(), to_client())
        }
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for each in (writer, agent_writer):
            each.transport.abort()
            with suppress(OSError):
                await each.wait_closed()

    return handle
