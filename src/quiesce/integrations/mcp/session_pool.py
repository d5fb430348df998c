"""A pool of sessions with many servers, by name."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from quiesce.core import arguments
from quiesce.core.python_private import get_frame
from quiesce.core.scope import Scope
from quiesce.errors import ArgumentError
from quiesce.integrations.mcp.servers import HttpServer, StdioServer
from quiesce.integrations.mcp.session import DEFAULT_BACKOFF, Session, check_restarts
from quiesce.integrations.mcp.tool_edges import Handover

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from quiesce.core.frontier import Frontier
    from quiesce.core.report import Report
    from quiesce.integrations.mcp.servers import Handshake, Server
    from quiesce.mesh.runtime.node import Node
    from quiesce.pool.backoff import Backoff
    from quiesce.processes.output import Logs

__all__ = ["SessionPool", "SessionPoolStats"]


@dataclass(frozen=True, slots=True)
class SessionPoolStats:
    """The figures of a pool: its state now, and counts since it was opened."""

    sessions: int
    """Sessions that were opened and not released."""
    connected: int
    """Sessions that have a connection."""
    connecting: int
    """Sessions that are being connected, or wait for their back-off."""
    calls: int
    """Calls in flight."""
    started: int
    """Connections made."""
    failed: int
    """Attempts to connect that failed."""
    crashed: int
    """Connections that were lost without a close."""


class SessionPool:
    """Sessions with many servers, each connected at its first use.

    ```python
    pool = SessionPool(scope, {"files": StdioServerParameters(...), "web": "https://host/mcp"})
    files = await pool.session("files")
    await files.call_tool("list", {"path": "/"})
    ```

    Args:
        scope: The scope that owns the pool, and closes it at the latest.
        servers: By name, the server to connect to: the SDK's `StdioServerParameters`, or a URL. Or a
            function that is called with a name and returns one of these.
        name: The pool's name in frontiers and reports.
        connect_within: How many seconds a handshake may take.
        exit_seconds: How many seconds a server has to exit when its standard input is closed.
        grace: After that, how many seconds it has between SIGTERM and SIGKILL.
        logs: Where the servers' standard error goes, as for `start_process`. It cannot be a file, because
            only one server could write to it.
        restarts_max: How many times in a row to restart a server after a failure; None: any number.
        backoff: How long to wait before a restart.
        handshake: An async function to call with the SDK's session, in place of its `initialize()`.
        node: As for `connect_stdio`.
        options: The options of the SDK's `ClientSession`, the same for all sessions.

    *Raises*: `ArgumentError`; `ScopeClosed`.
    """

    def __init__(  # noqa: PLR0913 - each is an option
        self,
        scope: Scope,
        servers: Mapping[str, Any] | Callable[[str], Any],
        /,
        *,
        name: str = "mcp servers",
        connect_within: float = 30.0,
        exit_seconds: float = 2.0,
        grace: float = 2.0,
        logs: Logs = "keep",
        restarts_max: int | None = 5,
        backoff: Backoff = DEFAULT_BACKOFF,
        handshake: Handshake | None = None,
        node: Node | None = None,
        **options: Any,
    ) -> None:
        """Check the options; nothing is connected yet."""
        arguments.instance("scope", scope, Scope)
        self._common: dict[str, Any] = {
            "connect_within": connect_within,
            "exit_seconds": exit_seconds,
            "handshake": handshake,
            "options": options,
        }
        if isinstance(logs, os.PathLike):
            message = "logs must not be a file, because only one server could write to it: pass a function or a logger"
            raise ArgumentError(message)
        check_restarts(backoff, restarts_max)
        self._process: dict[str, Any] = {"grace": grace, "logs": logs}
        self._restarts: dict[str, Any] = {"backoff": backoff, "restarts_max": restarts_max}
        self._mesh = node
        self._find: Callable[[str], Any] | None = None
        self._servers: dict[str, Server] = {}
        if callable(servers):
            self._find = servers
        else:
            self._servers = {key: self._describe(key, given) for key, given in servers.items()}
        self._sessions: dict[str, Session] = {}
        self._past: list[int] = [0, 0, 0]  # started, failed and crashed, of released sessions
        self._scope = scope.child(arguments.check_text("name", name))

    def _describe(self, key: str, given: Any) -> Server:
        arguments.check_text("the name of a server", key)
        if isinstance(given, str):
            return HttpServer(given, key, **self._common)
        return StdioServer(given, key, **self._process, **self._common)

    def _server(self, key: str) -> Server:
        if key not in self._servers:
            if self._find is None:
                known = ", ".join(map(repr, self._servers)) or "none"
                message = f"the pool has no server {key!r}; it has: {known}"
                raise ArgumentError(message)
            self._servers[key] = self._describe(key, self._find(key))
        return self._servers[key]

    # Using.

    async def session(self, key: str, /) -> Session:
        """Return the connected session with a server.

        All callers that pass the same name get the same session, which is started once. When its server
        is lost, the session connects again by itself. If the session was closed, a new one is made.

        *Cancel safety*: if cancelled, the start goes on for other callers.

        *Raises*: the errors of `connect_stdio` and `connect_http`; `ArgumentError` for an unknown name.
        """
        frame = get_frame(1)
        session = self._sessions.get(key)
        if session is None or session.state != "open":
            server = self._server(key)
            handover = None if self._mesh is None else Handover(self._mesh, None)
            made = Session(self._scope, server, frame, handover=handover, **self._restarts)
            self._forget(key)
            session = self._sessions[key] = made
        await session.connect()
        return session

    async def release(self, key: str, /, grace: float | None = 0.0) -> Report | None:
        """Close the session with a server, if there is one; calls in flight have `grace` seconds.

        The next caller of `session()` gets a new one.

        *Cancel safety*: as that of `Session.drain`.
        """
        session = self._sessions.get(key)
        if session is None:
            return None
        self._forget(key)
        return await session.drain(grace)

    def _forget(self, key: str) -> None:
        session = self._sessions.pop(key, None)
        if session is not None:
            past = (session.start_count, session.failed_start_count, session.crash_count)
            self._past = [was + more for was, more in zip(self._past, past, strict=True)]

    # Asking.

    @property
    def stats(self) -> SessionPoolStats:
        """The pool's figures now."""
        sessions = self._sessions.values()
        started, failed, crashed = self._past
        return SessionPoolStats(
            sessions=len(self._sessions),
            connected=sum(session.connected for session in sessions),
            connecting=sum(session.opening_job is not None for session in sessions),
            calls=sum(
                held.kind == "call"
                for session in sessions
                for held in list(session.own_scope.holds.values())
            ),
            started=started + sum(session.start_count for session in sessions),
            failed=failed + sum(session.failed_start_count for session in sessions),
            crashed=crashed + sum(session.crash_count for session in sessions),
        )

    def frontier(self) -> Frontier:
        """List what is in flight in all sessions."""
        return self._scope.frontier()

    def __repr__(self) -> str:
        return f"<SessionPool {self._scope.name!r} {self._scope.state}, {len(self._sessions)} sessions>"

    # Closing.

    async def drain(self, grace: float | None = 30.0) -> Report:
        """Refuse new calls, wait for the calls in flight, then close all sessions at the same time."""
        return await self._scope.drain(grace)

    async def aclose(self, cleanup: float = 5.0) -> Report:
        """Close all sessions at the same time; see `Scope.aclose`."""
        return await self._scope.aclose(cleanup)
