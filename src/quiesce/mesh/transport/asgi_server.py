"""ASGI middleware that makes an agent's HTTP server part of the mesh, with the routes for calls of other nodes.

A request with a `Cascade` header becomes a hop. If the hop has ended when the response leaves, the response carries the
receipt. Otherwise the node posts the receipt later. To save that post, the middleware holds the response back for one
turn of the event loop, in which an app that has sent a whole response usually returns. If the app returns then, and the
hop needs one more turn to end, the middleware waits for that turn, too.
"""

from __future__ import annotations

import json
import logging
from contextvars import copy_context
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from quiesce.core import arguments, handler_naming
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
from quiesce.mesh.runtime.hop_parts import Origin, Visit
from quiesce.mesh.transport.asgi_connections import CLOSE, WITH_CONNECTIONS, leaving
from quiesce.mesh.transport.asgi_lifespan import NodeLifespan
from quiesce.mesh.transport.call_bodies import BodyLate
from quiesce.mesh.transport.node_transport import PROBE, READY, RECEIPTS

if TYPE_CHECKING:
    from collections.abc import Awaitable
    from contextvars import Context

    from quiesce.core.asgi_types import App, Message, Receive, Send
    from quiesce.core.job import Job
    from quiesce.core.scope import Scope
    from quiesce.mesh.runtime.hop import Hop
    from quiesce.mesh.runtime.node import Node


__all__ = ["Mesh"]

_HEADER = codec.REQUEST_HEADER.lower().encode()
_ANSWER = codec.RESPONSE_HEADER.lower().encode()
_CONFLICT, _UNAVAILABLE, _BAD, _TOO_LARGE, _NO_METHOD, _FAILED = 409, 503, 400, 413, 405, 500
_FORBIDDEN = 403
_TURNED_AWAY = (401, 403, 404, 405)
_CUT = (b"quiesce-outcome", b"cut")  # the same header as that of `Quiesce`
WRONG_ORDER = (
    "node.asgi() is around a Quiesce, so requests and the node would drain separately: write"
    " Quiesce(app, node=node), or Quiesce(node.asgi(app)); for an A2A agent, write quiesce_app(agent, node=node)"
)
_NEVER_OPENED = (
    "node {name!r} was never opened, and refuses messages of cascades with 503. A lifespan has not reached the node's app,"
    " because the app is mounted below another app, or the server runs without a lifespan. Write"
    " Quiesce(outermost_app, node=node) and let the server run its lifespan, or open the node by `async with node:` in"
    " the lifespan of the outermost app"
)


