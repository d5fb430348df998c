"""What the agents share: work that goes on when the driver lets it, and that tells when it has ended."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import uvicorn

if TYPE_CHECKING:
    from quiesce.mesh import Node

_gates: dict[str, asyncio.Event] = {}
_tasks: set[asyncio.Task[None]] = set()


def _gate(name: str) -> asyncio.Event:
    return _gates.setdefault(name, asyncio.Event())


def tell(**facts: Any) -> None:
    """Print a line of JSON."""
    print(json.dumps(facts), flush=True)  # noqa: T201 - that is how it tells


async def work(name: str) -> None:
    """Wait until the driver lets it end, and tell when it has."""
    await _gate(name).wait()
    tell(ended=name, at=time.monotonic())


def leave(name: str) -> None:
    """Leave work behind, as handlers do: in a task that nobody waits for."""
    task = asyncio.create_task(work(name))
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)


def let_by(app: Any) -> Any:
    """Wrap an app: `POST /let/NAME` lets work end."""

    async def wrapped(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or not scope["path"].startswith("/let/"):
            await app(scope, receive, send)
            return
        _gate(scope["path"].removeprefix("/let/")).set()
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    return wrapped


def listen() -> tuple[socket.socket, str]:
    """Return a socket on a free port of loopback, and its address."""
    listener = socket.create_server(("127.0.0.1", 0))
    return listener, f"http://127.0.0.1:{listener.getsockname()[1]}"


def _end_with_driver() -> None:
    sys.stdin.buffer.read()
    os._exit(3)


def serve(node: Node, app: Any, listener: socket.socket) -> None:
    """Serve an app as part of the mesh, until the process is told to end; at the latest, with the driver."""
    threading.Thread(target=_end_with_driver, daemon=True).start()
    server = uvicorn.Server(uvicorn.Config(node.asgi(let_by(app)), log_level="error"))
    tell(url=node.url)
    asyncio.run(server.serve(sockets=[listener]))
