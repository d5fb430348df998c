"""Find out what a verdict waits for: a server whose handlers leave work behind, in four ways.

`escapes(app)` runs the app in a node of its own. Each request is a hop, and each place where work leaves it is
listed: a verdict waits for the task and for the item in the queue, it names the thread, and it knows nothing of the
worker that a semaphore wakes.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

from quiesce.testing import escapes

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class Shop:
    """An ASGI app with two workers, which are started with it."""

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Serve one request, or the whole life of the app."""
        if scope["type"] == "lifespan":
            await self.live(receive, send)
            return
        await getattr(self, scope["path"].strip("/"))()
        await send({"type": "http.response.start", "status": 202, "headers": []})
        await send({"type": "http.response.body", "body": b"accepted"})

    async def live(self, receive: Receive, send: Send) -> None:
        """Run the workers from the startup to the shutdown."""
        self.orders: asyncio.Queue[str] = asyncio.Queue()
        self.refunds: list[str] = []
        self.has_refunds = asyncio.Semaphore(0)
        self.is_over = threading.Event()
        self.tasks: set[asyncio.Task[None]] = set()
        await receive()
        workers = [asyncio.create_task(self.pack()), asyncio.create_task(self.refund())]
        await asyncio.sleep(0)
        await send({"type": "lifespan.startup.complete"})
        await receive()
        for worker in workers:
            worker.cancel()
        self.is_over.set()
        await asyncio.gather(*workers, return_exceptions=True)
        await send({"type": "lifespan.shutdown.complete"})

    async def pack(self) -> None:
        """Work on the orders."""
        while True:
            await self.orders.get()
            await asyncio.sleep(0.01)

    async def refund(self) -> None:
        """Work on the refunds."""
        while True:
            await self.has_refunds.acquire()
            self.refunds.pop()

    async def order(self) -> None:
        """Leave an item in a queue, and a task."""
        self.orders.put_nowait("a book")
        task = asyncio.create_task(asyncio.sleep(0.01))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def cancel(self) -> None:
        """Leave an item in a list, and wake a worker by a semaphore; and leave a thread."""
        self.refunds.append("a book")
        self.has_refunds.release()
        threading.Thread(target=self.is_over.wait, daemon=True).start()


async def main() -> None:
    """Send a request to each handler, and list what leaves them."""
    async with escapes(Shop()) as found:
        await found.request("POST", "/order")
        await found.request("POST", "/cancel")
    for one in found:
        print(f"{one.fate}: {one.route} at {Path(one.where).name} in {one.function}")
        if one.instead:
            print(f"  write: {one.instead}")


if __name__ == "__main__":
    asyncio.run(main())
