"""Events and conditions: a hop that wakes a worker has given it something to do.

A `deque` and an event, or a condition, are a queue, too. A task or thread outside of all hops that waits for one in a
loop is a worker: woken by a hop, it works for that hop until it waits again, or ends. An event that is waited for once,
and not in a loop, is a signal, and carries nothing. So are the events and conditions of libraries, queues among them.
"""

from __future__ import annotations

from sys import _getframe
from threading import Thread
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakSet, finalize

from quiesce.core.libraries import is_housekeeper, is_root
from quiesce.core.tree import current
from quiesce.mesh.routes import bytecode_flow
from quiesce.mesh.routes.batches import attributes_of, reach
from quiesce.mesh.routes.belts import Belt, assume_done
from quiesce.mesh.routes.following import hop_now, is_declared
from quiesce.mesh.routes.queues import belts, keep
from quiesce.mesh.routes.takers import lock, running_taker, takers

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

__all__: list[str] = []

_of_workers: dict[int, WeakSet[Any]] = {}  # those that have waited for an event, by its id
_idle: WeakKeyDictionary[Any, set[int]] = WeakKeyDictionary()
"""The workers that wait now, with the ids of the sets that they are not at work for."""
_AROUND = frozenset({
    ("anyio._backends._asyncio", "set"), ("anyio._backends._asyncio", "wait"),
    ("asyncio.locks", "notify_all"), ("asyncio.locks", "wait_for"), ("asyncio.tasks", "wait_for"),
    ("quiesce.mesh.routes.queues", "waited"), ("threading", "notify_all"), ("threading", "wait_for"),
})  # fmt: skip


def by_set(signal: Callable[[Any], None]) -> Callable[[Any], None]:
    """Return the replacement of `Event.set`."""

    def setting(self: Any) -> None:
        if id(self) in _of_workers:  # as few are: a server sets several for each request
            _wakes(self, _getframe().f_back)
        signal(self)

    return setting


def by_notify(signal: Callable[[Any, int], None]) -> Callable[..., None]:
    """Return the replacement of `Condition.notify`."""

    def notifying(self: Any, n: int = 1) -> None:
        if id(self) in _of_workers:
            _wakes(self, _getframe().f_back)
        signal(self, n)

    return notifying


def _wakes(event: Any, around: FrameType | None) -> None:
    """Record that the running code wakes a worker; if the code is a part of a hop, the worker works for that."""
    hop = hop_now()
    if hop is None:
        return
    is_bare = around is None or is_root(around)  # a callback or a thread that only sets it
    frame = None if is_bare else _user(around)
    belt = belts.get(id(event))
    if belt is None:
        belt = Belt(_kind(event), is_signal=True)
        belt.workers = _of_workers[id(event)]
        keep(event, belt)
    is_meant = is_bare or frame is not None
    if is_meant and not (is_declared(hop, frame) or belt.has(event, hop)):
        belt.put(event, hop, frame)


def by_wait(wait: Callable[..., Any]) -> Callable[..., Any]:
    """Return the replacement of the `wait` of an event or a condition of asyncio."""

    async def waiting(self: Any) -> Any:
        if _is_part_of_hop(self) or not _begins(self, _getframe().f_back):
            return await wait(self)
        try:
            found = await wait(self)
        finally:
            _ends()
        _woken(self)
        return found

    return waiting


def by_thread_wait(wait: Callable[..., Any]) -> Callable[..., Any]:
    """Return the replacement of the `wait` of an event or a condition between threads."""

    def waiting(self: Any, timeout: float | None = None) -> Any:
        if _is_part_of_hop(self) or not _begins(self, _getframe().f_back):
            return wait(self, timeout)
        try:
            found = wait(self, timeout)
        finally:
            _ends()
        if found:
            _woken(self)
        return found

    return waiting


def _is_part_of_hop(event: Any) -> bool:
    """Return whether the running code is a part of a hop, which is waited for by itself, and not a worker."""
    node = current.get()
    return node is not None and node._errand is not None and id(event) not in belts


def _begins(event: Any, frame: FrameType | None) -> bool:
    """Record that a worker waits; return False if what waits is not a worker."""
    frame = _user(frame)
    if frame is None:
        return False
    belt = belts.get(id(event)) if belts else None
    key = running_taker()
    if key is None or not _is_worker(event, reach(frame, _root(key))):
        return False
    with lock:
        if id(event) not in _of_workers:
            _of_workers[id(event)] = WeakSet()
            finalize(event, _of_workers.pop, id(event), None).atexit = False
        _of_workers[id(event)].add(key)
        _idle[key] = {id(_of_workers[id(event)])}
    is_set = _is_set(event)
    taker = takers.get(key)
    for other in {} if taker is None else {parcel.belt: None for parcel in taker.parcels}:
        if other.is_signal and not (other is belt and is_set):  # it has come round again
            other.idle(key, frame)
            _idle[key].add(id(other.workers))
            _forget(other, frame)
    if belt is not None and not is_set:
        _forget(belt, frame)
    return True


def _ends() -> None:
    """Record that a worker does not wait any more."""
    with lock:
        _idle.pop(running_taker(), None)


def _forget(belt: Belt, frame: FrameType) -> None:
    """Forget who has set an event, unless a worker is still at work: the others wait, and found nothing to do.

    A worker that is at work may have taken something without waiting for it: it had more to do when it came round.
    """
    with lock:
        is_busy = any(
            id(belt.workers) not in _idle.get(key, ()) and _is_alive(key) for key in belt.workers
        )
    if not is_busy:
        assume_done(belt.waiting(), frame)
        belt.forget_waiting()


def _is_alive(key: Any) -> bool:
    return key.is_alive() if isinstance(key, Thread) else _root(key) is not None


def _is_worker(event: Any, frames: list[FrameType]) -> bool:
    """Return whether one of a worker's functions waits for the event in a loop, and has not made it there itself."""
    for frame in frames:
        code = frame.f_code
        if bytecode_flow.is_in_loop(code, frame.f_lasti):
            return True
        given = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        for name, value in frame.f_locals.items():
            if name not in given and name not in code.co_freevars and _has(value, event, depth=3):
                return False  # each call has one of its own
    return False


def _has(value: Any, event: Any, depth: int) -> bool:
    if value is event:
        return True
    parts = attributes_of(value).values() if depth else ()
    return any(_has(part, event, depth - 1) for part in parts)


def _woken(event: Any) -> None:
    """Start the work of the worker for the hops that have woken it."""
    belt = belts.get(id(event)) if belts else None
    if belt is not None:
        belt.joined(running_taker())


def _is_set(event: Any) -> bool:
    """Return whether an event is set; a condition is not."""
    return bool(event.is_set()) if hasattr(event, "is_set") else False


def _root(key: object) -> FrameType | None:
    coro = key.get_coro() if hasattr(key, "get_coro") else getattr(key, "coro", None)
    found: FrameType | None = getattr(coro, "cr_frame", None)
    return found


def _user(frame: FrameType | None) -> FrameType | None:
    """Return the frame of the code that uses an event, or a function around it; None if that is a library's own."""
    while frame is not None and (frame.f_globals.get("__name__"), frame.f_code.co_name) in _AROUND:
        frame = frame.f_back
    return None if frame is None or is_housekeeper(frame) else frame


def _kind(event: Any) -> str:
    kind = type(event)
    return f"{kind.__module__.partition('.')[0]}.{kind.__name__}"
