"""What goes wrong with agents of the ACP SDK: the table of the documentation, as programs."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import anyio

from quiesce.errors import UsageError
from quiesce.integrations.acp import REQUEST_CANCELLED, sdk_connection
from tests.adapters.acp.agents import (
    Agent,
    busy,
    cancelled,
    forever,
    pipes,
    runner,
    served,
    stalled,
    wire,
)
from tests.adapters.known_faults import Absent, KnownFaults

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.adapters.known_faults import Way

known_fault = KnownFaults()
LOOPS = ("asyncio", "uvloop")
SECONDS = 3.0
SLOW_SECONDS = 0.15  # that a slow cleanup takes: less than what the adapter allows


async def converting(_: Agent) -> str:
    """Turn the cancellation of a prompt into an answer."""
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        return "cancelled"
    return "end_turn"


async def cut_short(way: Way, prompt: Callable[[Agent], Awaitable[Any]]) -> str | None:
    """Cancel an agent in the middle of a prompt; tell if that does not hear of it."""
    agent = Agent(prompt)
    async with served(way, agent) as (task, peer):
        peer.prompt()
        await agent.begun.wait()
        await cancelled(task)
        return None if agent.ended.is_set() else "handler never cancelled"


@known_fault("`run_agent` cancelled while idle", backends=LOOPS, seconds=SECONDS)
async def cancel_idle(way: Way) -> str | None:
    """Cancel it when it has answered and waits."""
    async with served(way, Agent()) as (task, peer):
        peer.send({"id": 1, "method": "initialize", "params": {"protocolVersion": 1}})
        await peer.answer()
        await cancelled(task)  # that it is swallowed is a fault of its own
    return None


@known_fault("the peer hangs up while idle", backends=LOOPS, seconds=SECONDS)
async def eof_idle(way: Way) -> str | None:
    """End its input when it has answered and waits."""
    async with served(way, Agent()) as (task, peer):
        peer.send({"id": 1, "method": "initialize", "params": {"protocolVersion": 1}})
        await peer.answer()
        peer.writer.write_eof()
        await task
    return None


@known_fault("`run_agent` cancelled, a prompt running", backends=LOOPS, seconds=SECONDS)
async def cancel_busy(way: Way) -> str | None:
    """Cancel it in the middle of a prompt."""
    return await cut_short(way, forever)


@known_fault("the peer hangs up, a prompt running", backends=LOOPS, seconds=SECONDS)
async def eof_busy(way: Way) -> str | None:
    """End its input in the middle of a prompt."""
    agent = Agent(forever)
    async with served(way, agent) as (task, peer):
        peer.prompt()
        await agent.begun.wait()
        peer.writer.write_eof()
        await task
        return None if agent.ended.is_set() else "handler never cancelled"


@known_fault("the peer resets the connection, a prompt running", seconds=SECONDS)
async def reset_busy(way: Way) -> str | None:
    """Reset its connection in the middle of a prompt."""
    agent = Agent(forever)
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        accepted, _ = server.accept()
    reader, writer = await asyncio.open_connection(sock=accepted)
    task = asyncio.ensure_future(runner(way)(agent, writer, reader))
    line = b'{"jsonrpc":"2.0","id":1,"method":"session/prompt","params":'
    client.sendall(line + b'{"sessionId":"one","prompt":[]}}\n')
    await agent.begun.wait()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()
    with suppress(ConnectionError):
        await task
    writer.close()
    return None if agent.ended.is_set() else "handler never cancelled"


async def careful(_: Agent) -> None:
    """Own a process as one should."""
    process = await asyncio.create_subprocess_exec("sleep", "60")
    try:
        await process.wait()
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


@known_fault("cancelled while a careful handler starts a process (25 points)", seconds=6.0)
async def spawning(way: Way) -> str | None:
    """Cancel it at each of the first turns of the event loop."""
    for turns in range(25):
        agent = Agent(careful)
        async with served(way, agent) as (task, peer):
            peer.prompt()
            for _ in range(turns):
                await asyncio.sleep(0)
            await cancelled(task)
    return None


async def careless(_: Agent) -> None:
    """Own a process and forget it when cancelled."""
    process = await asyncio.create_subprocess_exec("sleep", "60")
    await process.wait()


@known_fault("a handler that owns a process and has no `finally`", backends=LOOPS, seconds=SECONDS)
async def orphaning(way: Way) -> str | None:
    """Cancel it when the process runs."""
    agent = Agent(careless)
    async with served(way, agent) as (task, peer):
        peer.prompt()
        await agent.begun.wait()
        while not _children():  # noqa: ASYNC110 - the handler does not tell
            await asyncio.sleep(0)
        await cancelled(task)
    return None


def _children() -> bool:
    with suppress(ChildProcessError):
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT | os.WNOHANG)
        return True
    return False


async def slow_to_end(_: Agent) -> None:
    """Take a moment to clean up."""
    try:
        await asyncio.Event().wait()
    finally:
        await busy(SLOW_SECONDS)


@known_fault("cancelled twice, a handler slow to clean up", backends=LOOPS, seconds=SECONDS)
async def double_cancel(way: Way) -> str | None:
    """Cancel it again while it cleans up."""
    agent = Agent(slow_to_end)
    async with served(way, agent) as (task, peer):
        peer.prompt()
        await agent.begun.wait()
        task.cancel()
        for _ in range(10):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        return None if agent.ended.is_set() else "handler still running"


@known_fault("a handler turns its cancellation into an answer", backends=LOOPS, seconds=SECONDS)
async def answering(way: Way) -> str | None:
    """Cancel it, and have the handler answer."""
    return await cut_short(way, converting)


async def raising(_: Agent) -> None:
    """Fail when cancelled."""
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        message = "no"
        raise RuntimeError(message) from None


@known_fault("a handler raises when it is cancelled", seconds=SECONDS)
async def failing(way: Way) -> str | None:
    """Cancel it, and have the handler fail."""
    return await cut_short(way, raising)


async def telling(agent: Agent) -> None:
    """Send an update when cancelled."""
    try:
        await asyncio.Event().wait()
    finally:
        await agent.update()


@known_fault("a handler sends an update when it is cancelled", seconds=SECONDS)
async def sending(way: Way) -> str | None:
    """Cancel it, and have the handler send something."""
    return await cut_short(way, telling)


@known_fault("cancelled, and the peer does not read", backends=LOOPS, seconds=SECONDS)
async def stalling(way: Way) -> str | None:
    """Cancel it when a handler waits for the peer to read."""
    sent: list[int] = []

    async def flood(agent: Agent) -> None:
        while True:
            await agent.update("…" * 10_000)
            sent.append(1)

    agent = Agent(flood)
    async with served(way, agent, small=4096) as (task, peer):
        peer.reader._transport.pause_reading()  # type: ignore[attr-defined]  # or it buffers
        peer.prompt()
        await agent.begun.wait()
        await stalled(sent)
        await cancelled(task)
        return None if agent.ended.is_set() else "handler never cancelled"


async def twice(agent: Agent) -> None:
    """Send twice."""
    await asyncio.sleep(0)
    for _ in range(2):
        with suppress(ConnectionError):
            await agent.update()


@known_fault("the peer cannot be written to, but still sends", seconds=SECONDS)
async def half_dead(way: Way) -> str | None:
    """Send twice to a pipe that nobody reads any more."""
    agent = Agent(twice)
    async with pipes() as (writer, reader, feed):
        task = asyncio.ensure_future(runner(way)(agent, writer, reader))
        feed(1)
        await agent.begun.wait()
        with anyio.move_on_after(0.7):
            await agent.ended.wait()
        told = None if agent.ended.is_set() else "a send hangs"
        if way == "bare":
            task.cancel()
        with suppress(asyncio.CancelledError, ConnectionError):
            await task
        return told


@known_fault("`wait_for` and `timeout` around `run_agent`", seconds=SECONDS)
async def swallowing(way: Way) -> str | None:
    """Run the agent into two sorts of deadlines."""
    raised = []
    for limit in ("wait_for", "timeout"):
        async with wire() as (writer, reader, _):
            running = runner(way)(Agent(), writer, reader)
            try:
                if limit == "wait_for":
                    await asyncio.wait_for(running, 0.05)
                else:
                    async with asyncio.timeout(0.05):
                        await running
            except TimeoutError:
                raised.append(limit)
    return None if len(raised) == 2 else "cancellation swallowed"


@known_fault("`close()` from inside a handler", backends=LOOPS, seconds=SECONDS)
async def closing(way: Way) -> str | None:
    """Close a connection from a handler of its own."""
    seen: list[BaseException] = []

    async def close(agent: Agent) -> None:
        try:
            await agent.client.close()
        except RuntimeError as error:
            seen.append(error)

    agent = Agent(close)
    async with served(way, agent) as (task, peer):
        peer.prompt()
        await agent.ended.wait()
        if way == "bare":
            peer.writer.write_eof()
        with anyio.move_on_after(1):
            await task
    return f"close() raises {type(seen[0]).__name__}" if seen else None


class Memory:
    """A transport of 0.12: what is sent after its close is an error, as with the SDK's own."""

    def __init__(self) -> None:
        """Start with nothing to receive."""
        self.inbox: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self.closed = False

    async def send(self, message: dict[str, Any]) -> None:
        """Drop it."""
        del message
        if self.closed:
            text = "Transport closed"
            raise ConnectionError(text)

    async def receive(self) -> dict[str, Any] | None:
        """Return what was put in."""
        return await self.inbox.get()

    async def close(self) -> None:
        """Take nothing more."""
        self.closed = True


