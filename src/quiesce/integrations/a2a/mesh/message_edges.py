"""A client of the A2A SDK whose messages belong to the hop that sends them.

1. A message has one edge. The header and the metadata carry the same ids.
2. The edge is journaled before the first byte is sent. The head of the answer resolves the edge. A stream
   goes on after its head, and a receipt reports the end of its work.
3. Every send resolves its edge: with an answer, an error of any kind, or a cancellation. The SDK's
   interceptors do not see all of these, so this module uses event hooks of httpx.
4. If an agent's card declares the extension, and its answer does not mention the edge, this node queries
   the agent. An agent whose card does not declare the extension takes no part, unless its answer mentions
   the edge.
5. httpx may send a message again, with other credentials or after a redirect. The message keeps its edge
   while it goes to the same server and no answer has resolved the edge. Otherwise it gets a new edge.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Self

import httpx

from quiesce.integrations.a2a import versions
from quiesce.integrations.a2a.mesh import extension
from quiesce.mesh.clients.declaring import declared
from quiesce.mesh.clients.departure import Departure
from quiesce.mesh.clients.sending import within
from quiesce.mesh.protocol import codec
from quiesce.mesh.protocol.facts import WORKING
from quiesce.mesh.runtime.hop import hop_of_node
from quiesce.mesh.transport.links import check_node

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from types import TracebackType

    from quiesce.mesh.runtime.delegation import Handing
    from quiesce.mesh.runtime.hop import Hop
    from quiesce.mesh.runtime.node import Node

__all__ = ["CascadeClient", "quiesce_client"]

_ERRORS = 400

_under_way: dict[str, _Message] = {}
"""By their header: the messages whose edge no answer has resolved yet."""


async def quiesce_client(
    node: Node,
    agent: Any,
    *,
    config: Any = None,
    relative_card_path: str | None = None,
    resolver_http_kwargs: dict[str, Any] | None = None,
    **options: Any,
) -> CascadeClient:
    """Return a client for an agent. A message that the client sends in a hop belongs to that hop.

    ```python
    client = await quiesce_client(node, "https://billing.example")
    async with node.cascade("book-trip") as cascade:
        async for event in client.send_message(message):
            ...
    settlement = await cascade.settled()
    ```

    Args:
        node: The node of this agent, or of this program.
        agent: The agent's address, or its card.
        config: The SDK's `ClientConfig`. If it has an `httpx_client`, two event hooks are added to that
            client.
        relative_card_path: The path of the card, below the address.
        resolver_http_kwargs: Options of httpx for the request that gets the card.
        options: More options for `create` of the SDK's `ClientFactory`.

    *Raises*: errors of the SDK, if it finds no card, or no transport that client and agent share.
    """
    from a2a.client import A2ACardResolver, ClientConfig, ClientFactory  # noqa: PLC0415 - clients only

    check_node(node)
    config = ClientConfig() if config is None else config
    own = None
    if config.httpx_client is None:
        own = httpx.AsyncClient(headers=_version_header())
        config = dataclasses.replace(config, httpx_client=own)
    http = config.httpx_client
    try:
        if isinstance(agent, str):
            resolver = A2ACardResolver(http, agent)
            agent = await resolver.get_agent_card(relative_card_path, resolver_http_kwargs)
        client = ClientFactory(config).create(agent, **options)
        made = CascadeClient(node, client, agent, config, own)
    except BaseException:
        if own is not None:
            await own.aclose()
        raise
    if _heard not in http.event_hooks["response"]:
        http.event_hooks = {
            "request": [*http.event_hooks["request"], _leaves],
            "response": [
                _heard,
                *http.event_hooks["response"],
            ],  # first, because other hooks may raise
        }
    return made


def _version_header() -> dict[str, str]:
    """Return the version header that the SDK's own httpx client would send."""
    if not versions.FIRST:
        return {}
    from a2a.utils.constants import PROTOCOL_VERSION_CURRENT, VERSION_HEADER  # noqa: PLC0415 - 1.x

    return {VERSION_HEADER: PROTOCOL_VERSION_CURRENT}


