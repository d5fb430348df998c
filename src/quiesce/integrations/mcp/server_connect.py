"""`connect_stdio` and `connect_http`: start a session with one server."""

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
        scope: The scope that owns the session, and closes it at the latest.
        params: The program to start, as for the SDK's `stdio_client`.
        name: The server's name; by default that of the program, or of the script that an interpreter runs.
        connect_within: How many seconds the handshake may take.
        exit_seconds: How many seconds the server has to exit when its standard input is closed.
        grace: After that, how many seconds it has between SIGTERM and SIGKILL.
        logs: Where its standard error goes, as for `start_process`; the last lines are kept.
        restarts_max: How many times in a row to restart it after a crash or a failed start; None: any
            number.
        backoff: How long to wait before a restart.
        handshake: An async function to call with the SDK's session, in place of its `initialize()`.
        node: The client's open mesh node. A tool call inside one of its hops carries an edge.
        address: The server's address in that mesh: the URL of its own node; or, for a server with a
            journal, a name by which it is found again after a restart. None: the server is reached only
            over this connection.
        options: The options of the SDK's `ClientSession`: callbacks, `read_timeout_seconds` and so on.

    *Cancel safety*: if cancelled, the server and its whole process group are gone before the
    cancellation is passed on.

    *Raises*: `SpawnFailed` if the program cannot be started; `ServerLost` if it exits before the
    handshake is done; `NotReady` at the deadline; the error of the handshake; `ScopeClosed`.
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
        scope: The scope that owns the session, and closes it at the latest.
        url: The server's URL.
        name: The server's name; by default the URL without user, password and query.
        http_client: The HTTP client to use, as for the SDK's `streamable_http_client`. You close it.
        terminate_on_close: Whether a close tells the server that the session has ended.
        connect_within: How many seconds the handshake may take.
        exit_seconds: How many seconds a close may take to tell the server.
        restarts_max: How many times in a row to connect again after a failure; None: any number.
        backoff: How long to wait before connecting again.
        handshake: An async function to call with the SDK's session, in place of its `initialize()`.
        node: The client's open mesh node. A tool call inside one of its hops carries an edge.
        address: The server's address in that mesh: the URL of its own node; or, for a server with a
            journal, a name by which it is found again after a restart. None: the server is reached only
            over this connection.
        options: The options of the SDK's `ClientSession`: callbacks, `read_timeout_seconds` and so on.

    *Cancel safety*: if cancelled, the connection is gone before the cancellation is passed on.

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
