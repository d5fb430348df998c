"""All private names of the SDK that the adapter needs, each checked when the adapter is imported.

The SDK has a public hook, `transport=`. To use it for the CLI itself, the adapter would have to build
the CLI's command line and environment, which change with every version. The SDK would also leave out
what it does only for its own transport (resuming from a session store, the permission prompt). So the
SDK creates and connects its own transport, and the adapter replaces only what that transport calls:

- `SubprocessCLITransport.connect` and `close` run in a task of the conversation's scope, which also
  closes the generator that `read_messages` returns.
- `anyio.open_process`, as seen by that module, starts a process of that scope.
- The SDK's tasks are started in that scope. In 0.1.50 an anyio task group starts them, entered by hand;
  from 0.1.51 to 0.1.66 `asyncio` does, so these versions support trio only with the replacement here;
  later versions use `spawn_detached`. On asyncio the scope adopts the tasks, so the last two are not
  replaced there.

The memory streams of the control protocol, which older versions leave open, are closed as well.

The alternative for trio was to run the SDK in a thread with its own asyncio loop. Then every hook, tool,
prompt and transport of the user would have to be carried from one loop to the other.

Every replacement looks at the running context: code in the same program that uses the SDK without
quiesce is not affected. A version that lacks one of the names is refused with `SdkUnknown`.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import types
from importlib import metadata
from typing import TYPE_CHECKING, Any, Self

import anyio

from quiesce.errors import JobCancelled, UsageError
from quiesce.integrations import sdk
from quiesce.integrations.claude.conversation import CliConnection, active, connecting
from quiesce.integrations.claude.handover import ReceivingEnd, SendingEnd

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator

    from quiesce.core.job import Job
    from quiesce.core.scope import Scope
    from quiesce.integrations.claude.conversation import Conversation

__all__: list[str] = []

DISTRIBUTION = "claude-agent-sdk"
_INTERNAL = "claude_agent_sdk._internal"
_SPAWNING = ("sdk_mcp_bridge", "transcript_mirror_batcher")  # not every version has them
_GROUP_SECONDS = 0.5  # how long the SDK waits for its own tasks; then the scope waits

# An attribute of the transport, not a table of transports: a connection refers to its transport, so a
# table would keep both for ever, even with weak keys.
_CONNECTION = "_quiesce_connection"


class Task:
    """A job with those methods of asyncio's tasks and of the SDK's own handle that the SDK uses."""

    def __init__(self, job: Job[Any] | None) -> None:
        """Wrap a job; None if it was not started because the conversation is over."""
        self._job = job

    def cancel(self) -> None:
        if self._job is not None:
            self._job.cancel()

    def done(self) -> bool:
        return self._job is None or self._job.done()

    def add_done_callback(self, call: Callable[[Any], object]) -> None:
        """Call `call` with this object when the job has ended."""
        if self._job is None or self._job.done():
            call(self)
        else:
            self._job.call_when_done(lambda: (call(self), None)[1])

    async def wait(self) -> None:
        """Wait for the end of the job; its cancellation is not an error."""
        if self._job is not None:
            try:
                await self._job
            except JobCancelled:
                return

    def __await__(self) -> Generator[Any, Any, None]:
        return self.wait().__await__()


class TaskGroup:
    """A task group that any task may enter and leave: the scope owns its tasks."""

    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation
        self._tasks: set[Task] = set()
        self.cancel_scope: TaskGroup = self

    def start_soon(self, fn: Callable[..., Coroutine[Any, Any, Any]], *args: Any) -> None:
        task = Task(self._conversation.start(fn(*args), fn.__qualname__))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def cancel(self) -> None:
        for task in tuple(self._tasks):
            task.cancel()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Wait for the tasks for a moment; the scope's close waits for the rest."""
        with anyio.move_on_after(_GROUP_SECONDS):
            for task in tuple(self._tasks):
                await task.wait()


class _StandIn(types.ModuleType):
    """A module as another module sees it; some of its names are replaced."""

    def __init__(self, module: types.ModuleType, **ours: Any) -> None:
        super().__init__(module.__name__)
        self.__dict__.update(ours)
        self._quiesce_module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._quiesce_module, name)


class _Asyncio(_StandIn):
    """`asyncio` as the SDK's control protocol sees it, from 0.1.51 to 0.1.66."""

    @property
    def CancelledError(self) -> type[BaseException]:  # noqa: N802 - asyncio's name
        """The exception that signals a cancellation on the running backend."""
        conversation = active.get()
        if conversation is None:
            return asyncio.CancelledError
        return conversation.scope.backend.cancelled


class _Loop:
    """The part of an asyncio event loop that the SDK uses."""

    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation

    def create_task(self, body: Any) -> Task:
        """Start a task of the conversation."""
        return Task(self._conversation.start(body, body.__qualname__))


def _on_trio() -> Conversation | None:
    """Return the conversation if its scope cannot adopt the SDK's tasks; otherwise None."""
    conversation = active.get()
    if conversation is None or conversation.scope.backend.name != "trio":
        return None
    return conversation


async def _open_process(command: Any, **options: Any) -> Any:
    connection = connecting.get()
    if connection is None:
        return await anyio.open_process(command, **options)
    return await connection.open_process(command, **options)


def _create_task_group() -> Any:
    conversation = active.get()
    return anyio.create_task_group() if conversation is None else TaskGroup(conversation)


