"""The agent side: one agent, served to one peer, in its own scope.

Rules:

1. Everything that the SDK and the agent start belongs to the session's scope: no caller can lose it.
2. The scope carries out the end, within its time limits, even if callers are cancelled meanwhile.
   Requests in flight get their grace and are then cancelled; unsent messages are flushed; then the
   loops stop and the transport is closed.
3. A cancellation is passed on to the caller when all of that is complete.
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

_GRACE_SECONDS = 1.0  # a client that has hung up sends SIGTERM after 2 s
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
    """Run an agent until its peer hangs up, it is closed, or the surrounding scope is drained.

    The arguments are those of the SDK's `run_agent`, and some more. The streams are closed at the
    end.

    Args:
        agent: The agent, or a function that is called with the connection and returns the agent.
        input_stream: The stream to write to: an `asyncio.StreamWriter`, or a transport as the SDK has
            them since 0.12 (`send`, `receive`, `close`); the standard output by default.
        output_stream: The stream to read from: an `asyncio.StreamReader`; the standard input by default.
        use_unstable_protocol: Whether to offer the unstable parts of the protocol.
        stdio_buffer_limit_bytes: The longest message that is accepted.
        grace: How many seconds requests in flight have to finish when the peer has hung up.
        cleanup: How many seconds cancelled handlers have to clean up.
        scope: The scope to run in; the current one by default.
        name: The name of the session's own scope in frontiers and reports.
        node: The agent's open mesh node: requests that hand over an edge are hops of it.
        connection_kwargs: Other options of the SDK's `run_agent`, such as `observers`.

    Returns:
        The report of the session: how everything that ran in it has ended.

    *Cancel safety*: if cancelled, requests in flight are cancelled and awaited for at most `cleanup`
    seconds before the cancellation is passed on.

    *Raises*: `ArgumentError` for arguments that the installed version of the SDK does not have;
    `UsageError` if the event loop is not one of asyncio or uvloop; `ScopeClosed` if the surrounding
    scope is closing; errors of the SDK with which it cannot continue.
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
        return DecodedTransport(writer)
    message = (
        "run_agent() needs an asyncio.StreamWriter and an asyncio.StreamReader, in this order, or one"
        f" transport, not {writer!r} and {reader!r}"
    )
    raise ArgumentError(message)


class DecodedTransport:
    """A transport as the SDK has them since 0.12: it carries one decoded message at a time."""

    decoded: ClassVar[bool] = True

    def __init__(self, inner: Any) -> None:
        """Wrap a transport, and own it."""
        self._inner = inner
        self.receive: Any = inner.receive

    async def send(self, messages: Sequence[dict[str, Any]]) -> None:
        send = self._inner.send
        for message in messages:
            await send(message)

    async def close(self) -> None:
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
    """One agent and its one peer; `run()` opens the session, runs it, and closes it."""

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
        """Run the session to its end; see `run_agent`."""
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
        """Start the loops in the scope."""
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
        """Connect the agent, then read until the end of the input or of the session."""
        unstable = self._options.get("use_unstable_protocol", False)
        try:
            connection, router = sdk_connection.bind_agent(self._agent, calls, unstable=unstable)
            connection.close = self.close  # the SDK's own would wait for the task that calls it
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
        """Begin the end of the session, in this step: the peer is gone."""
        self._scope.plan_close(grace=self._grace, cleanup=self._cleanup)

    async def close(self) -> None:
        """Close the session: cancel the requests in flight, and wait for their end.

        A handler may call it, too: the call returns when all other handlers have ended, and the
        handler's own request gets no answer.
        """
        await self._scope.aclose(cleanup=self._cleanup)
