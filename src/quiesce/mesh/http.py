"""The mesh over HTTP: calls from node to node, and requests that hand over messages. Needs httpx."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio

from quiesce.errors import ArgumentError, PeerLost, SdkMissing
from quiesce.mesh import wire
from quiesce.mesh.hop import hop_of
from quiesce.mesh.transport import not_ok

try:
    import httpx
except ImportError as _error:  # pragma: no cover - where it is not installed
    _message = "a node that calls others over HTTP needs httpx: pip install 'quiesce[httpx]'"
    raise SdkMissing(_message) from _error

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from quiesce.mesh.node import Node

__all__ = ["CascadeTransport", "Http"]

_SAFE = frozenset(("GET", "HEAD", "OPTIONS", "TRACE"))
_OK, _ERRORS = 200, 400
_NOT_SENT = (  # raised before a byte of the request has left; of this attempt, if there were others
    httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol,
    httpx.InvalidURL, httpx.ProxyError, httpx.LocalProtocolError,
)  # fmt: skip
_LEAVES = ".send_request_headers.started"
_AT_ONCE = 8  # calls to one node
_CLOSE_SECONDS = 5.0
_LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=100)
_OF_TRANSPORTS = ("verify", "cert", "http1", "http2", "limits")


class Http:
    """Calls nodes over HTTP.

    A question waits for its answer, and takes a connection meanwhile. So there is no limit to all of them, which
    those would use up that wait, and no receipt would come through; but one to those to a node, so that one
    which hangs does not have ever more.

    Args:
        client: The client to call with, for certificates and credentials of your own; it is closed by
            whoever has made it. Its limit, `httpx.Limits(max_connections=...)`, has to be above the number of
            nodes that it calls. None: one that follows no redirects.
    """

    def __init__(self, client: httpx.AsyncClient | None = None) -> None:
        """Make no connection yet."""
        self._given = client
        self._client = client
        self._lines: dict[str, _Line] = {}

    async def call(self, to: str, path: str, body: bytes) -> bytes:
        """Post a body to a node, and give its answer, unless it is too long.

        *Cancel safety*: may be cancelled at any time.

        *Raises*: `PeerLost` if there is no answer, or one that is no success; `NoMesh` if what answers is no node.
        """
        client = self._client
        if client is None:
            client = self._client = httpx.AsyncClient(timeout=None, limits=_LIMITS)  # noqa: S113 - the caller bounds it
        try:
            headers = {"Content-Type": "application/json"}
            request = client.build_request("POST", to + path, content=body, headers=headers)
            request.stream = Body(body)
            async with self._line(to):
                response = await client.send(request, stream=True, follow_redirects=False)
                try:
                    if response.status_code != _OK:
                        raise not_ok(to, response.status_code)
                    return await _read(response, to)
                finally:
                    await response.aclose()
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            message = f"{to} was not reached: {type(error).__name__}"
            raise PeerLost(message) from error

    @asynccontextmanager
    async def _line(self, to: str) -> AsyncIterator[None]:
        """Have one of the calls that may be made to a node at once."""
        line = self._lines.get(to)
        if line is None:
            line = self._lines[to] = _Line()
        line.users += 1
        try:
            async with line.free:
                yield
        finally:
            line.users -= 1
            if not line.users and self._lines.get(to) is line:
                del self._lines[to]

    async def aclose(self) -> None:
        """Close the connections, unless the client was given."""
        client, self._client = self._client, self._given
        if client is not None and client is not self._given:
            await client.aclose()


class Body(httpx.AsyncByteStream):  # type: ignore[misc]  # no types here
    """What is posted, in one part. Of httpx's own, a cancellation would leave a generator half-read, for the loop."""

    def __init__(self, body: bytes) -> None:
        """Be sent as often as it is asked for."""
        self._parts = [body]

    def __aiter__(self) -> Body:
        """Begin."""
        return Body(*self._parts)

    async def __anext__(self) -> bytes:
        """Give it."""
        if not self._parts:
            raise StopAsyncIteration
        return self._parts.pop()


class _Line:
    """The way to one node, and how many use it, or wait for it."""

    __slots__ = ("free", "users")

    def __init__(self) -> None:
        self.free: anyio.Semaphore = anyio.Semaphore(_AT_ONCE)
        self.users: int = 0


async def _read(response: Any, to: str) -> bytes:
    parts: list[bytes] = []
    size = 0
    async for part in response.aiter_bytes():
        parts.append(part)
        size += len(part)
        if size > wire.BODY_BYTES_MAX:
            message = f"{to} answered with more than {wire.BODY_BYTES_MAX} bytes"
            raise PeerLost(message)
    return b"".join(parts)


