"""A client and a server of MCP that take part in a mesh, either of them alone or both."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import mcp

import quiesce
from quiesce.integrations.mcp import connect_stdio, take_part, versions
from quiesce.mesh import Node
from quiesce.mesh.protocol import codec
from quiesce.mesh.transport.links import REQUEST_KEY, RESPONSE_KEY
from tests.adapters.mcp.servers import Notes, notes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from quiesce.integrations.mcp import Session

PLAIN = Path(__file__).with_name("plain_mesh_server.py")
WITH_THE_SDK = Path(__file__).with_name("mesh_server.py")
QUICK: dict[str, Any] = {"exit_seconds": 1.0, "grace": 0.3}
CALL, ASK = "tools/call", "quiesce/receipts"


def real(*options: str) -> Any:
    """Return what starts the server that is written with the SDK."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return mcp.StdioServerParameters(
        command=sys.executable, args=[str(WITH_THE_SDK), *options], env=env
    )


def plain_server(*options: str) -> Any:
    """Return what starts the server without the SDK."""
    args = ["-I", "-S", str(PLAIN), *options]
    return mcp.StdioServerParameters(command=sys.executable, args=args, env=dict(os.environ))


@contextmanager
def listening(*options: str) -> Iterator[str]:
    """Run the real server over HTTP, and give its node's URL."""
    with running(*options) as (url, _):
        yield url


@contextmanager
def running(*options: str) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Run the real server over HTTP, and give its node's URL, and its process.

    The first option is its journal. What it writes to standard error is beside that, in a file that ends in `.errors`.
    """
    argv = [sys.executable, str(WITH_THE_SDK), *options, "--http"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    told = Path(options[0]).with_suffix(".errors")
    with (
        told.open("wb") as errors,
        subprocess.Popen(
            argv, stdout=subprocess.PIPE, stderr=errors, env=env, start_new_session=True
        ) as process,
    ):
        try:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{int(process.stdout.readline())}", process
        finally:
            process.kill()


class Gate:
    """What a tool of the real server waits for: `hold` and `wait` connect to its port."""

    def __init__(self, listener: socket.socket) -> None:
        """Listen."""
        self._listener = listener
        self._kept: list[socket.socket] = []
        self.port: int = listener.getsockname()[1]

    async def reached(self) -> None:
        """Wait until a tool waits."""
        self._kept.append((await anyio.to_thread.run_sync(self._listener.accept))[0])

    def open(self) -> None:
        """Let it go on."""
        for one in self._kept:
            with suppress(OSError):
                one.sendall(b".")
            one.close()
        self._kept.clear()


@contextmanager
def gate() -> Iterator[Gate]:
    """Make a gate, which is open at the end."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        made = Gate(listener)
        try:
            yield made
        finally:
            made.open()


_UNTIL_REFUSED = """
import sys, urllib.request
while True:
    try:
        urllib.request.urlopen(sys.argv[1])
    except urllib.request.HTTPError as error:
        if error.code == 503:
            break
"""


async def drained(url: str, process: subprocess.Popen[bytes]) -> None:
    """Send a server SIGTERM, and wait until it refuses requests. Another process asks: a request of a hop is a message."""
    process.terminate()
    await anyio.run_process([sys.executable, "-I", "-S", "-c", _UNTIL_REFUSED, f"{url}/nowhere"])


class Client:
    """A client that takes part, of the server without the SDK."""

    def __init__(self, node: Node, scope: quiesce.Scope, session: Session, seen: Notes) -> None:
        """Record what the client is made of."""
        self.node, self.scope, self.session, self.seen = node, scope, session, seen

    async def heard(self, method: str) -> dict[str, Any]:
        """Wait for the server to hear something; gives the last of its kind."""
        assert await self.seen.wait_for(f'"{method}"')
        lines = [line for line in self.seen.lines() if f'"{method}"' in line]
        found: dict[str, Any] = json.loads(lines[-1])
        return found

    def count(self, method: str) -> int:
        """Count what the server has heard so far."""
        return sum(f'"{method}"' in line for line in self.seen.lines())


