"""What goes wrong for ACP clients: agents that are processes, and requests that nobody waits for."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Self

import acp

from quiesce.integrations.acp import agent_client, agent_process
from tests.adapters.known_faults import KnownFaults

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from tests.adapters.known_faults import Way

known_fault = KnownFaults()

AGENT = str(Path(__file__).with_name("client_agent.py"))
ENVIRONMENT = dict(os.environ)
BRIEF = {"shutdown_timeout": 0.2}


class Client:
    """A client that takes everything."""

    async def session_update(self, session_id: str, update: Any, **_: Any) -> None:
        """Take an update."""


def spawn(way: Way, *args: str, to: Any = None) -> AbstractAsyncContextManager[tuple[Any, Any]]:
    """Start an agent as a process, one way or the other."""
    start: Any = acp.spawn_agent_process if way == "bare" else agent_process.spawn_agent_process
    manager: AbstractAsyncContextManager[tuple[Any, Any]] = start(
        to or Client(), *args, env=dict(os.environ), transport_kwargs=BRIEF
    )
    return manager


def connect(way: Way, to: Any, writer: Any, reader: Any) -> Any:
    """Connect to an agent over streams, one way or the other."""
    if way == "bare":
        return acp.connect_to_agent(to, writer, reader)
    return agent_client.connect_to_agent(to, writer, reader, close_seconds=0.5)


async def cancelled_twice(task: asyncio.Task[Any]) -> None:
    """Cancel a task, and again while it waits for the agent to end."""
    task.cancel()
    await asyncio.wait({task}, timeout=BRIEF["shutdown_timeout"] / 2)
    task.cancel()
    with suppress(asyncio.CancelledError, Exception):
        await task


@known_fault("`spawn_agent_process`, double cancel, stubborn agent", backends=("asyncio", "uvloop"))
async def double_cancel(way: Way) -> str | None:
    """Cancel the block twice while the agent ignores EOF and SIGTERM."""
    inside = asyncio.Event()

    async def use() -> None:
        async with spawn(way, sys.executable, AGENT, "stubborn") as (connection, _):
            await connection.initialize(protocol_version=1)
            inside.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(use())
    await inside.wait()
    await cancelled_twice(task)
    return None if task.cancelled() else "cancellation swallowed"


@known_fault("`spawn_agent_process` of an `sh` wrapper with a grandchild")
async def wrapper(way: Way) -> str | None:
    """Leave the block while the agent is the child of a shell that waits for it."""
    line = '"$0" "$1" stubborn; exit 0'
    async with spawn(way, "sh", "-c", line, sys.executable, AGENT) as (connection, _):
        await connection.initialize(protocol_version=1)
    return None


@known_fault("`spawn_agent_process`, the agent exits and leaves a child of its own")
async def grandchild(way: Way) -> str | None:
    """Leave the block of an agent that ends in time, but not what it has started."""
    with TemporaryDirectory() as folder:
        pid = str(Path(folder) / "pid")
        async with spawn(way, sys.executable, AGENT, "grandchild", pid) as (connection, _):
            await connection.initialize(protocol_version=1)
    return None


@known_fault("a request that times out goes on at the agent")
async def timed_out(way: Way) -> str | None:
    """Stop waiting for a prompt, and ask the agent what it was told."""
    async with spawn(way, sys.executable, AGENT, "plain") as (connection, _):
        await connection.initialize(protocol_version=1)
        with suppress(TimeoutError):
            async with asyncio.timeout(0.05):
                await connection.prompt(prompt=[acp.text_block("hi")], session_id="s")
        told = await connection.ext_method("log", {})
        methods = [message["method"] for message in told["seen"]]
    return None if "$/cancel_request" in methods else "goes on"


@known_fault("the agent dies while a request waits for its answer")
async def agent_dies(way: Way) -> str | None:
    """Ask an agent for something that it dies of."""
    async with spawn(way, sys.executable, AGENT, "dies") as (connection, _):
        await connection.initialize(protocol_version=1)
        try:
            async with asyncio.timeout(1):
                await connection.prompt(prompt=[acp.text_block("hi")], session_id="s")
        except TimeoutError:
            return "waits for ever"
        except ConnectionError:
            return None
    return "an answer?"


@known_fault("the agent sends a message of 600 KB")
async def big_message(way: Way) -> str | None:
    """Take a message that is longer than asyncio's limit of a line."""
    async with spawn(way, sys.executable, AGENT, "big") as (connection, _):
        await connection.initialize(protocol_version=1)
        try:
            async with asyncio.timeout(1):
                await connection.prompt(prompt=[acp.text_block("hi")], session_id="s")
        except TimeoutError:
            return "waits for ever"
        except ConnectionError:
            return "connection lost"
    return None