class Departure:
    """Hears from httpcore whether a request has left, however often it is tried below."""

    __slots__ = ("_other", "is_heard", "is_left")

    def __init__(self) -> None:
        """Have heard nothing."""
        self._other: Any = None
        self.is_heard: bool = False
        self.is_left: bool = False

    def listen(self, request: httpx.Request) -> None:
        """Listen to a request that is about to be sent, perhaps not for the first time."""
        other = request.extensions.get("trace")
        self._other = other._other if isinstance(other, Departure) else other
        request.extensions = {**request.extensions, "trace": self}

    async def __call__(self, name: str, info: dict[str, Any]) -> None:
        """Hear what is done; also of a proxy that is asked for a connection."""
        self.is_heard = True
        if name.endswith(_LEAVES) and info["request"].method != b"CONNECT":
            self.is_left = True
        if self._other is not None:
            await self._other(name, info)

    def is_prevented(self, error: BaseException | None, *, is_sure: bool = False) -> bool:
        """Tell whether an error says that not a byte has left.

        A transport that tries again raises what became of its last attempt. So it has to be heard that
        none of them has left; unless it is sure that there was only one.
        """
        while error is not None and not isinstance(error, _NOT_SENT):
            error = error.__cause__
        return error is not None and not self.is_left and (self.is_heard or is_sure)


class CascadeTransport(httpx.AsyncBaseTransport):  # type: ignore[misc]  # no types here
    """Lets requests that are sent in a hop hand over messages of it.

    A transport, and no event hook: a hook does not see requests that fail. A request that the client sends
    again, to where it was redirected or with other credentials, is another message.

    Args:
        node: The node of this agent.
        inner: What really sends; httpx's own transport by default. If it tries again by itself, it is
            with the same request, so that its receiver takes one of them.
        methods: Methods by which work is handed over; None: all but the safe ones.
    """

    def __init__(
        self,
        node: Node,
        inner: httpx.AsyncBaseTransport | None = None,
        *,
        methods: tuple[str, ...] | None = None,
    ) -> None:
        """Wrap a transport."""
        self._node = node
        self._inner = httpx.AsyncHTTPTransport() if inner is None else inner
        self._is_plain = type(self._inner) is httpx.AsyncHTTPTransport
        self._methods = None if methods is None else frozenset(methods)

    def _hands_over(self, method: str) -> bool:
        return method not in _SAFE if self._methods is None else method in self._methods

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request, as a message of the current hop if there is one."""
        hop = hop_of(self._node) if self._hands_over(request.method) else None
        if hop is None:
            return await self._inner.handle_async_request(request)
        if wire.REQUEST_HEADER in request.headers:  # whoever has put it there sees to its edge
            return await self._inner.handle_async_request(request)
        to = self._node._policy.node_of(str(request.url))
        extensions, departure = request.extensions, Departure()
        with hop.delegate(to) as handing:
            request.headers[wire.REQUEST_HEADER] = handing.header
            departure.listen(request)
            try:
                response = await self._inner.handle_async_request(request)
            except Exception as error:
                if departure.is_prevented(error, is_sure=self._is_plain):
                    handing.not_sent()
                raise
            finally:  # the client may send it again: to another, who must not have this one
                request.headers.pop(wire.REQUEST_HEADER, None)
                request.extensions = extensions
            try:
                is_error = response.status_code >= _ERRORS or response.has_redirect_location
                handing.answered(response.headers.get(wire.RESPONSE_HEADER), is_error=is_error)
            except BaseException:  # nobody is given it: nobody else lets go of its connection
                with anyio.move_on_after(_CLOSE_SECONDS, shield=True):
                    await response.aclose()
                raise
            return response

    async def aclose(self) -> None:
        """Close the transport that really sends."""
        await self._inner.aclose()


def client(node: Node, **options: Any) -> httpx.AsyncClient:
    """Make a client whose requests hand over messages; the options are httpx's own.

    *Raises*: `ArgumentError` for one by which requests would pass the mesh by.
    """
    if "proxies" in options:
        message = "write proxy=..., or mounts=..., in place of proxies=..."
        raise ArgumentError(message)
    proxy, inner = options.pop("proxy", None), options.pop("transport", None)
    given = {name: options.pop(name) for name in _OF_TRANSPORTS if name in options}
    if inner is None or proxy is not None:  # which httpx would make by itself, without the mesh
        trust = options.get("trust_env", True)
        inner = httpx.AsyncHTTPTransport(proxy=proxy, trust_env=trust, **given)
    mounts = options.pop("mounts", None) or {}
    return httpx.AsyncClient(
        transport=CascadeTransport(node, inner),
        mounts={to: way and CascadeTransport(node, way) for to, way in mounts.items()},
        **options,
    )
