"""An agent's HTTP server as part of the mesh: ASGI middleware, and the route for calls of other nodes.

A request with a `Cascade` header becomes a hop, whose end is told on the response if it is there by then,
and posted otherwise. The response is held back for one turn of the event loop, not longer: if the app
returns within it, as it does with a response in one piece and nothing to do afterwards, the hop may have
ended, and a receipt need not be posted. One that has started something which has ended by then ends a turn
later: that turn is waited for, too.
"""

from __future__ import annotations

import json
import logging
from contextvars import copy_context
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from quiesce.core import arguments
from quiesce.core.announce import say
from quiesce.core.current import current_scope
from quiesce.core.light_scope import LightScope
from quiesce.core.tree import ScopeState, current, logger
from quiesce.errors import (
    ArgumentError,
    CascadeCancelled,
    EdgeRefused,
    PeerLost,
    QuiesceError,
    RemoteProtocolError,
)
from quiesce.mesh.clients.strays import plain_request
from quiesce.mesh.protocol import codec
from quiesce.mesh.runtime import admission
from quiesce.mesh.runtime.hop_parts import Visit
from quiesce.mesh.transport import handler_naming
from quiesce.mesh.transport.asgi_lifespan import NodeLifespan
from quiesce.mesh.transport.call_bodies import BodyLate
from quiesce.mesh.transport.node_transport import PROBE, READY, RECEIPTS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, MutableMapping
    from contextvars import Context

    from quiesce.core.job import Job
    from quiesce.core.scope import Scope
    from quiesce.mesh.runtime.hop import Hop
    from quiesce.mesh.runtime.node import Node

    Message = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Message]]
    Send = Callable[[Message], Awaitable[None]]
    App = Callable[[Message, Receive, Send], Awaitable[None]]

__all__ = ["Mesh"]

_HEADER = codec.REQUEST_HEADER.lower().encode()
_ANSWER = codec.RESPONSE_HEADER.lower().encode()
_CONFLICT, _UNAVAILABLE, _BAD, _TOO_LARGE, _NO_METHOD, _FAILED = 409, 503, 400, 413, 405, 500
_FORBIDDEN = 403
_TURNED_AWAY = (401, 403, 404, 405)
_WITH_CONNECTIONS = ("1.0", "1.1")
_CLOSE = (b"connection", b"close")
_CUT = (b"quiesce-outcome", b"cut")  # as `Quiesce` says it
WRONG_ORDER = (
    "node.asgi() is around a Quiesce, which would drain the requests apart from the node: write"
    " Quiesce(app, node=node), or Quiesce(node.asgi(app)); an A2A agent is quiesce_app(agent, node=node)"
)
_NEVER_OPENED = (
    "node {name!r} was never opened: no lifespan has reached the app that it is for, because the app is mounted below"
    " another app, or the server runs without a lifespan. Messages of cascades are answered with 503. Write"
    " Quiesce(outermost_app, node=node) and have the server run its lifespan; or open the node by `async with node:` in"
    " the lifespan of the outermost app"
)


