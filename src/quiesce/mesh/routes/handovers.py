"""Hand-overs: work that a hop gives to another system, such as a task queue. This process cannot see when it is done.

One table lists a module, the functions by which work leaves, the receipt's word for the work, and a function that names
the work from the arguments of the call. The naming function returns None if the work does not leave. The functions are
wrapped while a node is open, as soon as their module is imported. A hand-over makes the hop's receipt opaque, unless
`Node(services=…)` declares the name or the call runs in `with quiesce.detached():`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary, ref

from quiesce.core import libraries
from quiesce.core.patches import Patch
from quiesce.core.python_private import get_frame
from quiesce.core.tree import current
from quiesce.mesh.routes.following import (
    frame_place,
    function_name,
    hop_now,
    is_declared,
    target_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType, ModuleType

    from quiesce.mesh.runtime.hop import Hop

__all__: list[str] = []


class Row(NamedTuple):
    """One row of the table: functions of a class by which work leaves."""

    module: str
    owner: str
    functions: str
    route: str
    name: Callable[[HandoverCall], str | None]
    is_here: bool = False
    """Whether this program does the work: then the work is recorded as untracked, not as opaque."""
    is_direct: bool = False
    """Whether only calls by the user's own code count: Python itself uses the functions as well."""


class HandoverCall(NamedTuple):
    """One call of a function in the table."""

    owner: Any
    args: tuple[Any, ...]
    options: dict[str, Any]

    def first(self, keyword: str) -> Any:
        """Return the call's first argument, which may have been passed by keyword."""
        return self.args[0] if self.args else self.options[keyword]


def _celery(call: HandoverCall) -> str:
    return str(call.first("name"))


def _kombu(call: HandoverCall) -> str:
    producer = call.owner
    return str(call.options.get("routing_key") or producer.routing_key or producer.exchange)


def _rq(call: HandoverCall) -> str | None:
    return str(call.first("job").func_name) if call.owner.is_async else None


def _rq_many(call: HandoverCall) -> str | None:
    return str(call.owner.name) if call.owner.is_async else None


def _arq(call: HandoverCall) -> str:
    return str(call.first("function"))


def _dramatiq(call: HandoverCall) -> str | None:
    signal, *more = call.args
    return str(more[0].actor_name) if signal == "enqueue" else None


def _taskiq(call: HandoverCall) -> str | None:
    # An InMemoryBroker runs the work in a task of this event loop.
    is_here = type(call.owner.broker).__name__ == "InMemoryBroker"
    return None if is_here else str(call.owner.task_name)


def _huey(call: HandoverCall) -> str | None:
    # A group has no name. Each of its tasks comes here as well.
    name = getattr(call.first("task"), "name", None)
    return None if call.owner.immediate or name is None else str(name)


def _procrastinate(call: HandoverCall) -> str | None:
    return ", ".join(dict.fromkeys(job.task_name for job in call.first("jobs"))) or None


def _apscheduler(call: HandoverCall) -> str | None:
    func = call.first("func")
    trigger = call.args[1] if len(call.args) > 1 else call.options.get("trigger")
    if trigger is not None and trigger != "date" and type(trigger).__name__ != "DateTrigger":
        return None  # the job repeats: it is a service, not the work of one message
    return func if isinstance(func, str) else target_of(func) or function_name(func)


def _redis(call: HandoverCall) -> str | None:
    command, key = (*call.args[:2], "", "")[:2]
    name = str(command).upper()
    if name not in _PUSHES:
        return None
    return f"{name} {key.decode('utf-8', 'replace') if isinstance(key, bytes) else key}"


def _item(call: HandoverCall) -> str:
    return f"multiprocessing.{type(call.owner).__name__}"


def _connection(call: HandoverCall) -> str | None:
    """Return the name of an end of a `multiprocessing.Pipe`; None if the hop has made it, as it then has the child."""
    made_by = _made_by.get(call.owner)
    if made_by is not None and made_by() is hop_now():
        return None
    return _item(call)


def _proxy(call: HandoverCall) -> str | None:
    """Return the name of a call by which a `multiprocessing.Manager` proxy gives work to another process."""
    name = str(call.first("methodname"))
    if name not in _LEAVES:
        return None
    return f"multiprocessing.managers.{type(call.owner).__name__}.{name}"


