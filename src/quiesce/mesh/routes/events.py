"""Events and conditions: a hop that wakes a worker has given the worker something to do.

A `deque` with an event or a condition is a queue, too. A task or thread outside of all hops that waits for an event in
a loop is a worker. When a hop wakes the worker, the worker works for that hop until it waits again or ends. A worker
that is busy when a hop sets the event may find the job without waiting, so it works for the hop from then on.

A signal holds no hop: an event that code waits for once, outside of a loop (see `waits_once`), and any event or
condition of a library, such as those inside queues.
"""

from __future__ import annotations

from asyncio import Task
from functools import lru_cache
from itertools import count
from threading import Thread, current_thread
from traceback import walk_stack
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakSet, finalize

from quiesce.core.libraries import is_housekeeper, is_housekeeping, starting_frame
from quiesce.core.python_private import exception_of, get_frame, running_loop, thread_frames
from quiesce.core.tree import current
from quiesce.mesh.clients.strays import plain_request
from quiesce.mesh.routes import bytecode_flow, early_sets, waits_once
from quiesce.mesh.routes.batches import FRAMES_MAX, attributes_of, reach
from quiesce.mesh.routes.belts import Belt, assume_done
from quiesce.mesh.routes.drivers import is_driver
from quiesce.mesh.routes.following import called, frame_place, hop_now, is_declared
from quiesce.mesh.routes.queues import belts, keep
from quiesce.mesh.routes.takers import (
    Waits,
    at_work,
    frames_of,
    is_alive,
    lock,
    on_end,
    release_all,
    root_of,
    running_taker,
    takers,
    watch,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from types import FrameType

    from quiesce.mesh.runtime.hop import Hop

__all__: list[str] = []

_of_workers: dict[int, WeakKeyDictionary[Any, Waits]] = {}
"""The workers that have waited for an event, by the event's id."""
_signals: WeakSet[Belt] = WeakSet()
_counter = count()
_being_set: list[Any] = []
"""Events that a recorded setter is about to set. A worker in another thread may start to wait meanwhile."""
_idle: WeakKeyDictionary[Any, set[int]] = WeakKeyDictionary()
"""The workers that wait now, each with the ids of the `Belt.workers` for which it is not at work."""
_AROUND = frozenset({
    ("anyio._backends._asyncio", "wait"), ("asyncio.locks", "wait_for"), ("asyncio.tasks", "wait_for"),
    ("quiesce.mesh.routes.queues", "waited"), ("threading", "wait_for"),
})  # fmt: skip


def by_set(signal: Callable[[Any], None]) -> Callable[[Any], None]:
    """Return the replacement of `Event.set`."""

    def setting(self: Any) -> None:
        if id(self) not in _of_workers:  # the common case: a server sets several for each request
            if current.get() is not None:
                early_sets.note(self, _kind, get_frame().f_back)
            if id(self) not in _of_workers:  # a first worker may have come, in another thread
                signal(self)
                return
        _being_set.append(self)
        try:
            record_wake(self, get_frame().f_back)
            signal(self)
        finally:
            _being_set.remove(self)

    return setting


def by_notify(signal: Callable[[Any, int], None]) -> Callable[..., None]:
    """Return the replacement of `Condition.notify`."""

    def notifying(self: Any, n: int = 1) -> None:
        # The caller holds the condition's lock: no worker can start to wait.
        if id(self) in _of_workers:
            record_wake(self, get_frame().f_back)
        elif current.get() is not None:
            early_sets.note(self, _kind, get_frame().f_back)
        signal(self, n)

    return notifying


def record_wake(event: Any, around: FrameType | None) -> None:
    """Record that the running code wakes a worker. If the code belongs to a hop, the worker works for that hop."""
    hop = hop_now()
    if hop is None:
        return
    frame = starting_frame(around)
    belt = _belt_of(event)
    if not is_declared(hop, frame):
        waits_once.tell(event, belt.kind, hop, frame)
    if not (is_declared(hop, frame) or belt.has_waiting(event, hop)):
        with lock:
            every = list(filter(is_alive, belt.workers))
        alive = [key for key in every if not is_driver(key, hop)]
        if every and not alive:
            return
        left = [key for key in alive if _has_left_loop(belt, key)]
        if not left or len(left) < len(alive):
            belt.put(event, hop, frame)
        for key in left:
            place = (
                f"{belt.kind} set at {frame_place(frame)}. Its worker {_worker_name(key)} has left the loop in which it"
                " waited for the event. If the event does not start work, set it in `with quiesce.detached():`"
            )
            hop.untracked("event", place)
        for key in _busy_workers(belt):
            if key in alive and key not in _idle:  # an idle worker joins the hop when its wait ends
                _call_busy(belt, key, hop, frame)


def _belt_of(event: Any) -> Belt:
    belt = belts.get(id(event))
    if belt is None:
        belt = Belt(_kind(event), is_signal=True)
        belt.workers = _of_workers[id(event)]
        keep(event, belt)
        with lock:
            _signals.add(belt)
    return belt


def _has_left_loop(belt: Belt, key: Any) -> bool:
    """Return whether a busy worker cannot get back to the place where it waited for an event."""
    if key in _idle or key is running_taker() or key is current_thread():
        return False
    if isinstance(key, Thread):
        frame = thread_frames().get(key.ident or 0)
        frames = [] if frame is None else [one for one, _ in walk_stack(frame)]
    else:
        frames = frames_of(key, None)
    places = belt.workers[key].places
    return len(places) < FRAMES_MAX and not any(
        one.f_code is code and bytecode_flow.comes_to(code, one.f_lasti, offset)
        for one in frames
        for code, offset in places
    )


def _call_busy(belt: Belt, key: Any, hop: Hop, frame: FrameType | None) -> None:
    """Start a busy worker's work for one more hop: the worker may find the job before it waits again."""
    taker = takers.get(key)
    if taker is not None and any(one.belt is belt and one.hold for one in taker.parcels):
        return  # the worker already works for a hop of this event; see `takers.companions`
    if isinstance(key, Thread):
        for ident, (thread, _) in list(called.items()):
            if not thread.is_alive():
                called.pop(ident, None)
        called[key.ident or 0] = (key, _join_callers)
    elif isinstance(key, Task) and key.get_loop() is running_loop():
        belt.on_join(key, is_woken=False)
    else:
        place = f"{belt.kind} set at {frame_place(frame)}, while its worker {_worker_name(key)} was busy in another event loop"
        hop.untracked("event", place)


def _worker_name(key: Any) -> str:
    return key.get_name() if isinstance(key, Task) else getattr(key, "name", "task")


def _join_callers(thread: Thread) -> None:
    """Start the running thread's work for the hops that have called it.

    If the thread runs an event loop in the course of its work, each task of that loop has to join the hops.
    """
    call = called.pop(thread.ident or 0, None)  # first: `_join` asks which hop the thread works for
    try:
        _join(thread)
        taker = takers.get(thread)
        if taker is not None:
            taker.work()
    finally:
        if call is not None and running_taker() is not thread:
            called[thread.ident or 0] = call


def _join(key: Any, woken_by: Belt | None = None) -> None:
    """Start a worker's work for all hops that have set one of its events: it may find the job of any of them."""
    with lock:
        found = [belt for belt in _signals if belt is not woken_by and key in belt.workers]
    for belt in found:
        if key in _busy_workers(belt):
            belt.on_join(key, is_woken=False)
    if woken_by is not None:
        woken_by.on_join(key, is_woken=True)  # last, because the newest item decides the scope


def by_wait(wait: Callable[..., Any]) -> Callable[..., Any]:
    """Return the replacement of the `wait` of an event or a condition of asyncio."""

    async def waiting(self: Any) -> Any:
        frame = get_frame().f_back
        if _is_of_library(frame):  # the common case: a server waits for its own event
            if early_sets.is_noted(self):
                _is_part_of_hop(self, frame)
            return await wait(self)
        is_workers = not _is_part_of_hop(self, frame) and _begin_wait(self, frame)
        once = None if is_workers else _begin_single_wait(self, frame)
        try:
            return await wait(self)
        finally:
            if is_workers:
                _end_wait(self)
            waits_once.end(self, once)

    return waiting


def by_thread_wait(wait: Callable[..., Any]) -> Callable[..., Any]:
    """Return the replacement of the `wait` of an event or a condition between threads."""

    def waiting(self: Any, timeout: float | None = None) -> Any:
        frame = get_frame().f_back
        is_workers = not _is_part_of_hop(self, frame) and _begin_wait(self, frame)
        once = None if is_workers else _begin_single_wait(self, frame)
        try:
            return wait(self, timeout)
        finally:
            if is_workers:
                _end_wait(self)
            waits_once.end(self, once)

    return waiting


def _begin_single_wait(event: Any, frame: FrameType | None) -> waits_once.Wait | None:
    """Record a wait by code that is not a worker, unless it is a library's or a request outside of all cascades."""
    return waits_once.begin(event, None if plain_request.get() else _waiting_frame(frame))


def _is_part_of_hop(event: Any, frame: FrameType | None) -> bool:
    """Return whether the running code belongs to a hop, which already waits for it, and is not a worker."""
    node = current.get()
    if node is None or node.hop_served is None or id(event) in belts or _is_next_round(frame):
        return False
    early_sets.is_signal(event)
    return True


def _is_next_round(frame: FrameType | None) -> bool:
    """Return whether a worker waits at the place where it waited for the event of its current work."""
    taker, key = at_work.get(), running_taker()
    user = None if taker is None or taker.key is not key else _waiting_frame(frame)
    if taker is None or user is None:
        return False
    found = {parcel.belt for parcel in taker.parcels if parcel.belt.is_signal}
    return any(_is_at_place(belt, key, reach(user, root_of(key))) for belt in found)


def _is_at_place(belt: Belt, key: Any, frames: list[FrameType]) -> bool:
    """Return whether a worker has waited for an event at all of these places."""
    waits = belt.workers.get(key)
    return waits is not None and all((one.f_code, one.f_lasti) in waits.places for one in frames)


def _begin_wait(event: Any, frame: FrameType | None) -> bool:
    """Record that a worker waits. Return False if the waiting code is not a worker."""
    frame = _waiting_frame(frame)
    if frame is None:
        return False
    belt = belts.get(id(event)) if belts else None
    key = running_taker()
    frames = [] if key is None else reach(frame, root_of(key))
    if not _is_worker(event, frames):
        early_sets.is_signal(event)
        return False
    with lock:
        if id(event) not in _of_workers:
            _of_workers[id(event)] = WeakKeyDictionary()
            finalize(event, _of_workers.pop, id(event), None).atexit = False
        waits = _of_workers[id(event)].setdefault(key, Waits(next(_counter)))
        waits.places.update((one.f_code, one.f_lasti) for one in frames)
        _idle[key] = {id(_of_workers[id(event)])}
    is_set = _is_set(event)
    watch(key, None)
    taker = takers.get(key)
    for other in {} if taker is None else {parcel.belt: None for parcel in taker.parcels}:
        if other.is_signal and not is_set and _has_come_round(key, other, belt, waits, frames):
            _idle[key].add(id(other.workers))
            other.on_idle(key)
            _release_setters(other, frame)
    if belt is not None and not is_set:
        _release_setters(belt, frame, event)
    return True


def _has_come_round(
    key: Any, other: Belt, belt: Belt | None, waits: Waits, frames: list[FrameType]
) -> bool:
    """Return whether a waiting worker is done with the jobs of the event of `other`.

    The worker is done if it waits for that event, or for another event at the same place: some workers make a new event
    for each round. It is also done if it waited before a hop set the event. A worker that was busy at the set may wait
    for a different event in the course of the job. That is unlikely if it waited for that different event first: then
    the worker counts as done, and the hop records that this is not known.
    """
    early = [one for one in takers[key].parcels if one.belt is other and not one.is_direct]
    if other is belt or not early or _is_at_place(other, key, frames):
        return True
    if other.workers[key].first < waits.first:
        return False
    for hop in {one.hold.hop: None for one in early if one.hold is not None}:
        place = (
            f"{other.kind}, whose worker was busy when the event was set, and now waits for something else at"
            f" {frame_place(frames[0])}"
        )
        hop.untracked("event", place)
    return True


def _end_wait(event: Any) -> None:
    """Start the work of a worker whose wait has ended, for the hops that have set the event.

    A wait that ended for another reason, like a timeout, counts as well: the worker may still find the jobs.
    """
    key = running_taker()
    with lock:
        _idle.pop(key, None)
    if isinstance(key, Thread):
        called.pop(key.ident or 0, None)  # the thread joins its callers below
    if key not in _of_workers.get(id(event), ()):
        return  # another task closes the waiting coroutine
    for hop, place in early_sets.found_by_worker(event).items():
        if is_driver(key, hop):
            continue
        _belt_of(event).put(event, hop, None, place)
        early_sets.is_held(event, hop)
    if _signals:
        _join(key, belts.get(id(event)))


def _release_setters(belt: Belt, frame: FrameType, event: Any = None) -> None:
    """Release the hops that have set an event, unless a worker is still busy or about to wake.

    All workers wait, so they have found nothing more to do. A busy worker may have found a job without waiting for it.
    If the event is set by now, or about to be, a waiting worker wakes.
    """
    with lock:
        is_set = any(_is_being_set(one.item) for one in belt.waiting()) or _is_set(event)
        over = [] if is_set or _busy_workers(belt) else belt.take_waiting()
    assume_done(over, frame)
    release_all(over)


def _worker_ended(key: Any, told: Collection[Hop]) -> None:
    """Release the hops that have set events of an ended worker, unless another worker is busy or about to wake.

    If the worker failed, or did not see that an event was set, the job may be undone, and the hops record that. The hops
    in `told` were already told how the worker ended.
    """
    with lock:
        found = [belt for belt in _signals if key in belt.workers]
    is_cut = isinstance(key, Task) and (key.cancelled() or exception_of(key) is not None)
    for belt in found:
        waiting = [parcel for parcel in belt.waiting() if parcel.hold is not None]
        is_set = any(_is_set(parcel.item) for parcel in waiting)
        with lock:
            others = [one for one in belt.workers if one is not key and is_alive(one)]
        if not waiting or _busy_workers(belt, without=key) or (is_set and others):
            continue
        for hop in {parcel.hold.hop: None for parcel in waiting if parcel.hold is not None}:
            if is_set or (is_cut and hop not in told):
                place = f"{belt.kind}, whose worker {_worker_name(key)} has ended and may have left a job undone"
                hop.untracked("event", place)
            elif not is_cut:
                hop.assume(
                    f"assumes that worker {_worker_name(key)} of {belt.kind} had done all jobs when it ended"
                )
        belt.release_waiting()


on_end.append(_worker_ended)


def _busy_workers(belt: Belt, without: Any = None) -> list[Any]:
    """Return the busy workers of an event: they do not wait for it now, and can get back to that wait."""
    with lock:
        return [
            key
            for key in belt.workers
            if key is not without
            and id(belt.workers) not in _idle.get(key, ())
            and is_alive(key)
            and not _has_left_loop(belt, key)
        ]


def _is_worker(event: Any, frames: list[FrameType]) -> bool:
    """Return whether a function among these frames waits for the event in a loop, and did not create the event.

    A loop that only checks a condition waits for a connection or a lock, and is not given a job. A request outside of
    all cascades is not given a job either, while it is served.
    """
    if plain_request.get():
        return False
    for frame in frames:
        code = frame.f_code
        at = code, frame.f_lasti
        if bytecode_flow.is_in_loop(*at) and not bytecode_flow.only_looks(*at):
            return True
        given = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        for name, value in frame.f_locals.items():
            if (
                name not in given
                and name not in code.co_freevars
                and _reaches(value, event, depth=3)
            ):
                return False  # each call creates an event of its own
    return False


def _reaches(value: Any, event: Any, depth: int) -> bool:
    if value is event:
        return True
    parts = attributes_of(value).values() if depth else ()
    return any(_reaches(part, event, depth - 1) for part in parts)


def _is_set(event: Any) -> bool:
    """Return whether an event is set, or about to be; a condition is not."""
    return _is_being_set(event) or (hasattr(event, "is_set") and bool(event.is_set()))


def _is_being_set(event: Any) -> bool:
    return any(one is event for one in list(_being_set))


def _waiting_frame(frame: FrameType | None) -> FrameType | None:
    """Return the frame of the code that waits for an event, outside of helpers like `wait_for`.

    Return None if that code is a library's.
    """
    while frame is not None and (frame.f_globals.get("__name__"), frame.f_code.co_name) in _AROUND:
        frame = frame.f_back
    return None if frame is None or is_housekeeper(frame) else frame


def _is_of_library(frame: FrameType | None) -> bool:
    """Return whether the code that waits is a library's, and not a helper like `wait_for`."""
    return frame is not None and _is_librarys(frame.f_globals.get("__name__"), frame.f_code.co_name)


@lru_cache(maxsize=4096)
def _is_librarys(module: str | None, function: str) -> bool:
    return (module, function) not in _AROUND and is_housekeeping(module, function)


def _kind(event: Any) -> str:
    kind = type(event)
    return f"{kind.__module__.partition('.')[0]}.{kind.__name__}"
