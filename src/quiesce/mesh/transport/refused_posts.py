"""Handles JSON-RPC messages in requests that a draining server has refused, as in MCP over HTTP.

A draining server refuses a request without reading it. But with MCP, a tool call, a call of another node and the answer
to the server's own question are all `POST /mcp`. So this module reads the body of a refused request:

1. A call of another node gets to the app: nodes that wait for the draining work need its answer. An answer or a
   notification gets to the app, too, because the draining work may wait for it. So does a listing or a ping: the client
   of the SDK lists the tools before it returns the first result of a tool. None of these begins new work.
2. A message that hands over an edge is refused for good, and its sender gets a JSON-RPC error. The status is 200, because
   the client of mcp 1.x ends its connection after a 503.
3. All other requests stay refused.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from quiesce.errors import PeerLost
from quiesce.mesh.transport import links
from quiesce.mesh.transport.call_bodies import CallBodies

if TYPE_CHECKING:
    from quiesce.core.asgi_types import App, Message, Receive, Send
    from quiesce.mesh.runtime.node import Node


__all__: list[str] = []

_UNAVAILABLE, _OK = 503, 200
_REFUSED_CODE = -32001
_OUTCOME = (b"quiesce-outcome", b"refused")  # the header of `Quiesce` on refused requests
_JSON = b"application/json"
_MCP = (b"mcp-session-id", b"mcp-protocol-version")  # the second also without a session
_NOTICES = "notifications/"
_QUESTIONS = frozenset(
    ("ping", "tools/list", "prompts/list", "resources/list", "resources/templates/list")
)
_TEXT = "the server is shutting down: send a new message later, or to another agent"


class RefusedPosts:
    """An ASGI app for POST requests that reads the requests which a draining server refuses.

    Args:
        node: The node of this agent.
        app: The app that refuses requests while it drains.
        inside: The app that `app` would have called.
    """

    def __init__(self, node: Node, app: App, inside: App) -> None:
        self._node = node
        self._app = app
        self._inside = inside

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        refusal: list[Message] = []

        async def pass_on(message: Message) -> None:
            if refusal or _is_refusal(message):
                refusal.append(message)
            else:
                await send(message)

        await self._app(scope, receive, pass_on)
        if refusal:
            await self._handle_refused(refusal, scope, receive, send)

    async def _handle_refused(
        self, refusal: list[Message], scope: Message, receive: Receive, send: Send
    ) -> None:
        headers = {name.lower(): value for name, value in scope["headers"]}
        if headers.get(b"content-type", b"").startswith(_JSON):
            body = await self._body(receive)
            found = _parsed(body)
            if self._is_let_in(found, is_mcp=any(name in headers for name in _MCP)):
                await self._inside(scope, _replayed(body or b"", receive), send)  # (1)
                return
            answer = await self._refuse(found)
            if answer is not None:
                await _answer(send, refusal[0], answer)  # (2)
                return
        for message in refusal:
            await send(message)

    def _is_let_in(self, found: dict[str, Any], *, is_mcp: bool) -> bool:
        """Return whether a message begins nothing, and is for the app (1)."""
        method = found.get("method")
        if not isinstance(method, str):
            return is_mcp and ("result" in found or "error" in found)
        if method in links.PATHS:
            return self._node.own_scope is not None
        is_notice = "id" not in found and method.startswith(_NOTICES)
        return is_mcp and (is_notice or method in _QUESTIONS)

    async def _body(self, receive: Receive) -> bytes | None:
        """Read and return the body; None if it is too large or does not arrive in time.

        A closed node answers no call. But the server may still run for a moment, and a client that has just got the
        result of the last tool lists the tools then.
        """
        node = self._node
        is_open = node.own_scope is not None
        bodies = node.opened.exchange.bodies if is_open else CallBodies()
        is_ending = not is_open or node.opened.exchange.is_told_to_end()
        try:
            return await bodies.read(receive, is_ending=is_ending)
        except PeerLost:
            return None

    async def _refuse(self, found: dict[str, Any]) -> dict[str, Any] | None:
        """Refuse the message in a request, and return the answer; None if the request does not hand over an edge."""
        header = links.handed(found.get("params"))
        told = None if header is None else await links.refuse_message(self._node, header)
        if told is None or "id" not in found:
            return None
        error = {"code": _REFUSED_CODE, "message": _TEXT, "data": links.with_answer(None, told)}
        return {"jsonrpc": "2.0", "id": found["id"], "error": error}


def _is_refusal(message: Message) -> bool:
    return (
        message["type"] == "http.response.start"
        and message["status"] == _UNAVAILABLE
        and _OUTCOME in message.get("headers", ())
    )


def _parsed(body: bytes | None) -> dict[str, Any]:
    try:
        found = json.loads(body or b"null")
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _replayed(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that first repeats a body that was read already."""
    first = [{"type": "http.request", "body": body, "more_body": False}]

    async def hear() -> Message:
        return first.pop() if first else await receive()

    return hear


async def _answer(send: Send, refusal: Message, answer: dict[str, Any]) -> None:
    body = json.dumps(answer).encode()
    own = {b"content-type": _JSON, b"content-length": str(len(body)).encode()}
    lines = [line for line in refusal["headers"] if line[0] not in own]
    headers = [*lines, *own.items()]
    await send({"type": "http.response.start", "status": _OK, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})
