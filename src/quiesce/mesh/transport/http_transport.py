"""The mesh over HTTP: calls from node to node, and requests that carry messages. Needs httpx or httpx2.

If both are installed, the node's own calls use httpx. A client or transport of the user may come from either library.
"""

from __future__ import annotations

import functools
import importlib
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Literal, Self

import anyio

from quiesce.core import arguments
from quiesce.errors import ArgumentError, PeerLost, SdkMissing
from quiesce.mesh.clients.departure import Departure
from quiesce.mesh.clients.sending import within
from quiesce.mesh.clients.strays import notice_stray
from quiesce.mesh.protocol import codec
from quiesce.mesh.runtime.hop import current_hop, hop_of_node
from quiesce.mesh.runtime.peers import SAFE, may_start_work, peers_of
from quiesce.mesh.transport.node_transport import not_ok

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from types import ModuleType, TracebackType

    from httpx import AsyncBaseTransport as _Transport

    from quiesce.mesh.runtime.node import Node
else:
    _Transport = object  # a client only needs the methods

__all__ = ["CascadeTransport", "HttpTransport"]

_LIBRARIES = ("httpx", "httpx2")
_OK, _ERRORS = 200, 400
_AT_ONCE = 8  # calls to one node
_CLOSE_SECONDS = 5.0
_KEPT_MAX = 100  # idle connections
_TRANSPORT_OPTIONS = ("verify", "cert", "http1", "http2", "limits")


def _installed(names: tuple[str, ...] = _LIBRARIES) -> ModuleType:
    """Return the first of these libraries that is installed.

    *Raises*: `SdkMissing` if none of them is.
    """
    for name in names:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name:
                raise
    extras = " or ".join(f"pip install 'quiesce[{name}]'" for name in names)
    message = f"a node that calls others over HTTP needs {' or '.join(names)}: {extras}"
    raise SdkMissing(message)


_installed()  # fail at the import, not at the first call


def _library_of(thing: object) -> ModuleType | None:
    """Return the library of a client, a transport or a request; None for other objects."""
    for kind in type(thing).__mro__:
        name = kind.__module__.partition(".")[0]
        if name in _LIBRARIES:
            return sys.modules[name]
    return None


class HttpTransport:
    """The transport by which a node calls other nodes over HTTP.

    A question to another node waits for its answer, and uses a connection meanwhile. With a limit on all connections,
    waiting questions could use them up, and receipts would not get through. So the total has no limit, but the number of
    calls to one node has one: a node that hangs does not use up ever more connections.

    Args:
        client: An `AsyncClient` of httpx or httpx2 for the calls, with your own certificates or credentials. You close
            it. Its limit, `Limits(max_connections=...)`, must be higher than the number of nodes that it calls. By default
            the transport makes a client.
    """

    def __init__(self, client: Any = None) -> None:
        """Prepare; the first call opens a connection."""
        self._given = client
        self._library = (None if client is None else _library_of(client)) or _installed()
        self._client = client
        self._lines: dict[str, _Line] = {}

    async def call(self, to: str, path: str, body: bytes) -> bytes:
        """Post a body to a node, and return its answer.

        *Cancel safety*: may be cancelled at any time.

        *Raises*: `PeerLost` if there is no answer, or the answer is too long or not a success; its subclass `NoMesh` if the
        server that answers is not a node.
        """
        client, library = self._client, self._library
        if client is None:
            limits = library.Limits(max_connections=None, max_keepalive_connections=_KEPT_MAX)
            # The caller limits the time of a call.
            client = self._client = library.AsyncClient(timeout=None, limits=limits)
        try:
            headers = {"Content-Type": "application/json"}
            request = client.build_request("POST", to + path, content=body, headers=headers)
            request.stream = _body_type(library)(body)
            async with self._line(to):
                response = await client.send(request, stream=True, follow_redirects=False)
                try:
                    if response.status_code != _OK:
                        raise not_ok(to, response.status_code)
                    return await _read(response, to)
                finally:
                    await response.aclose()
        except (library.HTTPError, library.InvalidURL) as error:
            message = f"{to} was not reached: {type(error).__name__}"
            raise PeerLost(message) from error

    @asynccontextmanager
    async def _line(self, to: str) -> AsyncIterator[None]:
        """Wait until one more call to a node is allowed, and count it."""
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
        """Close the client, unless it is the user's."""
        client, self._client = self._client, self._given
        if client is not None and client is not self._given:
            await client.aclose()


class WholeBody:
    """A request body that is sent in one part.

    The body class of httpx is an async generator. A cancelled request would leave it half-read, for the event loop to close.
    """

    def __init__(self, body: bytes) -> None:
        """Keep the body. It may be sent several times."""
        self._parts = [body]

    def __aiter__(self) -> Self:
        return type(self)(*self._parts)

    async def __anext__(self) -> bytes:
        if not self._parts:
            raise StopAsyncIteration
        return self._parts.pop()


@functools.cache
def _body_type(library: Any) -> type[WholeBody]:
    """Return the subclass of `WholeBody` that a library accepts as a stream."""
    return type("Body", (WholeBody, library.AsyncByteStream), {})