@known_fault("one handler's send fails during the close", seconds=SECONDS)
async def failing_send(way: Way) -> str | None:
    """Cancel it, with a transport that refuses what is sent after its close."""
    if not sdk_connection.TAKES_MESSAGES:
        raise Absent
    begun: list[int] = []
    both = asyncio.Event()

    async def each(agent: Agent) -> None:
        begun.append(1)
        first = len(begun) == 1
        if not first:
            both.set()
        await (telling if first else slow_to_end)(agent)

    agent, transport = Agent(each), Memory()
    for number in (1, 2):
        params = {"sessionId": "one", "prompt": []}
        transport.inbox.put_nowait(
            {"jsonrpc": "2.0", "id": number, "method": "session/prompt", "params": params}
        )
    task = asyncio.ensure_future(runner(way)(agent, transport))
    await both.wait()
    return await cancelled(task) if way == "quiesce" else _unless_swallowed(await cancelled(task))


def _unless_swallowed(told: str | None) -> str | None:
    return None if told == "cancellation swallowed" else told


@known_fault("`$/cancel_request`", backends=LOOPS, seconds=SECONDS)
async def cancel_request(way: Way) -> str | None:
    """Cancel one request by its id."""
    agent = Agent(forever)
    async with served(way, agent) as (task, peer):
        peer.prompt(7)
        await agent.begun.wait()
        peer.send({"method": "$/cancel_request", "params": {"requestId": 7}})
        answer = None
        with anyio.move_on_after(0.5):
            answer = await peer.answer(7)
        await cancelled(task)
    if answer is None:
        return "ignored"
    return None if answer["error"]["code"] == REQUEST_CANCELLED else f"answer {answer}"


@known_fault("50 connections, each with a prompt that answers “cancelled”", seconds=5.0)
async def cycles(way: Way) -> str | None:
    """Come and go."""
    for _ in range(50):
        agent = Agent(converting)
        async with served(way, agent) as (task, peer):
            peer.prompt()
            await agent.begun.wait()
            task.cancel()
            await asyncio.wait([task], timeout=0.05 if way == "bare" else None)
    return None


@known_fault(
    "an error that says what is wrong, where there is no asyncio",
    backends=("trio",),
    seconds=SECONDS,
)
async def on_trio(way: Way) -> str | None:
    """Run it where there is no asyncio."""
    try:
        await runner(way)(object())
    except UsageError as error:
        return None if "asyncio" in str(error) else str(error)
    except RuntimeError:
        return "no running event loop"
    return None
