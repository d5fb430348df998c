"""What the middleware answers by itself: not now, ready or not, and what is in flight."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quiesce.core.asgi_types import AsgiScope, Send

__all__: list[str] = []

Headers = list[tuple[bytes, bytes]]

UNAVAILABLE = 503
_FAILED = 500
_BUSY = b"the server is shutting down\n"
_CUT = b"the server was shut down in the middle of this request, which may have had effects\n"
_OUTCOME = b"quiesce-outcome"
_TRY_AGAIN_LATER, _GOING_AWAY = 1013, 1001


def path_of(scope: AsgiScope) -> str:
    """Return the path below where the app is mounted."""
    path, root = str(scope.get("path", "")), str(scope.get("root_path", ""))
    return path[len(root) :] or "/" if root and path.startswith(root) else path


def request_name(scope: AsgiScope) -> str:
    """Name a request, as frontiers and reports do; without its query, which may have secrets."""
    method = "WS" if scope["type"] == "websocket" else str(scope.get("method", "?"))
    return f"{method} {scope.get('path', '?')}"[:200]


def wants_closing(scope: AsgiScope) -> bool:
    """Return whether a header may ask the client to use another connection: not in HTTP/2."""
    return str(scope.get("http_version", "1.1")).startswith("1")


async def send_plain(
    scope: AsgiScope,
    send: Send,
    status: int,
    body: bytes,
    *,
    kind: bytes = b"text/plain; charset=utf-8",
    headers: Headers | None = None,
    prefix: str = "",
) -> None:
    """Send a small response."""
    own: Headers = [
        (b"content-type", kind),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
        *(headers or ()),
    ]
    shown = b"" if scope.get("method") == "HEAD" else body
    await send({"type": f"{prefix}http.response.start", "status": status, "headers": own})
    await send({"type": f"{prefix}http.response.body", "body": shown, "more_body": False})


async def refuse_request(scope: AsgiScope, send: Send, retry_after: int) -> None:
    """Answer a request that was not begun: 503, with `Retry-After`. It may be sent again."""
    headers = [(b"retry-after", str(retry_after).encode()), (_OUTCOME, b"refused")]
    await _end(scope, send, UNAVAILABLE, _BUSY, headers, _TRY_AGAIN_LATER)


async def cut(scope: AsgiScope, send: Send) -> None:
    """Answer a request that the app worked on until the deadline: 500, without `Retry-After`.

    Not 503 or 504, which proxies and clients repeat by themselves: it may have had effects.
    """
    await _end(scope, send, _FAILED, _CUT, [(_OUTCOME, b"cut")], _GOING_AWAY)


async def _end(
    scope: AsgiScope, send: Send, status: int, body: bytes, headers: Headers, code: int
) -> None:
    if scope["type"] == "websocket":
        if "websocket.http.response" in (scope.get("extensions") or {}):
            await send_plain(scope, send, status, body, headers=headers, prefix="websocket.")
        else:
            await send({"type": "websocket.close", "code": code})
        return
    if wants_closing(scope):
        headers.append((b"connection", b"close"))
    await send_plain(scope, send, status, body, headers=headers)


async def ready(scope: AsgiScope, send: Send, *, why_not: str | None) -> None:
    """Answer a readiness probe."""
    status, text = (200, "ready") if why_not is None else (UNAVAILABLE, why_not)
    headers: Headers = [(b"connection", b"close")] if why_not and wants_closing(scope) else []
    await send_plain(scope, send, status, f"{text}\n".encode(), headers=headers)


async def frontier(scope: AsgiScope, send: Send, text: str) -> None:
    """Show what is in flight."""
    await send_plain(scope, send, 200, text.encode(), kind=b"application/json")