class Mesh:
    """An ASGI app that takes part in the mesh; made by `Node.asgi()`."""

    def __init__(self, node: Node, app: App, *, grace: float = 30.0, cleanup: float = 5.0) -> None:
        """Wrap an app."""
        arguments.check_callable(app, "asgi", "an ASGI app")
        self._node = node
        self._app = app
        self._times = arguments.seconds("grace", grace), arguments.seconds("cleanup", cleanup)
        self._is_told = False  # that the node was never opened
        self._has_served = False  # a request, since the lifespan began
        below = urlsplit(node.url or "").path  # if no proxy takes it off
        self._paths = {prefix + path: path for path in (RECEIPTS, PROBE) for prefix in ("", below)}

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Serve one request, or the whole life of the app."""
        kind = scope["type"]
        send = leaving(self._node, scope, send)
        self._has_served = kind != "lifespan"
        if kind == "lifespan":
            life = NodeLifespan(self._node, receive, send, self._times, lambda: self._has_served)
            await life.run(self._app, scope)
        elif kind != "http":
            await self._app(scope, receive, send)
        elif scope["path"].endswith((RECEIPTS, PROBE, READY)) and self._is_own(scope):
            await self._serve(scope, receive, send)
        else:
            header = None
            for name, value in scope["headers"]:
                if name == _HEADER:
                    header = value
                    break
            if header is None:
                serving = [True]
                token = plain_request.set(serving)
                try:
                    await self._app(scope, receive, send)
                finally:
                    serving.clear()
                    plain_request.reset(token)
                return
            # One that passes on all headers would hand the edge to another, for whom nobody waits.
            passed = {**scope, "headers": [line for line in scope["headers"] if line[0] != _HEADER]}
            try:
                caller = admission.check_accept(self._node, scope, header)
                exchange = _Exchange(self._begin(header, caller), send, caller, (self._app, passed))
            except QuiesceError as error:
                self._tell_if_never_opened()
                await _refuse(send, error)
                return
            failure: BaseException | None = None
            try:
                await self._app(passed, receive, exchange.keep)
            except BaseException as error:  # noqa: BLE001 - raised again by the exchange
                failure = error
            try:
                await (exchange.finish() if failure is None else exchange.fail(failure, scope))
            finally:
                if not exchange.is_answered:
                    exchange.header()  # nobody is there to be answered: it is posted

    # Requests that hand over a message.

    def _begin(self, header: bytes, caller: str) -> Hop:
        """Take the message, if it is to be worked on.

        Raises:
            QuiesceError: it is not.
        """
        node, handed = self._node, codec.parse_request_header(header)
        outer = None if current.get() is None else current_scope()
        if outer is None or node._scope is None or _covers(outer, node._scope):
            return node._arrive(handed, caller=caller)
        hop = node._arrive(handed, _closing(outer), caller)
        hop.held_by(outer)  # or a drain of that would not see it
        return hop

    # Calls of other nodes.

    def _is_own(self, scope: Message) -> bool:
        """Return whether a request is for the node; the probe is the app's, as long as the node has no objection."""
        path = _path(scope)
        return path in self._paths or (path == READY and not self._node.health.takes_messages)

    def _tell_if_never_opened(self) -> None:
        """Write to the operator of the server, once, why its node takes no messages."""
        node = self._node
        if not (node._was_opened or node._is_opening or self._is_told):
            self._is_told = True
            say(logger, logging.ERROR, _NEVER_OPENED.format(name=node.name))

    async def _serve(self, scope: Message, receive: Receive, send: Send) -> None:
        self._tell_if_never_opened()
        if _path(scope) == READY:
            health = self._node.health
            await _say(send, _UNAVAILABLE, f"{health.state}: {health.why}".removesuffix(": "))
            return
        if scope["method"] != "POST":
            await _say(send, _NO_METHOD, "only POST", {b"allow": b"POST"})
            return
        try:
            caller = admission.check_accept(self._node, scope)
            body = await self._body(receive)
            if body is None:
                await _say(send, _TOO_LARGE, f"over {codec.BODY_BYTES_MAX} bytes")
                return
            answer = await self._node._serve(self._paths[_path(scope)], body, caller)
        except admission.NotAccepted as error:
            await _say(send, _FORBIDDEN, str(error))
        except RemoteProtocolError as error:
            await _say(send, _BAD, str(error))
        except QuiesceError as error:
            lines = {b"retry-after": b"1"}
            if (
                isinstance(error, BodyLate)
                and scope.get("http_version", "1.1") in _WITH_CONNECTIONS
            ):
                lines |= dict((_CLOSE,))
            await _say(send, _UNAVAILABLE, str(error), lines)
        else:
            await _answer(send, 200, answer)

    async def _body(self, receive: Receive) -> bytes | None:
        """Read the body of a call, which the node bounds; None if it is too large."""
        node = self._node
        if node._scope is None:
            message = f"node {node.name!r} is not open: it has not started yet, or it was closed"
            raise PeerLost(message)
        calls = node._exchange
        return await calls.bodies.read(receive, is_ending=calls.is_told_to_end())