class Mesh:
    """An ASGI app that takes part in the mesh; made by `Node.asgi()`."""

    def __init__(self, node: Node, app: App, *, grace: float = 30.0, cleanup: float = 5.0) -> None:
        arguments.check_callable(app, "asgi", "an ASGI app")
        self.own_node = node
        self._app = app
        self._times = arguments.seconds("grace", grace), arguments.seconds("cleanup", cleanup)
        self._has_logged = False  # whether the warning that the node was never opened is logged
        self._has_served = False  # whether a request has come since the lifespan began
        below = urlsplit(node.url or "").path  # in requests, unless a proxy removes it
        self.mesh_paths: dict[str, str] = {
            prefix + path: path for path in (RECEIPTS, PROBE) for prefix in ("", below)
        }

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the app, so that `app.state` still works after `app = node.asgi(app)`.

        *Raises*: `AttributeError` if the app has no such attribute.
        """
        if name.startswith("_"):  # private names, also those that are read before `__init__`
            message = f"{type(self).__name__!r} object has no attribute {name!r}"
            raise AttributeError(message)
        return getattr(self._app, name)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        kind = scope["type"]
        send = leaving(self.own_node, scope, send)
        self._has_served = kind != "lifespan"
        if kind == "lifespan":
            life = NodeLifespan(self.own_node, receive, send, self._times, lambda: self._has_served)
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
            # An app that forwards all request headers would hand this edge to another agent as well.
            passed = {**scope, "headers": [line for line in scope["headers"] if line[0] != _HEADER]}
            try:
                caller = admission.check_accept(self.own_node, scope, header)
                hop = await self._begin(header, caller)
                exchange = _Exchange(hop, send, caller, (self._app, passed))
            except QuiesceError as error:
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
                    exchange.header()  # without a response, the receipt is posted

    # Requests that hand over a message.

    async def _begin(self, header: bytes, caller: str) -> Hop:
        """Accept the message, and return its hop.

        Raises:
            QuiesceError: The node refuses the message.
        """
        node, handed = self.own_node, codec.parse_request_header(header)
        opened = node.last_opening
        if opened is None:
            if not node.is_opening:
                self._tell_never_opened()
                raise admission.never_opened(node, handed)
            raise node.not_open()
        outer = None if current.get() is None else current_scope()
        if outer is None or opened.scope is None or _covers(outer, opened.scope):
            outer = None
        why_not = None if outer is None else _closing(outer)
        if opened.shared is not None:
            hop = await opened.shared.admit(handed, why_not, caller)
        else:
            hop = opened.accept_arrival(handed, why_not, caller)
        if outer is not None:
            hop.held_by(outer)  # otherwise a drain of the outer scope would not see the hop
        return hop

    # Calls of other nodes.

    def _is_own(self, scope: Message) -> bool:
        """Return whether the node answers a request. It answers the readiness probe only while it rejects messages."""
        path = path_below_mount(scope)
        return path in self.mesh_paths or (
            path == READY and not self.own_node.health.takes_messages
        )

    def _tell_never_opened(self) -> None:
        """Log once, for the operator of the server, why the node rejects all messages."""
        if not self._has_logged:
            self._has_logged = True
            say(logger, logging.ERROR, _NEVER_OPENED.format(name=self.own_node.name))

    async def _serve(self, scope: Message, receive: Receive, send: Send) -> None:
        if not (self.own_node.was_opened or self.own_node.is_opening):
            self._tell_never_opened()
        if path_below_mount(scope) == READY:
            health = self.own_node.health
            await _answer_error(
                send, _UNAVAILABLE, f"{health.state}: {health.why}".removesuffix(": ")
            )
            return
        if scope["method"] != "POST":
            await _answer_error(send, _NO_METHOD, "use POST", {b"allow": b"POST"})
            return
        try:
            caller = admission.check_accept(self.own_node, scope)
            body = await self._body(receive)
            if body is None:
                await _answer_error(
                    send, _TOO_LARGE, f"the body has more than {codec.BODY_BYTES_MAX} bytes"
                )
                return
            answer = await self.own_node.serve_call(
                self.mesh_paths[path_below_mount(scope)], body, caller
            )
        except admission.NotAccepted as error:
            await _answer_error(send, _FORBIDDEN, str(error))
        except RemoteProtocolError as error:
            await _answer_error(send, _BAD, str(error))
        except QuiesceError as error:
            lines = {b"retry-after": b"1"}
            if isinstance(error, BodyLate) and scope.get("http_version", "1.1") in WITH_CONNECTIONS:
                lines |= dict((CLOSE,))
            await _answer_error(send, _UNAVAILABLE, str(error), lines)
        else:
            await _answer(send, 200, answer)

    async def _body(self, receive: Receive) -> bytes | None:
        """Read the body of a call, within the node's time limits. Return None if it is too large."""
        node = self.own_node
        if node.own_scope is None:
            message = f"node {node.name!r} is not open: it has not started yet, or it has closed"
            raise PeerLost(message)
        calls = node.opened.exchange
        return await calls.bodies.read(receive, is_ending=calls.is_told_to_end())


