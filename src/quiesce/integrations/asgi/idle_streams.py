"""Idle streams: requests that a client keeps open for later notices of the server, and that carry no work.

MCP over streamable HTTP has one in each session: a GET with the session's id that accepts an event stream. By the
protocol it does not carry answers to the client's requests, unless it resumes an interrupted stream.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quiesce.core.asgi_types import AsgiScope

__all__: list[str] = []

_SESSION, _RESUMES, _ACCEPT = b"mcp-session-id", b"last-event-id", b"accept"
_EVENTS = b"text/event-stream"


def is_idle_stream(scope: AsgiScope) -> bool:
    """Return whether a request opens an idle stream."""
    if scope.get("method") != "GET":
        return False
    headers = dict(scope.get("headers", ()))
    if _SESSION not in headers or _RESUMES in headers:
        return False
    return _EVENTS in headers.get(_ACCEPT, b"").lower()
