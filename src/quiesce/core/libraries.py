"""The housekeeping of well-known libraries, which is not work of the code that happens to start it.

A library starts tasks, threads and timers for the whole process when the first piece of work needs them. A scope that
held them would wait for them, and would report them as lost, although other work still needs them. Four tables:

- `PROCESS_WIDE`: tasks, each by the module and the qualified name of its coroutine function. Scopes do not adopt these
  tasks; only their library ends them.
- `HOUSEKEEPERS`: libraries whose timers, threads and queues are housekeeping. A hop does not follow them.
- `WITH_LOOPS`: `HOUSEKEEPERS`, and libraries whose loops read connections. Work that the latter start for a message is
  work of its hop.
- `RELAYS`: loops that take items from a queue, and are done with each item before they ask for the next. A hop follows
  them.

To add a task, read the library's source. The task must meet all of these conditions:

- The task serves the process, the event loop or a connection, and not the request or call that has started it.
- The task ends by itself, together with that connection or the event loop. No work is lost if a scope does not cancel it.
- The task's work for one request is followed by other means (a queue, the request's own context), or the task does not
  run the user's code.

To add a library to `HOUSEKEEPERS`, look for `call_later`, `Thread(` and `Queue(` in its source. None of them may run the
user's code later, on behalf of a call.

To add a loop to `RELAYS`, check that the loop is done with an item when it asks for the next: it has awaited the work, or
started a task for it, or put the item into another queue, and it does not keep the item.

Users declare other housekeeping in one line: `Node(services=["package.module.*"])`.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import CodeType, FrameType

__all__: list[str] = []

_SESSIONS = "StreamableHTTPSessionManager"
PROCESS_WIDE: dict[str, frozenset[str]] = {
    # aiojobs: passes the failures of jobs to a handler; started by the first job.
    "aiojobs._scheduler": frozenset({"Scheduler._wait_failed"}),
    # anyio: ends the worker processes of `to_process` when the event loop ends; started by the first call.
    "anyio._backends._asyncio": frozenset({"_shutdown_process_pool_on_exit"}),
    # asyncpg: fills a pool up again, for as long as its server cannot be reached.
    "asyncpg.pool": frozenset({"Pool._maintain_min_size"}),
    # python-engineio, under python-socketio: the loops of a connection, and the one that watches all connections.
    "engineio.async_client": frozenset({
        "AsyncClient._read_loop_polling", "AsyncClient._read_loop_websocket", "AsyncClient._write_loop",
    }),
    "engineio.async_server": frozenset({"AsyncServer._service_task"}),
    "engineio.async_socket": frozenset({"AsyncSocket._send_ping"}),
    # mcp 1.x and 2.x, fastmcp: the loop of a session, started by the request that opens it. Requests come to it
    # through a memory object stream, which carries their hops.
    "mcp.server.streamable_http_manager": frozenset({
        f"{_SESSIONS}._handle_stateful_request.<locals>.run_server",
        f"{_SESSIONS}._serve_opening_request.<locals>.run_server",
    }),
    # psycopg_pool: opens, checks and closes connections.
    "psycopg_pool.pool_async": frozenset({"AsyncConnectionPool.worker"}),
    "psycopg_pool.sched_async": frozenset({"AsyncScheduler.run"}),
    # redis-py: health checks, and maintenance that a server announces for a later time.
    "redis.asyncio.maint_notifications": frozenset({"AsyncMaintNotificationsPoolHandler._run_after"}),
    "redis.background": frozenset({"BackgroundScheduler.run_recurring_async"}),
    # sentry_sdk with its asynchronous transport: sends events.
    "sentry_sdk.worker": frozenset({"AsyncWorker._target"}),
    "socketio.async_admin": frozenset({"InstrumentedAsyncServer._emit_server_stats"}),
    "socketio.async_client": frozenset({"AsyncClient._handle_reconnect"}),
    "socketio.async_pubsub_manager": frozenset({"AsyncPubSubManager._thread"}),
    # sse-starlette 3.x: started by the first event stream of a thread; asks twice a second whether the server has
    # been told to stop, and then ends all event streams. a2a-sdk and google-adk use it.
    "sse_starlette.sse": frozenset({"_shutdown_watcher"}),
}  # fmt: skip
"""By module, the qualified name of each coroutine function whose tasks belong to the process."""

RELAYS: dict[str, frozenset[str]] = {
    # mcp 1.x and 2.x: a message goes from queue to queue, and each request is handled in a task of its own. The loop of
    # mcp.server.runner that waits for the first request is not here, because it collects a batch.
    "mcp.client.streamable_http": frozenset({
        "StreamableHTTPTransport.post_writer", "StreamableHTTPTransport.handle_get_stream",
        "StreamableHTTPTransport._handle_sse_response", "StreamableHTTPTransport._handle_resumption_request",
        "StreamableHTTPTransport._handle_reconnection",
    }),
    "mcp.server.lowlevel.server": frozenset({"Server.run"}),
    "mcp.server.stdio": frozenset({"stdio_server.<locals>.stdin_reader"}),
    "mcp.server.streamable_http": frozenset({
        "StreamableHTTPServerTransport._run_sse_writer", "StreamableHTTPServerTransport.connect.<locals>.message_router",
    }),
    "mcp.shared.jsonrpc_dispatcher": frozenset({"JSONRPCDispatcher.run"}),
    "mcp.shared.session": frozenset({"BaseSession._receive_loop"}),
    # A streaming response: it has sent an item when it asks for the next one.
    "sse_starlette.sse": frozenset({"EventSourceResponse._stream_response"}),
    "starlette.responses": frozenset({"StreamingResponse.stream_response"}),
}  # fmt: skip
"""By module, the qualified name of each function that is done with an item from a queue when it asks for more."""
_WRAPPED_QUEUES = frozenset({"mcp.shared._context_streams"})  # modules of queues around queues

GETTERS: dict[CodeType, Callable[[Any], tuple[Any] | None]] = {}
"""Coroutine functions that get an item from a queue for the task that asked for it.

