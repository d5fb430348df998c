"""A host asks a question, takes the first message of the answer, and breaks."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

import quiesce


class Client:
    """The SDK's client: a task group reads messages in the background."""

    def __init__(self) -> None:
        """Make a client that is not connected yet."""
        self.messages: asyncio.Queue[str] = asyncio.Queue()
        self.closed = asyncio.Event()

    @asynccontextmanager
    async def connect(self) -> AsyncIterator["Client"]:
        """Read messages for as long as the context lasts."""
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._read)
                yield self
                group.cancel_scope.cancel()
        finally:
            self.closed.set()

    async def _read(self) -> None:
        await self.messages.put("Hello")
        await anyio.sleep_forever()  # more may come


async def query(client: Client) -> AsyncIterator[str]:
    """Yield the messages of one answer."""
    scope = await quiesce.Scope.open("query")
    try:
        await scope.enter(client.connect())
        while True:
            yield await client.messages.get()
    finally:
        await scope.aclose()


async def main() -> None:
    """Ask, break, and go on with the day."""
    client = Client()
    async for message in query(client):
        print(f"host: got {message!r}, that is enough")
        break  # Python finalizes the generator in another task
    await client.closed.wait()
    print("host: the client is closed, on to the next question")


if __name__ == "__main__":
    asyncio.run(main())
