"""How to reach a server: as a process of our own, or over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import anyio

from quiesce.core.current import current_scope
from quiesce.errors import ScopeClosed
from quiesce.integrations.mcp import versions
from quiesce.integrations.mcp.connection import ServerConnection
from quiesce.integrations.mcp.server_lost import ServerLost, unwrapped, why
from quiesce.integrations.mcp.stdio_wire import StdioWire, WireReading, WireWriting
from quiesce.processes.process import start_process

if TYPE_CHECKING:
    from quiesce.core.scope import Scope
    from quiesce.processes.output import Logs
    from quiesce.processes.process import Process

    OnLost = Callable[[ServerConnection], None]

__all__: list[str] = []

_HTTP_LIBRARIES = {"httpx", "httpx2", "httpcore", "httpcore2"}  # of 1.x and of 2.x
Handshake = Callable[[Any], Awaitable[Any]]


@dataclass(frozen=True, kw_only=True)
class Server:
    """What all servers have."""

    name: str
    handshake: Handshake
    connect_within: float
    exit_seconds: float
    options: Mapping[str, Any]
    """Those of the SDK's session."""

    def connect(self, on_lost: OnLost) -> AbstractAsyncContextManager[ServerConnection]:
        """Return a new connection, to be entered and left by one task."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class StdioServer(Server):
    """A program that speaks over its standard input and output."""

    params: Any
    grace: float
    logs: Logs

    def connect(self, on_lost: OnLost) -> AbstractAsyncContextManager[ServerConnection]:
        """Start the program, as a process of the task's scope."""
        return stdio_connection(self, on_lost)


@dataclass(frozen=True, kw_only=True)
class HttpServer(Server):
    """A server that somebody else runs, over streamable HTTP."""

    url: str
    transport: Mapping[str, Any]
    """Options of the SDK's transport."""

    def connect(self, on_lost: OnLost) -> AbstractAsyncContextManager[ServerConnection]:
        """Use the SDK's transport."""
        return http_connection(self, on_lost)


@asynccontextmanager
async def stdio_connection(server: StdioServer, on_lost: OnLost) -> AsyncIterator[ServerConnection]:
    """Start a program, and be connected to it for as long as the context lasts."""
    params = server.params
    connection = ServerConnection(server.name, on_lost)
    process = await start_process(
        [params.command, *params.args],
        name=server.name,
        env={**versions.get_default_environment(), **(params.env or {})},
        cwd=params.cwd,
        stdin="pipe",
        stdout="bytes",
        logs=server.logs,
        grace=server.grace,
        service=True,
    )
    wire = StdioWire(process, connection.end)
    connection.process = process
    process._dismissed = True  # until it is greeted, what is raised tells of its exit
    connection.deaf = lambda: wire.deaf
    encode = partial(_encoded, params.encoding, params.encoding_error_handler)
    connection.post = lambda item: wire.post(encode(item))

    async def send(item: Any) -> None:
        if connection.sees(item) == versions.CANCELLED:
            wire.post(encode(item))  # in one step: 2.x shields its caller's wait from cancellation
        else:
            await wire.send(encode(item))

    async def close() -> None:
        wire.stop_writing()

    reading = WireReading(wire, params.encoding, params.encoding_error_handler)
    try:
        async with versions.ClientSession(
            reading, WireWriting(send, close), **server.options
        ) as session:
            connection.session = session
            await connection.shake_hands(server.handshake, server.connect_within)
            process._dismissed = False
            yield connection
            connection.leaving = True
    except ExceptionGroup as error:
        raise unwrapped(error) from error
    finally:
        connection.leave()
        if connection.greeted:
            await _let_exit(process, server.exit_seconds)
    # What it has left is stopped by the scope of this task: SIGTERM, then SIGKILL.


def _encoded(encoding: str, errors: str, item: Any) -> bytes:
    return versions.written(item).encode(encoding, errors) + b"\n"


async def _let_exit(process: Process, seconds: float) -> None:
    """End a server as the protocol wants it: by the end of its input."""
    if process.returncode is None:
        process.close_stdin()
        with anyio.move_on_after(seconds):
            await process.wait()


@asynccontextmanager
async def http_connection(server: HttpServer, on_lost: OnLost) -> AsyncIterator[ServerConnection]:
    """Connect to a server over HTTP for as long as the context lasts."""
    connection = ServerConnection(server.name, on_lost)
    node = current_scope()
    assert node is not None  # noqa: S101 - it is a context of one
    try:
        with anyio.CancelScope() as bound:
            async with versions.streamable_http_client(server.url, **server.transport) as streams:
                read, write = streams[:2]
                connection.post = partial(_post, node, write, server.exit_seconds)

                async def send(item: Any) -> None:
                    connection.sees(item)
                    await write.send(item)

                async with versions.ClientSession(
                    Noticed(read, connection.end), WireWriting(send, write.aclose), **server.options
                ) as session:
                    connection.session = session
                    await connection.shake_hands(server.handshake, server.connect_within)
                    try:
                        yield connection
                        connection.leaving = True
                    finally:  # the SDK tells the server, and would wait long for its answer
                        bound.deadline = anyio.current_time() + server.exit_seconds
    except Exception as error:
        if not connection.greeted:
            raise _unreachable(server, unwrapped(error)) from error
        connection.failure = error  # the calls tell it
    finally:
        connection.leave()


def _unreachable(server: HttpServer, error: Exception) -> Exception:
    """Return the error for a start that failed: that of the HTTP client does not name the server."""
    library = type(error).__module__.partition(".")[0]
    if library in _HTTP_LIBRARIES or isinstance(error, OSError) or versions.says_gone(error):
        message = f"MCP server {server.name!r} cannot be reached: {why(error)}"
        return ServerLost(message, server=server.name)
    return error


def _post(node: Scope, write: Any, seconds: float, item: Any) -> None:
    """Send a message from a task of its own: nobody has to wait for it."""

    async def send() -> None:
        with suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):
            with anyio.move_on_after(seconds):
                await write.send(item)

    with suppress(ScopeClosed):
        node.spawn(send, name="mcp cancellation", service=True)


class Noticed:
    """What the session reads, and somebody who sees its end."""

    def __init__(self, inner: Any, ended: Callable[[], None]) -> None:
        """Read from `inner`."""
        self._inner = inner
        self._ended = ended

    @property
    def last_context(self) -> Any:
        """The context of whoever has sent the last message: 2.x wants it."""
        return getattr(self._inner, "last_context", None)

    def __aiter__(self) -> Self:
        """Return itself."""
        return self

    async def __anext__(self) -> Any:
        """Take the next message."""
        try:
            return await self._inner.__anext__()
        except (StopAsyncIteration, anyio.ClosedResourceError):
            self._ended()
            raise

    async def receive(self) -> Any:
        """Take the next message."""
        try:
            return await self._inner.receive()
        except (anyio.EndOfStream, anyio.ClosedResourceError):
            self._ended()
            raise

    async def aclose(self) -> None:
        """Close it."""
        await self._inner.aclose()

    async def __aenter__(self) -> Self:
        """Return itself."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close it."""
        await self._inner.aclose()
