"""What the tests of A2A in the mesh share: agents behind real sockets, and clients of the SDK."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import time
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import uvicorn
from a2a.client import ClientConfig
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse

from quiesce.integrations.a2a import declare_cascades, quiesce_app, quiesce_client
from quiesce.mesh import Node, Patience
from quiesce.mesh.protocol import codec
from tests.adapters.a2a import kit

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

QUICK = Patience(retry_first=0.02, retry_most=0.1, ask_in_doubt=0.05, ask_every=0.5, give_up=5.0)
WATCHER = "task:_shutdown_watcher"  # of sse-starlette: one for all, it looks every half second
VERSION = {"A2A-Version": "1.0"} if kit.FIRST else {}
JSON = {"Content-Type": "application/json"}
# The SDK logs what these tests do to it on purpose. Each module of cases is run in a process of its own.
logging.getLogger("a2a").setLevel(logging.CRITICAL)
MARKS = [
    pytest.mark.backends("asyncio"),
    pytest.mark.real_time,
    pytest.mark.quiesce(allow=[*kit.LEFT_TO_THE_COLLECTOR, WATCHER]),
    pytest.mark.filterwarnings("ignore:'HTTP_4"),  # the SDK's own, of 0.3
]
SOON = 0.05  # seconds after which a cascade that is open is not known to have settled


class Worker(kit.Agent):
    """An agent that also leaves work behind, and hands it to others.

    `leave KEY`: a task that waits for the key. `hand NAME TEXT`: a message to another agent, without
    waiting for its task; an underscore is a blank, and two are one.
    """

    def __init__(self) -> None:
        """Start without a node, and without other agents."""
        super().__init__()
        self.node: Node | None = None
        self.others: dict[str, str] = {}
        self.left: list[asyncio.Task[None]] = []
        self.heard: list[Any] = []
        self.task_ids: list[str] = []

    async def execute(self, context: Any, event_queue: Any) -> None:
        """Remember the message, and go through its words."""
        self.task_ids.append(context.task_id)
        self.heard.append(copied(context.message))
        await super().execute(context, event_queue)

    async def _do(self, word: str, words: list[str], updater: Any) -> None:
        if word == "leave":
            key = words.pop(0)
            self.left.append(asyncio.create_task(self._wait(key)))
        elif word == "hand":
            name, text = words.pop(0), words.pop(0)
            text = text.replace("__", ".").replace("_", " ").replace(".", "_")
            assert self.node is not None
            async with await quiesce_client(
                self.node, self.others[name], config=polling()
            ) as client:
                async for _ in client.send_message(outgoing(text)):
                    pass
        else:
            await super()._do(word, words, updater)

    async def _wait(self, key: str) -> None:
        self._event(self.reached, key).set()
        await self._event(self._keys, key).wait()


def copied(message: Any) -> Any:
    """Return a copy of a message as it is now."""
    if not kit.FIRST:
        return message.model_copy(deep=True)
    copy = type(message)()
    copy.CopyFrom(message)
    return copy


def outgoing(text: str, **options: Any) -> Any:
    """Return what a client of the SDK sends: a request in 1.x, a message in 0.3."""
    made = kit.request(text, **options)
    if kit.FIRST:
        made.ClearField("configuration")  # it is the client's
        return made
    return made.message


def task_of(event: Any) -> Any:
    """Return the task that an event of a client is about."""
    return event.task if kit.FIRST else event[0]


def metadata_of(message: Any) -> dict[str, Any]:
    """Return the metadata of a message."""
    found: dict[str, Any] = kit.to_dict(message).get("metadata", {})
    return found


def with_metadata(metadata: dict[str, Any]) -> Any:
    """Return a message with metadata."""
    data = kit.sending("complete")
    data["message"]["metadata"] = metadata
    return kit.parsed(data).message


async def state(place: Place, task_id: str) -> str:
    """Return the state of a task, as it is stored."""
    return kit.state_of(await place.handler._store.inner.get(task_id, kit.call_context()))


async def call(url: str, params: dict[str, Any]) -> dict[str, Any]:
    """Send a message by hand."""
    method = "SendMessage" if kit.FIRST else "message/send"
    body = {"jsonrpc": "2.0", "id": "1", "method": method, "params": params}
    async with httpx.AsyncClient(headers=VERSION) as http:
        found: dict[str, Any] = (await http.post(f"{url}/", json=body)).json()
        return found


def declared(url: str, receipts: str = "", grpc: int = 0) -> Any:
    """Return the card of an agent that says that it takes part; if so, one that talks by gRPC alone."""
    card = declare_cascades(kit.card(f"{url}/"), Node("a", url=receipts or url))
    if grpc:
        del card.supported_interfaces[:]
        interface = {"url": f"127.0.0.1:{grpc}", "protocol_binding": "GRPC"}
        card.supported_interfaces.add(protocol_version="1.0", **interface)
    return card


@dataclass(frozen=True)
class ByGrpc:
    """Where an agent is served by gRPC, and how its clients talk."""

    port: int
    client: Any


@asynccontextmanager
async def by_grpc(place: Place) -> AsyncIterator[ByGrpc]:
    """Serve an agent by gRPC as well."""
    import grpc  # noqa: PLC0415 - slow, and for this alone
    from a2a.server.request_handlers import GrpcHandler  # noqa: PLC0415 - the same
    from a2a.types import a2a_pb2_grpc  # noqa: PLC0415 - the same

    server = grpc.aio.server()
    a2a_pb2_grpc.add_A2AServiceServicer_to_server(GrpcHandler(place.handler), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield ByGrpc(
            port,
            polling(
                supported_protocol_bindings=["GRPC"],
                grpc_channel_factory=grpc.aio.insecure_channel,
            ),
        )
    finally:
        await server.stop(0)


def edge(node: Node) -> str:
    """Return the header of a message that somebody has handed to a node."""
    handed = codec.Handed(os.urandom(16), os.urandom(12), "0" * 12, int(time.time() + 60), node.url)
    return codec.request_header(handed)


def bare_app(url: str) -> tuple[Any, Worker]:
    """Return an app of the SDK alone, and its agent."""
    agent = Worker()
    handler = kit.bare_handler(agent)
    if kit.FIRST:
        from a2a.server.routes import (  # noqa: PLC0415 - not in 0.3
            create_agent_card_routes,
            create_jsonrpc_routes,
        )

        routes = [*create_agent_card_routes(kit.card(url)), *create_jsonrpc_routes(handler, "/")]
        return Starlette(routes=routes), agent
    from a2a.server.apps import A2AStarletteApplication  # noqa: PLC0415 - not in 1.x

    return A2AStarletteApplication(kit.card(url), handler).build(), agent


def failing(place: Place) -> Any:
    """Put something before an agent that answers every message with an error."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["path"] == "/":
            await PlainTextResponse("no", 500)(scope, receive, send)
            return
        await place.app(scope, receive, send)

    return app


