"""An A2A server in a process of its own, with or without the adapter, and who talks to it.

`python -m tests.adapters.a2a.server WAY FOLDER` serves an agent on a free port of loopback, and
tells that port. Tasks are files in FOLDER/tasks; what it has left when it ends is in FOLDER/lives.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import signal
import socket
import sys
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Mount, Route

from tests.adapters.a2a import kit

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable

METHODS = {
    "send": "SendMessage" if kit.FIRST else "message/send",
    "stream": "SendStreamingMessage" if kit.FIRST else "message/stream",
    "get": "GetTask" if kit.FIRST else "tasks/get",
    "cancel": "CancelTask" if kit.FIRST else "tasks/cancel",
}
_START_SECONDS = 30.0
_TURNS = 20
_WATCHER = "_shutdown_watcher"  # of sse-starlette: one for all, it looks every half second
_REST = "/rest" if kit.FIRST else "/rest/v1"


class Refused(Exception):  # noqa: N818 - what happened
    """The server has answered with an error."""


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
        return await self.ask(kit.sending(text, **options))

    async def ask(self, params: dict[str, Any], *, rest: bool = False) -> dict[str, Any]:
        """Send a message by either protocol; gives the task.

        *Raises*: `Refused` if the answer is an error.
        """
        if rest:
            return await self._post(f"{_REST}/message:send", rest_body(params))
        return _task_in(await self.call("send", params))

    async def cancel(self, task_id: str, *, rest: bool = False) -> dict[str, Any]:
        """Cancel a task by either protocol; gives the task.

        *Raises*: `Refused` if the answer is an error.
        """
        if rest:
            return await self._post(f"{_REST}/tasks/{task_id}:cancel", {})
        return _task_in(await self.call("cancel", {"id": task_id}))

    async def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        response = await self.client.post(path, json=body)
        if response.status_code != 200:
            raise Refused(response.text)
        return _task_in({"result": response.json()})

    def stream(self, text: str, **options: Any) -> AbstractAsyncContextManager[AsyncIterator[Any]]:
        """Send a message, and read the answers as they come; at the end, hang up."""
        return self.reading(kit.sending(text, **options))

    @asynccontextmanager
    async def reading(
        self, params: dict[str, Any], *, rest: bool = False
    ) -> AsyncIterator[AsyncIterator[Any]]:
        """Send a message by either protocol, and read the answers; at the end, hang up.

        *Raises*: `Refused` if the answer is an error.
        """
        path = f"{_REST}/message:stream" if rest else "/"
        body = rest_body(params) if rest else _body("stream", params)
        async with self._connected(path, body) as reader:
            head = await reader.readuntil(b"\r\n\r\n")
            if b"text/event-stream" not in head.lower():
                raise Refused((await reader.read()).decode())
            async with contextlib.aclosing(_events(reader)) as events:
                yield events

    async def hang_up(self, params: dict[str, Any], *, rest: bool = False) -> None:
        """Send a message, and leave without waiting for any answer."""
        path = f"{_REST}/message:send" if rest else "/"
        async with self._connected(path, rest_body(params) if rest else _body("send", params)):
            pass

    @asynccontextmanager
    async def _connected(self, path: str, body: Any) -> AsyncIterator[asyncio.StreamReader]:
        raw = json.dumps(body).encode()
        url = self.client.base_url
        reader, writer = await asyncio.open_connection(url.host, url.port)
        head = f"POST {path} HTTP/1.1\r\nhost: {url.host}\r\ncontent-type: application/json\r\n"
        head += "a2a-version: 1.0\r\nconnection: close\r\n"
        head += f"content-length: {len(raw)}\r\n\r\n"
        writer.write(head.encode() + raw)
        try:
            await writer.drain()
            yield reader
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


def _task_in(answer: dict[str, Any]) -> dict[str, Any]:
    if "error" in answer:
        raise Refused(answer["error"])
    result: dict[str, Any] = answer["result"]
    task: dict[str, Any] = result.get("task", result)
    return task


def rest_body(params: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters of a send as REST has them: in 0.3, it has its own words."""
    if kit.FIRST:
        return params
    message = params["message"]
    parts = [{"text": part["text"]} for part in message["parts"]]
    push = params["configuration"].get("pushNotificationConfig")
    configuration = {"blocking": params["configuration"]["blocking"]}
    configuration |= {"pushNotification": push} if push else {}
    changed = {key: message[key] for key in ("messageId", "taskId", "contextId") if key in message}
    changed |= {"role": "ROLE_USER", "content": parts}
    return {"message": changed, "configuration": configuration}


async def _events(reader: asyncio.StreamReader) -> AsyncGenerator[Any, None]:
    while line := await reader.readline():
        if line.startswith(b"data:"):
            event = json.loads(line[5:])
            if "error" in event:
                raise Refused(event["error"])
            yield event