_made_by: WeakKeyDictionary[Any, ref[Hop]] = WeakKeyDictionary()  # ends of pipes
_LEAVES = frozenset(
    {"apply_async", "imap", "imap_unordered", "map_async", "put", "put_nowait", "starmap_async"}
)
_PUSHES = frozenset({"LPUSH", "LPUSHX", "PUBLISH", "RPUSH", "RPUSHX", "SPUBLISH", "XADD"})
_CLIENTS = ("redis.client", "redis.asyncio.client", "redis.cluster", "redis.asyncio.cluster")
_KINDS = ("Redis", "Pipeline", "RedisCluster", "ClusterPipeline")
ROWS = (
    Row("celery.app.base", "Celery", "send_task", "celery task", _celery),
    Row("kombu.messaging", "Producer", "publish", "kombu message", _kombu),
    Row("rq.queue", "Queue", "enqueue_job schedule_job", "rq job", _rq),
    Row("rq.queue", "Queue", "enqueue_many", "rq jobs in", _rq_many),
    Row("arq.connections", "ArqRedis", "enqueue_job", "arq job", _arq),
    Row("dramatiq.broker", "Broker", "emit_before", "dramatiq message", _dramatiq),
    Row("taskiq.kicker", "AsyncKicker", "kiq schedule_by_cron schedule_by_interval schedule_by_time", "taskiq task",
        _taskiq),
    Row("huey.api", "Huey", "enqueue", "huey task", _huey),
    Row("procrastinate.manager", "JobManager", "batch_defer_jobs batch_defer_jobs_async", "procrastinate job",
        _procrastinate),
    *(Row(module, kind, "execute_command", "redis", _redis) for module in _CLIENTS for kind in _KINDS),
    Row("apscheduler.schedulers.base", "BaseScheduler", "add_job", "apscheduler job", _apscheduler, is_here=True),
    Row("multiprocessing.queues", "Queue", "put", "item in", _item, is_here=True),
    Row("multiprocessing.queues", "JoinableQueue", "put", "item in", _item, is_here=True),
    Row("multiprocessing.connection", "Connection", "send send_bytes", "item in", _connection, is_here=True,
        is_direct=True),
    Row("multiprocessing.managers", "BaseProxy", "_callmethod", "call of", _proxy, is_here=True),
    Row("multiprocessing.queues", "SimpleQueue", "put", "item in", _item, is_here=True),
)  # fmt: skip
MODULES = frozenset(row.module for row in ROWS)
_OTHERS = frozenset(libraries.package_of(row.module) for row in ROWS) - libraries.PLUMBING
_BY_PART = (
    ". Else make a part with hop.working(), and add the job inside `with quiesce.detached():`"
)
# Libraries that wrap the same functions.
_TRACERS = frozenset({"ddtrace", "opentelemetry", "sentry_sdk", "wrapt"})


def wrap_handovers(module: ModuleType) -> Iterator[Patch]:
    """Wrap the functions of a module that are in the table."""
    for row in ROWS:
        if row.module == module.__name__ and hasattr(module, row.owner):
            for function in row.functions.split():
                if hasattr(getattr(module, row.owner), function):
                    yield Patch(getattr(module, row.owner), function, _by_function, row)
    if module.__name__ == "multiprocessing.connection":
        yield Patch(module.Connection, "__init__", _record_maker)


def _record_maker(init: Callable[..., None]) -> Callable[..., None]:
    def made(self: Any, *args: Any, **options: Any) -> None:
        init(self, *args, **options)
        hop = None if current.get() is None else hop_now()
        if hop is not None:
            _made_by[self] = ref(hop)

    return made


def _by_function(original: Callable[..., Any], row: Row) -> Callable[..., Any]:
    def handed(*args: Any, **options: Any) -> Any:
        if current.get() is None:
            return original(*args, **options)
        frame = get_frame(2)  # behind the layer that passes calls on
        if not (row.is_direct and libraries.is_housekeeper(frame)):
            _record_handover(row, frame, args, options)
        if not row.is_here:
            return original(*args, **options)
        token = current.set(None)  # otherwise a scheduler's timer would count as work of the hop
        try:
            return original(*args, **options)
        finally:
            current.reset(token)

    return handed


def _record_handover(row: Row, frame: FrameType | None, args: Any, options: Any) -> None:
    hop = hop_now()
    if hop is None:
        return
    own = libraries.package_of(row.module)
    while frame is not None and _is_between(frame, own):
        frame = None if libraries.is_root(frame) else frame.f_back
    package = "" if frame is None else libraries.package_of(frame.f_globals.get("__name__"))
    if package in _OTHERS:  # the outer call was recorded already
        return
    try:
        name = row.name(HandoverCall(args[0], args[1:], options))
    except (AttributeError, KeyError, TypeError, ValueError):  # another version of the library
        name = "of an unknown version"
    route = f"{row.route} {name}"
    if name is None or (frame is not None and is_declared(hop, frame, route, name)):
        return
    line = libraries.declaration([route])
    part = _BY_PART if own == "apscheduler" else ""
    place = f"handed over at {frame_place(frame)}. If no cascade has to wait for this work, declare it: {line}{part}"
    (hop.untracked if row.is_here else hop.opaque)(route, place)


def _is_between(frame: FrameType, own: str) -> bool:
    if frame.f_code.co_filename == "<string>":  # the methods of a manager's proxy
        return True
    package = libraries.package_of(frame.f_globals.get("__name__"))
    return package == own or package in libraries.PLUMBING or package in _TRACERS
