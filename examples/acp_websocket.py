"""An ACP agent behind a WebSocket bridge: clients come, a prompt runs, and SIGTERM drains it.

`python examples/acp_websocket.py` plays it through. `python examples/acp_websocket.py 8765` serves on
that port until it gets a signal. It needs `pip install '.[acp]'`, and no account.
"""

import asyncio
import json
import os
import signal
import sys
from typing import Any

import quiesce

try:
    from acp import text_block
    from acp.schema import InitializeResponse, NewSessionResponse, PromptResponse
    from websockets.asyncio.client import ClientConnection, connect
    from websockets.exceptions import ConnectionClosed, InvalidStatus

    from quiesce.integrations.acp import WebSocketServer, connect_to_agent, serve_websocket
except ImportError as missing:
    sys.exit(f"this example needs the ACP SDK and websockets: pip install '.[acp]' ({missing})")

TOKEN = "open sesame"  # noqa: S105 - of an example
HEADERS = {"Authorization": f"Bearer {TOKEN}"}
prompted = asyncio.Event()


class Agent:
    """An agent that thinks for a moment. Each connection has its own."""

    async def initialize(self, protocol_version: int, **_: object) -> InitializeResponse:
        """Return the client's version."""
        return InitializeResponse(protocol_version=protocol_version)

    async def new_session(self, **_: object) -> NewSessionResponse:
        """Return a session."""
        return NewSessionResponse(session_id="1")

    async def prompt(self, **_: object) -> PromptResponse:
        """Think."""
        prompted.set()
        await asyncio.sleep(0.3)
        return PromptResponse(stop_reason="end_turn")


class Socket:
    """A WebSocket as a transport for the client."""

    def __init__(self, socket: ClientConnection) -> None:
        """Wrap an open connection."""
        self.socket = socket

    async def send(self, message: dict[str, Any]) -> None:
        """Send a message as a text frame."""
        await self.socket.send(json.dumps(message))

    async def receive(self) -> dict[str, Any] | None:
        """Return the next message; None when the bridge has closed."""
        try:
            message: dict[str, Any] = json.loads(await self.socket.recv())
        except ConnectionClosed:
            return None
        return message

    async def close(self) -> None:
        """Close the connection."""
        await self.socket.close()


class Client:
    """A client that ignores updates."""

    async def session_update(self, **_: object) -> None:
        """Ignore an update."""


async def visit(name: str, url: str, text: str = "") -> None:
    """Connect as a client, and send a prompt or only stay connected."""
    try:
        socket = await connect(url, additional_headers=HEADERS)
    except InvalidStatus as refusal:
        print(f"{name}: refused, HTTP {refusal.response.status_code}", flush=True)
        return
    connection: Any = connect_to_agent(Client(), Socket(socket))
    await connection.initialize(protocol_version=1)
    print(f"{name}: connected", flush=True)
    if text:
        session = await connection.new_session(cwd="/", mcp_servers=[])
        answer = await connection.prompt(session_id=session.session_id, prompt=[text_block(text)])
        print(f"{name}: the prompt has ended: {answer.stop_reason}", flush=True)
    await socket.wait_closed()
    print(f"{name}: closed by the bridge, {socket.close_code} {socket.close_reason}", flush=True)
    await connection.close()


async def play(url: str) -> None:
    """Play two clients, then send SIGTERM, then play one client more."""
    async with quiesce.Scope("clients") as scope:
        scope.spawn(visit, "idle client", url)
        scope.spawn(visit, "busy client", url, "hi")
        await prompted.wait()
        print("operator: SIGTERM", flush=True)
        os.kill(os.getpid(), signal.SIGTERM)
        await scope.closing()
        await visit("late client", url)


async def main(port: int) -> None:
    """Serve until a signal; without a port, play it through."""
    async with quiesce.Scope("program") as scope:

        def ready(server: WebSocketServer) -> None:
            url = f"ws://127.0.0.1:{server.port}/"
            print("bridge: listening" if not port else f"bridge: listening on {url}", flush=True)
            if not port:
                scope.spawn(play, url)

        report = await serve_websocket(Agent, port=port, token=TOKEN, ready=ready)
    print(f"bridge: closed, {'nothing lost' if report.ok else report}", flush=True)


if __name__ == "__main__":
    quiesce.run(main, int(sys.argv[1]) if len(sys.argv) > 1 else 0, grace=10)
