"""How to reach a server: as a child process, or over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import anyio

from quiesce.core import arguments
from quiesce.core.current import current_scope
from quiesce.errors import ArgumentError, ScopeClosed
from quiesce.integrations.mcp import versions
from quiesce.integrations.mcp.connection import ServerConnection
from quiesce.integrations.mcp.server_lost import ServerLost, unwrapped, why
from quiesce.integrations.mcp.server_name import program_name
from quiesce.integrations.mcp.stdio_wire import ReadStream, StdioWire, WireWriting
from quiesce.mesh.clients.sending import EVERY_HOP, outside_of_client, sending_for
from quiesce.processes import output
from quiesce.processes.process import start_process

if TYPE_CHECKING:
    from quiesce.core.scope import Scope
    from quiesce.processes.output import Logs
    from quiesce.processes.process import Process

    OnLost = Callable[[ServerConnection], None]

__all__: list[str] = []

_HTTP_LIBRARIES = {"httpx", "httpx2", "httpcore", "httpcore2"}  # used by 1.x and by 2.x
Handshake = Callable[[Any], Awaitable[Any]]

_CALLBACKS = ("_callback", "_handler")  # endings of the names of the SDK's options for callbacks


class Server:
    """The options that all servers have, checked before anything is started.

    *Raises*: `ArgumentError`.
    """

    def __init__(
        self,
        name: str,
        *,
        connect_within: float,
        exit_seconds: float,
        handshake: Handshake | None,
        options: Mapping[str, Any],
    ) -> None:
        """Check the options; `options` are those of the SDK's session."""
        versions.check_session_options(options)
        self.name: str = arguments.check_text("name", name)
        self.connect_within: float = arguments.seconds("connect_within", connect_within)
        self.exit_seconds: float = arguments.seconds("exit_seconds", exit_seconds)
        self.handshake: Handshake = handshake or _initialize
        self.options: Mapping[str, Any] = with_own_callbacks(options)
        self.hands_over: bool = False
        """Whether tool calls carry edges. Then the HTTP requests of the transport do not carry edges of their own."""

    def connect(self, on_lost: OnLost) -> AbstractAsyncContextManager[ServerConnection]:
        """Return a new connection. One task must enter and leave it."""
        raise NotImplementedError


async def _initialize(session: Any) -> Any:
    return await session.initialize()


class StdioServer(Server):
    """A program that communicates over its standard input and output."""

    def __init__(
        self, params: Any, name: str | None, *, grace: float, logs: Logs, **common: Any
    ) -> None:
        """Check the options; `common` are those of `Server`."""
        if not isinstance(params, versions.StdioServerParameters):
            message = f"params must be mcp.StdioServerParameters, not {params!r}"
            raise ArgumentError(message)
        if not params.command:
            message = "params.command is empty: it must be the program to start"
            raise ArgumentError(message)
        if output.wiring(logs) != "pipe":
            message = (
                f"logs={logs!r} would redirect the server's standard output, which carries messages"
            )
            raise ArgumentError(message)
        called = program_name(params.command, params.args) if name is None else name
        super().__init__(called, **common)
        self._params = params
        self._grace = arguments.seconds("grace", grace)
        self._logs = logs

    @asynccontextmanager
    async def connect(self, on_lost: OnLost) -> AsyncIterator[ServerConnection]:
        """Start the program as a process of the current scope."""
        params = self._params
        connection = ServerConnection(self.name, on_lost)
        process = await start_process(
            [params.command, *params.args],
            name=self.name,
            env={**versions.get_default_environment(), **(params.env or {})},
            cwd=params.cwd,
            stdin="pipe",
            stdout="bytes",
            logs=self._logs,
            grace=self._grace,
            service=True,
        )
        wire = StdioWire(process, params.encoding, params.encoding_error_handler, connection.end)
        connection.process = process
        process.may_exit = True  # until the handshake is done, an error reports the exit
        connection.deaf = lambda: wire.deaf
        connection.post = wire.post

        async def send(item: Any) -> None:
            if connection.sees(item) == versions.CANCELLED:
                wire.post(item)  # without waiting, because 2.x shields this from cancellation
            else:
                await wire.send(item)

        writing = WireWriting(send, wire.stop_writing)
        try:
            async with versions.ClientSession(wire, writing, **self.options) as session:
                connection.hear(session)
                await connection.shake_hands(self.handshake, self.connect_within)
                process.may_exit = False
                yield connection
                connection.leaving = True
        except ExceptionGroup as error:
            raise unwrapped(error) from error
        finally:
            connection.leave()
            if connection.greeted:
                await _let_exit(process, self.exit_seconds)
        # The scope of this task stops the rest of the process group: SIGTERM, then SIGKILL.