class _Exchange(Visit):
    """One request that hands over a message, and its response. It is the handler's visit in the hop."""

    __slots__ = (
        "__dict__", "_caller", "_context", "_kept", "_request", "_send", "_started", "is_answered",
    )  # fmt: skip

    _context: Context  # the app's context at its first message

    # Defaults of attributes that most requests never set.
    _error: BaseException | None = None
    _last: tuple[tuple[bytes, bytes], ...] = ()
    _sending: Job[None] | None = None
    _status = 0  # the status of the app's response, if that is an error

    def __init__(self, hop: Hop, send: Send, caller: str, request: tuple[App, Message]) -> None:
        """Begin. `request` is the app and the scope with which it is called; a framework adds to that scope."""
        self._request = request
        self._send = send
        self._caller = caller
        self._started = self.is_answered = False
        self._kept: list[Message] = []
        Visit.__init__(self, hop, "handler", "handler")
        hop.origin = self

    @property
    def name(self) -> str:
        """The method and path of the request."""
        return handler_naming.handler_name(self._request[1])

    @property
    def endpoint(self) -> object:
        """The request's endpoint, if the framework tells."""
        return self._request[1].get("endpoint")

    @property
    def where(self) -> str | None:
        """The file and line of the request's endpoint or, if the framework does not tell, of the app."""
        return handler_naming.handler_place(*self._request)

    def finish(self) -> Awaitable[None]:
        """End the visit after the app has returned. Return an awaitable that sends the rest of the response."""
        hop = self._hop
        if self._status >= _BAD:
            hop.answered_with_error(self._status)
        hop.rides = True  # has no effect if the answer has left with an earlier part
        self.leave(None)
        has_ended = self._part_from(hop)
        if self._started:
            return self._flush()
        return self._send_kept() if has_ended else self._send_soon()

    async def fail(self, failure: BaseException, scope: Message) -> None:
        """End the visit after the app has failed or was cancelled. Raise the error that the server is to see."""
        if self._started and isinstance(failure, Exception):
            self._hop.note_failed_unheard(failure, self)  # a failure after the response
        left = self.leave(failure)
        self._note_cut(left)
        self._part_from(self._hop)
        if scope.get("http_version", "1.1") in WITH_CONNECTIONS:
            # Servers close the connection of a failed app, even after a complete response. Without this header,
            # the client's next request on the connection would be lost.
            self._last = (CLOSE,)
        if isinstance(left, Exception):
            await self._hop.turned()
            await self._end_badly(left)
        if left is not None and not isinstance(left, CascadeCancelled):
            raise left

    def _note_cut(self, left: BaseException | None) -> None:
        """Record that the server has cancelled the request, unless a `Quiesce` is around it: that reports it."""
        hop = self._hop
        is_cut = isinstance(left, hop.backend.cancelled) and not (self._is_cut or hop.is_cancelled)
        home = hop.opened.scope
        if is_cut and home is not None and not isinstance(self.outer, LightScope):
            home.note_cut(self)

    def _part_from(self, hop: Hop) -> bool:
        """Drop the request. If the hop goes on, keep only the name and place that reports show; else return True."""
        has_ended = hop.has_ended
        hop.origin = None if has_ended else Origin(self.name, self.where)
        return has_ended

    async def _end_badly(self, left: Exception) -> None:
        if self._started or self._kept:
            await self._flush()
            return
        # The server's own error response would not carry the receipt, and the edge would count as opaque.
        self._started = True
        # Not a 503 for a cancelled handler: proxies retry a 503, but the handler may have had effects.
        is_told = isinstance(left, CascadeCancelled)
        text, outcome = (str(left), [_CUT]) if is_told else ("the agent failed", [])
        headers = {_ANSWER: await self._written(self.header()), **dict(self._last), **dict(outcome)}
        await _answer_error(self._send, _FAILED, text, headers)

    def header(self) -> bytes:
        """Return the value of the response header, and record that the message was answered."""
        self.is_answered = True
        return self._hop.opened.answer(self._hop).encode()

    async def _written(self, answer: bytes) -> bytes:
        """Return the value of the response header when it may leave."""
        opened = self._hop.opened
        if opened.shared is None:
            return answer
        return (await opened.written_answer(self._hop, answer.decode())).encode()

    def _turn_away(self) -> bytes:
        told = self._hop.opened.answer_turned_away(self._hop, self._caller)
        if told is None:
            return self.header()
        self.is_answered = True
        return told.encode()

    async def keep(self, message: Message) -> None:
        """Send an ASGI message of the app, or keep it until the next turn of the loop."""
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
            self._hop.backend.soon(self._turn)
        self._kept.append(message)

    def _turn(self) -> None:
        """Start a job that sends the kept messages, because the app has not returned within the turn."""
        if not self._kept or self._started:
            return
        scope = self._hop.opened.scope_of_hops
        if scope.phase is not ScopeState.CLOSED:
            self._started = True
            # Not by `spawn`: while the scope is drained, `spawn` refuses jobs from a callback.
            code, start = self._send_first.__code__, self._context.run
            self._sending = start(scope.start_job, scope, self._send_first(), "response", code, 0)
            scope.insert_hold(self._sending, self._sending)  # type: ignore[arg-type]  # a job is Held

    async def _send_first(self) -> None:
        """Send the kept messages. If that fails, the app gets the error with its next message."""
        try:
            await self._send_kept()
        except Exception as error:  # noqa: BLE001 - raised again by the app's next message
            self._error = error

    async def _flush(self) -> None:
        """Wait until the job has sent its messages, then send the kept ones."""
        if self._sending is not None:
            await self._sending
            self._sending = None
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        await self._send_kept()

    async def _send_soon(self) -> None:
        """Wait one turn of the loop, in which the hop may end, then send the kept messages."""
        self._started = True
        await self._hop.turned()
        await self._send_kept()

    async def _send_kept(self) -> None:
        self._started = True
        kept, send = self._kept, self._send
        while kept:
            message = kept.pop(0)
            if message["type"] == "http.response.start":
                # Remove the header from the response of another agent, which the app may forward.
                lines = [line for line in message.get("headers", ()) if line[0].lower() != _ANSWER]
                is_taken = message["status"] not in _TURNED_AWAY
                answer = self.header() if is_taken else self._turn_away()
                if self._hop.opened.shared is not None:
                    answer = await self._written(answer)
                lines += ((_ANSWER, answer), *self._last)
                message = {**message, "headers": lines}
            await send(message)