class CascadeClient:
    """A client of the SDK whose messages belong to the hop that sends them; `quiesce_client()` makes it.

    All methods but `send_message` and `close` are those of the SDK's client.
    """

    def __init__(self, node: Node, client: Any, card: Any, config: Any, own: Any) -> None:
        self.mesh_node = node
        self._client = client
        self._config = config
        self._own = own
        self._declared = extension.node_of(card, node)
        urls = [url for url in extension.urls_of(card) if url.startswith(("http://", "https://"))]
        self._to = self._declared or (node.policy.node_of(urls[0]) if urls else card.name)

    @property
    def takes_part(self) -> bool:
        """Whether the agent's card declares that the agent takes part in cascades."""
        return self._declared is not None

    def is_asked_at(self, url: str) -> bool:
        """Return whether this node may query the address on the card about messages sent to this URL."""
        to = self._to
        return extension.is_near(to, [url]) or self.mesh_node.policy.allows(to)

    def send_message(self, request: Any, **options: Any) -> AsyncIterator[Any]:
        """Send a message, as the SDK does, and return its events. In a hop, the message belongs to the hop.

        The message is sent when you ask for the first event.

        *Cancel safety*: may be cancelled at any time; the node then queries the agent about the message.
        """
        return _Message(self, request, options)

    def send_plainly(self, request: Any, options: dict[str, Any]) -> AsyncIterator[Any]:
        """Send a message outside of any hop, as the SDK does."""
        events: AsyncIterator[Any] = self._client.send_message(request, **options)
        return events

    async def begin_message(
        self, message: _Message, request: Any, options: dict[str, Any], hop: Hop
    ) -> Any:
        header = await message.take_edge(hop, self._to)
        headers = {codec.REQUEST_HEADER: header}
        if self._declared is not None:
            ids = (header, self._declared)
            if versions.FIRST:
                request = versions.copied(request)
                request.message.CopyFrom(extension.with_ids(request.message, *ids))
            else:
                request = extension.with_ids(request, *ids)
        if versions.FIRST:
            options = self._first_options(options, headers)
        else:
            options = self._old_options(options, headers)
        return self._client.send_message(request, **options)

    def _first_options(self, options: dict[str, Any], headers: dict[str, str]) -> dict[str, Any]:
        from a2a.client import ClientCallContext  # noqa: PLC0415 - clients only
        from a2a.client.service_parameters import with_a2a_extensions  # noqa: PLC0415 - 1.x

        context = options.get("context") or ClientCallContext()
        parameters = {**(context.service_parameters or {}), **headers}
        if self._declared is not None:
            with_a2a_extensions([extension.CASCADE_EXTENSION])(parameters)
        return options | {"context": context.model_copy(update={"service_parameters": parameters})}

    def _old_options(self, options: dict[str, Any], headers: dict[str, str]) -> dict[str, Any]:
        from a2a.client import ClientCallContext  # noqa: PLC0415 - clients only

        context = options.get("context") or ClientCallContext()
        http = dict(context.state.get("http_kwargs") or {})
        http["headers"] = {**(http.get("headers") or {}), **headers}
        made = options | {
            "context": ClientCallContext(state={**context.state, "http_kwargs": http})
        }
        if self._declared is not None:
            wanted = options.get("extensions")
            wanted = self._config.extensions if wanted is None else wanted
            made["extensions"] = list(dict.fromkeys([*wanted, extension.CASCADE_EXTENSION]))
        return made

    async def close(self) -> None:
        """Close the SDK's client; its httpx client too, unless you passed one."""
        try:
            if self._own is None or not self._own.is_closed:
                await self._client.close()
        finally:
            if self._own is not None:
                await self._own.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the SDK's client; its other calls hand over no work."""
        if name.startswith("_"):
            raise AttributeError(name)
        found = getattr(self._client, name)
        return declared(found) if callable(found) else found


