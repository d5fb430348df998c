"""Hand-overs: work that a hop gives to another system is noticed, for nobody here can tell when it is done.

One table: a module, the functions in it by which work leaves, what the receipt calls it, and how to name the work from the
arguments of the call (None: it does not leave). They are wrapped while a node is open, as soon as their module is
there. `Node(services=…)` declares what is meant to go on, by that name; so does `with quiesce.detached():`.
"""

from __future__ import annotations

from sys import _getframe
from typing import TYPE_CHECKING, Any, NamedTuple

from quiesce.core import libraries
from quiesce.core.patches import Patch
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

__all__: list[str] = []


class Row(NamedTuple):
    """Functions of a class by which work leaves."""

    module: str
    owner: str
    functions: str
    route: str
    name: Callable[[HandoverCall], str | None]
    is_here: bool = False
    """Whether the work is done in this program: then it is untracked, and not opaque."""


class HandoverCall(NamedTuple):
    """One call of such a function."""

    owner: Any
    args: tuple[Any, ...]
    options: dict[str, Any]

    def first(self, keyword: str) -> Any:
        """Return its first argument, which may have been given by name."""
        return self.args[0] if self.args else self.options[keyword]


def _celery(call: HandoverCall) -> str:
    return str(call.first("name"))


def _kombu(call: HandoverCall) -> str:
    producer = call.owner
    return str(call.options.get("routing_key") or producer.routing_key or producer.exchange)


def _rq(call: HandoverCall) -> str | None:
    return str(call.first("job").func_name) if call.owner._is_async else None


def _rq_many(call: HandoverCall) -> str | None:
    return str(call.owner.name) if call.owner._is_async else None


def _arq(call: HandoverCall) -> str:
    return str(call.first("function"))


def _dramatiq(call: HandoverCall) -> str | None:
    signal, *more = call.args
    return str(more[0].actor_name) if signal == "enqueue" else None


def _taskiq(call: HandoverCall) -> str | None:
    is_here = (
        type(call.owner.broker).__name__ == "InMemoryBroker"
    )  # which starts a task of this loop
    return None if is_here else str(call.owner.task_name)


def _huey(call: HandoverCall) -> str | None:
    name = getattr(
        call.first("task"), "name", None
    )  # groups have none: each of theirs comes here, too
    return None if call.owner.immediate or name is None else str(name)


def _procrastinate(call: HandoverCall) -> str | None:
    return ", ".join(dict.fromkeys(job.task_name for job in call.first("jobs"))) or None


def _apscheduler(call: HandoverCall) -> str | None:
    func = call.first("func")
    trigger = call.args[1] if len(call.args) > 1 else call.options.get("trigger")
    if trigger is not None and trigger != "date" and type(trigger).__name__ != "DateTrigger":
        return None  # it comes again and again: a service, and not the work of one message
    return func if isinstance(func, str) else target_of(func) or function_name(func)


def _redis(call: HandoverCall) -> str | None:
    command, key = (*call.args[:2], "", "")[:2]
    name = str(command).upper()
    if name not in _PUSHES:
        return None
    return f"{name} {key.decode('utf-8', 'replace') if isinstance(key, bytes) else key}"


def _item(call: HandoverCall) -> str:
    return f"multiprocessing.{type(call.owner).__name__}"


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
    Row("multiprocessing.queues", "SimpleQueue", "put", "item in", _item, is_here=True),
)  # fmt: skip
MODULES = frozenset(row.module for row in ROWS)
_OTHERS = frozenset(libraries.package_of(row.module) for row in ROWS) - libraries.PLUMBING
_TRACERS = frozenset(
    {"ddtrace", "opentelemetry", "sentry_sdk", "wrapt"}
)  # which wrap the same functions


def wrap_handovers(module: ModuleType) -> Iterator[Patch]:
    """Wrap what a module has of the table."""
    for row in ROWS:
        if row.module == module.__name__ and hasattr(module, row.owner):
            for function in row.functions.split():
                if hasattr(getattr(module, row.owner), function):
                    yield Patch(getattr(module, row.owner), function, _handing, row)


def _handing(original: Callable[..., Any], row: Row) -> Callable[..., Any]:
    def handed(*args: Any, **options: Any) -> Any:
        if current.get() is None:
            return original(*args, **options)
        _notice(row, _getframe(1), args, options)
        if not row.is_here:
            return original(*args, **options)
        token = current.set(None)  # or a scheduler's timer would go on in the name of the hop
        try:
            return original(*args, **options)
        finally:
            current.reset(token)

    return handed


def _notice(row: Row, frame: FrameType | None, args: Any, options: Any) -> None:
    hop = hop_now()
    if hop is None:
        return
    own = libraries.package_of(row.module)
    while frame is not None and _is_between(frame, own):
        frame = None if libraries.is_root(frame) else frame.f_back
    package = "" if frame is None else libraries.package_of(frame.f_globals.get("__name__"))
    if package in _OTHERS:  # which was noticed when it was called
        return
    try:
        name = row.name(HandoverCall(args[0], args[1:], options))
    except (AttributeError, KeyError, TypeError, ValueError):  # of a version that differs
        name = "of an unknown version"
    route = f"{row.route} {name}"
    if name is None or (frame is not None and is_declared(hop, frame, route, name)):
        return
    line = libraries.declaration([route])
    place = f"handed over at {frame_place(frame)}. If nobody waits for it, declare it: {line}"
    (hop.untracked if row.is_here else hop.opaque)(route, place)


def _is_between(frame: FrameType, own: str) -> bool:
    package = libraries.package_of(frame.f_globals.get("__name__"))
    return package == own or package in libraries.PLUMBING or package in _TRACERS
