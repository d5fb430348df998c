"""The agents of the tests of ACP, and the peer that talks to them in plain JSON."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import socket
import tracemalloc
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import acp

from quiesce.integrations.acp import run_agent

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from tests.adapters.known_faults import Way

GRACE_SECONDS = 0.1
CLEANUP_SECONDS = 0.5
HANG_SECONDS = 12.0  # a conversation that takes longer has come to a halt
CYCLES = int(os.environ.get("QUIESCE_ACP_CYCLES", "100"))
FLAT_BYTES = 64 * 1024  # that many cycles may leave in all: caches of the interpreter
PROMPT = {"sessionId": "one", "prompt": [{"type": "text", "text": "Go."}]}


def runner(way: Way, **options: Any) -> Callable[..., Awaitable[Any]]:
    """Return the SDK's run_agent, or ours with short times."""
    if way == "bare":
        return acp.run_agent
    times = {"grace": GRACE_SECONDS, "cleanup": CLEANUP_SECONDS}
    return partial(run_agent, **{**times, **options})


class Agent:
    """An agent whose prompt is a function of the test's."""

    def __init__(self, prompt: Callable[[Agent], Awaitable[Any]] | None = None) -> None:
        """Answer prompts by calling `prompt` with the agent."""
        self._prompt = prompt
        self.client: Any = None
        self.begun = asyncio.Event()
        self.ended = asyncio.Event()

    def on_connect(self, conn: Any) -> None:
        """Keep the connection."""
        self.client = conn

    async def initialize(self, protocol_version: int, **_: Any) -> Any:
        """Introduce itself."""
        return acp.InitializeResponse(protocol_version=protocol_version)

    async def prompt(self, **_: Any) -> Any:
        """Do what the test wants; an answer is made of a string."""
        assert self._prompt is not None
        self.begun.set()
        try:
            return acp.PromptResponse(stop_reason=await self._prompt(self) or "end_turn")
        finally:
            self.ended.set()

    async def ext_method(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Return what came."""
        return {"method": method, **params}

    async def update(self, text: str = "…") -> None:
        """Send something to the client."""
        await self.client.ext_notification("update", {"text": text})


async def forever(_: Agent) -> None:
    """Wait for ever, as a prompt that takes its time."""
    await asyncio.Event().wait()


def waiting(released: asyncio.Event) -> Callable[[Agent], Awaitable[Any]]:
    """Return a prompt that ends when the test says so."""

    async def wait(_: Agent) -> None:
        await released.wait()

    return wait


class Peer:
    """The client's end of the wire."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Speak over these streams."""
        self.reader = reader
        self.writer = writer

    def send(self, *messages: dict[str, Any]) -> None:
        """Send messages in one piece."""
        lines = [json.dumps({"jsonrpc": "2.0", **message}) for message in messages]
        self.writer.write("".join(f"{line}\n" for line in lines).encode())

    def prompt(self, number: int = 1) -> None:
        """Send a prompt."""
        self.send({"id": number, "method": "session/prompt", "params": PROMPT})

    async def receive(self) -> dict[str, Any] | None:
        """Wait for a message; None at the end."""
        line = await self.reader.readline()
        return json.loads(line) if line else None

    async def answer(self, number: int = 1) -> dict[str, Any] | None:
        """Wait for the answer to a request, past other messages."""
        while (message := await self.receive()) is not None:
            if message.get("id") == number and "method" not in message:
                return message
        return None

    async def result(self, number: int = 1) -> Any:
        """Wait for the answer to a request, which is to be a good one."""
        answer = await self.answer(number)
        assert answer is not None
        return answer["result"]

    async def error(self, number: int = 1) -> int:
        """Wait for the answer to a request, which is to be an error; gives its code."""
        answer = await self.answer(number)
        assert answer is not None
        return int(answer["error"]["code"])


async def busy(seconds: float) -> None:
    """Wait, as a handler that has something to do for a while."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await asyncio.Event().wait()


async def stalled(sent: list[int]) -> None:
    """Wait until nothing more is sent."""
    before = -1
    while len(sent) != before:
        before = len(sent)
        await busy(0.02)


@asynccontextmanager
async def wire(small: int | None = None) -> AsyncIterator[tuple[Any, Any, Peer]]:
    """Return the agent's streams and the peer at their other end; close all at the end."""
    ends = socket.socketpair()
    for end in ends:
        if small is not None:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, small)
    reader, writer = await asyncio.open_connection(sock=ends[0])
    peer = Peer(*await asyncio.open_connection(sock=ends[1]))
    try:
        async with asyncio.timeout(HANG_SECONDS):  # uvloop would not hear pytest's alarm
            yield writer, reader, peer
    finally:
        for one in (writer, peer.writer):
            one.transport.abort()
            with suppress(Exception):
                await one.wait_closed()


