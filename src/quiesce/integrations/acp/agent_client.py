"""The client side of ACP: connections to agents that end when they are closed.

`connect_to_agent` has the SDK's name and signature, and returns the SDK's own connection object. The
differences: every task that the SDK starts for the connection belongs to a scope; `close()` has a time
limit and may be called from any task; when a caller gives up a request, the agent is asked to cancel
it; and a request raises an error when its agent is gone.
"""

from __future__ import annotations

import asyncio
import weakref
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from quiesce.core import arguments
from quiesce.core.current import current_scope
from quiesce.core.python_private import get_frame
from quiesce.core.scope import Scope
from quiesce.core.tree import current
from quiesce.errors import ArgumentError
from quiesce.integrations.acp.client_streams import StreamPeer
from quiesce.integrations.acp.client_wire import ClientWire
from quiesce.integrations.acp.json_lines import MESSAGE_BYTES_MAX
from quiesce.integrations.acp.request_edges import MeshWire
from quiesce.integrations.acp.sdk_connection import (
    LOOPS,
    bind_client,
    check_asyncio,
    check_options,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from acp.core import ClientSideConnection

    from quiesce.integrations.acp.client_streams import ClientPeer
    from quiesce.mesh.runtime.node import Node

__all__ = ["connect_agent", "connect_to_agent", "scope_of"]

_SCOPE = "_quiesce_scope"


def connect_to_agent(
    client: Any,
    input_stream: Any,
    output_stream: Any = None,
    *,
    use_unstable_protocol: bool = False,
    cancel_session: bool = False,
    close_seconds: float = 5.0,
    message_bytes_max: int = MESSAGE_BYTES_MAX,
    node: Node | None = None,
    address: str | None = None,
    **connection_kwargs: Any,
) -> ClientSideConnection:
    """Connect a client to an agent, over two streams or a message transport.

    The connection belongs to the current scope, which closes it at the latest. Without a scope, you
    have to close it: `await connection.close()`, from any task, or `async with`. A connection that
    you drop is closed when it is collected; a client that refers to it keeps it alive. The streams
    stay open, as with the SDK; a message transport is closed.

    Args:
        client: The client, or a function that is called with the connection and returns the client.
        input_stream: The stream to the agent, or a transport: `send`, `receive` and `close`.
        output_stream: The stream from the agent; None with a transport.
        use_unstable_protocol: As in the SDK.
        cancel_session: Whether to send `session/cancel` as well when a caller gives up a `prompt`,
            for agents that do not know `$/cancel_request`.
        close_seconds: How long a close may take; requests that are left then are in the report.
        message_bytes_max: The longest message that is accepted from a stream.
        node: The client's open mesh node: requests that are sent inside one of its hops hand over an
            edge.
        address: The agent's address in that mesh: the URL of its own node; or, for an agent with a
            journal, a name by which it is found again after a restart. None: the agent is reached only
            over this connection.
        connection_kwargs: The SDK's other options: `observers`, `receive_timeout`.

    Raises:
        UsageError: There is no asyncio event loop.
        ArgumentError: The streams are not asyncio's, or an option would bypass quiesce.
        ScopeClosed: The current scope is being closed.
    """
    check_asyncio()
    peer: ClientPeer
    if output_stream is None:
        peer = _message_peer(input_stream)
    elif isinstance(input_stream, asyncio.StreamWriter) and isinstance(
        output_stream, asyncio.StreamReader
    ):
        peer = StreamPeer(
            input_stream,
            output_stream,
            receive_timeout=connection_kwargs.pop("receive_timeout", None),
            message_bytes_max=message_bytes_max,
        )
    else:
        message = (
            "connect_to_agent() takes the asyncio.StreamWriter to the agent, then the StreamReader"
            f" from it, not {input_stream!r} and {output_stream!r}"
        )
        raise ArgumentError(message)
    connection_kwargs["use_unstable_protocol"] = use_unstable_protocol
    connection_kwargs |= {"node": node, "address": address}
    return connect_client_side(
        client,
        peer,
        connection_kwargs,
        cancel_session=cancel_session,
        close_seconds=close_seconds,
        frame=get_frame(1),
    )


connect_agent = connect_to_agent


def connect_client_side(
    client: Any,
    peer: ClientPeer,
    options: dict[str, Any],
    *,
    cancel_session: bool,
    close_seconds: float,
    frame: FrameType,
    name: str = "acp connection",
    why_lost: Callable[[], str] = lambda: "",
) -> ClientSideConnection:
    """Connect a client over a peer object that carries its messages; see `connect_to_agent`."""
    seconds = arguments.seconds("close_seconds", close_seconds)
    node, address = options.pop("node", None), options.pop("address", None)
    options = {key: value for key, value in options.items() if value is not None}
    check_options("connect_to_agent", options.keys() - {"use_unstable_protocol"})
    scope = Scope(name, adopt=True, services=LOOPS, cleanup=seconds)
    scope.open_under(current_scope(), frame)
    make = ClientWire if node is None else partial(MeshWire, node=node, address=address)
    try:
        wire = make(
            scope, peer, cancel_session=cancel_session, why_lost=why_lost,
            observers=options.get("observers") or (),
        )  # fmt: skip
        with _inside(scope):
            connection = bind_client(client, wire, options)
            scope.spawn(_close_at_end, peer, name="transport", service=True)
            if isinstance(wire, MeshWire):
                scope.spawn(wire.until_the_end, name="mesh", service=True)
    except BaseException:
        scope.plan_close(grace=0.0, cleanup=seconds)
        raise
    _own(connection, scope, seconds)
    return connection


def scope_of(connection: ClientSideConnection) -> Scope:
    """Return a connection's scope: its frontier lists the requests, its report how they ended.

    Raises:
        ArgumentError: The connection was not made by quiesce.
    """
    scope = getattr(connection, _SCOPE, None)
    if not isinstance(scope, Scope):
        message = (
            f"{connection!r} was not made by quiesce's connect_to_agent or spawn_agent_process"
        )
        raise ArgumentError(message)
    return scope


def _message_peer(transport: Any) -> ClientPeer:
    if not all(callable(getattr(transport, name, None)) for name in ("send", "receive", "close")):
        message = (
            "connect_to_agent() takes two asyncio streams, or one transport that has send(),"
            f" receive() and close(), not {transport!r}"
        )
        raise ArgumentError(message)
    peer: ClientPeer = transport
    return peer


@contextmanager
def _inside(scope: Scope) -> Iterator[None]:
    """Make a scope the current one inside the block, so that tasks started there belong to it."""
    token = current.set(scope)
    try:
        yield
    finally:
        current.reset(token)


async def _close_at_end(peer: ClientPeer) -> None:
    """Close the transport when the scope stops its services; the scope's close limits the time."""
    try:
        await asyncio.get_running_loop().create_future()
    finally:
        await peer.close()


def _own(connection: ClientSideConnection, scope: Scope, seconds: float) -> None:
    """Replace the close method of this one connection object by the close of its scope."""

    async def close() -> None:
        await scope.aclose(cleanup=seconds)

    setattr(connection, _SCOPE, scope)
    connection.close = close  # type: ignore[method-assign]  # on this one object
    # No strong reference to the scope: it would be collected one round later than the connection.
    weakref.finalize(connection, _dropped, weakref.ref(scope), seconds).atexit = False


def _dropped(found: Callable[[], Scope | None], seconds: float) -> None:
    """Close a connection that was dropped without being closed.

    The garbage collector may call this in any thread and at any point, so it only posts the close.
    """
    scope = found()
    if scope is not None and scope.state in {"open", "draining"}:
        scope.backend.post(partial(scope.plan_close, grace=0.0, cleanup=seconds))
