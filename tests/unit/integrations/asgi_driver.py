"""The server's side of ASGI, by hand: calls the app as servers do, and keeps what it sends."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel

from quiesce.integrations.asgi import Quiesce

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

SHORT = 0.1  # real, on uvloop
EVENTS = [(b"content-type", b"text/event-stream")]


class Lifespan:
    """A server's view of the lifespan."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._asked = 0
        self._shutdown = anyio.Event()
        self.sent: list[str] = []
        self.started = anyio.Event()
        self.state: dict[str, Any] = {}

    async def run(self) -> None:
        """Call the app."""
        scope = {"type": "lifespan", "asgi": {"version": "3.0"}, "state": self.state}
        try:
            await self._app(scope, self._receive, self._send)
        finally:
            self.started.set()

    async def _receive(self) -> dict[str, Any]:
        self._asked += 1
        if self._asked == 1:
            return {"type": "lifespan.startup"}
        await self._shutdown.wait()
        return {"type": "lifespan.shutdown"}

    async def _send(self, message: Any) -> None:
        await anyio.lowlevel.checkpoint()
        self.sent.append(message["type"].removeprefix("lifespan."))
        self.started.set()

    def shut_down(self) -> None:
        """Send the app the shutdown."""
        self._shutdown.set()


@asynccontextmanager
async def living(app: Any) -> AsyncIterator[Lifespan]:
    """Run an app for the length of a block, and shut it down in the end."""
    life = Lifespan(app)
    async with anyio.create_task_group() as group:
        group.start_soon(life.run)
        await life.started.wait()
        yield life
        life.shut_down()


class Call:
    """One request or WebSocket, from the server's side."""

    def __init__(
        self, app: Any, path: str = "/", kind: str = "http", method: str = "GET", **more: Any
    ) -> None:
        self._app = app
        self.scope: dict[str, Any] = {
            "type": kind,
            "http_version": "1.1",
            "path": path,
            "query_string": b"",
            "headers": [],
            **({"method": method} if kind == "http" else {}),
            **more,
        }
        self._to_app, self._from_client = anyio.create_memory_object_stream[Any](100)
        self._to_app.send_nowait(
            {"type": "websocket.connect"} if kind == "websocket" else {"type": "http.request"}
        )
        self.sent: list[Any] = []
        self.answering = anyio.Event()
        self.error: BaseException | None = None
        self.over = anyio.Event()

    async def run(self) -> None:
        """Call the app; keeps what it raises."""
        try:
            await self._app(self.scope, self.receive, self.send)
        except Exception as error:
            self.error = error
        finally:
            self._to_app.close()
            self._from_client.close()
            self.over.set()

    async def receive(self) -> Any:
        """Return what the client has sent."""
        return await self._from_client.receive()

    async def send(self, message: Any) -> None:
        """Keep what the app sends."""
        await anyio.lowlevel.checkpoint()
        if "headers" in message:
            message = {**message, "headers": list(message["headers"])}  # read, as servers do
        self.sent.append(message)
        self.answering.set()

    def say(self, text: str) -> None:
        """Let the client say something."""
        self._to_app.send_nowait({"type": "websocket.receive", "text": text})

    def hang_up(self) -> None:
        """Let the client of a WebSocket leave."""
        self._to_app.send_nowait({"type": "websocket.disconnect", "code": 1000})

    @property
    def status(self) -> int | None:
        """The status of the response, if one has begun."""
        return next((message["status"] for message in self.sent if "status" in message), None)

    @property
    def headers(self) -> dict[bytes, bytes]:
        """The headers of the response."""
        return dict(next(message["headers"] for message in self.sent if "status" in message))

    @property
    def body(self) -> bytes:
        """The body, as far as it was sent."""
        return b"".join(message.get("body", b"") for message in self.sent)

    @property
    def complete(self) -> bool:
        """Whether the response was ended."""
        bodies = [message for message in self.sent if message["type"].endswith("response.body")]
        return bool(bodies) and not bodies[-1].get("more_body", False)

    @property
    def close_code(self) -> int | None:
        """The code that a WebSocket was closed with."""
        return next((m["code"] for m in self.sent if m["type"] == "websocket.close"), None)


async def ask(app: Any, path: str = "/", **options: Any) -> Call:
    """Make a call, and wait for its end."""
    call = Call(app, path, **options)
    await call.run()
    return call


async def respond(send: Any, body: bytes = b"fine", status: int = 200, headers: Any = ()) -> None:
    """Answer a request, as an app does."""
    await send({"type": "http.response.start", "status": status, "headers": list(headers)})
    await send({"type": "http.response.body", "body": body})


async def begin_events(send: Any, headers: Any = EVENTS) -> None:
    """Begin a stream of events."""
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"data: 1\n\n", "more_body": True})


def lost(app: Quiesce) -> dict[str, list[str]]:
    """Name what an app has lost, by how."""
    report = app.report
    assert report is not None
    words = ("failed", "cancelled", "undelivered", "stuck")
    found = {word: [item.name for item in getattr(report, word)] for word in words}
    return {word: names for word, names in found.items() if names}


def wrapped(handler: Any, **options: Any) -> Quiesce:
    """Wrap an app that has no lifespan."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            raise NotImplementedError
        await handler(scope, receive, send)

    return Quiesce(app, **{"grace": SHORT, "hold_signal": False, **options})


async def plain(scope: Any, receive: Any, send: Any) -> None:
    """Answer at once."""
    await respond(send, scope["path"].encode())


async def forever(scope: Any, receive: Any, send: Any) -> None:
    """Never answer."""
    await anyio.sleep_forever()


async def events(scope: Any, receive: Any, send: Any) -> None:
    """Stream events without an end."""
    await begin_events(send)
    await anyio.sleep_forever()


async def chat(scope: Any, receive: Any, send: Any) -> None:
    """Accept a WebSocket, and wait for the client to leave."""
    assert (await receive())["type"] == "websocket.connect"
    await send({"type": "websocket.accept"})
    while (message := await receive())["type"] != "websocket.disconnect":
        await send({"type": "websocket.send", "text": message["text"]})