class _Line:
    """The calls to one node: a semaphore, and the number of calls that are open or wait."""

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
        if size > codec.BODY_BYTES_MAX:
            message = (
                f"{to} answered with more than the {codec.BODY_BYTES_MAX} bytes that a node accepts"
            )
            raise PeerLost(message)
    return b"".join(parts)


class CascadeTransport(_Transport):  # type: ignore[misc]  # no types here
    """A transport for a client of httpx or httpx2 that makes each request inside a hop a message of that hop.

    This is a transport and not an event hook, because a hook does not see requests that fail. If the client sends a
    request again, after a redirect or with other credentials, that is another message.

    Args:
        node: The node of this agent.
        inner: The transport that really sends; by default the library's own. If it retries by itself, it repeats the same
            edge, so that the receiver accepts only one of the requests.
        methods: The HTTP methods of requests that are messages. By default, these are all methods for a peer or for a
            server that has answered with a receipt before, and all but GET, HEAD, OPTIONS and TRACE for other servers.
    """

    def __init__(
        self,
        node: Node,
        inner: Any = None,
        *,
        methods: tuple[str, ...] | None = None,
    ) -> None:
        self._node = node
        self._inner = inner
        self._methods = None if methods is None else frozenset(methods)

    def _hands_over(self, request: Any) -> bool:
        method: str = request.method
        if self._methods is not None:
            return method in self._methods
        if method not in SAFE:
            return True
        url = request.url
        peers = peers_of(self._node)
        return peers.find(url.scheme, url.host, url.port, url.path) is not None and may_start_work(
            method, url.path
        )

    async def handle_async_request(self, request: Any) -> Any:
        """Send a request, as a message of the current hop if there is one."""
        if self._inner is None:
            self._inner = (_library_of(request) or _installed()).AsyncHTTPTransport()
        if not self._hands_over(request) or codec.REQUEST_HEADER in request.headers:
            hop = current_hop()
            if hop is None or hop.mesh_node is not self._node:
                return await self._inner.handle_async_request(request)
            token = within.set(hop)  # the request is not a message, or carries an edge already
            try:
                return await self._inner.handle_async_request(request)
            finally:
                within.reset(token)
        if hop_of_node(self._node) is None:
            if current_hop() is None:
                notice_stray(self._node)
            return await self._inner.handle_async_request(request)
        return await self._hand_over(request)

    async def _hand_over(self, request: Any) -> Any:
        hop, inner = hop_of_node(self._node), self._inner
        assert hop is not None  # noqa: S101 - checked by the caller
        url = str(request.url)
        to = peers_of(self._node).find_url(url) or self._node.policy.node_of(url)
        extensions, departure = request.extensions, Departure()
        library = _library_of(inner)
        is_plain = library is not None and type(inner) is library.AsyncHTTPTransport
        with hop.delegate(to) as handing:
            if not handing.is_written:
                await handing.written()
            request.headers[codec.REQUEST_HEADER] = handing.header
            departure.listen(request)
            try:
                response = await inner.handle_async_request(request)
            except Exception as error:
                if departure.is_prevented(error, is_sure=is_plain):
                    handing.not_sent()
                raise
            finally:  # the client may send the request to another server, which must not get this edge
                request.headers.pop(codec.REQUEST_HEADER, None)
                request.extensions = extensions
            try:
                is_error = response.status_code >= _ERRORS or response.has_redirect_location
                header, status = response.headers.get(codec.RESPONSE_HEADER), response.status_code
                handing.answered(header, is_error=is_error, status=status)
            except BaseException:  # the caller does not get the response, and so cannot close it
                with anyio.move_on_after(_CLOSE_SECONDS, shield=True):
                    await response.aclose()
                raise
            return response

    async def aclose(self) -> None:
        """Close the transport that really sends."""
        if self._inner is not None:
            await self._inner.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        await self.aclose()


def client(node: Node, library: Literal["httpx", "httpx2"] | None = None, **options: Any) -> Any:
    """Return an `AsyncClient` whose requests inside hops are messages; the options are those of its library.

    *Raises*: `SdkMissing` if the library is not installed; `ArgumentError` for an option by which requests would
    bypass the mesh.
    """
    if library is not None:
        arguments.one_of("library", library, _LIBRARIES)
    made_of = _installed() if library is None else _installed((library,))
    if "proxies" in options:
        message = "proxies=... would bypass the mesh: write proxy=... or mounts=... in its place"
        raise ArgumentError(message)
    proxy, inner = options.pop("proxy", None), options.pop("transport", None)
    given = {name: options.pop(name) for name in _TRANSPORT_OPTIONS if name in options}
    # Otherwise the library makes a transport without the mesh.
    if inner is None or proxy is not None:
        trust = options.get("trust_env", True)
        inner = made_of.AsyncHTTPTransport(proxy=proxy, trust_env=trust, **given)
    mounts = options.pop("mounts", None) or {}
    return made_of.AsyncClient(
        transport=CascadeTransport(node, inner),
        mounts={to: way and CascadeTransport(node, way) for to, way in mounts.items()},
        **options,
    )