A task may work for a hop only because of the item it has. Its wait for the next item is not work of that hop. The value
of an entry is a function that returns the task's own scope, in which the coroutine becomes a task.
"""

_NAMES = {name.rpartition(".")[2] for names in PROCESS_WIDE.values() for name in names}
_GROUPED = "_run_coro"  # anyio 4.14 and newer wraps each coroutine of a task group in this one
SUSPECTS: set[str] = _NAMES | {_GROUPED}
"""The names of all coroutines that `is_process_wide` may accept; for most tasks, only this set is looked at."""


def is_process_wide(coro: Any) -> bool:
    """Return whether a coroutine that is about to become a task belongs to the process."""
    name = getattr(coro, "__name__", None)
    if name == _GROUPED:
        coro = inner(coro)
        name = getattr(coro, "__name__", None)
    if name not in _NAMES:
        return False
    getter = GETTERS.get(getattr(coro, "cr_code", None))  # type: ignore[arg-type]  # it may be None
    if getter is not None:
        return getter(coro) is not None
    return coro.__qualname__ in PROCESS_WIDE.get(module_of(coro) or "", ())


def add_getter(code: CodeType, scope_of: Callable[[Any], tuple[Any] | None]) -> None:
    """Add a coroutine function that gets an item from a queue: see `GETTERS`."""
    GETTERS[code] = scope_of
    _NAMES.add(code.co_name)
    SUSPECTS.add(code.co_name)


def inner(coro: Any) -> Any:
    """Return the coroutine that a task of an anyio task group runs; of any other task, `coro` itself."""
    frame = getattr(coro, "cr_frame", None)
    if frame is None or coro.__name__ != _GROUPED or package_of(module_of(coro)) != "anyio":
        return coro
    return getattr(frame.f_locals.get("self"), "_coro", coro)


def module_of(coro: Any) -> str | None:
    """Return the module of a coroutine that has not ended."""
    frame = getattr(coro, "cr_frame", None)
    module: str | None = None if frame is None else frame.f_globals.get("__name__")
    return module


def full_name(coro: Any) -> str | None:
    """Return the name by which `services` can declare a task: its coroutine's module and qualified name.

    Return None for coroutines of event loops and of quiesce, like `Event.wait`: every program uses them for work.
    """
    made = inner(coro)
    module = module_of(made)
    if module is None or package_of(module) in PLUMBING:
        return None
    return f"{module}.{made.__qualname__}"


def declaration(names: Iterable[str]) -> str:
    """Return the line of code that declares these tasks as housekeeping."""
    return f"Node(services={json.dumps(list(names))})"


# By the first part of a module's name (see `package_of`). Of the standard library, the modules that call each other.
_LOOPS = frozenset(
    {"asyncio", "anyio", "uvloop", "trio", "sniffio", "quiesce", "threading", "queue", "contextlib"}
)
_STANDARD = frozenset({"concurrent", "multiprocessing", "selectors", "socketserver", "subprocess"})
_SERVERS = frozenset(
    {
        "fastapi",
        "granian",
        "h11",
        "h2",
        "httptools",
        "hypercorn",
        "sse_starlette",
        "starlette",
        "uvicorn",
        "websockets",
        "wsproto",
    }
)
_CLIENTS = frozenset({
    "aiobotocore", "aiohttp", "anthropic", "botocore", "google.api_core", "google.auth", "google.cloud", "google.genai",
    "grpc", "httpcore", "httpcore2", "httpx", "httpx2", "openai", "requests", "urllib3",
})  # fmt: skip
_STORES = frozenset({
    "aiocache", "aiosqlite", "async_lru", "asyncpg", "cachetools", "motor", "psycopg", "psycopg_pool", "pymongo",
    "redis", "sqlalchemy",
})  # fmt: skip
_OTHERS = frozenset({
    "a2a", "apscheduler", "ddtrace", "engineio", "logging", "opentelemetry", "posthog", "prometheus_client", "sentry_sdk", "socketio",
    "structlog", "watchfiles",
})  # fmt: skip
# Their connection pools are housekeeping; quiesce.mesh.routes.handovers notices the work handed to them.
_TASK_QUEUES = frozenset({
    "amqp", "arq", "billiard", "celery", "dramatiq", "huey", "kombu", "procrastinate", "rq", "taskiq",
})  # fmt: skip
PLUMBING = _LOOPS | _STANDARD
HOUSEKEEPERS = PLUMBING | _SERVERS | _CLIENTS | _STORES | _OTHERS | _TASK_QUEUES
WITH_LOOPS = HOUSEKEEPERS | {
    "IPython", "_pydevd_bundle", "acp", "aio_pika", "aiokafka", "aiormq", "claude_agent_sdk", "confluent_kafka", "debugpy", "execnet",
    "faststream", "fasta2a", "fastmcp", "google.adk", "ipykernel", "kafka", "mcp", "nats", "pika", "pydantic_ai", "pydevd", "rich",
    "temporalio", "tornado", "tqdm", "watchdog", "zmq",
}  # fmt: skip
"""Libraries whose loops, outside of all hops, never do a handler's job: they read connections, draw or debug.

