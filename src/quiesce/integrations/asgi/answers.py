"""The responses that the middleware sends itself: refusals, the readiness probe, and the frontier."""

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
    """Return the path of a request, without the prefix at which the app is mounted."""
    path, root = str(scope.get("path", "")), str(scope.get("root_path", ""))
    return path[len(root) :] or "/" if root and path.startswith(root) else path


def request_name(scope: AsgiScope) -> str:
    """Return the name of a request for frontiers and reports, without the query, which may have secrets."""
    method = "WS" if scope["type"] == "websocket" else str(scope.get("method", "?"))
    return f"{method} {scope.get('path', '?')}"[:200]


def wants_closing(scope: AsgiScope) -> bool:
    """Return whether a `Connection: close` header is allowed. HTTP/2 does not have it."""
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
    """Refuse a request that was not begun, by 503 with `Retry-After`: the client may send it again."""
    headers = [(b"retry-after", str(retry_after).encode()), (_OUTCOME, b"refused")]
    await _end(scope, send, UNAVAILABLE, _BUSY, headers, _TRY_AGAIN_LATER)


async def cut(scope: AsgiScope, send: Send) -> None:
    """Answer a request that was cancelled at the deadline, by 500 without `Retry-After`.

    The request may have had effects, so it is not a 503 or 504: proxies and clients retry these by themselves.
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
    """Answer a readiness probe: 200, or 503 with the reason."""
    status, text = (200, "ready") if why_not is None else (UNAVAILABLE, why_not)
    headers: Headers = [(b"connection", b"close")] if why_not and wants_closing(scope) else []
    await send_plain(scope, send, status, f"{text}\n".encode(), headers=headers)


async def frontier(scope: AsgiScope, send: Send, text: str) -> None:
    """Send the frontier as JSON."""
    await send_plain(scope, send, 200, text.encode(), kind=b"application/json")
