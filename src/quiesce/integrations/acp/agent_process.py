"""Agents that are child processes: the whole process group is gone when the connection is closed.

`spawn_agent_process` has the SDK's name and signature. The process is started by quiesce: a scope
holds it from the step that forks it, and its whole group ends with it, even after many
cancellations.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from acp.transports import default_environment

from quiesce.core import arguments
from quiesce.core.current import current_scope
from quiesce.core.python_private import get_frame
from quiesce.core.scope import Scope
from quiesce.errors import ArgumentError
from quiesce.integrations.acp.agent_client import connect_client_side
from quiesce.integrations.acp.client_streams import ProcessPeer
from quiesce.integrations.acp.json_lines import MESSAGE_BYTES_MAX
from quiesce.integrations.acp.sdk_connection import check_asyncio
from quiesce.processes.process import Process, start_process
from quiesce.processes.process_spawn import exit_text

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
    from types import FrameType

    from acp.core import ClientSideConnection

    from quiesce.core.frontier import Frontier
    from quiesce.core.report import Report
    from quiesce.processes.output import Logs

__all__ = ["AgentProcess", "open_agent_process", "spawn_agent_process"]

_SHUTDOWN_SECONDS = 2.0  # as in the SDK: once after EOF, and again after SIGTERM
_KILL_SECONDS = 2.0  # for SIGKILL and reaping
_EXIT_SECONDS = 0.5  # how long to wait for the exit after the end of the output, to report its code
_TAIL_LINES = 5


class AgentProcess:
    """An agent that runs as a child process, and the connection to it.

    Made by `open_agent_process()`; closed by `aclose()`, from any task, or with its scope.
    """

    def __init__(
        self, scope: Scope, connection: ClientSideConnection, process: Process, seconds: float
    ) -> None:
        self._scope = scope
        self._seconds = seconds
        self.connection: ClientSideConnection = connection
        """The SDK's own connection object."""
        self.process: Process = process
        """The process; its `stderr` can be read."""

    @property
    def report(self) -> Report | None:
        """The report: how everything that belonged to the agent has ended; None until it is closed."""
        return self._scope.report

    def frontier(self) -> Frontier:
        """List what is in flight: the process, requests, and handlers of the client."""
        return self._scope.frontier()

    async def aclose(self) -> Report:
        """Close the connection, and end the process and its group: EOF, SIGTERM, SIGKILL.

        *Cancel safety*: if cancelled, the close continues; the cancellation is passed on after it.
        """
        return await self._scope.aclose(cleanup=self._seconds)


@asynccontextmanager
async def spawn_agent_process(
    to_client: Any,
    command: str,
    *args: str,
    env: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
    transport_kwargs: Mapping[str, Any] | None = None,
    **connection_kwargs: Any,
) -> AsyncIterator[tuple[ClientSideConnection, Process]]:
    """Run an agent as a child process for the time of a block; return the connection and the process.

    The arguments are those of the SDK, and of `open_agent_process()`.

    *Cancel safety*: if cancelled at any point, and however often, the process and all of its group
    are gone before the cancellation is passed on.

    Raises:
        SpawnFailed: The program cannot be started.
        ArgumentError: An argument cannot work.
    """
    options = {"env": env, "cwd": cwd, "transport_kwargs": transport_kwargs, **connection_kwargs}
    place = get_frame(2)  # the caller's frame, above contextlib's own
    agent = await _open(to_client, [command, *args], place, **options)
    try:
        yield agent.connection, agent.process
    finally:
        await agent.aclose()


async def open_agent_process(
    to_client: Any,
    command: str,
    *args: str,
    env: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
    transport_kwargs: Mapping[str, Any] | None = None,
    scope: Scope | None = None,
    logs: Logs = "keep",
    **connection_kwargs: Any,
) -> AgentProcess:
    """Start an agent as a child process; `aclose()` closes it, from any task.

    Args:
        to_client: The client, or a function that is called with the connection and returns the client.
        command: The program.
        args: The program's arguments.
        env: Variables to add to the SDK's default environment, a small part of this program's.
        cwd: The working directory.
        transport_kwargs: `shutdown_timeout`: how many seconds the agent has after the end of its input,
            and again after SIGTERM (2). `limit`: the longest message that is accepted from it, in bytes.
            `stderr`: `subprocess.PIPE`, the default, keeps the output for `process.stderr`; None passes
            it to this program's standard error; `subprocess.DEVNULL` drops it.
        scope: The owning scope; the current one by default.
        logs: Where else the standard error goes, as in `start_process`.
        connection_kwargs: The options of `connect_to_agent`.

    *Cancel safety*: if cancelled, the process is gone before the cancellation is passed on.

    Raises:
        SpawnFailed: The program cannot be started.
        ArgumentError: An argument cannot work.
    """
    options = {"env": env, "cwd": cwd, "transport_kwargs": transport_kwargs, **connection_kwargs}
    place = get_frame(1)
    return await _open(to_client, [command, *args], place, scope=scope, logs=logs, **options)


