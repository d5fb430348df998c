"""Closes a server's connections to clients after it was told to end."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quiesce.core.asgi_types import Message, Send
    from quiesce.mesh.runtime.node import Node

__all__: list[str] = []

WITH_CONNECTIONS = ("1.0", "1.1")
"""The versions of HTTP in which a response may close its connection."""
CLOSE = (b"connection", b"close")


def leaving(node: Node, scope: Message, send: Send) -> Send:
    """Return a `send` that closes the connection after the response, if the server was told to end.

    A server closes the idle connections that it has at the signal. On a connection that is made just then, it would wait
    for another request for as long as its keep-alive time.
    """
    opened = node.last_opening  # not by properties: every request comes here
    if opened is None or opened.scope is None or not opened.exchange.is_told_to_end():
        return send
    if scope["type"] != "http" or scope.get("http_version", "1.1") not in WITH_CONNECTIONS:
        return send

    async def leave(message: Message) -> None:
        if message["type"] == "http.response.start":
            lines = list(message.get("headers", ()))
            if all(name.lower() != CLOSE[0] for name, _ in lines):
                message = {**message, "headers": [*lines, CLOSE]}
        await send(message)

    return leave