def polling(**options: Any) -> Any:
    """Return a configuration with which a send returns at once."""
    return ClientConfig(streaming=False, polling=True, **options)


def blocking(**options: Any) -> Any:
    """Return a configuration with which a send returns when its task has ended."""
    return ClientConfig(streaming=False, **options)


class Place:
    """An agent, its node and where it is served."""

    def __init__(self, name: str, url: str, node: Node, agent: Worker, app: Any) -> None:
        """Put them together."""
        self.name, self.url, self.node, self.agent, self.app = name, url, node, agent, app

    @property
    def handler(self) -> Any:
        """The handler of the A2A server."""
        return self.app.state.a2a


class Ending:
    """A server that is told to end by a signal, in the midst of a test."""

    server: Any
    running: asyncio.Task[None]

    def handle(self, *_: Any) -> None:
        """Do what uvicorn does."""
        self.server.should_exit = True

    def by_signal(self) -> None:
        """Send the signal."""
        os.kill(os.getpid(), signal.SIGTERM)

    async def ended(self) -> None:
        """Wait for the server's end."""
        await asyncio.shield(self.running)


@contextlib.contextmanager
def told_by_signal() -> Iterator[Ending]:
    """Let SIGTERM end a server during the block."""
    ending = Ending()
    before = signal.signal(signal.SIGTERM, ending.handle)
    try:
        yield ending
    finally:
        signal.signal(signal.SIGTERM, before)


