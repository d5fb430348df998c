"""Programs for test_staying.py: `staying.py WAY LEFT` drains in one way, and leaves something behind in a thread."""

from __future__ import annotations

import asyncio
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anyio.to_thread

import quiesce
from quiesce.integrations.asgi import Quiesce
from quiesce.mesh import Memory, Node

pool = ThreadPoolExecutor()
begun = threading.Event()


def linger() -> None:
    """Run until the test says so."""
    begun.set()
    sys.stdin.read()


class Flusher(threading.Thread):
    """A thread of a library."""

    def run(self) -> None:
        """Run until the test says so."""
        linger()


async def leave(left: str) -> None:
    """Leave something behind."""
    with quiesce.detached():
        if left == "thread":
            threading.Thread(target=linger, name="flusher").start()
        elif left == "kind":
            Flusher(name="flusher").start()
        elif left == "busy worker":
            pool.submit(linger)
        elif left == "busy worker of anyio":
            call = asyncio.create_task(anyio.to_thread.run_sync(linger, abandon_on_cancel=True))
            await asyncio.to_thread(begun.wait)
            call.cancel()
        elif left == "idle worker":
            pool.submit(int).result()
            await asyncio.to_thread(int)
            await anyio.to_thread.run_sync(int)
        elif left == "daemon":
            threading.Thread(target=linger, name="flusher", daemon=True).start()


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Leave something behind at the startup."""
    assert scope["type"] == "lifespan"
    await receive()
    await leave(sys.argv[2])
    await send({"type": "lifespan.startup.complete"})
    await receive()
    await send({"type": "lifespan.shutdown.complete"})


async def serve(served: Any) -> None:
    """Start an app up, and shut it down."""
    messages = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}]

    async def receive() -> Any:
        return messages.pop(0)

    async def send(_: Any) -> None:
        pass

    await served({"type": "lifespan"}, receive, send)


def main(way: str) -> None:
    """Drain in one way."""
    node = Node("hotel", transport=Memory())
    if way == "run":
        quiesce.run(leave, sys.argv[2])
    elif way == "node":
        asyncio.run(serve(node.asgi(app)))
    elif way == "Quiesce":
        asyncio.run(serve(Quiesce(app, node=node)))
    else:
        asyncio.run(leave(sys.argv[2]))


if __name__ == "__main__":
    main(sys.argv[1])
