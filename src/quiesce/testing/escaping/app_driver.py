"""An ASGI app that runs without a server: its lifespan, and requests that are hops.

`escapes(app)` starts the app with this, and sends requests to it.
"""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote, urlsplit

import anyio

from quiesce.core.current import detached
from quiesce.core.scope import Scope
from quiesce.errors import UsageError
from quiesce.mesh.protocol import codec
from quiesce.mesh.protocol.receipt import edge_mark

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from quiesce.core.asgi_types import App


__all__: list[str] = []

_HEADER = codec.REQUEST_HEADER.lower().encode()
_CONTENT_TYPE = b"content-type"
_ERRORS = 400
_MOVED = (301, 307, 308)  # the client repeats the request, so no handler has done its work yet
_CLEANUP_SECONDS = 1.0
_BEGIN_SECONDS = 60


class AppAnswer(NamedTuple):
    """The answer of an app."""

    status: int
    headers: dict[str, str]
    body: bytes


class DrivenApp:
    """A running app that can be sent requests."""

    def __init__(self, app: App, count: Callable[[], int]) -> None:
        """Keep the app; `count` returns how many hops have begun."""
        self._app = app
        self._count = count
        self.requests: int = 0
        """How many requests were served."""
        self.turned_away: dict[str, int] = {}
        """How often each request was answered with an error, or redirected to its own path, by a text for it."""
        self.life: DrivenLifespan = DrivenLifespan(app)

    async def serve(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve a request as a hop.

        *Cancel safety*: that of the app.

        *Raises*: `UsageError` if the request did not become a hop.
        """
        is_ours = scope["type"] == "http" and all(name != _HEADER for name, _ in scope["headers"])
        if is_ours:
            scope = {**scope, "headers": [*scope["headers"], (_HEADER, _edge_header())]}
        before = self._count()
        await self._app(scope, receive, self._noting(scope, send) if is_ours else send)
        if is_ours and self._count() == before:
            message = (
                f"the request to {scope['path']} did not become a hop, so nothing was checked: the app drains the"
                " server and has no node. Write Quiesce(app, node=Node(...)), or pass the app inside of it"
            )
            raise UsageError(message)

    def _noting(self, scope: Any, send: Any) -> Any:
        """Return a `send` that records answers without a handler's work: errors and redirects to the same path."""
        self.requests += 1

        async def note(message: Any) -> None:
            if message["type"] == "http.response.start":
                told = _turned_away(scope, message)
                if told:
                    self.turned_away[told] = self.turned_away.get(told, 0) + 1
            await send(message)

        return note

    async def request(
        self, method: str, path: str, *, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> AppAnswer:
        """Send a request to the app, and return its answer when the app has returned.

        If the body is a JSON object or list, the content type is JSON, unless the headers have a content type.

        *Cancel safety*: that of the app.

        *Raises*: what the app raises.
        """
        path, _, query = path.partition("?")
        lines = _lines(headers or {})
        if _is_json(body) and all(name != _CONTENT_TYPE for name, _ in lines):
            lines.append((_CONTENT_TYPE, b"application/json"))
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
            "path": unquote(path), "raw_path": path.encode(), "query_string": query.encode(), "root_path": "",
            "headers": [(b"host", b"app"), *lines], "client": ("127.0.0.1", 1), "server": ("app", 80),
        }  # fmt: skip
        parts: list[Any] = [{"type": "http.request", "body": body, "more_body": False}]
        told: list[Any] = []
        complete = anyio.Event()

        async def receive() -> Any:
            if parts:
                return parts.pop()
            await complete.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            told.append(message)
            if message["type"] == "http.response.body" and not message.get("more_body"):
                complete.set()

        await self.serve(scope, receive, send)
        heads = [one for one in told if one["type"] == "http.response.start"]
        if not heads:
            message = (
                f"the app has returned without an answer to {method} {path}: it sent no"
                " http.response.start"
            )
            raise UsageError(message)
        found = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in heads[0]["headers"]
        }
        return AppAnswer(heads[0]["status"], found, b"".join(one.get("body", b"") for one in told))


class DrivenLifespan:
    """The lifespan of an app."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._scope: Scope | None = None
        self._begun = anyio.Event()
        self._told_to_end = anyio.Event()
        self._failure: str | None = None
        self._steps = ["lifespan.shutdown", "lifespan.startup"]

    async def start(self) -> None:
        """Start the app.

        *Raises*: `UsageError` if it does not start.
        """
        with detached():
            self._scope = await Scope.open("escapes")
            self._scope.spawn(self._live)
        await self._begun.wait()
        if self._failure is not None:
            message = f"the app did not start: {self._failure}"
            raise UsageError(message)

    async def stop(self) -> None:
        """End the app; cancel it if it takes longer than some seconds."""
        self._told_to_end.set()
        if self._scope is not None:
            await self._scope.drain(4 * _CLEANUP_SECONDS, cleanup=_CLEANUP_SECONDS)

    async def _live(self) -> None:
        scope = {"type": "lifespan", "asgi": {"version": "3.0", "spec_version": "2.0"}, "state": {}}
        try:
            with detached():  # a server runs the lifespan outside of hops too
                await self._app(scope, self._receive, self._send)
        except Exception as error:
            if self._begun.is_set() and self._failure is None:
                raise
            self._failure = self._failure or f"{type(error).__name__}: {error}"
        finally:
            self._begun.set()

    async def _receive(self) -> Any:
        if len(self._steps) == 1:
            await self._told_to_end.wait()
        return {"type": self._steps.pop()}

    async def _send(self, message: Any) -> None:
        if message["type"] == "lifespan.startup.failed":
            self._failure = str(message.get("message", ""))
        self._begun.set()


def _edge_header() -> bytes:
    """Return the header of an edge whose end no sender queries."""
    begin_by = int(time.time()) + _BEGIN_SECONDS
    handed = codec.Handed(os.urandom(16), os.urandom(12), edge_mark(os.urandom(12)), begin_by)
    return codec.request_header(handed).encode()


def _turned_away(scope: Any, head: Any) -> str:
    """Return a text for an answer without a handler's work: an error, or a redirect to the same path; else "".

    Routers redirect a request to its own path with a slash at the end, or without it.
    """
    status, path = head["status"], scope["path"]
    told = f"{scope['method']} {path} was answered with {status}"
    if status >= _ERRORS:
        return told
    lines = dict(head.get("headers", ())) if status in _MOVED else {}
    target = next((value for name, value in lines.items() if name.lower() == b"location"), None)
    if target is None:
        return ""
    location = target.decode("latin-1")
    same = unquote(urlsplit(location).path).rstrip("/") == path.rstrip("/")
    return f"{told}, which redirects it to {location}" if same else ""


def _is_json(body: bytes) -> bool:
    """Return whether a body is a JSON object, or a list."""
    if not body.lstrip().startswith((b"{", b"[")):
        return False
    try:
        json.loads(body)
    except (ValueError, RecursionError):
        return False
    return True


def _lines(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    return [
        (name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()
    ]
