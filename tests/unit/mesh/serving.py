"""A server that is played by a test: one exchange with an ASGI app, and the life of one."""

from __future__ import annotations

from typing import Any

import anyio

from tests.stress import turns

START: dict[str, Any] = {
    "type": "http.response.start",
    "status": 200,
    "headers": [(b"x-own", b"1")],
}
BODY: dict[str, Any] = {"type": "http.response.body", "body": b"fine"}


class Exchange:
    """One request to an app, and what was sent."""

    def __init__(self, app: Any, method: str, path: str, **options: Any) -> None:
        """Describe it; `run` makes it."""
        self._app = app
        self.sent: list[Any] = []
        self.slow = False
        self.error: Exception | None = None
        headers = [(b"host", b"b"), *options.pop("headers", ())]
        self.parts: list[bytes | None] = options.pop("parts", [b""])
        self.scope = {
            "type": "http", "method": method, "path": path, "root_path": "", "headers": headers,
        } | options  # fmt: skip

    async def run(self) -> None:
        """Run the app, which answers the request."""
        await self._app(self.scope, self._receive, self._send)

    async def _receive(self) -> Any:
        if not self.parts:
            await anyio.sleep_forever()
        part = self.parts.pop(0)
        if part is None:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": part, "more_body": bool(self.parts)}

    async def _send(self, message: Any) -> None:
        if self.slow:
            await turns(8 if message["type"] == "http.response.start" else 1)
        if self.error is not None:
            raise self.error
        self.sent.append(message)

    @property
    def status(self) -> int:
        """The status of the response."""
        status: int = self.sent[0]["status"]
        return status

    @property
    def body(self) -> bytes:
        """The whole body, if it has been sent."""
        *parts, last = self.sent[1:]
        assert not last.get("more_body")
        return b"".join(part["body"] for part in (*parts, last))

    def header(self, name: bytes) -> str | None:
        """One line of the head of the response."""
        found = [value.decode() for key, value in self.sent[0]["headers"] if key == name]
        assert len(found) <= 1
        return found[0] if found else None

    @property
    def told(self) -> str | None:
        """What the response says of the message."""
        return self.header(b"cascade-receipt")


async def answers(scope: Any, receive: Any, send: Any) -> None:
    """Answer at once, in one piece."""
    assert scope["type"] == "http"
    await receive()
    await send(START)
    await send(BODY)


class Life:
    """The lifespan of an app, as a server has it."""

    def __init__(self, app: Any) -> None:
        """Not have begun."""
        self._app = app
        self._asked: list[str] = []
        self._news = anyio.Event()
        self.told: list[str] = []
        self.message = ""

    def ask(self, what: str) -> None:
        """Send the app the order to start up, or to shut down."""
        self._asked.append(f"lifespan.{what}")
        self._news.set()

    async def run(self) -> None:
        """Let it live."""
        await self._app({"type": "lifespan", "asgi": {}}, self._receive, self._send)

    async def _receive(self) -> Any:
        while not self._asked:
            self._news = anyio.Event()
            await self._news.wait()
        return {"type": self._asked.pop(0)}

    async def _send(self, message: Any) -> None:
        self.told.append(message["type"].removeprefix("lifespan."))
        self.message = message.get("message", "")
