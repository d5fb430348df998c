"""http.client: urllib, urllib3, requests and the SDKs on top of them send through its connections."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

from quiesce.core.patches import Patch
from quiesce.core.python_private import request_head, tunnel_of
from quiesce.mesh.clients.sending import SendTarget, begin_request, hop_here, within
from quiesce.mesh.protocol import codec

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType, TracebackType

    from quiesce.mesh.clients.sending import RequestEdge
    from quiesce.mesh.runtime.hop import Hop

__all__: list[str] = []

_HEADER = f"{codec.REQUEST_HEADER}:".lower().encode()
_UPGRADE = b"upgrade:"
_HTTPS = 443

_under_way: WeakKeyDictionary[Any, RequestEdge] = WeakKeyDictionary()
"""By connection, the edge of the request whose answer the connection waits for."""


def wrap_http_client(module: ModuleType) -> Iterator[Patch]:
    """Wrap the methods that send the head of a request, read the head of the answer, and close the connection."""
    connection = module.HTTPConnection
    yield Patch(connection, "endheaders", _endheaders)
    yield Patch(connection, "getresponse", _getresponse)
    yield Patch(connection, "close", _close)


def _endheaders(original: Any) -> Any:
    def endheaders(connection: Any, *args: Any, **options: Any) -> Any:
        hop = hop_here()
        if hop is None:
            return original(connection, *args, **options)
        token = within.set(hop)
        try:
            sending = _begin(hop, connection)
            if sending is None:
                return original(connection, *args, **options)
            connection.putheader(codec.REQUEST_HEADER, sending.header)
            _under_way[connection] = sending
            try:
                return original(connection, *args, **options)
            except BaseException as error:
                _under_way.pop(connection, None)
                is_prevented = _failed_to_connect(error.__traceback__, connection)
                sending.failed("not sent" if is_prevented else "in doubt")
                raise
        finally:
            within.reset(token)

    return endheaders


def _begin(hop: Hop, connection: Any) -> RequestEdge | None:
    first, *lines = request_head(connection)  # the head, as far as it is written
    lines = [line.lower() for line in lines]
    # The code that has set the header itself resolves its edge.
    if any(line.startswith(_HEADER) for line in lines):
        return None
    is_upgrade = any(line.startswith(_UPGRADE) for line in lines)
    method, path = first.decode("latin-1").split(" ")[:2]
    if path.startswith("/"):
        host, port = tunnel_of(connection) or (connection.host, connection.port)
        scheme = "https" if connection.default_port == _HTTPS else "http"
        return begin_request(hop, SendTarget(method, scheme, host, port, path, is_upgrade))
    try:  # a request to a proxy has the whole URL in place of the path
        parts = urlsplit(path)
        target = SendTarget(
            method, parts.scheme, parts.hostname or "", parts.port, parts.path, is_upgrade
        )
    except ValueError:
        return None
    return begin_request(hop, target)


def _failed_to_connect(traceback: TracebackType | None, connection: Any) -> bool:
    """Return whether an error was raised while the connection was made, before a byte of the request left."""
    while traceback is not None:
        frame = traceback.tb_frame
        if frame.f_code.co_name == "connect" and frame.f_locals.get("self") is connection:
            return True
        traceback = traceback.tb_next
    return False


def _getresponse(original: Any) -> Any:
    def getresponse(connection: Any, *args: Any, **options: Any) -> Any:
        sending = _under_way.pop(connection, None) if _under_way else None
        if sending is None:
            return original(connection, *args, **options)
        try:
            response = original(connection, *args, **options)
        except BaseException:
            sending.failed("in doubt")
            raise
        sending.answered(response.getheader(codec.RESPONSE_HEADER), response.status)
        return response

    return getresponse


def _close(original: Any) -> Any:
    def close(connection: Any, *args: Any, **options: Any) -> Any:
        sending = _under_way.pop(connection, None) if _under_way else None
        if sending is not None:  # the answer will not be read
            sending.failed("in doubt")
        return original(connection, *args, **options)

    return close
