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
import json
from asyncio.events import _get_running_loop
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar

import acp

from quiesce.core import arguments
from quiesce.core.scope import Scope
from quiesce.core.tree import logger
from quiesce.errors import ArgumentError, UsageError
from quiesce.integrations.acp import agent_binding, handler_children
from quiesce.integrations.acp.agent_transport import (
    MESSAGE_BYTES_MAX,
    StreamTransport,
    stdio_transport,
)
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
        input_stream: Where to write to: an `asyncio.StreamWriter`, or, from 0.12 of the SDK on, a
            transport; the standard output by default.
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
    _check_loop()
    agent_binding.check_agent_options(connection_kwargs)
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


def _check_loop() -> None:
    if _get_running_loop() is None:
        message = "the ACP SDK needs asyncio or uvloop: run_agent() does not work on trio"
        raise UsageError(message)


def _transport_of(writer: Any, reader: Any, message_bytes_max: int) -> AgentTransport:
    if isinstance(writer, asyncio.StreamWriter) and isinstance(reader, asyncio.StreamReader):
        return StreamTransport(reader, writer, message_bytes_max=message_bytes_max)
    has_all = all(hasattr(writer, method) for method in ("send", "receive", "close"))
    if agent_binding.HAS_TRANSPORTS and reader is None and has_all:
        return Decoded(writer)
    wanted = "an asyncio.StreamWriter and an asyncio.StreamReader"
    if agent_binding.HAS_TRANSPORTS:
        wanted += ", or one transport"
    message = f"run_agent() needs {wanted}, in this order, not {writer!r} and {reader!r}"
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
    use_unstable_protocol: bool = False,
    **connection_kwargs: Any,
) -> Report:
    """Run one agent over one transport, which is closed at the end; see `run_agent`."""
    options = {"use_unstable_protocol": use_unstable_protocol, **connection_kwargs}
    session = AgentSession(
        agent, transport, options, name=name, grace=grace, cleanup=cleanup, node=node
    )
    return await session.run(scope)


def _decoded(data: bytes) -> dict[str, Any] | None:
    try:
        message = json.loads(data)
    except (ValueError, RecursionError):
        message = None
    if isinstance(message, dict):
        return message
    logger.warning("what came is no JSON-RPC message: %.80r", data)
    return None


class AgentSession:
    """One agent and its one peer."""

    def __init__(
        self,
        agent: Any,
        transport: AgentTransport,
        options: dict[str, Any],
        *,
        name: str = "agent",
        grace: float = _GRACE_SECONDS,
        cleanup: float = _CLEANUP_SECONDS,
        node: Node | None = None,
    ) -> None:
        """Describe a session; `run()` opens it, runs it, and closes it."""
        self._agent = agent
        self._transport = transport
        self._options = options
        self._name = name
        self._grace = grace
        self._cleanup = cleanup
        if node is not None:
            from quiesce.mesh.transport.links import check_node  # noqa: PLC0415 - only with a node

            check_node(node)
        self._mesh = node
        self._scope: Scope | None = None
        self._error: BaseException | None = None

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
            report = await scope.drain(within=None, cleanup=self._cleanup)
        except BaseException:
            await scope.aclose(within=self._cleanup)
            raise
        finally:
            unwatch()
        if self._error is not None:
            raise self._error
        return report

    def _start(self, scope: Scope) -> None:
        """Start the loops, which the scope owns."""
        outbox = SendBuffer(scope, self._transport, self._lost, flush_seconds=self._cleanup / 2)
        peer = agent_binding.AgentPeer(outbox)
        observers, store = self._options.get("observers"), self._options.get("state_store")
        witness = Witness(observers or (), store) if observers or store is not None else None
        if self._mesh is None:
            requests = Requests(scope, outbox, witness)
        else:
            requests = MeshRequests(scope, outbox, witness, self._mesh)
        scope.spawn(outbox.pump, name="acp output", service=True)
        scope.spawn(self._serve, peer, requests, name="acp input", service=True)

    async def _serve(self, peer: agent_binding.AgentPeer, requests: Requests) -> None:
        """Connect the agent, then read until the end of the input, or of the session."""
        assert self._scope is not None  # noqa: S101 - run() has opened it
        try:
            connection, router = agent_binding.connect_agent_side(self._agent, peer, self._options)
            connection.close = self.close  # or it would wait for the task that calls it
            self._scope.spawn(self._respond, connection, name="acp responses", service=True)
            requests.serve(router)
            await self._read(peer, requests)
            peer.hung_up()
        except BaseException as error:
            peer.end()
            if not isinstance(error, Exception):
                raise
            self._error = error  # which run() raises
        finally:
            self._end()

    async def _respond(self, connection: Any) -> None:
        """Pass the responses to the SDK."""
        try:
            await connection.listen()
        except Exception as error:  # noqa: BLE001 - it is raised by run()
            self._error = error
            self._end()

    async def _read(self, peer: agent_binding.AgentPeer, requests: Requests) -> None:
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
            message = _decoded(data) if decode else data
            if message is not None and not take(message):
                peer.respond(message)

    def _lost(self, error: Exception) -> None:
        logger.debug("session %s ends: %r", self._name, error)
        self._end()

    def _end(self) -> None:
        """Begin to end, in this step: the peer is gone."""
        assert self._scope is not None  # noqa: S101 - likewise
        self._scope._close(grace=self._grace, cleanup=self._cleanup)

    async def close(self) -> None:
        """Close the session: cancel what is in flight, and wait for its end.

        A handler may call it, too: it goes on when all others have ended, and has no answer.
        """
        assert self._scope is not None  # noqa: S101 - likewise
        await self._scope.aclose(within=self._cleanup)