async def _open(
    to_client: Any,
    argv: list[str],
    place: FrameType,
    *,
    env: Mapping[str, str] | None,
    cwd: str | os.PathLike[str] | None,
    transport_kwargs: Mapping[str, Any] | None,
    scope: Scope | None = None,
    logs: Logs = "keep",
    close_seconds: float = _KILL_SECONDS,
    **options: Any,
) -> AgentProcess:
    check_asyncio()
    settings = _Settings(transport_kwargs or {}, logs)
    closing = arguments.seconds("close_seconds", close_seconds)
    seconds = closing + settings.shutdown_seconds * 2 + _KILL_SECONDS
    name = os.path.basename(argv[0])  # noqa: PTH119 - a plain string
    own = Scope(f"agent {name}", cleanup=seconds)
    own.open_under(scope or current_scope(), place)
    process = functools.partial(
        start_process, argv, env={**default_environment(), **(env or {})}, cwd=cwd,
        stdin="pipe", stdout="bytes",
    )  # fmt: skip
    connecting = functools.partial(
        connect_client_side, to_client, close_seconds=closing, frame=place, name="connection"
    )
    try:
        opened = await own.enter(_running(process, connecting, settings, options))
    except BaseException:
        await own.aclose(cleanup=seconds)
        raise
    return AgentProcess(own, *opened, seconds)


class _Settings:
    """The options that the SDK passes to its own transport."""

    def __init__(self, given: Mapping[str, Any], logs: Logs) -> None:
        unknown = set(given) - {"stderr", "limit", "shutdown_timeout"}
        if unknown:
            message = f"transport_kwargs may have stderr, limit and shutdown_timeout, not {unknown}"
            raise ArgumentError(message)
        stderr = given.get("stderr", subprocess.PIPE)
        if stderr not in {subprocess.PIPE, subprocess.DEVNULL, None}:
            message = f"stderr must be subprocess.PIPE, DEVNULL or None, not {stderr!r}: use logs="
            raise ArgumentError(message)
        timeout = given.get("shutdown_timeout", _SHUTDOWN_SECONDS)
        self.shutdown_seconds: float = arguments.seconds("shutdown_timeout", timeout)
        self.message_bytes_max: int = given.get("limit") or MESSAGE_BYTES_MAX
        self.logs: Logs = _to_stderr if stderr is None and logs == "keep" else logs


def _to_stderr(stream: str, line: str) -> None:  # noqa: ARG001 - only standard error is passed
    sys.stderr.write(f"{line}\n")


@asynccontextmanager
async def _running(
    start: Callable[..., Awaitable[Process]],
    connecting: Callable[..., ClientSideConnection],
    settings: _Settings,
    options: dict[str, Any],
) -> AsyncIterator[tuple[ClientSideConnection, Process]]:
    """Run the agent; a task of its scope enters and leaves this, so that no caller can cancel it."""
    grace = settings.shutdown_seconds
    process = await start(logs=settings.logs, grace=grace)
    try:
        peer = ProcessPeer(
            process,
            _EXIT_SECONDS,
            receive_timeout=options.pop("receive_timeout", None),
            message_bytes_max=settings.message_bytes_max,
        )
        connection = connecting(
            peer,
            cancel_session=options.pop("cancel_session", False),
            options=options,
            why_lost=lambda: _last_words(process),
        )
        try:
            yield connection, process
        finally:
            await connection.close()
            await peer.finish(grace)
    finally:
        await process.stop(grace)


def _last_words(process: Process) -> str:
    code = process.returncode
    ending = "it still runs" if code is None else exit_text(code)
    lines = process.stderr.tail()[-_TAIL_LINES:]
    return "\n    ".join([f" ({ending})", *lines])
