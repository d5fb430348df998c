"""The outermost ASGI app of a server that takes part in the mesh.

Other middleware may answer a request before the mesh sees it: a drain with a 503, or a login with a 401. This app makes
up for that:

1. It answers calls of other nodes itself, whatever the app does with its requests. While a server drains, hops in flight
   need their receipts.
2. If other middleware answers a message with an error, and the app has not worked on the message, this app refuses the
   message for good and tells the sender so by a header. Without that header, the sender would record the edge as opaque.
   A message that other middleware answers without an error is recorded so.
3. The same holds for a message in the body of a request, as in MCP over HTTP, and a call of another node in such a body
   is answered like any other call; see `refused_posts`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce.errors import QuiesceError
from quiesce.mesh.protocol import codec
from quiesce.mesh.transport import asgi_server, links
from quiesce.mesh.transport.asgi_connections import leaving
from quiesce.mesh.transport.asgi_lifespan import hearing
from quiesce.mesh.transport.refused_posts import RefusedPosts

if TYPE_CHECKING:
    from quiesce.core.asgi_types import App, Message, Receive, Send
    from quiesce.mesh.runtime.node import Node


__all__ = ["CascadeFront"]

_HEADER, _ANSWER = codec.REQUEST_HEADER.lower().encode(), codec.RESPONSE_HEADER.lower().encode()
_ERRORS = 400


class CascadeFront:
    """The outermost ASGI app of an agent. Use it if other middleware is around the app of `node.asgi()`.

    ```python
    app = CascadeFront(node, Quiesce(node.asgi(app)))
    ```

    Args:
        node: The node of this agent.
        app: The agent's app with its other middleware.
        inside: The app to call for requests that `app` refuses because it drains, if they do not begin any work. With
            None, such requests stay refused.
    """

    def __init__(self, node: Node, app: App, *, inside: App | None = None) -> None:
        links.check_node(node)
        self._node = node
        self._app = app
        self._posts = app if inside is None else RefusedPosts(node, app, inside)
        self._mesh = asgi_server.Mesh(node, app)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        send = leaving(self._node, scope, send)
        if scope["type"] != "http":
            await self._app(scope, receive, send)
        elif asgi_server.path_below_mount(scope) in self._mesh.mesh_paths:
            await self._mesh(scope, receive, send)  # (1)
        else:
            found = [value for name, value in scope["headers"] if name == _HEADER]
            app = self._posts if scope["method"] == "POST" else self._app  # (3)
            await app(scope, receive, self._with_answer_header(found[0], send) if found else send)

    def _with_answer_header(self, header: bytes, send: Send) -> Send:
        async def tell(message: Message) -> None:
            if message["type"] == "http.response.start":
                lines = list(message.get("headers", ()))
                if all(name.lower() != _ANSWER for name, _ in lines):
                    answer = await self._answer(header, is_error=message["status"] >= _ERRORS)
                    lines += [] if answer is None else [(_ANSWER, answer)]
                    message = {**message, "headers": lines}
            await send(message)

        return tell

    async def _answer(self, header: bytes, *, is_error: bool) -> bytes | None:
        """Return the answer for a message whose response does not have one (2)."""
        node = self._node
        try:
            told = self._known(codec.parse_request_header(header).edge)
            if told is not None:
                await node.opened.written()
                return told.encode()
        except QuiesceError:
            return None  # the header is invalid, the node is not open, or the store does not write
        told = await links.refuse_message(node, header) if is_error else None
        return None if told is None else told.encode()

    def _known(self, edge: bytes) -> str | None:
        """Return what this node has to say about a message; None if it does not know the message."""
        opened = self._node.opened
        opened.check_accepts()
        edge = opened.name_of(edge)
        hop = opened.running_hops.get(edge)
        if hop is not None:
            return opened.answer(hop)
        if not opened.engine.detector.knows(edge):
            return None
        known = opened.engine.known.find(edge)
        answer = opened.engine.ride(edge, opened.clock())
        opened.commit_records()
        must_ask = known is not None and known.reply is None
        return codec.response_header(edge, answer, must_ask=must_ask)


class CascadeInside:
    """The innermost ASGI middleware around the app of an SDK: it adds the mesh, unless the mesh is further out already.

    A mesh further out removes the header of a message that it accepts, so this one does not see the message.
    """

    def __init__(self, app: App, node: Node) -> None:
        """Wrap an app, as Starlette's middleware does."""
        self._node = node
        self._app = app
        self._mesh = asgi_server.Mesh(node, app)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan":
            await self._mesh(scope, receive, send)
            return
        # By the first message, a mesh further out, or the program itself, has opened the node.
        first = [await receive()]

        async def hear() -> Message:
            return first.pop() if first else await receive()

        if self._node.own_scope is None:
            await self._mesh(scope, hear, send)
        else:
            with hearing(self._node):
                await self._app(scope, hear, send)
