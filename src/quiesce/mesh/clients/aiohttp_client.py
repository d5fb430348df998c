"""aiohttp: adds a middleware to each call, because one call may follow redirects and so send several requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from quiesce.core.patches import Patch
from quiesce.mesh.clients.sending import (
    SendTarget,
    begin_request,
    hop_here,
    notice,
    within,
)
from quiesce.mesh.protocol import codec
from quiesce.mesh.runtime.peers import peers_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

    from quiesce.mesh.runtime.hop import Hop

__all__: list[str] = []


def wrap_aiohttp(module: ModuleType) -> Iterator[Patch]:
    """Wrap the requests of aiohttp's sessions."""
    not_sent = (module.ClientConnectorError, module.ConnectionTimeoutError, module.InvalidURL)

    def wrapped(original: Any) -> Any:
        async def _request(session: Any, method: str, url: Any, **options: Any) -> Any:
            hop = hop_here()
            if hop is None:
                return await original(session, method, url, **options)
            token = within.set(hop)
            try:
                given = options.get("middlewares")
                if given is None:
                    given = getattr(session, "_middlewares", None)
                if given is None:  # aiohttp before 3.12 does not have middlewares
                    _notice(hop, session, url)
                else:
                    options["middlewares"] = (*given, _Middleware(hop, not_sent))
                return await original(session, method, url, **options)
            finally:
                within.reset(token)

        return _request

    yield Patch(module.ClientSession, "_request", wrapped)


def _notice(hop: Hop, session: Any, url: Any) -> None:
    whole = session._build_url(url)  # noqa: SLF001 - joins the session's base address; no public name does
    if peers_of(hop.mesh_node).find_url(str(whole)) is not None:
        notice(hop, instead=". Update aiohttp to 3.12 or newer, and write node.instrument() once")


class _Middleware:
    """An aiohttp middleware that sends each request as a message of a hop."""

    def __init__(self, hop: Hop, not_sent: tuple[type[BaseException], ...]) -> None:
        self._hop = hop
        self._not_sent = not_sent

    async def __call__(self, request: Any, handler: Any) -> Any:
        """Send a request, with an edge if it goes to a known node."""
        headers, url = request.headers, request.url
        sending = None
        # The code that has set the header itself resolves its edge.
        if codec.REQUEST_HEADER not in headers:
            target = SendTarget(
                request.method,
                url.scheme,
                url.host or "",
                url.port,
                url.raw_path,
                "Upgrade" in headers,
            )
            sending = begin_request(self._hop, target, can_wait=True)
        if sending is not None and not await sending.written():
            sending = None
        if sending is None:
            return await handler(request)
        headers[codec.REQUEST_HEADER] = sending.header
        try:
            response = await handler(request)
        except BaseException as error:
            sending.failed("not sent" if isinstance(error, self._not_sent) else "in doubt")
            raise
        finally:
            headers.popall(codec.REQUEST_HEADER, None)
        sending.answered(response.headers.get(codec.RESPONSE_HEADER), response.status)
        return response