class Streams:
    """A connection's streams, and the socket at the agent's end."""

    async def __aenter__(self) -> Self:
        ours, self.agent = socket.socketpair()
        self.agent.settimeout(0)
        self.reader, self.writer = await asyncio.open_connection(sock=ours)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.transport.abort()
        self.agent.close()
        with suppress(OSError):
            await self.writer.wait_closed()

    async def say(self, text: bytes) -> None:
        """Send something as the agent."""
        await asyncio.get_running_loop().sock_sendall(self.agent, text + b"\n")


async def bounded(closing: Any) -> str | None:
    """Await a close; tell if it does not end, or raises."""
    task = asyncio.ensure_future(closing)
    await asyncio.wait({task}, timeout=1.5)
    if not task.done():
        task.cancel()
        return "`close()` hangs"
    error = task.exception()
    return None if error is None else f"`close()` raises {type(error).__name__}"


@known_fault("client: `close()` while the agent reads nothing", seconds=6)
async def stalled(way: Way) -> str | None:
    """Close a connection whose agent has stopped to read."""
    async with Streams() as streams:
        connection = connect(way, Client(), streams.writer, streams.reader)
        text = [acp.text_block("x" * 4_000_000)]
        prompt = asyncio.create_task(connection.prompt(prompt=text, session_id="s"))
        for _ in range(5):
            await asyncio.sleep(0)
        told = await bounded(connection.close())
        prompt.cancel()
        with suppress(asyncio.CancelledError, ConnectionError):
            await prompt
    return told


UPDATE = (
    b'{"jsonrpc":"2.0","id":7,"method":"session/request_permission","params":{"sessionId":"s",'
    b'"options":[],"toolCall":{"toolCallId":"t"}}}'
)


@known_fault("client: a handler that turns cancellation into an answer, at `close()`")
async def stubborn_handler(way: Way) -> str | None:
    """Close a connection while the client is asked for a permission, and answers even so."""
    asked = asyncio.Event()

    class Asked(Client):
        async def request_permission(self, **_: Any) -> Any:
            asked.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                return {"outcome": {"outcome": "cancelled"}}

    async with Streams() as streams:
        connection = connect(way, Asked(), streams.writer, streams.reader)
        await streams.say(UPDATE)
        await asked.wait()
        return await bounded(connection.close())


@known_fault("client: `close()` from inside a handler")
async def close_inside(way: Way) -> str | None:
    """Close a connection from a handler of its own."""
    told: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()

    class Closing(Client):
        async def request_permission(self, **_: Any) -> Any:
            try:
                async with asyncio.timeout(1):
                    await connection.close()
            except BaseException as error:
                # With the SDK alone it depends on the order of a set whether it raises.
                word = f"`close()` raises {type(error).__name__}"
                told.set_result(None if way == "bare" else word)
                raise
            told.set_result(None)

    async with Streams() as streams:
        connection = connect(way, Closing(), streams.writer, streams.reader)
        await streams.say(UPDATE)
        outcome = await told
        await bounded(connection.close())
    return outcome
