"""The session: users call it from any task, and it makes a new connection when the old one is lost.

Rules:

1. The session's scope owns everything: the server's process, the SDK's session (a context, left by
   the task that has entered it), the calls in flight (holds), the next start (a job).
2. There is one start at a time, and all callers that need it wait for it. The scope owns it, so
   cancelling a caller does not cancel the start.
3. Every call ends: with an answer, with an error, or when the connection or the session ends. This
   does not depend on the SDK.
4. A lost connection is not used again.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio

from quiesce.core import arguments, callsites
from quiesce.core.callsites import Callsite
from quiesce.core.hold import Hold
from quiesce.core.python_private import get_frame
from quiesce.core.tree import ScopeState
from quiesce.errors import JobCancelled, QuiesceError, ScopeClosed
from quiesce.integrations.mcp import versions
from quiesce.integrations.mcp.connection import SessionCall, no_call
from quiesce.integrations.mcp.server_lost import ServerLost, why
from quiesce.pool.backoff import Backoff, Histories, History

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from types import FrameType

    from quiesce.core.frontier import Frontier
    from quiesce.core.job import Job
    from quiesce.core.report import Report
    from quiesce.core.scope import Scope
    from quiesce.integrations.mcp.connection import ServerConnection
    from quiesce.integrations.mcp.servers import Server
    from quiesce.integrations.mcp.tool_edges import Handover
    from quiesce.processes.process import Process

__all__ = ["Session"]


DEFAULT_BACKOFF = Backoff()
_LOOPS = ("mcp.*", "anyio.*", "httpx*", "httpcore*")  # tasks of the SDK, if a scope adopts them


def check_restarts(backoff: Backoff, restarts_max: int | None) -> None:
    """Check the options that say how often, and when, to restart a server.

    *Raises*: `ArgumentError`.
    """
    arguments.instance("backoff", backoff, Backoff)
    if restarts_max is not None and restarts_max != 0:
        arguments.size("restarts_max", restarts_max)


class Session:
    """A session with an MCP server; made by `connect_stdio`, `connect_http` or a `SessionPool`.

    It has the methods of the SDK's `ClientSession` (`call_tool`, `list_tools`, `read_resource` and so
    on), with the same arguments, results and errors. Any task may call them, also at the same time, and
    any task may close the session. Each call is a hold until it has ended, with a name like
    `call_tool search`.

    If a caller is cancelled or a call times out, the server is asked to cancel the call
    (`notifications/cancelled`). When the server is lost, the calls in flight raise `ServerLost`, and
    the next call starts the server again, after a pause if the server keeps failing.
    """

    own_scope: Scope

    def __init__(
        self,
        scope: Scope,
        server: Server,
        frame: FrameType,
        *,
        backoff: Backoff,
        restarts_max: int | None,
        handover: Handover | None = None,
    ) -> None:
        """Open the session's own scope below `scope`. The session connects at its first use."""
        check_restarts(backoff, restarts_max)
        self.own_scope = own = scope.child(f"mcp {server.name}", services=_LOOPS)
        self._server = server
        self._place = place = callsites.starting_code(frame, own.backend.current())
        own.place_code, own.place_offset = place.f_code, place.f_lasti  # the caller's line
        self._backoff = backoff
        self._restarts_max = restarts_max
        self._handover = handover
        server.hands_over = handover is not None
        self._histories = Histories(backoff)
        self._connection: ServerConnection | None = None
        self.opening_job: Job[Exception | None] | None = None
        self._loss: Exception | None = None
        self.start_count: int = 0
        self.crash_count: int = 0
        self.failed_start_count: int = 0

    # Asking.

    @property
    def name(self) -> str:
        """The server's name."""
        return self._server.name

    @property
    def connected(self) -> bool:
        """Whether the session has a connection that, as far as is known, is not lost."""
        return self._connection is not None and not self._connection.lost

    @property
    def process(self) -> Process | None:
        """The server's process, if it is a child process and runs; a new object after a restart."""
        return self._connection.process if self.connected and self._connection else None

    @property
    def starts(self) -> int:
        """How many connections were made; more than one if connections were lost."""
        return self.start_count

    @property
    def raw(self) -> Any:
        """The SDK's own session, for uses other than calls; a new object after a restart.

        *Raises*: `ServerLost` if the session is not connected.
        """
        if self._connection is None or self._connection.lost:
            message = f"MCP server {self.name!r} is not connected"
            raise ServerLost(message, server=self.name)
        return self._connection.session

    @property
    def state(self) -> str:
        """The state: open, draining, closing or closed."""
        return self.own_scope.state

    @property
    def report(self) -> Report | None:
        """How the calls have ended; None until the session is closed."""
        return self.own_scope.report

    def frontier(self) -> Frontier:
        """List what is in flight: calls, a start, the server's process."""
        return self.own_scope.frontier()

    def __repr__(self) -> str:
        words = "connected" if self.connected else "not connected"
        return f"<Session {self.name!r} {self.own_scope.state}, {words}>"

    # Calling.

    async def initialize(self) -> Any:
        """Return the server's answer to the handshake; connect first if necessary.

        *Raises*: the errors of a call.
        """
        return (await self._live()).greeting

    def __getattr__(self, name: str) -> Any:
        """Return a method of the SDK's session as a call, or another attribute unchanged."""
        if name.startswith("_"):
            raise AttributeError(name)
        found = getattr(versions.ClientSession, name)  # raises `AttributeError` for an unknown name
        if name in _PLAIN or not callable(found):
            return getattr(self.raw, name)
        return partial(self._begin, name)

    def _begin(self, method: str, /, *args: Any, **options: Any) -> Coroutine[Any, Any, Any]:
        frame = get_frame(1)
        return self._call(Callsite(frame.f_code, frame.f_lasti), method, args, options)

    async def _call(
        self, place: Callsite, method: str, args: tuple[Any, ...], options: dict[str, Any]
    ) -> Any:
        subject = args[0] if args else options.get("name", options.get("uri"))
        label = method if subject is None else f"{method} {subject}"[:200]
        call = SessionCall(label)
        scope = self.own_scope
        scope.check_may_start()
        details = {"server": self.name}
        hold = Hold(scope, "call", label, details, place.f_code, place.f_lasti, call.stop)
        scope.insert_hold(hold, hold)
        try:
            with call.cancel_scope:
                connection = await self._live()
                if self._handover is None:
                    answer = await connection.call(call, method, args, options)
                else:
                    answer = await self._handover.call(connection, call, method, args, options)
                scope.completed_count += 1
                return answer
            if call.cut:
                scope.note_cancelled(hold, service=False)  # for the report
        finally:
            hold.release()
        raise call.verdict(self.name)

    # Connecting.

    async def connect(self) -> None:
        """Connect, unless the session is connected. A call does this by itself.

        *Cancel safety*: if cancelled, the start goes on, because the session owns it.

        *Raises*: `SpawnFailed`, `NotReady`, `ServerLost`, the error of the handshake, or
        `ScopeClosed`.
        """
        with self.own_scope.hold("connect", self.name):
            await self._live()

    async def _live(self) -> ServerConnection:
        """Return a connection that, as far as is known, is not lost; make one if necessary."""
        while True:
            connection = self._connection
            if connection is not None and not connection.lost:
                return connection
            if self.opening_job is None:
                self._check_restarts()
                job: Any = self.own_scope.spawn(self._open, name=f"connect {self.name}")
                job.started_code, job.started_offset = self._place.f_code, self._place.f_lasti
                self.opening_job = job
            try:
                error = await self.opening_job
            except JobCancelled:
                message = f"MCP session {self.name!r} was closed while it was connecting"
                raise ScopeClosed(message) from None
            if error is not None:
                raise error

    def _history(self) -> History:
        return self._histories.by_key.get(self.name, History())

    def _check_restarts(self) -> None:
        """Raise if the server has failed too often in a row."""
        history, now = self._history(), self.own_scope.backend.clock()
        if self._restarts_max is None or history.failures <= self._restarts_max:
            return
        if now - history.fine_since() >= self._backoff.healthy_seconds:
            return  # the last failure is long ago, so try once more
        times = "once" if history.failures == 1 else f"{history.failures} times in a row"
        last = "" if self._loss is None else f": {why(self._loss)}"
        message = f"MCP server {self.name!r} has failed {times}, and is not started again{last}"
        raise ServerLost(message, server=self.name) from self._loss

    async def _open(self) -> Exception | None:
        """Make a connection; return the error if that fails. The body of a job."""
        no_call()
        scope = self.own_scope
        try:
            if self._connection is not None:
                self._connection.end()
                await self._bury(self._connection)
                self._connection = None
            wait = self._histories.not_before(self.name) - scope.backend.clock()
            if wait > 0:
                with scope.hold("back-off", self.name, seconds=round(wait, 3)):
                    await anyio.sleep(wait)
            connection = await scope.enter(self._server.connect(self._lost))
        except Exception as error:  # noqa: BLE001 - raised to the callers that wait
            self.failed_start_count += 1
            self._fail(error)
            return error
        else:
            self._connection = connection
            self.start_count += 1
            if self._handover is not None:
                self._handover.connected(connection)
            if connection.ended:
                self._lost(connection)  # lost before any caller has used it
            return None
        finally:
            self.opening_job = None

    def _fail(self, error: Exception | None) -> None:
        self._loss = error
        self._histories.failed(self.name, self.own_scope.backend.clock())

    def _lost(self, connection: ServerConnection) -> None:
        """Record that a connection has ended by itself. Called in the step that notices it."""
        if connection is not self._connection:
            return  # its handshake was not done
        self.crash_count += 1
        self._fail(None)
        if self.own_scope.phase is ScopeState.OPEN:
            # The scope has begun to drain: its close leaves the context.
            with suppress(QuiesceError):
                self.own_scope.spawn(self._bury, connection, name=f"bury {self.name}", service=True)

    async def _bury(self, connection: ServerConnection) -> None:
        """Leave a lost connection completely, before the next one is made."""
        await connection.exited()  # so that the errors of its calls name the exit code
        with suppress(QuiesceError):  # the context was left before
            await self.own_scope.exit(connection)
        if connection.process is not None:
            self._loss = connection.loss("the last call")

    # Closing.

    async def drain(self, grace: float | None = 30.0) -> Report:
        """Refuse new calls, wait for the calls in flight, then close; see `Scope.drain`."""
        return await self.own_scope.drain(grace)

    async def aclose(self, cleanup: float = 5.0) -> Report:
        """Close: end the calls in flight, and the server's process; see `Scope.aclose`.

        Any task may call it, any number of times.

        *Cancel safety*: if cancelled, the close continues; the cancellation is passed on when it is
        complete.
        """
        return await self.own_scope.aclose(cleanup)


_PLAIN = frozenset({"get_server_capabilities", "adopt", "add_response_router"})
"""Methods of the SDK's session that are not async."""