class _Exchange(Visit):
    """One request that hands over a message, and its response: the app's work on the hop."""

    __slots__ = (
        "__dict__", "_caller", "_context", "_kept", "_request", "_send", "_started", "is_answered",
    )  # fmt: skip

    _context: Context  # of the app, from its first message on

    # What most of them never need, and set then.
    _error: BaseException | None = None
    _last: tuple[tuple[bytes, bytes], ...] = ()
    _sending: Job[None] | None = None
    _status = 0  # of the answer that the app has begun

    def __init__(self, hop: Hop, send: Send, caller: str, request: tuple[App, Message]) -> None:
        """Begin; `request` is what the app is called with, and may write to."""
        self._request = request
        self._send = send
        self._caller = caller
        self._started = self.is_answered = False
        self._kept: list[Message] = []
        Visit.__init__(self, hop, "handler", "handler")

    @property
    def name(self) -> str:
        """The request."""
        return handler_naming.handler_name(self._request[1])

    @property
    def where(self) -> str | None:
        """The file and line of its endpoint, if the framework says which that is; else those of the app."""
        return handler_naming.handler_place(*self._request)

    def finish(self) -> Awaitable[None]:
        """End, when the app has; what is to be awaited sends what was kept."""
        hop = self._hop
        if self._status >= _BAD:
            hop.answered_with_error(self._status)
        hop.rides = True  # if it was not answered, as it was if some of it is sent already
        self.leave(None)
        if self._started:
            return self._flush()
        return self._send_kept() if hop._ended else self._send_soon()

    async def fail(self, failure: BaseException, scope: Message) -> None:
        """End, when the app has failed, or was cancelled; raises what is left to raise."""
        if self._started and isinstance(failure, Exception):
            self._hop._fail_unheard(failure, self)  # a background task: no answer tells of it
        left = self.leave(failure)
        if scope.get("http_version", "1.1") in _WITH_CONNECTIONS:
            # Servers close a connection on which an app has failed, without a word if it has answered:
            # what the client sends next on it would be lost.
            self._last = (_CLOSE,)
        if isinstance(left, Exception):
            await self._hop.turned()
            await self._end_badly(left)
        if left is not None and not isinstance(left, CascadeCancelled):
            raise left

    async def _end_badly(self, left: Exception) -> None:
        if self._started or self._kept:
            await self._flush()
            return
        # The server would answer that it failed, without a word on what still runs: as one that takes
        # no part.
        self._started = True
        # One that was told to end gets no 503, which proxies repeat: it may have had effects.
        is_told = isinstance(left, CascadeCancelled)
        text, outcome = (str(left), [_CUT]) if is_told else ("the agent failed", [])
        headers = {_ANSWER: self.header(), **dict(self._last), **dict(outcome)}
        await _say(self._send, _FAILED, text, headers)

    def header(self) -> bytes:
        """Return what is to be said of the message, once."""
        self.is_answered = True
        return self._hop._mesh.answer(self._hop).encode()

    def _turn_away(self) -> bytes:
        told = self._hop._mesh._turned_away(self._hop, self._caller)
        if told is None:
            return self.header()
        self.is_answered = True
        return told.encode()

    async def keep(self, message: Message) -> None:
        """Send a message of the app, or keep it until the next turn of the loop."""
        kind = message["type"]
        if kind == "http.response.start" and message["status"] >= _BAD:
            self._status = message["status"]
        if self._started or not (
            kind == "http.response.start"
            or (kind == "http.response.body" and not message.get("more_body"))
        ):
            await self._flush()
            await self._send(message)
            return
        if not self._kept:
            self._context = copy_context()
            self._hop._backend.soon(self._turn)
        self._kept.append(message)

    def _turn(self) -> None:
        """Send what was kept, if the app has not returned: a job, for those that take longer."""
        if not self._kept or self._started:
            return
        scope = self._hop._mesh._hops_scope
        if scope._state is not ScopeState.CLOSED:
            self._started = True
            # Not by `spawn`, which starts nothing that a callback asks for while it is drained.
            code, start = self._send_first.__code__, self._context.run
            self._sending = start(scope._start, scope, self._send_first(), "response", code, 0)
            scope._insert(self._sending, self._sending)  # type: ignore[arg-type]  # a job is Held

    async def _send_first(self) -> None:
        """Send what was kept; the app is told if it fails, when it sends more."""
        try:
            await self._send_kept()
        except Exception as error:  # noqa: BLE001 - see above
            self._error = error

    async def _flush(self) -> None:
        """Send what was kept, after what is being sent."""
        if self._sending is not None:
            await self._sending
            self._sending = None
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        await self._send_kept()

    async def _send_soon(self) -> None:
        """Send what was kept in a turn of the loop, in which the hop ends: nothing of it is in flight."""
        self._started = True
        await self._hop.turned()
        await self._send_kept()

    async def _send_kept(self) -> None:
        self._started = True
        kept, send = self._kept, self._send
        while kept:
            message = kept.pop(0)
            if message["type"] == "http.response.start":
                # An app that passes on what another agent has answered passes that on, too.
                lines = [line for line in message.get("headers", ()) if line[0].lower() != _ANSWER]
                is_taken = message["status"] not in _TURNED_AWAY
                answer = self.header() if is_taken else self._turn_away()
                lines += ((_ANSWER, answer), *self._last)
                message = {**message, "headers": lines}
            await send(message)