class Town:
    """Agents that know each other, each behind a socket of its own."""

    def __init__(self, folder: Path, stack: AsyncExitStack) -> None:
        """Start without agents."""
        self._folder = folder
        self._stack = stack
        self.places: dict[str, Place] = {}
        self.urls: dict[str, str] = {}
        self.peers: list[str] = []
        self._sockets: dict[str, socket.socket] = {}

    def plan(self, *names: str, port: int = 0) -> None:
        """Choose where agents will be, before any of them is started."""
        for name in names:
            if name not in self.urls:
                sock = self._sockets[name] = socket.create_server(("127.0.0.1", port))
                self.urls[name] = f"http://127.0.0.1:{sock.getsockname()[1]}"

    async def build(
        self,
        name: str,
        around: Callable[[Place], Any] | None = None,
        ending: Ending | None = None,
        *,
        also_old: bool = False,
        is_open: bool = False,
        **options: Any,
    ) -> Place:
        """Serve an agent that takes part; its node may be open before."""
        self.plan(name)
        url = self.urls[name]
        node = Node(
            name, url=url, store=self._folder / f"{name}.journal", peers=[*self.urls.values(), *self.peers],
            patience=QUICK,
        )  # fmt: skip
        agent = Worker()
        agent.node, agent.others = node, self.urls
        card = kit.card(f"{url}/")
        if also_old:
            old = {"protocol_binding": "JSONRPC", "protocol_version": "0.3"}
            card.supported_interfaces.add(url=f"{url}/", **old)
        app = quiesce_app(
            agent, card=card, node=node, cleanup=1, rest="/rest",
            **{"grace": 2, "hold_signal": False, **options},
        )  # fmt: skip
        place = self.places[name] = Place(name, url, node, agent, app)
        if is_open:
            await self._stack.enter_async_context(node)
        await self.serve(name, around(place) if around else app, ending)
        return place

    def close(self) -> None:
        """Let go of the sockets."""
        for sock in self._sockets.values():
            sock.close()

    async def serve(self, name: str, app: Any, ending: Ending | None = None) -> str:
        """Serve any app."""
        self.plan(name)
        await self._stack.enter_async_context(serving(app, self._sockets[name], ending))
        return self.urls[name]


@asynccontextmanager
async def town(folder: Path) -> AsyncIterator[Town]:
    """Open a town of agents for the block; at the end, each is shut down as its server does it."""
    async with AsyncExitStack() as stack:
        built = Town(folder, stack)
        stack.callback(built.close)
        try:
            yield built
        finally:
            for place in built.places.values():
                for task in place.agent.left:
                    task.cancel()


@asynccontextmanager
async def serving(
    app: Any, sock: socket.socket, ending: Ending | None = None
) -> AsyncIterator[None]:
    """Serve an app on a socket."""
    limit = 2 if ending is None else None
    config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=limit)
    server = uvicorn.Server(config)
    listening = asyncio.get_running_loop().create_future()
    begin = server.startup

    async def startup(sockets: Any = None) -> None:
        await begin(sockets=sockets)
        listening.set_result(None)

    server.startup = startup
    running = asyncio.create_task(server._serve([sock]))  # `serve` would take the signals as well
    if ending is not None:
        ending.server, ending.running = server, running
    try:
        await asyncio.wait({running, listening}, return_when=asyncio.FIRST_COMPLETED)
        assert listening.done(), "the server did not start"
        yield
    finally:
        server.should_exit = True
        await running


@asynccontextmanager
async def script(**options: Any) -> AsyncIterator[Node]:
    """Open the node of a program that no agent can reach."""
    async with Node("script", patience=QUICK, **options) as node:
        yield node


@asynccontextmanager
async def one(folder: Path, config: Any) -> AsyncIterator[tuple[Place, Node, Any]]:
    """Open one agent that takes part, a program that no agent can reach, and its client."""
    async with town(folder) as built, script() as node:
        place = await built.build("a")
        async with await quiesce_client(node, place.url, config=config) as client:
            yield place, node, client


async def send(client: Any, text: str, **options: Any) -> list[Any]:
    """Send a message, and give all that comes of it."""
    return await all_of(client, outgoing(text, **options))


async def all_of(client: Any, request: Any) -> list[Any]:
    """Send what a client of the SDK sends, and give all that comes of it."""
    return [event async for event in client.send_message(request)]


async def sent(client: Any, text: str) -> None:
    """Send a message, whatever comes of it."""
    with contextlib.suppress(Exception):
        await send(client, text)


class Dropping(httpx.AsyncHTTPTransport):  # type: ignore[misc]  # no types here
    """A way to an agent on which headers get lost that are not known there."""

    def __init__(self) -> None:
        """Start with nothing lost."""
        super().__init__()
        self.bodies: list[bytes] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Pass on a request, and its answer."""
        request.headers.pop("Cascade", None)
        self.bodies.append(request.content if hasattr(request, "_content") else b"")
        response = await super().handle_async_request(request)
        response.headers.pop("Cascade-Receipt", None)
        return response
