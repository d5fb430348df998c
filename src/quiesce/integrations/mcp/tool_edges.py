"""The client's side of the mesh: a tool call that is made inside a hop carries an edge.

Rules:

1. A `call_tool` inside a hop of the session's node is an edge of that hop, from before it is sent until
   its end is known.
2. The client asks for the receipt of an edge only over the connection that carried the edge, unless the
   server has an address.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from mcp import types
from pydantic import RootModel

from quiesce.errors import PeerLost, UsageError
from quiesce.integrations.mcp import versions
from quiesce.integrations.mcp.connection import no_call
from quiesce.integrations.mcp.servers import with_own_callbacks
from quiesce.mesh.clients.sending import within
from quiesce.mesh.runtime.hop import current_hop, hop_of_node
from quiesce.mesh.transport import links

if TYPE_CHECKING:
    from collections.abc import Mapping

    from quiesce.integrations.mcp.connection import ServerConnection, SessionCall
    from quiesce.mesh.runtime.hop import Hop
    from quiesce.mesh.runtime.node import Node

__all__: list[str] = []

_CALL_TOOL = "call_tool"


class Handover:
    """Makes the tool calls of one session messages of hops."""

    def __init__(self, node: Node, address: str | None) -> None:
        """Hand over messages of a client's node.

        Args:
            node: The client's open mesh node.
            address: The server's address in that mesh; see `connect_stdio`.

        *Raises*: `UsageError` if the node is not open.
        """
        node.get_open_scope()
        links.check_address(address)
        self._node = node
        self._address = address
        self._connection: ServerConnection | None = None
        self._link: links.Link | None = None

    def connected(self, connection: ServerConnection) -> None:
        """Register a new connection with the node if the server has an address.

        The node then asks over it about edges of earlier connections. If the node refuses the registration, because
        another session has the address or the node is closed, the next call raises the error.
        """
        if self._address is not None and not connection.ended and not connection.leaving:
            with suppress(UsageError):
                self._link_of(connection)

    async def call(
        self,
        connection: ServerConnection,
        call: SessionCall,
        method: str,
        args: tuple[Any, ...],
        options: Mapping[str, Any],
    ) -> Any:
        """Call a method of the SDK's session. A tool call inside a hop is a message of that hop."""
        hop = hop_of_node(self._node) if method == _CALL_TOOL else None
        # The SDK sends HTTP requests in this context. They must not carry edges: the edge is in the body of the call.
        options = with_own_callbacks(options)
        token = within.set(current_hop())
        try:
            if hop is None:
                return await connection.call(call, method, args, options)
            return await self._hand_over(hop, connection, call, args, options)
        finally:
            within.reset(token)

    async def _hand_over(
        self,
        hop: Hop,
        connection: ServerConnection,
        call: SessionCall,
        args: tuple[Any, ...],
        options: Mapping[str, Any],
    ) -> Any:
        link = self._link_of(connection)
        with link.delegate(hop) as handing:
            await handing.written()
            if link.takes_part is not False:
                meta = {**(options.get("meta") or {}), links.REQUEST_KEY: handing.header}
                options = {**options, "meta": meta}
            try:
                return await connection.call(call, _CALL_TOOL, args, options)
            except BaseException as error:
                if call.request is None:
                    handing.not_sent()
                elif call.result is None and isinstance(error, versions.Error):
                    data = error.error.data
                    told = data.get("_meta") if isinstance(data, dict) else None
                    link.answered(handing, told, failed=True)
                raise
            finally:
                if call.result is not None:  # even if the SDK has raised afterwards: see `hear`
                    link.answered(handing, call.result.meta)

    def _link_of(self, connection: ServerConnection) -> links.Link:
        """Return the link of a connection; it closes together with the connection."""
        link = self._link
        if link is None or connection is not self._connection:
            if link is not None:
                link.close()
                self._link = None
            ask = partial(_ask, connection)
            link = links.Link(self._node, "mcp", self._address, ask, title=connection.name)
            link.takes_part = _takes_part(connection.greeting)
            self._connection, self._link = connection, link
            connection.farewells.append(link.close)
        return link


async def _ask(connection: ServerConnection, method: str, body: dict[str, Any]) -> Any:
    """Send a call to the server's node over a connection, and return its answer.

    *Cancel safety*: may be cancelled at any time.
    """
    no_call()  # a call may have started this task
    if connection.lost:
        message = f"MCP server {connection.name!r} is gone"
        raise PeerLost(message)
    seconds = links.CALL_SECONDS
    try:
        answer = await connection.session.send_request(
            types.Request[dict[str, Any], str](method=method, params=body),
            _Answer,
            seconds if versions.SECOND else timedelta(seconds=seconds),
        )
    except Exception as error:  # the SDK and its transport may raise anything
        message = f"MCP server {connection.name!r} did not answer a call of the mesh"
        raise PeerLost(message) from error
    return answer.root


class _Answer(RootModel[dict[str, Any]]):
    """The answer to a call, unchanged."""


def _takes_part(greeting: Any) -> bool | None:
    """Return whether a server takes part, by its handshake; None if the user's own handshake returned something else."""
    capabilities = getattr(greeting, "capabilities", None)
    if capabilities is None:
        return None
    return links.REQUEST_KEY in (capabilities.experimental or {})
