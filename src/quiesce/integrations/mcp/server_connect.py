"""Connecting to a server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from quiesce.core import arguments
from quiesce.core.python_private import get_frame
from quiesce.core.scope import Scope
from quiesce.integrations.mcp.servers import HttpServer, StdioServer
from quiesce.integrations.mcp.session import DEFAULT_BACKOFF, Session
from quiesce.integrations.mcp.tool_edges import Handover

if TYPE_CHECKING:
    from types import FrameType

    import mcp

    from quiesce.integrations.mcp.servers import Handshake, Server
    from quiesce.mesh.runtime.node import Node
    from quiesce.pool.backoff import Backoff
    from quiesce.processes.output import Logs

__all__ = ["connect_http", "connect_stdio"]


async def connect_stdio(  # noqa: PLR0913 - each is an option
    scope: Scope,
    params: mcp.StdioServerParameters,
    /,
    *,
    name: str | None = None,
    connect_within: float = 30.0,
    exit_seconds: float = 2.0,
    grace: float = 2.0,
    logs: Logs = "keep",
    restarts_max: int | None = 5,
    backoff: Backoff = DEFAULT_BACKOFF,
    handshake: Handshake | None = None,
    node: Node | None = None,
    address: str | None = None,
    **options: Any,
) -> Session:
    """Start a server, and connect to it over its standard input and output.

    Args:
        scope: The owner: it closes the session, unless that was closed before.
        params: What to start, as for the SDK's `stdio_client`.
        name: What it is called; by default the name of the program, or of what an interpreter runs.
        connect_within: How many seconds the handshake may take.
        exit_seconds: How many seconds the server has to exit when its standard input is closed.
        grace: How many seconds it has then between SIGTERM and SIGKILL.
        logs: Where its standard error goes, as for `start_process`; the last of it is kept.
        restarts_max: How often it is started again after failures in a row (a crash, a failed
            start); None: always.
        backoff: How long to wait before that.
        handshake: An async function that is given the SDK's session, instead of its `initialize()`.
        node: The client's part in a mesh, open: a tool that is called inside of one of its hops is
            handed an edge.
        address: Of the server in that mesh: the URL of its own node; or a name by which it is found
            again after a restart, for one that keeps a journal; None: only over each connection.
        options: Those of the SDK's `ClientSession`: callbacks, `read_timeout_seconds` and so on.

    *Cancel safety*: cancelled, the server is stopped, and all of its process group is gone, before
    the cancellation is passed on.

    *Raises*: `SpawnFailed` if it cannot be started; `ServerLost` if it exits before the handshake is
    made; `NotReady` at the deadline; what the handshake raises; `ScopeClosed`.
    """
    server = StdioServer(
        params,
        name,
        connect_within=connect_within,
        exit_seconds=exit_seconds,
        grace=grace,
        logs=logs,
        handshake=handshake,
        options=options,
    )
    return await _connected(
        scope, server, get_frame(1), node, address, backoff=backoff, restarts_max=restarts_max
    )


async def connect_http(  # noqa: PLR0913 - each is an option
    scope: Scope,
    url: str,
    /,
    *,
    name: str | None = None,
    http_client: Any = None,
    terminate_on_close: bool = True,
    connect_within: float = 30.0,
    exit_seconds: float = 2.0,
    restarts_max: int | None = 5,
    backoff: Backoff = DEFAULT_BACKOFF,
    handshake: Handshake | None = None,
    node: Node | None = None,
    address: str | None = None,
    **options: Any,
) -> Session:
    """Connect to a server over streamable HTTP.

    Args:
        scope: The owner: it closes the session, unless that was closed before.
        url: Where the server is.
        name: What it is called; the URL by default, without what may be a secret.
        http_client: The HTTP client to use, as for the SDK's `streamable_http_client`; yours to
            close.
        terminate_on_close: Whether the server is told of the end.
        connect_within: How many seconds the handshake may take.
        exit_seconds: How many seconds of a close the SDK may take to tell the server of it.
        restarts_max: How often to connect again after failures in a row; None: always.
        backoff: How long to wait before that.
        handshake: An async function that is given the SDK's session, instead of its `initialize()`.
        node: The client's part in a mesh, open: a tool that is called inside of one of its hops is
            handed an edge.
        address: Of the server in that mesh: the URL of its own node; or a name by which it is found
            again after a restart, for one that keeps a journal; None: only over each connection.
        options: Those of the SDK's `ClientSession`: callbacks, `read_timeout_seconds` and so on.

    *Cancel safety*: cancelled, nothing of it is left when the cancellation is passed on.

    *Raises*: `ServerLost` or `NotReady` if the server does not answer; what the SDK's HTTP client
    raises; `ScopeClosed`.
    """
    server = HttpServer(
        url,
        name,
        http_client=http_client,
        terminate_on_close=terminate_on_close,
        connect_within=connect_within,
        exit_seconds=exit_seconds,
        handshake=handshake,
        options=options,
    )
    return await _connected(
        scope, server, get_frame(1), node, address, backoff=backoff, restarts_max=restarts_max
    )


async def _connected(
    scope: Scope,
    server: Server,
    frame: FrameType,
    node: Node | None,
    address: str | None,
    **restarts: Any,
) -> Session:
    arguments.instance("scope", scope, Scope)
    handover = None if node is None else Handover(node, address)
    session = Session(scope, server, frame, handover=handover, **restarts)
    try:
        await session.connect()
    except BaseException:
        await session.aclose()
        raise
    return session
