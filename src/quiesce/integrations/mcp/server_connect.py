"""Connecting to a server: what is asked for, checked before anything is started."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from quiesce.core import arguments, callsites
from quiesce.core.scope import Scope
from quiesce.errors import ArgumentError
from quiesce.integrations.mcp import versions
from quiesce.integrations.mcp.server_name import program_name
from quiesce.integrations.mcp.servers import HttpServer, StdioServer
from quiesce.integrations.mcp.session import Session
from quiesce.integrations.mcp.tool_edges import Handover
from quiesce.pool.backoff import Backoff
from quiesce.processes import output

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import FrameType

    import mcp

    from quiesce.integrations.mcp.servers import Handshake, Server
    from quiesce.mesh.runtime.node import Node
    from quiesce.processes.output import Logs

__all__ = ["connect_http", "connect_stdio"]

_DEFAULT = Backoff()
_LOOPS = ("mcp.*", "anyio.*", "httpx*", "httpcore*")  # tasks of the SDK, if a scope adopts them


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
    backoff: Backoff = _DEFAULT,
    handshake: Handshake | None = None,
    node: Node | None = None,
    address: str | None = None,
    **options: Any,
) -> Session:
    """Start a server, and connect to it over its standard input and output.

    Args:
        scope: Whose it is: it closes the session, if nobody has before.
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
    handover = handover_of(node, address)
    server = stdio_server(
        params,
        name=name,
        connect_within=connect_within,
        exit_seconds=exit_seconds,
        grace=grace,
        logs=logs,
        handshake=handshake,
        options=options,
    )
    return await _connected(scope, server, backoff, restarts_max, sys._getframe(1), handover)


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
    backoff: Backoff = _DEFAULT,
    handshake: Handshake | None = None,
    node: Node | None = None,
    address: str | None = None,
    **options: Any,
) -> Session:
    """Connect to a server over streamable HTTP.

    Args:
        scope: Whose it is: it closes the session, if nobody has before.
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
    handover = handover_of(node, address)
    server = http_server(
        url,
        name=name,
        http_client=http_client,
        terminate_on_close=terminate_on_close,
        connect_within=connect_within,
        exit_seconds=exit_seconds,
        handshake=handshake,
        options=options,
    )
    return await _connected(scope, server, backoff, restarts_max, sys._getframe(1), handover)


async def _connected(
    scope: Scope,
    server: Server,
    backoff: Backoff,
    restarts_max: int | None,
    frame: FrameType,
    handover: Handover | None,
) -> Session:
    arguments.instance("scope", scope, Scope)
    session = make_session(scope, server, backoff, restarts_max, frame, handover)
    try:
        await session.connect()
    except BaseException:
        await session.aclose()
        raise
    return session


def handover_of(node: Node | None, address: str | None) -> Handover | None:
    """Return what makes tool calls messages of hops, if there is a node.

    *Raises*: `UsageError` if that is not open.
    """
    return None if node is None else Handover(node, address)


def make_session(
    scope: Scope,
    server: Server,
    backoff: Backoff,
    restarts_max: int | None,
    frame: FrameType,
    handover: Handover | None = None,
) -> Session:
    """Return a session that is not connected, with a scope of its own."""
    check_restarts(backoff, restarts_max)
    own = scope.child(f"mcp {server.name}", services=_LOOPS)
    place = callsites.starting_code(frame, own._backend.current())
    return Session(
        own, server, place, backoff=backoff, restarts_max=restarts_max, handover=handover
    )


def check_restarts(backoff: Backoff, restarts_max: int | None) -> None:
    """Check how often, and when, a server is started again.

    *Raises*: `ArgumentError`.
    """
    arguments.instance("backoff", backoff, Backoff)
    if restarts_max is not None and restarts_max != 0:
        arguments.size("restarts_max", restarts_max)


async def _initialize(session: Any) -> Any:
    return await session.initialize()


def stdio_server(
    params: Any, *, name: str | None, grace: float, logs: Logs, **common: Any
) -> StdioServer:
    """Describe a program, checked; `common` is as for `_common`.

    *Raises*: `ArgumentError`.
    """
    if not isinstance(params, versions.StdioServerParameters):
        message = f"params must be mcp.StdioServerParameters, not {params!r}"
        raise ArgumentError(message)
    if not params.command:
        message = "params.command is empty: it must be the program to start"
        raise ArgumentError(message)
    if output.wiring(logs) != "pipe":
        message = f"logs={logs!r} would take the server's standard output, which is for messages"
        raise ArgumentError(message)
    return StdioServer(
        params=params,
        grace=arguments.seconds("grace", grace),
        logs=logs,
        **_common(program_name(params.command, params.args) if name is None else name, **common),
    )


def http_server(
    url: str,
    *,
    name: str | None,
    http_client: Any = None,
    terminate_on_close: bool = True,
    **common: Any,
) -> HttpServer:
    """Describe a server that somebody else runs, checked; `common` is as for `_common`.

    *Raises*: `ArgumentError`.
    """
    parts = urlsplit(arguments.check_text("url", url))
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        message = f"url must be like 'https://host/path', not {url!r}"
        raise ArgumentError(message)
    port = "" if parts.port is None else f":{parts.port}"
    plain = f"{parts.scheme}://{parts.hostname}{port}{parts.path}"
    return HttpServer(
        url=url,
        transport={"http_client": http_client, "terminate_on_close": terminate_on_close},
        **_common(plain if name is None else name, **common),
    )


def _common(
    name: str,
    *,
    connect_within: float,
    exit_seconds: float,
    handshake: Handshake | None,
    options: Mapping[str, Any],
) -> dict[str, Any]:
    """Check what all servers have."""
    versions.check_session_options(options)
    return {
        "name": arguments.check_text("name", name),
        "connect_within": arguments.seconds("connect_within", connect_within),
        "exit_seconds": arguments.seconds("exit_seconds", exit_seconds),
        "handshake": handshake or _initialize,
        "options": options,
    }
