"""An A2A server in a process of its own, for the benchmarks, and a client that costs little.

The server is uvicorn with the SDK's own JSON-RPC routes, on loopback, in a child process that is forked
after all imports. The client writes ready-made requests to open sockets, and reads as little of the answers
as possible, so the benchmark measures the server.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import signal
import socket
import sys
import tempfile
import time
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import uvicorn
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.tasks import InMemoryPushNotificationConfigStore, InMemoryTaskStore
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

from benchmarks._harness import BARE, OURS
from quiesce.integrations.a2a import (
    DurablePushSender,
    MemoryOutbox,
    QuiescentRequestHandler,
    quiesce_app,
)
from quiesce.integrations.a2a.server.app import _routes as sdk_routes
from tests.adapters.a2a import kit
from tests.adapters.a2a.server import METHODS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

MEMORY = OURS
"""The adapter, with undelivered pushes in memory, like the SDK."""
DURABLE = "quiesce, on disk"
"""The adapter, with an outbox in a file, so that tasks and pushes outlive the process."""


def _made(way: str, folder: Path) -> dict[str, Any]:
    """Return the arguments of a handler: the same agent, card and stores for each way."""
    configs = InMemoryPushNotificationConfigStore()
    if way == BARE:
        sender = kit.bare_sender(httpx.AsyncClient(trust_env=False), configs)
    else:
        outbox = MemoryOutbox() if way == MEMORY else folder / "pushes.db"
        sender = DurablePushSender(outbox, allow_private=["127.0.0.0/8"])
    made = {
        "agent_executor": kit.Agent(),
        "task_store": InMemoryTaskStore(),
        "push_config_store": configs,
        "push_sender": sender,
    }
    return made | ({"agent_card": kit.card()} if kit.FIRST else {})


@asynccontextmanager
async def handling(way: str, folder: Path) -> AsyncIterator[Any]:
    """Open a handler of a way in this process."""
    logging.disable(logging.CRITICAL)
    if way != BARE:
        async with QuiescentRequestHandler(**_made(way, folder), grace=1.0) as handler:
            yield handler
        return
    handler = DefaultRequestHandler(**_made(way, folder))
    yield handler
    if hasattr(handler, "aclose"):
        await handler.aclose()


def application(way: str, folder: Path) -> Starlette:
    """Return the app of a way: the same routes, with the handler of this way."""
    routes = [Route("/cpu", _cpu)]
    made = _made(way, folder)
    if way == BARE:
        handler = DefaultRequestHandler(**made)
        return Starlette(routes=[*routes, *sdk_routes(handler, kit.card(), "/", None)])
    sender = made["push_sender"]
    app: Starlette = quiesce_app(
        made["agent_executor"], card=kit.card(), outbox=sender, grace=0.0, routes=routes
    )
    return app


async def _cpu(_: object) -> JSONResponse:
    """Return the processor time of this process so far, after a garbage collection."""
    gc.collect()
    return JSONResponse(time.process_time())


@contextmanager
def served(way: str, backend: str) -> Iterator[int]:
    """Start a server of a way for the block, and yield its port."""
    with tempfile.TemporaryDirectory(prefix="quiesce-bench-") as folder:
        # With the protocol named, which create_server() leaves out: only then asyncio turns off Nagle's
        # algorithm, and an answer in two pieces would wait 40 ms for the client's acknowledgement.
        listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listening.bind(("127.0.0.1", 0))
        listening.listen(256)
        child = os.fork()
        if child == 0:
            _serve(way, backend, Path(folder), listening)
        try:
            yield listening.getsockname()[1]
        finally:
            listening.close()
            os.kill(child, signal.SIGTERM)
            os.waitpid(child, 0)


def _serve(way: str, backend: str, folder: Path, listening: socket.socket) -> None:
    """Serve until a signal comes, and end the child process."""
    code = 1
    try:
        logging.disable(logging.CRITICAL)
        os.dup2(
            sys.stderr.fileno(), 1
        )  # stdout is for the results, so prints of the server go to stderr
        app = application(way, folder)
        config = uvicorn.Config(
            app, log_config=None, access_log=False, loop=backend, timeout_graceful_shutdown=1
        )
        uvicorn.Server(config).run(sockets=[listening])
        code = 0
    finally:
        os._exit(code)


def body(method: str, params: dict[str, Any]) -> bytes:
    """Return a JSON-RPC call of the SDK's version."""
    data = {"jsonrpc": "2.0", "id": 1, "method": METHODS[method], "params": params}
    return json.dumps(data).encode()


class Connection:
    """One connection to a server, kept open."""

    def __init__(self, port: int) -> None:
        """Record the port; `open` connects."""
        self._port = port
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter

    async def open(self) -> Connection:
        """Connect."""
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        return self

    async def close(self) -> None:
        """Close the connection."""
        self._writer.close()
        await self._writer.wait_closed()

    async def call(self, sent: bytes, *, streamed: bool = False) -> bytes:
        """Send a call; return the body of its answer."""
        head = "POST / HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
        head += f"a2a-version: 1.0\r\ncontent-length: {len(sent)}\r\n\r\n"
        return await self._ask(head.encode() + sent, streamed=streamed)

    async def cpu(self) -> float:
        """Return the processor time that the server has used."""
        return float(await self._ask(b"GET /cpu HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"))

    async def _ask(self, request: bytes, *, streamed: bool = False) -> bytes:
        self._writer.write(request)
        head = await self._reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            message = f"the server answers {head!r}"
            raise RuntimeError(message)
        if streamed:
            return await self._reader.readuntil(b"\r\n0\r\n\r\n")  # the last chunk, an empty one
        length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
        return await self._reader.readexactly(int(length))
