"""Bystanders: loops of the user's code outside of all hops that wait in a way that quiesce does not follow.

A handler may leave a job in a list that such a loop reads later, or wake the loop by a semaphore, a future or a socket.
quiesce cannot see that. So an ending hop records the assumption that there is no such job, with the line where the loop
waits. These loops are not bystanders:

- A loop that takes items from queues or waits for events, because it is followed. But if it does something after a
  timeout of such a wait, it is a bystander.
- A loop of a well-known library, a loop that `Node(services=…)` declares, and a loop that only waits.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from functools import partial
from inspect import getattr_static
from itertools import islice
from pathlib import Path
from threading import Thread
from traceback import walk_stack
from types import FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakSet, ref

from quiesce.core import libraries
from quiesce.core.callsites import walk_awaits
from quiesce.core.python_private import thread_frames
from quiesce.core.tree import current
from quiesce.mesh.protocol.receipt import ASSUMES, WHY_MAX
from quiesce.mesh.routes import bytecode_flow, timed_waits
from quiesce.mesh.routes.drivers import has_begun
from quiesce.mesh.routes.following import declaration_of, is_declarable, is_declared_service
from quiesce.mesh.routes.takers import (
    has_served,
    is_alive,
    running_taker,
    task_context,
    watched,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import CodeType, FrameType

    from quiesce.core.backends import Backend
    from quiesce.mesh.runtime.hop import Hop

__all__: list[str] = []

_FOLLOWED = (
    "anyio.streams.memory",
    "asyncio.queues",
    "queue",
    "quiesce.channels.",
    "quiesce.mesh.routes.queues",
    "quiesce.mesh.routes.simple_queue",
)
"""The modules of the queues that are followed. Workers that wait for events are recognised in another way."""
_LIFESPANS = frozenset({
    ("hypercorn.asyncio.lifespan", "asgi_receive"), ("hypercorn.trio.lifespan", "asgi_receive"),
    ("quiesce.integrations.asgi.lifespan", "_receive"), ("quiesce.mesh.transport.asgi_lifespan", "_receive"),
    ("uvicorn.lifespan.on", "receive"),
})  # fmt: skip
_PAUSE = 0.1  # the least time between two searches
_PAUSE_EACH = 50e-6  # more time for each task or thread that the search has examined
_MAX = 64  # loops that are kept
_NAMED_MAX = 5  # loops that one hop names

threads_of_hops: WeakSet[Thread] = WeakSet()
"""The threads that hops have started."""


class Loop(NamedTuple):
    """A loop that a search has found."""

    key: ref[Any]
    """The task or thread."""
    code: CodeType
    """The function with the loop."""
    place: str
    """The function's name, and the line where it waits."""
    module: str
    target: str
    """The name by which `Node(services=…)` declares the loop."""
    is_followed: bool
    """Whether the loop takes items or waits for events, with a timeout."""


class Bystanders:
    """The loops that the last search of a node has found. Searches are rare, because each one examines every task."""

    def __init__(self) -> None:
        self._loops: list[Loop] = []
        self._last: float = 0.0  # the time of the last search
        self._next: float = 0.0

    def tell(self, hop: Hop) -> None:
        """Record in an ending hop the loops that it assumes to have no job of it."""
        now = hop.backend.clock()
        if not self._last <= now < self._next:  # tests may set the clock back
            keys = list(_all(hop.backend))
            known = {loop.key(): loop for loop in self._loops if loop.is_followed}
            found = (_found(key, known.get(key)) for key in keys)
            self._loops = list(islice(filter(None, found), _MAX))
            self._last, self._next = now, now + _PAUSE + _PAUSE_EACH * len(keys)
        if not self._loops or (hop.end_reason and not hop.end_reason.startswith(ASSUMES)):
            return
        here = running_taker()
        told = {}
        for loop in self._loops:
            key = loop.key()
            if key is None or key is here or has_begun(key):
                continue
            if has_served(key, hop) if loop.is_followed else key in watched:
                continue
            names = (f"{loop.module}.", loop.target, getattr(key, "name", None))
            if not is_declared_service(hop, None, *names):
                told[loop.place] = loop.target
        if told:
            room = WHY_MAX - len(hop.end_reason) - len("; and ")
            said = [_sentence(told, count) for count in range(min(len(told), _NAMED_MAX), 0, -1)]
            hop.assume(next((one for one in said if len(one) <= room), said[-1]), also=True)


def _sentence(told: dict[str, str], count: int) -> str:
    """Return the assumption about loops as a sentence that names `count` of them; `told` has their targets by place."""
    places = list(told)[:count]
    targets = list(dict.fromkeys(told[place] for place in places))
    names = [one for one in targets if is_declarable(one)]
    line = libraries.declaration(names) if names else declaration_of(None)
    if len(told) == 1:
        return (
            f"assumes that the loop {places[0]}, which belongs to no message, does no work for this one. If that is so,"
            f" declare it: {line}"
        )
    more = f" and {len(told) - len(places)} more" if len(told) > len(places) else ""
    return (
        f"assumes that these loops, which belong to no message, do no work for this one: {', '.join(places)}{more}. If that"
        f" is so, declare them: {line}"
    )