class _Message:
    """A message that is being sent, and the iterator of its events.

    This is not a generator, so the caller may stop reading without closing it.
    """

    def __init__(self, client: CascadeClient, request: Any, options: dict[str, Any]) -> None:
        self._client = client
        self._given = (request, options)
        self._events: Any = None
        self._hop: Hop | None = None
        self._handing: Handing | None = None
        self._declared = client.takes_part
        self._at: tuple[str, str, int | None] | None = None
        self._departure = Departure()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        if self._events is None:
            self._events = await self._begin()
        token = within.set(self._hop)  # the edge may travel in the metadata alone
        try:
            event = await anext(self._events)
        except BaseException as error:
            self._resolve_if_open(error)
            raise
        finally:
            within.reset(token)
        self._resolve_if_open(None)
        return event

    async def _begin(self) -> Any:
        client, (request, options) = self._client, self._given
        hop = hop_of_node(client.mesh_node)
        if hop is None:
            return client.send_plainly(request, options)
        return await client.begin_message(self, request, options, hop)

    async def take_edge(self, hop: Hop, to: str) -> str:
        """Open an edge for this message, in place of an earlier edge (5); return the edge's header.

        *Raises*: `StoreLost` if the record of the edge does not last in time; the message must not be sent then.
        """
        if self._handing is not None:
            _under_way.pop(self._handing.header_text, None)
        self._hop, self._departure = hop, Departure()
        handing = self._handing = hop.delegate(to)
        await handing.written()
        header = handing.header
        _under_way[header] = self
        return header

    async def leaves(self, request: httpx.Request) -> None:
        """Record that httpx is about to send the message, for the first time or again (5)."""
        url, hop, handing = request.url, self._hop, self._handing
        if hop is None or handing is None:
            return
        at, to = (url.scheme, url.host, url.port), handing.to
        if self._at is not None and self._at != at:  # redirected, so not to the card's server
            self._resolve(None)
            self._declared, to = False, self._client.mesh_node.policy.node_of(str(url))
        elif self._at is None and self._declared and not self._client.is_asked_at(str(url)):
            handing.not_sent()  # nothing was sent yet, and the card's node is not at the destination
            self._declared, to = False, self._client.mesh_node.policy.node_of(str(url))
        if handing.is_resolved:
            request.headers[codec.REQUEST_HEADER] = await self.take_edge(hop, to)
        elif self._at is not None:
            handing.use_count += 1
        self._at = at
        self._departure.listen(request)

    def heard(self, response: httpx.Response) -> None:
        """Resolve the edge with the head of the answer (2, 4)."""
        handing, header = self._handing, response.headers.get(codec.RESPONSE_HEADER)
        if handing is None:
            return
        if header is not None:
            handing.answered(header)
        elif response.status_code < _ERRORS and not response.has_redirect_location:
            self._resolve(None)
        else:
            handing.note_error_status(response.status_code)
        # After an error status the edge stays open: a proxy may have answered for the agent, and httpx may
        # send the message again (5).

    def _resolve_if_open(self, error: BaseException | None) -> None:
        """Resolve the edge, unless the head of the answer has resolved it (3)."""
        handing = self._handing
        if handing is not None and _under_way.pop(handing.header_text, None) is not None:
            self._resolve(None if isinstance(error, StopAsyncIteration) else error)

    def _resolve(self, error: BaseException | None) -> None:
        """Resolve the edge after an answer that does not mention the edge, or after an error (4)."""
        handing = self._handing
        assert handing is not None  # noqa: S101 - the callers have checked it
        if self._departure.is_prevented(error):
            handing.not_sent()
        elif not self._declared:
            handing.answered(None, is_error=error is not None)
        elif error is None:
            handing.told(WORKING, must_ask=True)
        else:
            handing.in_doubt()

    async def aclose(self) -> None:
        """Stop reading the events; the agent's work goes on."""
        if self._events is not None:
            await self._events.aclose()


async def _leaves(request: httpx.Request) -> None:
    """Record that a request is about to be sent; httpx calls this before every request."""
    message = _under_way.get(request.headers.get(codec.REQUEST_HEADER, ""))
    if message is not None:
        await message.leaves(request)


async def _heard(response: httpx.Response) -> None:
    """Record the head of an answer; httpx calls this before it reads the body."""
    message = _under_way.get(response.request.headers.get(codec.REQUEST_HEADER, ""))
    if message is not None:
        message.heard(response)
