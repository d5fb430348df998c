"""A program that serves an agent over WebSockets, and drains on SIGTERM; prints its port.

A prompt asks the client something, and ends when the client has answered.
"""

from __future__ import annotations

import sys
from typing import Any

from acp.schema import InitializeResponse, PromptResponse

import quiesce
from quiesce.integrations.acp import WebSocketServer, serve_websocket


class Asking:
    """An agent whose prompts depend on the client."""

    def __init__(self, connection: Any) -> None:
        """Record the connection over which the agent asks its client."""
        self._connection = connection

    async def initialize(self, protocol_version: int, **_: Any) -> InitializeResponse:
        """Agree to whatever version it is."""
        return InitializeResponse(protocol_version=protocol_version)

    async def prompt(self, **_: Any) -> PromptResponse:
        """Ask, and end."""
        await self._connection.ext_method("ask", {})
        return PromptResponse(stop_reason="end_turn")


def tell(server: WebSocketServer) -> None:
    """Say where it listens."""
    sys.stdout.write(f"{server.port}\n")
    sys.stdout.flush()


async def main() -> None:
    """Serve until the signal."""
    await serve_websocket(Asking, ready=tell)


if __name__ == "__main__":
    quiesce.run(main, grace=5, cleanup=2)
