"""A server answers "working" at once, and promises a webhook for every later state."""

import asyncio
import contextlib
import gc
import socket

import quiesce


async def push_states(agent: socket.socket, pushed: asyncio.Event) -> None:
    """Fire the webhook for every state that the agent reports."""
    states, line = await asyncio.open_connection(sock=agent)
    async for state in states:
        print(f"webhook: {state.decode().strip()}")
        pushed.set()
    line.close()


async def answer(agent: socket.socket, pushed: asyncio.Event) -> str:
    """Answer at once: the SDK's code, which leaves the rest to the background."""
    asyncio.create_task(push_states(agent, pushed))  # noqa: RUF006 - as it was upstream
    return "working"


async def main() -> None:
    """Play the client, and an agent that takes its time."""
    server_end, agent_end = socket.socketpair()
    from_server, to_server = await asyncio.open_connection(sock=agent_end)
    pushed = asyncio.Event()
    async with quiesce.Scope("server", adopt=True):
        print("client: the answer is", await answer(server_end, pushed))
        to_server.write(b"working\n")
        await pushed.wait()
        gc.collect()  # Python does this whenever it likes; a slow agent gives it the time
        to_server.write(b"completed\n")
        to_server.write_eof()
        with contextlib.suppress(ConnectionError):
            await from_server.read()  # until the server hangs up


if __name__ == "__main__":
    asyncio.run(main())
