"""Put one line around an SDK: its tasks get an owner, and its loops are told from work.

The SDK below is made up, after real ones: a connection with two background loops, a handler task
for each request, and no way to learn when they are done.
"""

import asyncio

import quiesce


class Connection:
    """A connection of the SDK, which forgets the tasks that it starts."""

    def __init__(self) -> None:
        """Start the loops."""
        self.outbox: asyncio.Queue[str] = asyncio.Queue()
        asyncio.create_task(self._send(), name="sdk.sender")  # noqa: RUF006 - the SDK's bug
        asyncio.create_task(self._beat(), name="sdk.heartbeat")  # noqa: RUF006 - the same

    async def _send(self) -> None:
        while True:
            print("sent:", await self.outbox.get())

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(60)
            self.outbox.put_nowait("still here")

    def receive(self, request: str) -> None:
        """Handle a request in the background."""
        asyncio.create_task(self._handle(request), name=request)  # noqa: RUF006 - and again

    async def _handle(self, request: str) -> None:
        await asyncio.sleep(0.05)
        self.outbox.put_nowait(f"answer to {request}")


async def main() -> None:
    """Handle two requests, and lose neither."""
    async with quiesce.Scope("peer", adopt=True, services=["sdk.*"]) as scope:
        connection = Connection()
        connection.receive("request 1")
        connection.receive("request 2")
        await asyncio.sleep(0)
        for entry in scope.frontier():
            print("service:" if entry.service else "in flight:", entry.name)
        await scope.idle()
        print("the SDK is quiet")
    left = len(asyncio.all_tasks()) - 1
    print(f"tasks left over: {left}")
    report = scope.report
    if report is not None:
        print(f"completed: {report.completed}, services stopped: {report.services}")


if __name__ == "__main__":
    asyncio.run(main())
