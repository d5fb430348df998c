"""An A2A server in a process of its own, with or without the adapter, and who talks to it.

`python -m tests.adapters.a2a_server WAY FOLDER` serves an agent on a free port of loopback, and
writes that port to FOLDER/port. Tasks are files in FOLDER/tasks.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

from tests.adapters import a2a_kit as kit

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable

METHODS = {
    "send": "SendMessage" if kit.FIRST else "message/send",
    "stream": "SendStreamingMessage" if kit.FIRST else "message/stream",
    "get": "GetTask" if kit.FIRST else "tasks/get",
    "cancel": "CancelTask" if kit.FIRST else "tasks/cancel",
}
_START_SECONDS = 15.0


class Server:
    """A server process, as its client sees it."""

    def __init__(self, process: Any, folder: Path, client: httpx.AsyncClient) -> None:
        """Talk to a process."""
        self.process = process
        self.folder = folder
        self.client = client
        self.store = kit.FileStore(folder / "tasks")

    async def call(self, method: str, params: Any) -> dict[str, Any]:
        """Make a JSON-RPC call."""
        response = await self.client.post("/", json=_body(method, params))
        answer: dict[str, Any] = response.json()
        return answer

    async def send(self, text: str, **options: Any) -> dict[str, Any]:
        """Send a message; gives the task."""
        answer = await self.call("send", kit.sending(text, **options))
        result: dict[str, Any] = answer["result"]
        task: dict[str, Any] = result.get("task", result)
        return task

    @asynccontextmanager
    async def stream(self, text: str, **options: Any) -> AsyncIterator[AsyncIterator[Any]]:
        """Send a message, and read the answers as they come; at the end, hang up."""
        body = json.dumps(_body("stream", kit.sending(text, **options))).encode()
        url = self.client.base_url
        reader, writer = await asyncio.open_connection(url.host, url.port)
        head = f"POST / HTTP/1.1\r\nhost: {url.host}\r\ncontent-type: application/json\r\n"
        head += f"a2a-version: 1.0\r\ncontent-length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        try:
            async with contextlib.aclosing(_events(reader)) as events:
                yield events
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def release(self, key: str) -> None:
        """Let the agent go on."""
        await self.client.post(f"/release/{key}")

    async def waits(self, key: str) -> None:
        """Wait until the agent waits for a key."""
        await self.client.post(f"/waits/{key}")

    async def ended(self) -> int:
        """Wait until the process has ended."""
        code: int = await self.process.wait()
        return code

    async def stop(self, sig: int = signal.SIGTERM) -> int:
        """End the process by a signal."""
        if self.process.returncode is None:
            self.process.send_signal(sig)
        return await self.ended()


def _body(method: str, params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": METHODS[method], "params": params}


async def _events(reader: asyncio.StreamReader) -> AsyncGenerator[Any, None]:
    while line := await reader.readline():
        if line.startswith(b"data:"):
            yield json.loads(line[5:])


@asynccontextmanager
async def serving(way: str, folder: Path, *options: str) -> AsyncIterator[Server]:
    """Have a server; it is killed at the end, if it still runs."""
    (folder / "tasks").mkdir(parents=True, exist_ok=True)
    reader, writer = socket.socketpair()
    with reader, writer:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", __name__, way, str(folder), str(writer.fileno()), *options,
            pass_fds=[writer.fileno()], stdout=asyncio.subprocess.DEVNULL,
            stderr=None if os.environ.get("A2A_NOISY") else asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        writer.close()
        reader.setblocking(False)  # noqa: FBT003 - a setter
        loop = asyncio.get_running_loop()
        port = int(await asyncio.wait_for(loop.sock_recv(reader, 16), _START_SECONDS))
    try:
        async with httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{port}",
            headers={"A2A-Version": "1.0"} if kit.FIRST else {},
            timeout=30,
            trust_env=False,
        ) as client:
            yield Server(process, folder, client)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


class Webhook:
    """Who is told by pushes: an HTTP server on loopback that remembers them."""

    def __init__(self) -> None:
        """Have heard nothing."""
        self.heard: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.statuses: list[int] = []  # to answer with, one after the other; then 200
        self.delay = 0.0
        self.gate: asyncio.Event | None = None
        self.arrived = asyncio.Condition()
        self.url = ""
        self.requests = 0
        self.extra = ""
        self.fate: Callable[[], tuple[float, int]] | None = None  # a delay, and a status

    def states(self) -> list[str]:
        """Give the states that were told, in order."""
        return [kit.state_of(told) for told in map(told_in, self.heard) if "status" in told]

    async def until(self, *states: str, seconds: float = 2.0) -> bool:
        """Wait until one of some states was told; False if it was not in time."""
        try:
            async with asyncio.timeout(seconds), self.arrived:
                await self.arrived.wait_for(lambda: set(states) & set(self.states()))
        except TimeoutError:
            return False
        return True

    async def asked(self, times: int) -> None:
        """Wait until it was asked so often, whatever it has answered."""
        async with asyncio.timeout(10), self.arrived:
            await self.arrived.wait_for(lambda: self.requests >= times)

    async def serve(self, reader: Any, writer: Any) -> None:
        """Hear one connection."""
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                headers = dict(line.lower().split(": ", 1) for line in head[1:] if ": " in line)
                raw = dict(line.split(": ", 1) for line in head[1:] if ": " in line)
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                self.requests += 1
                async with self.arrived:
                    self.arrived.notify_all()
                if self.gate is not None:
                    await self.gate.wait()
                if self.delay:
                    await asyncio.sleep(self.delay)
                status = self.statuses.pop(0) if self.statuses else 200
                if self.fate is not None:
                    delay, status = self.fate()
                    await asyncio.sleep(delay)
                async with self.arrived:
                    if status == 200:
                        self.heard.append(json.loads(body))
                        self.headers.append({key.lower(): value for key, value in raw.items()})
                    self.arrived.notify_all()
                writer.write(
                    f"HTTP/1.1 {status} X\r\n{self.extra}content-length: 0\r\n\r\n".encode()
                )
                await writer.drain()
        writer.close()


def told_in(payload: dict[str, Any]) -> dict[str, Any]:
    """Give what a push is about: a task, or a part of one."""
    for kind in ("task", "statusUpdate", "artifactUpdate"):
        if kind in payload:
            found: dict[str, Any] = payload[kind]
            return found
    return payload


@asynccontextmanager
async def webhook() -> AsyncIterator[Webhook]:
    """Have a receiver of pushes."""
    hook = Webhook()
    tasks: set[Any] = set()

    async def serve(reader: Any, writer: Any) -> None:
        tasks.add(asyncio.current_task())
        try:
            await hook.serve(reader, writer)
        except asyncio.CancelledError:  # by the end; asyncio 3.11 would complain of it
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    hook.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/hook"
    try:
        yield hook
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


# The server's own side.


def bare_routes(handler: Any) -> list[Any]:
    """Give the routes of either SDK."""
    if kit.FIRST:
        from a2a.server.routes import (  # noqa: PLC0415 - of this way, or version, alone
            create_agent_card_routes,
            create_jsonrpc_routes,
            create_rest_routes,
        )

        return [
            *create_agent_card_routes(kit.card()),
            *create_jsonrpc_routes(handler, "/"),
            *create_rest_routes(handler, path_prefix="/rest"),
        ]
    from a2a.server.apps import A2AStarletteApplication  # noqa: PLC0415 - of this way, or version, alone

    routes: list[Any] = A2AStarletteApplication(kit.card(), handler).routes()
    return routes


def control_routes(agent: kit.Agent) -> list[Any]:
    """Give the routes by which a test steers the agent."""

    async def release(request: Any) -> JSONResponse:
        agent.release(request.path_params["key"])
        return JSONResponse({})

    async def waits(request: Any) -> JSONResponse:
        await agent.waits(request.path_params["key"])
        return JSONResponse({})

    async def tasks(request: Any) -> JSONResponse:
        del request
        return JSONResponse({"tasks": len(asyncio.all_tasks())})

    return [
        Route("/release/{key}", release, methods=["POST"]),
        Route("/waits/{key}", waits, methods=["POST"]),
        Route("/tasks-alive", tasks, methods=["GET"]),
    ]


def application(way: str, folder: Path, options: dict[str, str]) -> Any:
    """Give the app of a way."""
    agent = kit.Agent()
    store = kit.FileStore(folder / "tasks")
    if way == "bare":
        from a2a.server.tasks import InMemoryPushNotificationConfigStore  # noqa: PLC0415 - of this way, or version, alone

        configs = InMemoryPushNotificationConfigStore()
        sender = kit.bare_sender(httpx.AsyncClient(trust_env=False), configs)
        handler = kit.bare_handler(agent, store, configs=configs, sender=sender)
        return Starlette(routes=[*control_routes(agent), *bare_routes(handler)])
    from quiesce.integrations.a2a import DurablePushSender, quiesce_app  # noqa: PLC0415 - of this way, or version, alone

    return quiesce_app(
        agent,
        card=kit.card(),
        store=store,
        outbox=DurablePushSender(folder / "outbox.db", allow_private=["127.0.0.0/8"]),
        drain=float(options.get("drain", "5")),
        cleanup=float(options.get("cleanup", "1")),
        routes=control_routes(agent),
        rest="/rest",
    )


def main() -> None:
    """Serve until a signal."""
    way, folder, told, *rest = sys.argv[1:]
    options = dict(part.split("=") for part in rest)
    graceful = options.pop("graceful", None)
    app = application(way, Path(folder), options)
    sock = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        app, log_level="info", timeout_graceful_shutdown=None if graceful is None else int(graceful)
    )
    server = uvicorn.Server(config)
    began = server.startup

    async def startup(sockets: Any = None) -> None:
        await began(sockets=sockets)
        with socket.socket(fileno=int(told)) as pipe:
            pipe.send(str(sock.getsockname()[1]).encode())

    server.startup = startup  # to tell when it listens
    server.run(sockets=[sock])


if __name__ == "__main__":
    main()
