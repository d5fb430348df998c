"""httpcore and httpcore2: httpx, httpx2 and the SDKs on top of them send through their connection pools."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from quiesce.core.patches import Patch
from quiesce.mesh.clients.departure import Departure
from quiesce.mesh.clients.sending import SendTarget, begin_request, hop_here, within
from quiesce.mesh.protocol import codec

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

    from quiesce.mesh.clients.sending import RequestEdge
    from quiesce.mesh.runtime.hop import Hop

__all__: list[str] = []

_REQUEST = codec.REQUEST_HEADER.lower().encode()
_RESPONSE = codec.RESPONSE_HEADER.lower().encode()


def wrap_httpcore(module: ModuleType) -> Iterator[Patch]:
    """Wrap the pools of httpcore, and of httpcore2."""
    yield Patch(module.AsyncConnectionPool, "handle_async_request", _async)
    yield Patch(module.ConnectionPool, "handle_request", _sync)


def _async(original: Any) -> Any:
    async def handle_async_request(pool: Any, request: Any) -> Any:
        hop = hop_here()
        if hop is None:
            return await original(pool, request)
        token = within.set(hop)
        try:
            message = _Message.of(hop, request, is_sync=False)
            if message is None or not await message.may_leave():
                return await original(pool, request)
            try:
                response = await original(pool, request)
            except BaseException as error:
                message.failed(error)
                raise
            message.answered(response)
            return response
        finally:
            within.reset(token)

    return handle_async_request


def _sync(original: Any) -> Any:
    def handle_request(pool: Any, request: Any) -> Any:
        hop = hop_here()
        if hop is None:
            return original(pool, request)
        token = within.set(hop)
        try:
            message = _Message.of(hop, request, is_sync=True)
            if message is None:
                return original(pool, request)
            try:
                response = original(pool, request)
            except BaseException as error:
                message.failed(error)
                raise
            message.answered(response)
            return response
        finally:
            within.reset(token)

    return handle_request


class _Message:
    """A request that carries an edge while it is sent. A client may send the request object again, to another server."""

    __slots__ = ("_departure", "_given", "_request", "_sending")

    def __init__(self, request: Any, sending: RequestEdge, *, is_sync: bool) -> None:
        self._request = request
        self._sending = sending
        self._given = (request.headers, request.extensions)
        self._departure = Departure()
        if is_sync:
            self._add_edge(is_sync=True)

    def _add_edge(self, *, is_sync: bool = False) -> None:
        request = self._request
        self._departure.listen(request, is_sync=is_sync)
        request.headers = [*request.headers, (_REQUEST, self._sending.header.encode())]

    async def may_leave(self) -> bool:
        """Wait until a request of an async client may leave with its edge; return False if it leaves without one."""
        if not await self._sending.written():
            return False
        self._add_edge()
        return True

    @classmethod
    def of(cls, hop: Hop, request: Any, *, is_sync: bool) -> _Message | None:
        """Add an edge to a request and return the message; None if the request does not go to a known node."""
        names = [name.lower() for name, _ in request.headers]
        if _REQUEST in names:  # the code that has set the header itself resolves its edge
            return None
        url = request.url
        target = SendTarget(
            request.method.decode("latin-1"),
            url.scheme.decode("latin-1"),
            url.host.decode("latin-1"),
            url.port,
            url.target.decode("latin-1"),
            b"upgrade" in names or url.scheme in {b"ws", b"wss"},
        )
        sending = begin_request(hop, target, can_wait=not is_sync)
        return None if sending is None else cls(request, sending, is_sync=is_sync)

    def failed(self, error: BaseException) -> None:
        """Record that the request has failed without an answer."""
        self._request.headers, self._request.extensions = self._given
        departure = self._departure
        # No matter which error this is.
        is_connecting = departure.is_heard and not departure.is_left
        is_prevented = is_connecting or departure.is_prevented(error, is_sure=True)
        self._sending.failed("not sent" if is_prevented else "in doubt")

    def answered(self, response: Any) -> None:
        """Record the head of the answer."""
        self._request.headers, self._request.extensions = self._given
        told = [value for name, value in response.headers if name.lower() == _RESPONSE]
        header = told[0].decode("latin-1") if told else None
        self._sending.answered(header, response.status)
