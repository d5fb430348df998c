"""A bridge serves an agent to a peer, and cancels it when the peer hangs up."""

import asyncio
import gc


class Peer:
    """The other end of a WebSocket."""

    def __init__(self) -> None:
        """Connect."""
        self.said: asyncio.Queue[str] = asyncio.Queue()
        self.heard: asyncio.Queue[str] = asyncio.Queue()


class Connection:
    """The SDK's connection: two background loops, and a `close` that stops them."""

    def __init__(self, peer: Peer) -> None:
        """Start the loops."""
        self.peer = peer
        self.inbox: asyncio.Queue[str] = asyncio.Queue()
        self.outbox: asyncio.Queue[str] = asyncio.Queue()
        self.loops = [
            asyncio.create_task(self._send(), name="sdk.sender"),
            asyncio.create_task(self._dispatch(), name="sdk.dispatcher"),
        ]

    async def _send(self) -> None:
        while True:
            await self.peer.heard.put(await self.outbox.get())

    async def _dispatch(self) -> None:
        while True:
            await self.outbox.put(f"{await self.inbox.get()}: done")

    async def listen(self) -> None:
        """Pass on what the peer says, until it says nothing more."""
        while request := await self.peer.said.get():
            await self.inbox.put(request)

    async def close(self) -> None:
        """Stop the loops."""
        for loop in self.loops:
            loop.cancel()
        await asyncio.wait(self.loops)


async def run_agent(peer: Peer) -> None:
    """Serve one peer: the SDK's code, in which a cancellation skips `close`."""
    connection = Connection(peer)
    await connection.listen()
    await connection.close()


async def serve(peer: Peer) -> None:
    """Serve one peer: our code."""
    await run_agent(peer)


async def main() -> None:
    """Let three health checks come and go."""
    for _ in range(3):
        peer = Peer()
        agent = asyncio.create_task(serve(peer))
        await peer.said.put("initialize")
        print(f"bridge: {await peer.heard.get()}, and the peer hangs up")
        agent.cancel()
        await asyncio.wait([agent])
    print("bridge: tasks left over:", len(asyncio.all_tasks()) - 1)
    gc.collect()  # Python does this whenever it likes


if __name__ == "__main__":
    asyncio.run(main())
