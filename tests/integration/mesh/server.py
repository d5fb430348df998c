"""The server of an agent, which says when it serves, and why it does not end."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Any

import uvicorn

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable


def tell_all(server: Any) -> None:
    """Write what is still to be done, for whoever wonders why this process does not end."""
    for task in asyncio.all_tasks():
        task.print_stack(file=sys.stderr)  # by itself, its first line goes to stdout: it is no fact
    for connection in server.server_state.connections:
        transport, cycle = connection.transport, connection.cycle
        told = {} if cycle is None else {
            name: value for name, value in vars(cycle).items() if isinstance(value, bool | bytes)
        }  # fmt: skip
        scope = None if cycle is None else cycle.scope
        sys.stderr.write(
            f"connection {transport} closing={transport.is_closing()}"
            f" unsent={transport.get_write_buffer_size()} cycle={told} scope={scope}\n"
        )
    sys.stderr.flush()


class Server(uvicorn.Server):  # type: ignore[misc]  # no types here
    """Says when it serves."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and tell it."""
        await super().startup(sockets)
        if self.started:
            self.tell()

    tell: Callable[[], None]
