"""An app inside of `node.asgi()` alone, without a `Quiesce`; served by a test of every server."""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any

from quiesce.mesh import Memory, Node, current_hop
from tests.adapters.asgi.app import bare, note, stage

node = Node("hotel", url="http://hotel", transport=Memory())
cascades: list[Any] = []
jobs: asyncio.Queue[str] = asyncio.Queue()


class Client:
    """What the app opens at its startup, and closes at its shutdown."""

    is_open = False

    async def use(self, name: str) -> None:
        """Use it when the test says so."""
        await stage(name)
        if not self.is_open or name == "failing":
            message = "the client is closed" if not self.is_open else "no answer"
            raise RuntimeError(message)
        note(f"{name} done")


client = Client()


async def worker() -> None:
    """Do what handlers have put into the queue, until the app's shutdown."""
    while True:
        name = await jobs.get()
        try:
            await client.use(name)
        finally:
            jobs.task_done()


async def lifespan(scope: Any, receive: Any, send: Any) -> None:
    """Run the client and the worker as long as the app lives."""
    tasks: list[asyncio.Task[None]] = []

    async def tell(message: Any) -> None:
        if message["type"] == "lifespan.startup.complete":
            client.is_open = True
            tasks.append(asyncio.create_task(worker()))
        elif message["type"] == "lifespan.shutdown.complete":
            client.is_open = False
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        await send(message)

    await bare(scope, receive, tell)


async def works(scope: Any, receive: Any, send: Any) -> None:
    """Leave work behind in a hop of the node's own cascade; else be the usual app."""
    path = scope.get("path")
    if scope["type"] == "lifespan":
        await lifespan(scope, receive, send)
        return
    if path in {"/hop", "/task", "/failing", "/queue"}:
        async with node.cascade("one") as cascade:
            hop = current_hop()
            assert hop is not None
            if path == "/hop":
                hop.spawn(stage, "hop")
            elif path == "/queue":
                jobs.put_nowait("queue")
            else:
                tasks.add(asyncio.create_task(client.use(path[1:])))
        cascades.append(cascade)
        scope = {**scope, "path": "/pid"}
    await bare(scope, receive, send)


tasks: set[asyncio.Task[None]] = set()
app = node.asgi(works, **json.loads(os.environ["ASGI_QUIESCE"]))
