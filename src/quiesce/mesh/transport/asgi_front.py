"""What stands before a server that takes part in the mesh: the outermost of its ASGI apps.

1. Calls of other nodes are answered whatever the app does with its own requests: hops that are in flight
   while a server drains need their receipts.
2. A message that something before the mesh has answered with an error, and that nobody has worked on, is
   refused for good, and its sender is told: a 503 of a server that drains, a 401. Without a word, it would
   count as taken by one who takes no part; as does what is answered otherwise there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from quiesce.errors import QuiesceError
from quiesce.mesh.protocol import codec
from quiesce.mesh.transport import asgi_server, links
from quiesce.mesh.transport.asgi_lifespan import hearing

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, MutableMapping

    from quiesce.mesh.runtime.node import Node

    Message = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Message]]
    Send = Callable[[Message], Awaitable[None]]
    App = Callable[[Message, Receive, Send], Awaitable[None]]

__all__ = ["CascadeFront"]

_HEADER, _ANSWER = codec.REQUEST_HEADER.lower().encode(), codec.RESPONSE_HEADER.lower().encode()
_ERRORS = 400


class CascadeFront:
    """The outermost of the ASGI apps of an agent, if there are others around that of `node.asgi()`.

    ```python
    app = CascadeFront(node, Quiesce(node.asgi(app)))
    ```

    Args:
        node: The node of this agent.
        app: All the rest.
    """

    def __init__(self, node: Node, app: App) -> None:
        """Stand before an app."""
        links.check_node(node)
        self._node = node
        self._app = app
        self._mesh = asgi_server.Mesh(node, app)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Serve one request, or let the app live."""
        send = asgi_server.leaving(self._node, scope, send)
        if scope["type"] != "http":
            await self._app(scope, receive, send)
        elif asgi_server._path(scope) in self._mesh._paths:
            await self._mesh(scope, receive, send)  # (1)
        else:
            found = [value for name, value in scope["headers"] if name == _HEADER]
            await self._app(scope, receive, self._telling(found[0], send) if found else send)

    def _telling(self, header: bytes, send: Send) -> Send:
        async def tell(message: Message) -> None:
            if message["type"] == "http.response.start":
                lines = list(message.get("headers", ()))
                if all(name.lower() != _ANSWER for name, _ in lines):
                    answer = self._answer(header, is_error=message["status"] >= _ERRORS)
                    lines += [] if answer is None else [(_ANSWER, answer)]
                    message = {**message, "headers": lines}
            await send(message)

        return tell

    def _answer(self, header: bytes, *, is_error: bool) -> bytes | None:
        """Send what became of a message of which the app says nothing (2)."""
        node = self._node
        try:
            edge = codec.parse_request_header(header).edge
            node._check()
            hop = node._hops.get(edge)
            if hop is not None:
                return node.answer(hop).encode()
            if node._engine.detector.knows(edge):
                known = node._engine.detector.find(edge)
                answer = node._engine.ride(edge, node._clock())
                node._commit()
                must_ask = known is not None and known.reply is None
                return codec.response_header(edge, answer, must_ask=must_ask).encode()
        except QuiesceError:
            return None  # it is not of the protocol, or the node is not there
        told = links.refuse_message(node, header) if is_error else None
        return None if told is None else told.encode()


class CascadeInside:
    """The innermost of the ASGI apps around that of an SDK: the mesh, unless it is around it already.

    If it is, it has taken the message, and passes on no header of it.
    """

    def __init__(self, app: App, node: Node) -> None:
        """Wrap an app, as Starlette's middleware does."""
        self._node = node
        self._app = app
        self._mesh = asgi_server.Mesh(node, app)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Serve one request, or the whole life of the app."""
        if scope["type"] != "lifespan":
            await self._mesh(scope, receive, send)
            return
        first = [
            await receive()
        ]  # a mesh that is around it has opened the node by then, or the program itself

        async def hear() -> Message:
            return first.pop() if first else await receive()

        if self._node._scope is None:
            await self._mesh(scope, hear, send)
        else:
            with hearing(self._node):
                await self._app(scope, hear, send)