class _Streams:
    """`anyio.create_memory_object_stream`, whose streams are closed along with the conversation."""

    def __getitem__(self, _: object) -> Self:
        """Return the same object for every type of item."""
        return self

    def __call__(self, *args: Any, **options: Any) -> Any:
        send, receive = anyio.create_memory_object_stream[Any](*args, **options)
        conversation = active.get()
        if conversation is None:
            return send, receive
        conversation.receiving = receiving = ReceivingEnd(receive)
        sending = SendingEnd(send, receiving)
        conversation.streams += (sending, receiving)
        return sending, receiving


def _get_running_loop() -> Any:
    conversation = _on_trio()
    return asyncio.get_running_loop() if conversation is None else _Loop(conversation)


def _spawner(spawn: Callable[[Any], Any]) -> Callable[[Any], Any]:
    @functools.wraps(spawn)
    def spawn_detached(body: Any) -> Any:
        conversation = _on_trio()
        if conversation is None:
            return spawn(body)
        return Task(conversation.start(body, body.__qualname__))

    return spawn_detached


def _part(name: str) -> Any:
    """Import a private module."""
    try:
        return importlib.import_module(f"{_INTERNAL}.{name}")
    except ImportError:
        sdk.unknown(DISTRIBUTION, f"module {_INTERNAL}.{name}")


def _optional(name: str) -> Any:
    """Import a private module that some versions lack; return None then."""
    try:
        return importlib.import_module(f"{_INTERNAL}.{name}")
    except ImportError:
        return None


def check_backend(options: Any, scope: Scope) -> None:
    """Refuse options that the SDK does not support on trio, even with the adapter.

    Raises:
        UsageError: The session stores of this version use asyncio.
    """
    if getattr(options, "session_store", None) is None or scope.backend.name != "trio":
        return
    if hasattr(_optional("transcript_mirror_batcher"), "asyncio"):
        message = (
            f"session_store= of {DISTRIBUTION} {metadata.version(DISTRIBUTION)} needs asyncio: on"
            f" trio, install a newer version of {DISTRIBUTION}"
        )
        raise UsageError(message)


def _has(owner: Any, name: str) -> None:
    if not hasattr(owner, name):
        sdk.unknown(DISTRIBUTION, f"{getattr(owner, '__name__', owner)}.{name}")


def install_stand_ins() -> None:
    """Install the replacements; called once, when the adapter is imported.

    Raises:
        SdkUnknown: The installed version lacks one of the names.
    """
    transport, protocol = _part("transport.subprocess_cli"), _part("query")
    for owner, name in (
        (transport, "SubprocessCLITransport"),
        (transport, "anyio"),
        (protocol, "anyio"),
        (protocol, "Query"),
    ):
        _has(owner, name)
    if isinstance(transport.anyio, _StandIn):
        return  # installed already
    transport.anyio = _StandIn(
        anyio, open_process=_open_process, create_task_group=_create_task_group
    )
    protocol.anyio = _StandIn(
        anyio, create_task_group=_create_task_group, create_memory_object_stream=_Streams()
    )
    _own_tasks(transport, protocol)
    _own_transport(transport.SubprocessCLITransport)


def _own_tasks(transport: Any, protocol: Any) -> None:
    """Start the SDK's tasks in the conversation where its scope cannot adopt them."""
    if hasattr(protocol, "spawn_detached"):
        for module in (transport, protocol, *map(_optional, _SPAWNING)):
            if hasattr(module, "spawn_detached"):
                module.spawn_detached = _spawner(module.spawn_detached)
    elif hasattr(protocol, "asyncio"):
        protocol.asyncio = _Asyncio(asyncio, get_running_loop=_get_running_loop)
    elif not _enters_a_group(protocol.Query):
        sdk.unknown(DISTRIBUTION, f"{_INTERNAL}.query.spawn_detached")


def _enters_a_group(query: Any) -> bool:
    """Return whether the SDK enters an anyio task group by hand, as 0.1.50 does."""
    return "create_task_group" in query.start.__code__.co_names


def _own_transport(transport: Any) -> None:
    """Connect and close the SDK's transport in a task of the conversation."""
    for name in ("connect", "close", "read_messages"):
        _has(transport, name)
    bare_connect, bare_close, bare_read = (
        transport.connect, transport.close, transport.read_messages,
    )  # fmt: skip

    @functools.wraps(bare_connect)
    async def connect(self: Any) -> None:
        conversation = active.get()
        if conversation is None or _connection_of(self) is not None:
            await bare_connect(self)
            return
        connection = CliConnection(
            conversation,
            type(self).__qualname__,
            functools.partial(_checked, bare_connect, self),
            lambda: bare_close(self),
        )
        setattr(self, _CONNECTION, connection)
        await connection.enter()

    @functools.wraps(bare_close)
    async def close(self: Any) -> None:
        connection = _connection_of(self)
        if connection is None:
            await bare_close(self)
        else:
            await connection.exit()

    @functools.wraps(bare_read)
    def read_messages(self: Any) -> Any:
        connection = _connection_of(self)
        messages = bare_read(self)
        return messages if connection is None else connection.reading(messages)

    transport.connect, transport.close, transport.read_messages = connect, close, read_messages


def _connection_of(transport: Any) -> CliConnection | None:
    """Return the connection that this adapter made for one of the SDK's transports, or None."""
    found: CliConnection | None = getattr(transport, _CONNECTION, None)
    return found


async def _checked(bare_connect: Callable[[Any], Coroutine[Any, Any, None]], self: Any) -> None:
    await bare_connect(self)
    connection = connecting.get()
    if connection is not None and not connection.processes:
        sdk.unknown(DISTRIBUTION, "process that it starts by anyio.open_process")