def _all(backend: Backend) -> Iterator[Any]:
    yield from (one for one in threading.enumerate() if one is not threading.current_thread())
    if backend.name == "asyncio":
        yield from asyncio.all_tasks(backend.loop)  # type: ignore[arg-type]  # asyncio's loop
        return
    trio: Any = sys.modules["trio"]
    ahead = [trio.lowlevel.current_root_task()]
    while ahead:
        task = ahead.pop()
        yield task
        ahead += [child for nursery in task.child_nurseries for child in nursery.child_tasks]


def _found(key: Any, known: Loop | None) -> Loop | None:
    """Return the loop in which a task or thread outside of all hops waits in the user's code; None without a loop.

    A followed loop may be at work now. It is `known` if an earlier search has seen it wait.
    """
    timer = _timer(key) if isinstance(key, threading.Timer) and key not in threads_of_hops else None
    if timer is not None:
        return timer
    stack = _stack_of(key, is_known=known is not None)
    frames = [frame for frame, _ in stack]
    if known is not None and any(one.f_code is known.code for one in frames):
        return known
    own = list(_own(frames))
    if not own or _is_of_library(own[0]) or any(map(_is_lifespan, frames)):
        return None
    is_followed = key in watched or _waits_for_queue(frames)
    frame = timed_waits.polling_frame(stack) if is_followed else _loop_in(own)
    if frame is None:
        return None
    target = f"{own[0].f_globals.get('__name__')}.{own[0].f_code.co_qualname}"
    code, module = frame.f_code, frame.f_globals.get("__name__", "")
    place = f"{code.co_qualname} ({Path(code.co_filename).name}:{frame.f_lineno})"
    return Loop(ref(key), code, place, module, target, is_followed=is_followed)


def _timer(key: threading.Timer) -> Loop | None:
    """Return a `threading.Timer` as a loop if its function, or a function that it calls, sets a timer again."""
    fn: Any = getattr(key, "function", None)
    while isinstance(fn, partial):  # a partial
        fn = fn.func
    owner = type(getattr(fn, "__self__", None))
    fn = getattr(fn, "__func__", fn)
    if (
        not isinstance(fn, FunctionType)
        or libraries.package_of(fn.__module__) in libraries.WITH_LOOPS
    ):
        return None
    code = fn.__code__
    called = (getattr_static(owner, name, fn.__globals__.get(name)) for name in code.co_names)
    codes = [code, *(one.__code__ for one in called if isinstance(one, FunctionType))]
    if not any("Timer" in one.co_names for one in codes):
        return None
    place = f"{code.co_qualname} ({Path(code.co_filename).name}:{code.co_firstlineno})"
    target = f"{fn.__module__}.{code.co_qualname}"
    return Loop(ref(key), code, place, fn.__module__, target, is_followed=False)


def _stack_of(key: Any, *, is_known: bool) -> list[tuple[FrameType, object]]:
    """Return the frames of a task or thread outside of all hops, outermost first, each with its coroutine."""
    if not is_alive(key) or (isinstance(key, Thread) and key in threads_of_hops):
        return []
    if isinstance(key, Thread):
        top = thread_frames().get(key.ident or 0)
        frames = [] if top is None else [frame for frame, _ in walk_stack(top)]
        return [(frame, None) for frame in reversed(frames)]
    context = key.context if hasattr(key, "context") else task_context(key)
    node = None if context is None else context.get(current)
    if node is not None and node.hop_served is not None and not is_known:
        return []
    return walk_awaits(key.get_coro() if hasattr(key, "get_coro") else key.coro)


def is_users_task(held: Any) -> bool:
    """Return whether work of a hop is the user's, and not a task of a well-known library."""
    if not hasattr(held, "get_coro") and not hasattr(held, "coro"):
        return True
    first = next(_own(_frames_of(held)), None)
    return first is not None and not _is_of_library(first)


def _frames_of(key: Any) -> list[FrameType]:
    """Return the frames of a task, outermost first."""
    coro = key.get_coro() if hasattr(key, "get_coro") else key.coro
    return [frame for frame, _ in walk_awaits(coro)]


def _is_of_library(frame: FrameType) -> bool:
    return libraries.package_of(frame.f_globals.get("__name__")) in libraries.WITH_LOOPS


def _own(frames: Iterable[FrameType]) -> Iterator[FrameType]:
    """Yield the frames outside of event loops, threads and quiesce."""
    for one in frames:
        if libraries.package_of(one.f_globals.get("__name__")) not in libraries.PLUMBING:
            yield one


def _is_lifespan(frame: FrameType) -> bool:
    """Return whether an app waits for the next event of its lifespan, which does not bring jobs."""
    return (frame.f_globals.get("__name__"), frame.f_code.co_name) in _LIFESPANS


def _waits_for_queue(frames: list[FrameType]) -> bool:
    return any(one.f_globals.get("__name__", "").startswith(_FOLLOWED) for one in frames)


def _loop_in(own: list[FrameType]) -> FrameType | None:
    """Return the innermost frame of the user's code that waits in a loop."""
    for frame in reversed(own):
        if _is_of_library(frame):
            continue
        place = frame.f_code, frame.f_lasti
        if bytecode_flow.is_in_loop(*place) and not bytecode_flow.only_looks(*place, also="sleep"):
            return frame
    return None