Work that these libraries start for a message is work of its hop, unlike the work of `HOUSEKEEPERS`.
"""


_SHARED = frozenset({"google"})  # unrelated packages share this first part


def package_of(module: str | None) -> str:
    """Return the first part of a module's name, or the first two if unrelated packages share the first."""
    first, _, rest = (module or "").partition(".")
    return f"{first}.{rest.partition('.')[0]}" if first in _SHARED else first


_ROOTS = frozenset({
    ("anyio._backends._asyncio", "run"), ("asyncio.events", "_run"), ("asyncio.runners", "run"),
    ("concurrent.futures.thread", "run"), ("threading", "_bootstrap_inner"), ("threading", "run"),
})  # fmt: skip
"""The functions of Python and of anyio that run a task, a callback, or a call in a thread."""

_INVOKERS = frozenset({
    ("fastapi.routing", "run_endpoint_function"), ("starlette.background", "__call__"),
    ("starlette.concurrency", "run_in_threadpool"), ("starlette.routing", "app"),
})  # fmt: skip
"""The functions of libraries that call the user's functions: work started there is the user's."""


def is_root(frame: FrameType) -> bool:
    """Return whether a frame runs a task, a callback or a thread. The frames around such a frame did not start it."""
    return (frame.f_globals.get("__name__"), frame.f_code.co_name) in _ROOTS


def starting_frame(frame: FrameType | None) -> FrameType | None:
    """Return the frame that starts work: the innermost one outside of event loops, threads and quiesce.

    Return None if there is no such frame, as in `create_task(queue.put(item))`.
    """
    while frame is not None and package_of(frame.f_globals.get("__name__")) in PLUMBING:
        if is_root(frame):
            return None
        frame = frame.f_back
    return frame


def frame_behind_call(frame: FrameType | None, *names: str) -> FrameType | None:
    """Return the frame that is responsible for a call of one of these names, given the frame that made the call.

    A function of event loops, threads or quiesce is responsible if its own code has such a name: `sleep` sets a timer. If
    its code does not have the name, it only calls a function that it was given, as `ExitStack` and `to_thread` do. Then
    the code that gave it that function is responsible.
    """
    if (
        frame is not None
        and package_of(frame.f_globals.get("__name__")) in PLUMBING
        and not is_root(frame)
        and not set(names).isdisjoint(frame.f_code.co_names)
    ):
        return frame
    return starting_frame(frame)


def is_relay(frame: FrameType | None) -> bool:
    """Return whether the code that asks a queue for more is a loop of `RELAYS`."""
    while frame is not None and frame.f_globals.get("__name__") in _WRAPPED_QUEUES:
        frame = starting_frame(frame.f_back)
    if frame is None:
        return False
    return frame.f_code.co_qualname in RELAYS.get(frame.f_globals.get("__name__") or "", ())


def is_housekeeper(frame: FrameType) -> bool:
    """Return whether the code of a frame belongs to a library of `HOUSEKEEPERS`."""
    return is_housekeeping(frame.f_globals.get("__name__"), frame.f_code.co_name)


@lru_cache(maxsize=4096)
def is_housekeeping(module: str | None, function: str) -> bool:
    """Return whether a function of a module belongs to a library of `HOUSEKEEPERS`; remember the answer."""
    return (module, function) not in _INVOKERS and package_of(module) in HOUSEKEEPERS