class MemoryStream(asyncio.Transport):
    """The end of an agent's output that is in this process: what is written is kept."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        """Belong to a pair of streams, of which this is the output."""
        super().__init__()
        loop = asyncio.get_running_loop()
        self.protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        self.writer = asyncio.StreamWriter(self, self.protocol, reader, loop)
        self.written = bytearray()
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Keep it."""
        self.written += data

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Do nothing: there is no buffer."""

    def is_closing(self) -> bool:
        """Return whether it is closed."""
        return self.closed

    def close(self) -> None:
        """End."""
        if not self.closed:
            self.closed = True
            self.protocol.connection_lost(None)

    abort = close


def memory(*messages: dict[str, Any]) -> tuple[MemoryStream, asyncio.StreamReader]:
    """Return an agent's streams in memory, with all that it will ever receive."""
    reader = asyncio.StreamReader()
    for message in messages:
        reader.feed_data(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
    reader.feed_eof()
    return MemoryStream(reader), reader


@asynccontextmanager
async def pipes() -> AsyncIterator[tuple[Any, Any, Callable[[int], None]]]:
    """Return an agent's two pipes, of which nobody reads the one it writes; and a way to prompt."""
    loop = asyncio.get_running_loop()
    from_peer, to_agent = os.pipe()
    nobody, from_agent = os.pipe()
    reader = asyncio.StreamReader()
    reading, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(from_peer, "rb", 0)
    )
    writing, protocol = await loop.connect_write_pipe(
        asyncio.streams.FlowControlMixin, os.fdopen(from_agent, "wb", 0)
    )
    writer = asyncio.StreamWriter(writing, protocol, None, loop)
    os.close(nobody)

    def prompt(number: int) -> None:
        message = {"id": number, "method": "session/prompt", "params": PROMPT}
        os.write(to_agent, json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    try:
        yield writer, reader, prompt
    finally:
        os.close(to_agent)
        reading.close()
        with suppress(AttributeError):  # of one that has ended by itself
            writing.abort()
        await asyncio.sleep(0)


@asynccontextmanager
async def served(
    way: Way, agent: Any, *, small: int | None = None, **options: Any
) -> AsyncIterator[tuple[asyncio.Task[Any], Peer]]:
    """Run an agent in a task, as a server does, with a peer."""
    async with wire(small) as (writer, reader, peer):
        task = asyncio.ensure_future(runner(way, **options)(agent, writer, reader))
        yield task, peer


quick = partial(served, "quiesce")
run: Any = run_agent  # the tests' agents have only what they need


async def cancelled(task: asyncio.Task[Any]) -> str | None:
    """Cancel a task, wait for its end, and say if it has kept that to itself."""
    task.cancel()
    await asyncio.wait([task])
    if task.cancelled():
        return None
    if task.exception() is not None:
        return f"raises {type(task.exception()).__name__}"
    return "cancellation swallowed"


def _count_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


async def stays_flat(cycle: Callable[[], Awaitable[None]]) -> None:
    """Do something many times: tasks, files and memory must be what they were."""
    for _ in range(20):
        await cycle()
    tasks, files = len(asyncio.all_tasks()), _count_files()
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(CYCLES):
            await cycle()
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert len(asyncio.all_tasks()) == tasks
    assert _count_files() == files
    assert grown < FLAT_BYTES, f"{grown} bytes more after {CYCLES} times"
