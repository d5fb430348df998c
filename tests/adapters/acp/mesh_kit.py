"""A client and an agent of ACP that take part in a mesh, in one process, and either of them alone."""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import quiesce
from quiesce.integrations.acp import connect_to_agent, run_agent
from quiesce.mesh import Node, Patience
from quiesce.mesh.protocol import codec
from quiesce.mesh.transport.links import REQUEST_KEY, RESPONSE_KEY
from tests.adapters.acp.agents import PROMPT, Agent, Peer
from tests.adapters.acp.agents import wire as streams
from tests.adapters.acp.fake_agent import TEXT, Client, FakeAgent

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    Prompt = Callable[[Agent], Awaitable[Any]]

TIMES: dict[str, Any] = {"grace": 0.1, "cleanup": 1.0}
OFFER = {"agentCapabilities": {"_meta": {REQUEST_KEY: {"version": 0}}}, "protocolVersion": 1}


async def nothing(_: Agent) -> None:
    """Return at once, as a prompt that has nothing to do."""


def leaving(gate: asyncio.Event) -> Callable[[Agent], Awaitable[None]]:
    """Return a prompt that ends, and leaves work until the test says so."""

    async def prompt(_: Agent) -> None:
        asyncio.get_running_loop().create_task(gate.wait())

    return prompt


@dataclass
class Pair:
    """Both ends, and their nodes."""

    editor: Node
    coder: Node
    agent: Agent
    connection: Any
    serving: asyncio.Task[Any]
    peer: Peer

    async def prompt(self, **meta: Any) -> Any:
        """Send a prompt from the client to its agent."""
        return await self.connection.prompt(prompt=TEXT, session_id="one", **meta)


@asynccontextmanager
async def pair(
    folder: Path, prompt: Prompt | Agent, editor: dict[str, Any] | None = None, **coder: Any
) -> AsyncIterator[Pair]:
    """Open a client, whose node is `editor`, and its agent, whose node is `coder`, both with journals."""
    options: Any = {"store": folder / "editor", **(editor or {})}
    coder = {"store": folder / "coder", **coder}
    async with (
        streams() as (writer, reader, peer),
        Node("coder", **coder) as below,
        Node("editor", **options) as above,
    ):
        agent: Any = prompt if isinstance(prompt, Agent) else Agent(prompt)
        serving = asyncio.create_task(run_agent(agent, writer, reader, node=below, **TIMES))
        connection: Any = connect_to_agent(Client(), peer.writer, peer.reader, node=above)
        try:
            await connection.initialize(protocol_version=1)
            yield Pair(above, below, agent, connection, serving, peer)
        finally:
            await connection.close()
            peer.writer.close()
            await serving


class LoneAgent(Agent):
    """An agent, and the scope around its session."""

    scope: quiesce.Scope


@asynccontextmanager
async def lone_agent(
    folder: Path, prompt: Prompt | LoneAgent, **coder: Any
) -> AsyncIterator[tuple[Peer, LoneAgent, Node]]:
    """Open an agent that takes part, and a client that the test plays."""
    async with (
        streams() as (writer, reader, peer),
        Node("coder", **{"store": folder / "coder", **coder}) as node,
    ):
        agent: Any = prompt if isinstance(prompt, LoneAgent) else LoneAgent(prompt)
        agent.scope = await quiesce.Scope.open("around")
        running = run_agent(agent, writer, reader, node=node, scope=agent.scope, **TIMES)
        serving = asyncio.create_task(running)
        try:
            yield peer, agent, node
        finally:
            peer.writer.close()
            await serving
            await agent.scope.aclose()


@asynccontextmanager
async def lone_client(
    folder: Path,
    greeting: dict[str, Any] | None,
    *,
    patience: Patience | None = None,
    **options: Any,
) -> AsyncIterator[tuple[FakeAgent, Any, Node]]:
    """Open a client that takes part, and an agent that the test plays; without a greeting, they shake no hands."""
    async with (
        asyncio.timeout(10),
        FakeAgent() as agent,
        Node("editor", store=folder / "editor", patience=patience) as node,
    ):
        connection: Any = connect_to_agent(
            Client(), agent.writer, agent.reader, node=node, **options
        )
        try:
            if greeting is not None:
                asking = asyncio.create_task(connection.initialize(protocol_version=1))
                await agent.say(id=(await agent.hear())["id"], result=greeting)
                await asking
            yield agent, connection, node
        finally:
            await connection.close()


class Told:
    """A message as a sender makes it, by hand, and what it is told of it."""

    def __init__(self) -> None:
        """Make an edge of its own."""
        self.edge = os.urandom(12)
        handed = codec.Handed(os.urandom(16), self.edge, "0" * 12, int(time.time()) + 600)
        self.header = codec.request_header(handed)

    def prompt(self, peer: Peer, number: int = 1, header: object = None) -> None:
        """Send a prompt that hands it over."""
        meta = {REQUEST_KEY: self.header if header is None else header}
        params = {**PROMPT, "_meta": meta}
        peer.send({"id": number, "method": "session/prompt", "params": params})

    def ask(self, peer: Peer, number: int = 7, **more: Any) -> None:
        """Ask how it stands."""
        body = {"v": 0, "asks": [[self.edge.hex(), False]], **more}
        peer.send({"id": number, "method": "_quiesce/receipts", "params": body})

    def answer(self, message: dict[str, Any] | None) -> Any:
        """Read what an answer of the agent says of it; None: nothing."""
        assert message is not None
        found = message["result"] if "result" in message else message["error"].get("data")
        told = ((found or {}).get("_meta") or {}).get(RESPONSE_KEY)
        return None if told is None else codec.parse_response_header(told, self.edge).answer


class _End(asyncio.Transport):
    """One end of a wire that is in this process: what is written is at once at the other."""

    def __init__(self) -> None:
        """Make a reader of its own; there is no other end so far."""
        super().__init__()
        loop = asyncio.get_running_loop()
        self.reader = asyncio.StreamReader(loop=loop)
        self._protocol = asyncio.StreamReaderProtocol(self.reader, loop=loop)
        self.writer = asyncio.StreamWriter(self, self._protocol, self.reader, loop)
        self._closed = False

    def to(self, other: _End) -> None:
        """Set the other end."""
        self._other = other

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Feed the data to the reader of the other end."""
        if not self._other._closed and not self._closed:
            self._other.reader.feed_data(data)

    def is_closing(self) -> bool:
        """Return whether it is closed."""
        return self._closed

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Do nothing: there is no buffer."""

    def close(self) -> None:
        """Close this end, and let the other end see it."""
        if not self._closed:
            self._closed = True
            if not self._other._closed:
                self._other.reader.feed_eof()
            self._protocol.connection_lost(None)

    abort = close


def ends() -> tuple[_End, _End]:
    """Return both ends of a wire in this process."""
    one, other = _End(), _End()
    one.to(other)
    other.to(one)
    return one, other