def leaving(node: Node, scope: Message, send: Send) -> Send:
    """Return a `send` that closes the connection after the response, if the server was told to end.

    It tells those connections that it has by then. On one that was made in that moment it would wait for another
    request, for as long as clients may be silent.
    """
    if node._scope is None or not node._exchange.is_told_to_end():
        return send
    if scope["type"] != "http" or scope.get("http_version", "1.1") not in _WITH_CONNECTIONS:
        return send

    async def leave(message: Message) -> None:
        if message["type"] == "http.response.start":
            lines = list(message.get("headers", ()))
            if all(name.lower() != _CLOSE[0] for name, _ in lines):
                message = {**message, "headers": [*lines, _CLOSE]}
        await send(message)

    return leave


async def _refuse(send: Send, error: QuiesceError) -> None:
    if isinstance(error, admission.NotAccepted):
        await _say(send, _FORBIDDEN, str(error), {_ANSWER: error.header.encode()})
    elif isinstance(error, EdgeRefused) and error.is_busy:
        lines = {_ANSWER: error.header.encode(), b"retry-after": b"1"}
        await _say(send, _UNAVAILABLE, str(error), lines)
    elif isinstance(error, EdgeRefused):
        await _say(send, _CONFLICT, str(error), {_ANSWER: error.header.encode()})
    elif isinstance(error, RemoteProtocolError):
        # It would run outside of the cascade that it claims to be part of.
        await _say(send, _BAD, str(error))
    else:
        await _say(send, _UNAVAILABLE, str(error))


def wrap_app(node: Node, app: App, *, grace: float, cleanup: float) -> Mesh:
    """Wrap an app, unless it drains the server: such a drain has to be around the node's, too.

    *Raises*: `ArgumentError` if it does, or is not an app.
    """
    if hasattr(app, "drains_server"):
        raise ArgumentError(WRONG_ORDER)
    if isinstance(app, Mesh) and app._node is not node:
        message = (
            f"the app has node {app._node.name!r} already, and is given to node {node.name!r}: an app has one node. Use"
            " the same one for both, or wrap it once"
        )
        raise ArgumentError(message)
    return Mesh(node, app, grace=grace, cleanup=cleanup)


def _covers(outer: Scope, home: Scope) -> bool:
    """Return whether whatever drains a scope drains the node's own scope along with it."""
    if not isinstance(outer, LightScope):  # the scope of one request has the server's above it
        return home._parent is not None
    above = outer._above()
    return above is not None and home._is_within(above)


def _closing(outer: Scope) -> str | None:
    """Return why a scope takes nothing any more, if it does not."""
    try:
        outer._admit()
    except QuiesceError as error:
        return str(error)
    return None


def _path(scope: Message) -> str:
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    return path[len(root) :] if root and path.startswith(root) else path


async def _say(
    send: Send, status: int, text: str, headers: dict[bytes, bytes] | None = None
) -> None:
    await _answer(send, status, json.dumps({"error": text}).encode(), headers)


async def _answer(
    send: Send, status: int, body: bytes, headers: dict[bytes, bytes] | None = None
) -> None:
    lines = {b"content-type": b"application/json", b"content-length": str(len(body)).encode()}
    all_lines = [*(lines | (headers or {})).items()]
    await send({"type": "http.response.start", "status": status, "headers": all_lines})
    await send({"type": "http.response.body", "body": body})
