"""An agent of the Agent Client Protocol, stopped in mid-prompt: with the SDK alone, then with quiesce.

Needs the SDK: pip install '.[acp]'. Then: python examples/acp_agent.py
The client is in the same program, and speaks plain JSON; there is no account and no network.
"""

import asyncio
import json
import logging
import socket
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from importlib.metadata import version
from typing import Any

import quiesce

try:
    from quiesce.integrations.acp import run_agent
except ImportError as missing:
    sys.exit(str(missing))
import acp

PROMPT = {"sessionId": "one", "prompt": [{"type": "text", "text": "Write a novel."}]}


class Novelist:
    """An agent that takes its time, has a process, and answers “cancelled” when it is stopped."""

    def __init__(self) -> None:
        """Start without a prompt."""
        self.writing = asyncio.Event()
        self.finish = asyncio.Event()
        self.process: asyncio.subprocess.Process | None = None

    async def prompt(self, **_: object) -> acp.PromptResponse:
        """Write until told to stop."""
        self.process = await asyncio.create_subprocess_exec("sleep", "60")
        self.writing.set()
        try:
            await self.finish.wait()
        except asyncio.CancelledError:
            return acp.PromptResponse(stop_reason="cancelled")
        return acp.PromptResponse(stop_reason="end_turn")


class Client:
    """The other end: sends requests, and prints the answers."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Send and receive over these streams."""
        self.reader, self.writer = reader, writer

    def prompt(self, number: int) -> None:
        """Send a prompt."""
        request = {"id": number, "method": "session/prompt", "params": PROMPT}
        self.writer.write(json.dumps({"jsonrpc": "2.0", **request}).encode() + b"\n")

    async def show_answer(self) -> None:
        """Wait for an answer."""
        answer = json.loads(await self.reader.readline())
        what = answer.get("result") or answer["error"]["message"]
        print(f"    the client is told, of request {answer['id']}: {what}")


async def connect() -> tuple[asyncio.StreamWriter, asyncio.StreamReader, Client]:
    """Make the streams of an agent, and the client at their other end."""
    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=ours)
    return writer, reader, Client(*await asyncio.open_connection(sock=theirs))


async def stop_in_mid_prompt(run: Callable[..., Coroutine[Any, Any, object]]) -> None:
    """Cancel a running agent, and list what is left of it after a second."""
    writer, reader, client = await connect()
    agent = Novelist()
    before = asyncio.all_tasks()
    server = asyncio.create_task(run(agent, writer, reader))
    client.prompt(1)
    await agent.writing.wait()
    server.cancel()
    await asyncio.wait([server], timeout=1)
    left = asyncio.all_tasks() - before
    process = agent.process
    if process is None:
        raise RuntimeError
    print(f"    run_agent has ended: {server.done()}, with the cancellation: {server.cancelled()}")
    print(f"    tasks left: {sorted(task.get_name() for task in left)}")
    print(f"    its process is gone: {process.returncode is not None}")
    if process.returncode is None:
        process.kill()
    for task in left:
        task.cancel()
    if left:
        await asyncio.wait(left, timeout=0.1)
    for stream in (writer, client.writer):
        stream.close()


async def drain_it() -> None:
    """Stop an agent without losing the prompt that it is busy with."""
    writer, reader, client = await connect()
    agent = Novelist()
    async with quiesce.Scope("server") as scope:
        job = scope.spawn(run_agent, agent, writer, reader)  # type: ignore[arg-type]  # no novelist is complete
        client.prompt(1)
        await agent.writing.wait()
        for entry in scope.frontier().in_flight:
            if entry.kind == "request":
                print(f"    in flight: {entry.kind} {entry.name}, {dict(entry.details)}")
        asyncio.get_running_loop().call_later(0.3, agent.finish.set)
        draining = asyncio.create_task(scope.drain(grace=5))
        await scope.closing()
        client.prompt(2)
        await client.show_answer()
        await client.show_answer()
        await draining
        print(f"    {await job}")
    client.writer.close()


async def main() -> None:
    """Show all three ways."""
    logging.disable()  # both tell of the process that was left; the SDK alone of much more
    print(f"The SDK alone ({version('agent-client-protocol')}), cancelled in mid-prompt:")
    await stop_in_mid_prompt(acp.run_agent)
    print("quiesce's run_agent, cancelled in mid-prompt:")
    await stop_in_mid_prompt(run_agent)
    print("quiesce's run_agent, drained:")
    await drain_it()


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        asyncio.run(main())
