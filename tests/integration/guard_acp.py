"""Programs for test_guard_packages.py, with agent-client-protocol.

`served`: an agent that has nothing to do is cancelled, as in seed 000. `twice`, `once`: somebody who
uses an agent in a process of its own is cancelled, and cancelled again while it ends that process;
the agent is one that does not go by itself. `owned_…`: the same, with quiesce.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import acp

from quiesce import Scope
from tests.integration import guard_programs

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from contextlib import AbstractAsyncContextManager

    Use = Callable[["Stubborn"], Awaitable[None]]

SERVICES = ["acp.Sender.loop", "acp.Dispatcher.loop"]  # what the SDK calls its two loops
STUBBORN_AGENT = Path(__file__).with_name("stubborn_agent.py")
SHUTDOWN_SECONDS = 0.2  # what the SDK gives an agent to go, before it terminates and kills it
LONG_SECONDS = 30.0  # far more than it takes to be cancelled meanwhile
# When a transport of asyncio is collected after its loop has ended, newer Pythons kill its process.
kept: list[Stubborn] = []


async def served() -> None:
    """Cancel an agent that serves a client and has nothing to do, and close the connection."""
    agent: Any = object()
    ours, theirs = socket.socketpair()
    client_reader, client = await asyncio.open_connection(sock=ours)
    reader, writer = await asyncio.open_connection(sock=theirs)
    serving = asyncio.create_task(acp.run_agent(agent, writer, reader))
    client.write(b'{"jsonrpc": "2.0", "id": 1, "method": "nothing"}\n')
    await client_reader.readline()  # it serves
    serving.cancel()
    await asyncio.wait([serving])
    for end in (writer, client):
        end.close()
        with suppress(ConnectionError):
            await end.wait_closed()


async def owned_served() -> None:
    """Do the same in a scope that adopts what the SDK starts."""
    async with Scope("client", adopt=True, services=SERVICES):
        await served()


class Stubborn:
    """An agent in a process of its own."""

    def __init__(self, shutdown_seconds: float) -> None:
        self.shutdown_seconds = shutdown_seconds
        self.process: Any = None
        self.ready = asyncio.Event()

    def spawned(self) -> AbstractAsyncContextManager[tuple[Any, Any]]:
        """Return an agent, as the SDK has it."""
        client: Any = object()
        return acp.spawn_agent_process(
            client,
            sys.executable,
            *("-I", "-S", str(STUBBORN_AGENT)),  # it starts at once
            transport_kwargs={"shutdown_timeout": self.shutdown_seconds},
        )

    async def wait_for(self, process: Any) -> None:
        """Wait until the agent is ready."""
        self.process = process
        await process.stderr.readline()
        self.ready.set()


async def use(agent: Stubborn) -> None:
    """Use an agent, for ever."""
    async with agent.spawned() as (_, process):
        await agent.wait_for(process)
        await asyncio.Event().wait()


async def use_owned(agent: Stubborn) -> None:
    """Use an agent that a task of the scope's starts and ends: nobody cancels that one."""
    async with Scope("user") as scope:
        _, process = await scope.enter(agent.spawned())
        await agent.wait_for(process)
        await asyncio.Event().wait()


async def cancelled(user: Use, agent: Stubborn, *, times: int) -> None:
    """Cancel somebody who uses an agent; the second time, when the agent's input has been closed."""
    using = asyncio.ensure_future(user(agent))
    await agent.ready.wait()
    using.cancel()
    if times > 1:
        await agent.process.stderr.readline()  # its input has ended
        using.cancel()
    await asyncio.wait([using])
    if not using.cancelled():
        raise AssertionError(using)


async def once() -> None:
    """Cancel it once: the SDK ends the process."""
    await cancelled(use, Stubborn(SHUTDOWN_SECONDS), times=1)


async def twice() -> None:
    """Cancel it twice."""
    kept.append(Stubborn(LONG_SECONDS))
    await cancelled(use, kept[-1], times=2)


async def owned_twice() -> None:
    """Cancel it twice, with quiesce."""
    await cancelled(use_owned, Stubborn(SHUTDOWN_SECONDS), times=2)


SCENARIOS = {
    "served": served,
    "owned_served": owned_served,
    "once": once,
    "twice": twice,
    "owned_twice": owned_twice,
}

if __name__ == "__main__":
    guard_programs.main(SCENARIOS)