async def _refuse(send: Send, error: QuiesceError) -> None:
    if isinstance(error, admission.NotAccepted):
        await _answer_error(send, _FORBIDDEN, str(error), {_ANSWER: error.header.encode()})
    elif isinstance(error, EdgeRefused) and error.is_busy:
        lines = {_ANSWER: error.header.encode(), b"retry-after": b"1"}
        await _answer_error(send, _UNAVAILABLE, str(error), lines)
    elif isinstance(error, EdgeRefused):
        await _answer_error(send, _CONFLICT, str(error), {_ANSWER: error.header.encode()})
    elif isinstance(error, RemoteProtocolError):
        # Without a valid header, the message would run outside of its cascade.
        await _answer_error(send, _BAD, str(error))
    else:
        await _answer_error(send, _UNAVAILABLE, str(error))


def wrap_app(node: Node, app: App, *, grace: float, cleanup: float) -> Mesh:
    """Return an app with the mesh around it.

    *Raises*: `ArgumentError` if `app` is not an app, belongs to another node, or is a `Quiesce`, which must be outermost.
    """
    if hasattr(app, "drains_server"):
        raise ArgumentError(WRONG_ORDER)
    if isinstance(app, Mesh) and app.own_node is not node:
        message = (
            f"the app belongs to node {app.own_node.name!r}, and is now given to node {node.name!r}, but an app can have"
            " only one node: use the same node in both places, or wrap the app once"
        )
        raise ArgumentError(message)
    return Mesh(node, app, grace=grace, cleanup=cleanup)


def _covers(outer: Scope, home: Scope) -> bool:
    """Return whether a drain of `outer`, or of the scope above it, also drains the node's own scope."""
    # Only the scope of a request has the server's scope above it.
    if not isinstance(outer, LightScope):
        return home.parent is not None
    above = outer.node_above()
    return above is not None and home.is_within(above)


def _closing(outer: Scope) -> str | None:
    """Return why a scope does not accept new work; None if it does."""
    try:
        outer.check_may_start()
    except QuiesceError as error:
        return str(error)
    return None


def path_below_mount(scope: Message) -> str:
    """Return the path of a request, without the prefix at which the app is mounted."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    return path[len(root) :] if root and path.startswith(root) else path


async def _answer_error(
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
