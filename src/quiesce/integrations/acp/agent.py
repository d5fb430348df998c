"""The agent side: one agent, served to one peer, in a scope of its own.

What holds:

1. Everything that the SDK and the agent start belongs to the session's scope: no caller can lose it.
2. The end is carried out by the scope, and is bounded, whoever is cancelled meanwhile: the requests
   in flight have their grace, then are cancelled; what is unsent is flushed; then the loops stop and
   the transport is closed.
3. Cancellation is passed on to the caller, when that is complete.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import acp

from quiesce.core import arguments
from quiesce.core.scope import Scope
from quiesce.core.tree import logger
from quiesce.errors import ArgumentError
from quiesce.integrations.acp import handler_children, sdk_connection
from quiesce.integrations.acp.agent_calls import AgentCalls
from quiesce.integrations.acp.agent_transport import StreamTransport, stdio_transport
from quiesce.integrations.acp.json_lines import MESSAGE_BYTES_MAX, parsed
from quiesce.integrations.acp.request_hops import MeshRequests
from quiesce.integrations.acp.requests import Requests
from quiesce.integrations.acp.send_buffer import SendBuffer
from quiesce.integrations.acp.witness import Witness

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from acp import Agent, Client

    from quiesce.core.report import Report
    from quiesce.integrations.acp.agent_transport import AgentTransport
    from quiesce.mesh.runtime.node import Node

__all__ = ["run_agent"]

_GRACE_SECONDS = 1.0  # a client that has hung up waits 2 s before it sends SIGTERM
_CLEANUP_SECONDS = 5.0


async def run_agent(
    agent: Agent | Callable[[Client], Agent],
    input_stream: Any = None,
    output_stream: Any = None,
    *,
    use_unstable_protocol: bool = False,
    stdio_buffer_limit_bytes: int = MESSAGE_BYTES_MAX,
    grace: float = _GRACE_SECONDS,
    cleanup: float = _CLEANUP_SECONDS,
    scope: Scope | None = None,
    name: str = "agent",
    node: Node | None = None,
    **connection_kwargs: Any,
) -> Report:
    """Run an agent until its peer hangs up, somebody closes it, or the scope around is drained.

    The arguments are those of the SDK's `run_agent`, and some more. The streams are closed at the
    end.

    Args:
        agent: The agent, or a function that is given the connection and makes it.
        input_stream: Where to write to: an `asyncio.StreamWriter`, or a transport as the SDK has it from
            0.12 on (`send`, `receive`, `close`); the standard output by default.
        output_stream: Where to read from: an `asyncio.StreamReader`; the standard input by default.
        use_unstable_protocol: Whether to offer what the protocol calls unstable.
        stdio_buffer_limit_bytes: How long a message may be.
        grace: How many seconds requests in flight have to finish, when the peer has hung up.
        cleanup: How many seconds cancelled handlers have to clean up.
        scope: The scope to run in; the current one by default.
        name: What the session's own scope is called in frontiers and reports.
        node: The agent's part in a mesh, open: requests that hand over an edge are hops of it.
        connection_kwargs: What else the SDK's `run_agent` takes, such as `observers`.

    Returns:
        What became of everything that ran in the session.

    *Cancel safety*: what is in flight is cancelled, and awaited for `cleanup` seconds at most,
    before the cancellation is passed on.

    *Raises*: `ArgumentError` for arguments that the installed version of the SDK does not have;
    `UsageError` if the event loop is not asyncio's or uvloop's; `ScopeClosed` if the scope around
    is closing; what the SDK raises if it cannot go on.
    """
    sdk_connection.check_asyncio()
    sdk_connection.check_options("run_agent", connection_kwargs)
    arguments.seconds("grace", grace)
    arguments.seconds("cleanup", cleanup)
    arguments.check_text("name", name)
    if input_stream is None and output_stream is None:
        transport: AgentTransport = await stdio_transport(
            message_bytes_max=stdio_buffer_limit_bytes
        )
    else:
        transport = _transport_of(input_stream, output_stream, stdio_buffer_limit_bytes)
    return await serve_agent(
        agent, transport, grace=grace, cleanup=cleanup, scope=scope, name=name, node=node,
        use_unstable_protocol=use_unstable_protocol, **connection_kwargs,
    )  # fmt: skip


def _transport_of(writer: Any, reader: Any, message_bytes_max: int) -> AgentTransport:
    if isinstance(writer, asyncio.StreamWriter) and isinstance(reader, asyncio.StreamReader):
        return StreamTransport(reader, writer, message_bytes_max=message_bytes_max)
    has_all = all(hasattr(writer, method) for method in ("send", "receive", "close"))
    if reader is None and has_all:
        return Decoded(writer)
    message = (
        "run_agent() needs an asyncio.StreamWriter and an asyncio.StreamReader, in this order, or one"
        f" transport, not {writer!r} and {reader!r}"
    )
    raise ArgumentError(message)


class Decoded:
    """A transport as the SDK has it from 0.12 on: one message at a time, decoded."""

    decoded: ClassVar[bool] = True

    def __init__(self, inner: Any) -> None:
        """Own the SDK's, or anybody's."""
        self._inner = inner
        self.receive: Any = inner.receive

    async def send(self, messages: Sequence[dict[str, Any]]) -> None:
        """Send them one by one."""
        send = self._inner.send
        for message in messages:
            await send(message)

    async def close(self) -> None:
        """Close it."""
        await self._inner.close()


async def serve_agent(
    agent: Any,
    transport: AgentTransport,
    *,
    name: str = "agent",
    grace: float = _GRACE_SECONDS,
    cleanup: float = _CLEANUP_SECONDS,
    scope: Scope | None = None,
    node: Node | None = None,
    **options: Any,
) -> Report:
    """Run one agent over one transport, which is closed at the end; see `run_agent`."""
    if node is not None:
        from quiesce.mesh.transport.links import check_node  # noqa: PLC0415 - only with a node

        check_node(node)
    session = AgentSession(agent, transport, options, name, grace, cleanup, node)
    return await session.run(scope)


@dataclass(eq=False)
class AgentSession:
    """One agent and its one peer; `run()` opens it, runs it, and closes it."""

    _agent: Any
    _transport: AgentTransport
    _options: dict[str, Any]
    _name: str
    _grace: float
    _cleanup: float
    _mesh: Node | None
    _scope: Scope = field(init=False)
    _error: BaseException | None = None

    async def run(self, parent: Scope | None = None) -> Report:
        """Run to the end; see `run_agent`."""
        options: dict[str, Any] = {"adopt": True, "cleanup": self._cleanup}
        try:
            if parent is not None:
                scope = parent.child(self._name, **options)
            else:
                scope = await Scope.open(self._name, **options)
        except BaseException:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._cleanup):
                    await self._transport.close()
            raise
        unwatch = handler_children.watch_children(scope)
        self._scope = scope
        try:
            self._start(scope)
            await scope.closing()
            report = await scope.drain(grace=None, cleanup=self._cleanup)
        except BaseException:
            await scope.aclose(cleanup=self._cleanup)
            raise
        finally:
            unwatch()
        if self._error is not None:
            raise self._error
        return report

    def _start(self, scope: Scope) -> None:
        """Start the loops, which the scope owns."""
        outbox = SendBuffer(scope, self._transport, self._lost, flush_seconds=self._cleanup / 2)
        observers = self._options.get("observers")
        witness = Witness(observers) if observers else None
        calls = AgentCalls(outbox, witness)
        if self._mesh is None:
            requests = Requests(scope, outbox, witness)
        else:
            requests = MeshRequests(scope, outbox, witness, self._mesh)
        scope.spawn(outbox.pump, name="acp output", service=True)
        scope.spawn(self._serve, calls, requests, name="acp input", service=True)

    async def _serve(self, calls: AgentCalls, requests: Requests) -> None:
        """Connect the agent, then read until the end of the input, or of the session."""
        unstable = self._options.get("use_unstable_protocol", False)
        try:
            connection, router = sdk_connection.bind_agent(self._agent, calls, unstable=unstable)
            connection.close = self.close  # or it would wait for the task that calls it
            requests.serve(router)
            await self._read(calls, requests)
        except Exception as error:  # noqa: BLE001 - run() raises it
            self._error = error
        finally:
            calls.end()
            self._end()

    async def _read(self, calls: AgentCalls, requests: Requests) -> None:
        receive, decode, take = self._transport.receive, not self._transport.decoded, requests.take
        timeout = self._options.get("receive_timeout")
        while True:
            try:
                if timeout is None:
                    data = await receive()
                else:
                    async with asyncio.timeout(timeout):
                        data = await receive()
            except (OSError, EOFError) as error:
                if timeout is not None and isinstance(error, TimeoutError):
                    raise acp.RequestError.internal_error({"details": "Agent timeout"}) from None
                self._lost(error)
                return
            if data is None:
                return
            message = parsed(data) if decode else data
            if message is not None and not take(message):
                calls.take_answer(message)

    def _lost(self, error: Exception) -> None:
        logger.debug("session %s ends: %r", self._name, error)
        self._end()

    def _end(self) -> None:
        """Begin to end, in this step: the peer is gone."""
        self._scope._close(grace=self._grace, cleanup=self._cleanup)

    async def close(self) -> None:
        """Close the session: cancel what is in flight, and wait for its end.

        A handler may call it, too: it goes on when all others have ended, and has no answer.
        """
        await self._scope.aclose(cleanup=self._cleanup)