@asynccontextmanager
async def serving(way: str, folder: Path, *options: str) -> AsyncIterator[Server]:
    """Start a server for the block; it is killed at the end, if it still runs."""
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
        """Start with nothing heard."""
        self.heard: list[dict[str, Any]] = []
        self.places: list[int] = []  # of what was heard: the how-manieth request it was
        self.headers: list[dict[str, str]] = []  # of the requests that were answered with 200
        self.tries: list[dict[str, str]] = []  # the headers of all requests
        self.statuses: list[int] = []  # to answer with, one after the other; then 200
        self.delay = 0.0
        self.gate: asyncio.Event | None = None
        self.arrived = asyncio.Condition()
        self.url = ""
        self.requests = 0
        self.extra = ""
        self.fate: Callable[[], tuple[float, int]] | None = (
            None  # a delay, and a status; 0: hang up
        )

    def states(self) -> list[str]:
        """Return the states that were told, in order."""
        return [kit.state_of(told) for told in map(told_in, self.heard) if "status" in told]

    async def until(self, *states: str, seconds: float = 2.0) -> bool:
        """Wait until one of some states was told; False if it was not in time."""
        try:
            async with asyncio.timeout(seconds), self.arrived:
                await self.arrived.wait_for(lambda: set(states) & set(self.states()))
        except TimeoutError:
            return False
        return True

    async def hears(self, count: int, seconds: float) -> bool:
        """Wait until it has heard so many; False if it has not in time."""
        try:
            async with asyncio.timeout(seconds), self.arrived:
                await self.arrived.wait_for(lambda: len(self.heard) >= count)
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
                if (
                    "/quiesce/receipts" in head[0]
                ):  # a node's question, not a push: it has no answer
                    writer.write(b"HTTP/1.1 200 X\r\ncontent-length: 0\r\n\r\n")
                    await writer.drain()
                    continue
                self.tries.append({key.lower(): value for key, value in raw.items()})
                self.requests += 1
                place = self.requests
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
                        self.places.append(place)
                        self.headers.append({key.lower(): value for key, value in raw.items()})
                    self.arrived.notify_all()
                if not status:
                    break
                writer.write(
                    f"HTTP/1.1 {status} X\r\n{self.extra}content-length: 0\r\n\r\n".encode()
                )
                await writer.drain()
        writer.close()


def told_in(payload: dict[str, Any]) -> dict[str, Any]:
    """Return what a push is about: a task, or a part of one."""
    for kind in ("task", "statusUpdate", "artifactUpdate"):
        if kind in payload:
            found: dict[str, Any] = payload[kind]
            return found
    return payload


@asynccontextmanager
async def webhook() -> AsyncIterator[Webhook]:
    """Start a receiver of pushes for the block."""
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
    """Return the routes of either SDK."""
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
    from a2a.server.apps import (  # noqa: PLC0415 - of this way, or version, alone
        A2ARESTFastAPIApplication,
        A2AStarletteApplication,
    )

    rest = A2ARESTFastAPIApplication(kit.card(), handler).build()
    routes: list[Any] = A2AStarletteApplication(kit.card(), handler).routes()
    return [*routes, Mount("/rest", app=rest)]


def control_routes(agent: kit.Agent) -> list[Any]:
    """Return the routes by which a test steers the agent."""

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


def wrapped(agent: kit.Agent, store: Any) -> Any:
    """Return an app whose lifespan has the handler, inside of `Quiesce`; a test may steer it in a drain."""
    from quiesce.integrations.a2a import QuiescentRequestHandler  # noqa: PLC0415 - of this way alone
    from quiesce.integrations.asgi import Quiesce  # noqa: PLC0415 - likewise

    more = {"agent_card": kit.card()} if kit.FIRST else {}
    handler = QuiescentRequestHandler(agent_executor=agent, task_store=store, **more)

    @asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[None]:
        async with handler:
            yield

    app = Quiesce(Starlette(routes=bare_routes(handler), lifespan=lifespan))
    control = Starlette(routes=control_routes(agent))

    async def front(scope: Any, receive: Any, send: Any) -> None:
        steers = scope.get("path", "").startswith(("/release/", "/waits/"))
        await (control if steers else app)(scope, receive, send)

    return front


def application(way: str, folder: Path, options: dict[str, str]) -> Any:
    """Return the app of a way."""
    agent = kit.Agent()
    store = kit.FileStore(folder / "tasks")
    if way == "wrapped":
        return wrapped(agent, store)
    if way == "bare":
        from a2a.server.tasks import InMemoryPushNotificationConfigStore  # noqa: PLC0415 - of this way, or version, alone

        configs = InMemoryPushNotificationConfigStore()
        client = httpx.AsyncClient(trust_env=False)
        handler = kit.bare_handler(
            agent, store, configs=configs, sender=kit.bare_sender(client, configs)
        )

        @asynccontextmanager
        async def lifespan(_: Any) -> AsyncIterator[None]:
            async with client:
                yield

        return Starlette(routes=[*control_routes(agent), *bare_routes(handler)], lifespan=lifespan)
    from quiesce.integrations.a2a import DurablePushSender, quiesce_app  # noqa: PLC0415 - of this way, or version, alone

    return quiesce_app(
        agent,
        card=kit.card(),
        store=store,
        outbox=DurablePushSender(folder / "outbox.db", allow_private=["127.0.0.0/8"]),
        grace=float(options.get("grace", "5")),
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
    began, ended = server.startup, server.shutdown
    life: dict[str, Any] = {}

    async def startup(sockets: Any = None) -> None:
        await began(sockets=sockets)
        with socket.socket(fileno=int(told)) as pipe:
            pipe.send(str(sock.getsockname()[1]).encode())
        life["start"] = kit.measured(os.getpid())

    async def shutdown(sockets: Any = None) -> None:
        await ended(sockets=sockets)
        for _ in range(_TURNS):  # what is closed by now ends in these
            await asyncio.sleep(0)
        gc.collect()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        names = [getattr(task.get_coro(), "__qualname__", "?") for task in left]
        life["tasks"] = sorted(name for name in names if name != _WATCHER)
        life["end"] = kit.measured(os.getpid())
        file = Path(folder) / "lives" / f"{os.getpid()}.json"
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps(life), encoding="utf-8")

    server.startup = startup  # to tell when it listens
    server.shutdown = shutdown  # and what it has left when it ends
    server.run(sockets=[sock])


if __name__ == "__main__":
    main()