@asynccontextmanager
async def client(folder: Path, *options: str, **more: Any) -> AsyncIterator[Client]:
    """Open a client that takes part, of a server without the SDK, for the block."""
    with notes() as seen:
        async with (
            Node("host", store=folder / "host") as node,
            quiesce.Scope("test") as scope,
        ):
            params = plain_server(*options, *seen.options)
            session = await connect_stdio(scope, params, node=node, **QUICK, **more)
            yield Client(node, scope, session, seen)
            await session.aclose()


class Server:
    """A server of the SDK's, in this process, and its client, whom the test plays."""

    def __init__(self, send: Any, receive: Any) -> None:
        """Speak over these streams."""
        self._send, self._receive = send, receive
        self._kept: dict[object, Any] = {}

    async def send(self, **message: Any) -> None:
        """Send a message."""
        text = json.dumps({"jsonrpc": "2.0", **message})
        await self._send.send(versions.parsed_message(text))

    async def answer(self, number: object) -> dict[str, Any]:
        """Wait for the answer to a request."""
        while number not in self._kept:
            item = json.loads(versions.written(await self._receive.receive()))
            self._kept[item.get("id")] = item
        found: dict[str, Any] = self._kept.pop(number)
        return found

    async def ask(self, method: str, number: object = 1, **params: Any) -> dict[str, Any]:
        """Send a request, and wait for its answer."""
        await self.send(id=number, method=method, params=params)
        return await self.answer(number)

    async def end(self, told: Told, answer: dict[str, Any]) -> str:
        """Return how a call has ended: its answer tells, or whoever is asked."""
        found = told.answer(answer)
        if found is not None and found.receipt is not None:
            return str(found.receipt.status)
        asked = await self.ask(ASK, "end", **told.question(wait=25))
        return str(asked["result"]["answers"][0][1]["s"])

    async def greet(self) -> dict[str, Any]:
        """Shake hands."""
        client = {"name": "test", "version": "1"}
        version = "2025-06-18"
        found = await self.ask(
            "initialize", "hi", protocolVersion=version, capabilities={}, clientInfo=client
        )
        await self.send(method="notifications/initialized")
        return found

    async def close(self) -> None:
        """Hang up."""
        await self._send.aclose()


@asynccontextmanager
async def served(made: Any, node: Node) -> AsyncIterator[Server]:
    """Run a server that takes part, in this process."""
    take_part(made, node)
    low = getattr(made, "_mcp_server", None) or getattr(made, "_lowlevel_server", made)
    to_server, read = anyio.create_memory_object_stream[Any](100)
    write, from_server = anyio.create_memory_object_stream[Any](100)
    async with to_server, read, write, from_server, anyio.create_task_group() as group:
        group.start_soon(low.run, read, write, low.create_initialization_options())
        found = Server(to_server, from_server)
        with anyio.fail_after(10):
            yield found
            await found.close()


@asynccontextmanager
async def greeted(folder: Path, made: Any) -> AsyncIterator[tuple[Node, Server]]:
    """Run a server whose node keeps a journal, and shake hands."""
    async with Node("tools", store=folder / "tools") as node, served(made, node) as there:
        await there.greet()
        yield node, there


class Told:
    """A message as a sender makes it, by hand, and what it is told of it."""

    def __init__(self) -> None:
        """Make an edge of its own."""
        self.edge = os.urandom(12)
        handed = codec.Handed(os.urandom(16), self.edge, "0" * 12, int(time.time()) + 600)
        self.header = codec.request_header(handed)

    def call(self, name: str, header: object = None, **given: Any) -> dict[str, Any]:
        """Return the parameters of a tool call that hands it over."""
        meta = {REQUEST_KEY: self.header if header is None else header}
        return {"name": name, "arguments": given, "_meta": meta}

    def question(self, **more: Any) -> dict[str, Any]:
        """Return the parameters of a call that asks how it stands."""
        return {"v": 0, "asks": [[self.edge.hex(), False]], **more}

    def answer(self, message: dict[str, Any]) -> Any:
        """Read what an answer of the server says of it; None: nothing."""
        found = message["result"] if "result" in message else message["error"].get("data")
        told = ((found or {}).get("_meta") or {}).get(RESPONSE_KEY)
        return None if told is None else codec.parse_response_header(told, self.edge).answer
