"""A pool of sessions: many servers, each by its name."""

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
    """How a pool stands, and what it has done so far."""

    sessions: int
    """Sessions that were asked for, and not released."""
    connected: int
    """Those of them that have a connection."""
    connecting: int
    """Those that are being connected, or wait for their back-off."""
    calls: int
    """Calls in flight."""
    started: int
    """Connections made."""
    failed: int
    """Starts that failed."""
    crashed: int
    """Connections that were lost without a close."""


class SessionPool:
    """Sessions with many servers, each connected when it is first asked for.

    ```python
    pool = SessionPool(scope, {"files": StdioServerParameters(...), "web": "https://host/mcp"})
    files = await pool.session("files")
    await files.call_tool("list", {"path": "/"})
    ```

    Args:
        scope: The owner: it closes the pool, unless that was closed before.
        servers: What to connect to, by name: the SDK's `StdioServerParameters`, or a URL. Or a
            function of the name that returns one of these.
        name: What the pool is called.
        connect_within: How many seconds a handshake may take.
        exit_seconds: How many seconds a server has to exit when its standard input is closed.
        grace: How many seconds it has then between SIGTERM and SIGKILL.
        logs: Where the servers' standard error goes, as for `start_process`; not a file, which only
            one can have.
        restarts_max: How often a server is started again after failures in a row; None: always.
        backoff: How long to wait before that.
        handshake: An async function that is given the SDK's session, instead of its `initialize()`.
        node: As for `connect_stdio`.
        options: Those of the SDK's `ClientSession`, the same for all.

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
        """Check what is to be connected; nothing is, so far."""
        arguments.instance("scope", scope, Scope)
        self._common: dict[str, Any] = {
            "connect_within": connect_within,
            "exit_seconds": exit_seconds,
            "handshake": handshake,
            "options": options,
        }
        if isinstance(logs, os.PathLike):
            message = "logs must not be a file, which only one of the servers could have"
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
        self._past: list[int] = [0, 0, 0]  # started, failed, crashed: of sessions released
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
        """Return the session with a server, connected.

        All who ask for the same name get the same one, and it is started once for all of them. It
        connects again by itself when its server is lost; one that was closed is not given out.

        *Cancel safety*: the start is the pool's, and goes on for the others.

        *Raises*: as `connect_stdio` and `connect_http`; `ArgumentError` for an unknown name.
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

        The next who asks for it gets a new one.

        *Cancel safety*: as `Session.drain`.
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
        """How it stands."""
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
        """List what is in flight, with all servers."""
        return self._scope.frontier()

    def __repr__(self) -> str:
        """Name the pool, and how many sessions it has."""
        return f"<SessionPool {self._scope.name!r} {self._scope.state}, {len(self._sessions)} sessions>"

    # Closing.

    async def drain(self, grace: float | None = 30.0) -> Report:
        """Refuse new calls, wait for those in flight, then close all, side by side."""
        return await self._scope.drain(grace)

    async def aclose(self, cleanup: float = 5.0) -> Report:
        """Close all, side by side; as `Scope.aclose`."""
        return await self._scope.aclose(cleanup)
