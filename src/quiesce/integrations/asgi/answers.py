"""What the middleware answers by itself: not now, ready or not, and what is in flight."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quiesce.integrations.asgi.settings import AsgiScope, Send

__all__: list[str] = []

Headers = list[tuple[bytes, bytes]]

UNAVAILABLE = 503
_BUSY = b"the server is shutting down\n"
_TRY_AGAIN_LATER = 1013


def path_of(scope: AsgiScope) -> str:
    """Give the path below where the app is mounted."""
    path, root = str(scope.get("path", "")), str(scope.get("root_path", ""))
    return path[len(root) :] or "/" if root and path.startswith(root) else path


def name_of(scope: AsgiScope) -> str:
    """Name a request, as frontiers and reports do; without its query, which may have secrets."""
    method = "WS" if scope["type"] == "websocket" else str(scope.get("method", "?"))
    return f"{method} {scope.get('path', '?')}"[:200]


def wants_closing(scope: AsgiScope) -> bool:
    """Tell whether a header may ask the client to use another connection: not in HTTP/2."""
    return str(scope.get("http_version", "1.1")).startswith("1")


async def plain(
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


async def refuse(scope: AsgiScope, send: Send, retry_after: int) -> None:
    """Say that there is another server, or will be: 503, with `Retry-After`."""
    headers: Headers = [(b"retry-after", str(retry_after).encode())]
    if scope["type"] == "websocket":
        if "websocket.http.response" in (scope.get("extensions") or {}):
            await plain(scope, send, UNAVAILABLE, _BUSY, headers=headers, prefix="websocket.")
        else:
            await send({"type": "websocket.close", "code": _TRY_AGAIN_LATER})
        return
    if wants_closing(scope):
        headers.append((b"connection", b"close"))
    await plain(scope, send, UNAVAILABLE, _BUSY, headers=headers)


async def ready(scope: AsgiScope, send: Send, *, draining: bool) -> None:
    """Answer a readiness probe."""
    status, body = (UNAVAILABLE, b"draining\n") if draining else (200, b"ready\n")
    headers: Headers = [(b"connection", b"close")] if draining and wants_closing(scope) else []
    await plain(scope, send, status, body, headers=headers)


async def frontier(scope: AsgiScope, send: Send, text: str) -> None:
    """Show what is in flight."""
    await plain(scope, send, 200, text.encode(), kind=b"application/json")