async def _let_exit(process: Process, seconds: float) -> None:
    """Close the input of a server, as the protocol asks, and wait for its exit."""
    if process.returncode is None:
        process.close_stdin()
        with anyio.move_on_after(seconds):
            await process.wait()


class HttpServer(Server):
    """A server that runs elsewhere, reached over streamable HTTP."""

    def __init__(
        self,
        url: str,
        name: str | None,
        *,
        http_client: Any = None,
        terminate_on_close: bool = True,
        **common: Any,
    ) -> None:
        """Check the options; `common` are those of `Server`."""
        parts = urlsplit(arguments.check_text("url", url))
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            message = f"url must be like 'https://host/path', not {url!r}"
            raise ArgumentError(message)
        port = "" if parts.port is None else f":{parts.port}"
        plain = f"{parts.scheme}://{parts.hostname}{port}{parts.path}"
        super().__init__(plain if name is None else name, **common)
        self._url = url
        self._transport = {"http_client": http_client, "terminate_on_close": terminate_on_close}

    @asynccontextmanager
    async def connect(self, on_lost: OnLost) -> AsyncIterator[ServerConnection]:
        """Open the SDK's transport for the time of the context."""
        connection = ServerConnection(self.name, on_lost)
        node = current_scope()
        assert node is not None  # noqa: S101 - a scope's context
        try:
            with anyio.CancelScope() as bound, sending_for(self._transport_sends_for()):
                async with versions.streamable_http_client(self._url, **self._transport) as streams:
                    with sending_for(None):  # the session's tasks run the program's own callbacks
                        async with self._session(connection, node, streams):
                            try:
                                yield connection
                                connection.leaving = True
                            finally:  # the SDK tells the server, and would wait too long for the answer
                                bound.deadline = anyio.current_time() + self.exit_seconds
        except Exception as error:
            if not connection.greeted:
                raise _unreachable(self.name, unwrapped(error)) from error
            connection.failure = error  # the errors of the calls name it
        finally:
            connection.leave()

    @asynccontextmanager
    async def _session(
        self, connection: ServerConnection, node: Scope, streams: Any
    ) -> AsyncIterator[None]:
        """Run the SDK's session over the streams of its transport; the body begins after the handshake."""
        read, write = streams[:2]
        connection.post = partial(_post, node, write, self.exit_seconds)

        async def send(item: Any) -> None:
            connection.sees(item)
            await write.send(item)

        reading, writing = Noticed(read, connection.end), WireWriting(send, write.aclose)
        async with versions.ClientSession(reading, writing, **self.options) as session:
            connection.hear(session)
            await connection.shake_hands(self.handshake, self.connect_within)
            yield

    def _transport_sends_for(self) -> object:
        """Return the hops whose messages the tasks of the SDK's transport send.

        In 1.x, each of these tasks sends for one hop after the other. In 2.x, they send in the context of the call.
        """
        return EVERY_HOP if self.hands_over and not versions.SECOND else None


def with_own_callbacks(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options for the SDK with wrapped callbacks, because 2.x calls them in the context of a call."""
    return {
        name: outside_of_client(value) if callable(value) and name.endswith(_CALLBACKS) else value
        for name, value in options.items()
    }


def _unreachable(name: str, error: Exception) -> Exception:
    """Return the error for a failed start. The HTTP client's own error does not name the server."""
    library = type(error).__module__.partition(".")[0]
    if library in _HTTP_LIBRARIES or isinstance(error, OSError) or versions.says_gone(error):
        message = f"MCP server {name!r} cannot be reached: {why(error)}"
        return ServerLost(message, server=name)
    return error


def _post(node: Scope, write: Any, seconds: float, item: Any) -> None:
    """Send a message in a new task, without waiting."""

    async def send() -> None:
        with suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):
            with anyio.move_on_after(seconds):
                await write.send(item)

    with suppress(ScopeClosed):
        node.spawn(send, name="mcp cancellation", service=True)


class Noticed(ReadStream):
    """The stream that a session reads; it calls `ended` at the end."""

    def __init__(self, inner: Any, ended: Callable[[], None]) -> None:
        self._inner = inner
        self._ended = ended

    @property
    def last_context(self) -> Any:
        """The context in which the last message was sent, for 2.x."""
        return getattr(self._inner, "last_context", None)

    async def receive(self) -> Any:
        try:
            return await self._inner.receive()
        except (anyio.EndOfStream, anyio.ClosedResourceError):
            self._ended()
            raise

    async def aclose(self) -> None:
        await self._inner.aclose()
