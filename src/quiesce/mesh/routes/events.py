"""Events and conditions: a hop that wakes a worker has given it something to do.

A `deque` and an event, or a condition, are a queue, too. A task or thread outside of all hops that waits for one in a
loop is a worker: woken by a hop, it works for that hop until it waits again, or ends. If it is at work when a hop sets
the event, it may find the job of the hop without waiting: it works for the hop from then on. An event that is waited for
once, and not in a loop, is a signal, which holds nothing (see `waits_once`). So are the events and conditions of libraries,
queues among them.
"""

from __future__ import annotations

from asyncio import Task
from asyncio.events import _get_running_loop
from itertools import count
from sys import _current_frames, _getframe
from threading import Thread, current_thread
from traceback import walk_stack
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakSet, finalize

from quiesce.core.libraries import is_housekeeper, starting_frame
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
"""Those that have waited for an event, by its id."""
_signals: WeakSet[Belt] = WeakSet()
_counter = count()
_being_set: list[Any] = []
"""Events whose setters are recorded, and that are about to be set: a worker in another thread may come to wait meanwhile."""
_idle: WeakKeyDictionary[Any, set[int]] = WeakKeyDictionary()
"""The workers that wait now, with the ids of the sets that they are not at work for."""
_AROUND = frozenset({
    ("anyio._backends._asyncio", "wait"), ("asyncio.locks", "wait_for"), ("asyncio.tasks", "wait_for"),
    ("quiesce.mesh.routes.queues", "waited"), ("threading", "wait_for"),
})  # fmt: skip


def by_set(signal: Callable[[Any], None]) -> Callable[[Any], None]:
    """Return the replacement of `Event.set`."""

    def setting(self: Any) -> None:
        if id(self) not in _of_workers:  # as most are: a server sets several for each request
            if current.get() is not None:
                early_sets.note(self, _kind, _getframe().f_back)
            if id(self) not in _of_workers:  # or the first has come, in another thread
                signal(self)
                return
        _being_set.append(self)
        try:
            _wakes(self, _getframe().f_back)
            signal(self)
        finally:
            _being_set.remove(self)

    return setting


def by_notify(signal: Callable[[Any, int], None]) -> Callable[..., None]:
    """Return the replacement of `Condition.notify`."""

    def notifying(self: Any, n: int = 1) -> None:
        if id(self) in _of_workers:  # its lock is held: none of them comes to wait meanwhile
            _wakes(self, _getframe().f_back)
        elif current.get() is not None:
            early_sets.note(self, _kind, _getframe().f_back)
        signal(self, n)

    return notifying


def _wakes(event: Any, around: FrameType | None) -> None:
    """Record that the running code wakes a worker; if the code is a part of a hop, the worker works for that."""
    hop = hop_now()
    if hop is None:
        return
    frame = starting_frame(around)
    belt = _belt_of(event)
    if not is_declared(hop, frame):
        waits_once.tell(event, belt.kind, hop, frame)
    if not (is_declared(hop, frame) or belt.has(event, hop)):
        with lock:
            every = list(filter(is_alive, belt.workers))
        alive = [key for key in every if not is_driver(key, hop)]
        if every and not alive:
            return
        left = [key for key in alive if _has_left(belt, key)]
        if not left or len(left) < len(alive):
            belt.put(event, hop, frame)
        for key in left:
            place = (
                f"{belt.kind} set at {frame_place(frame)}. Its worker {_name(key)} has left the loop in which it has"
                " waited for it. If that is not work, set it in `with quiesce.detached():`"
            )
            hop.untracked("event", place)
        for key in _busy(belt):
            if key in alive and key not in _idle:  # else it is told when it waits no longer
                _call(belt, key, hop, frame)


def _belt_of(event: Any) -> Belt:
    belt = belts.get(id(event))
    if belt is None:
        belt = Belt(_kind(event), is_signal=True)
        belt.workers = _of_workers[id(event)]
        keep(event, belt)
        with lock:
            _signals.add(belt)
    return belt


def _has_left(belt: Belt, key: Any) -> bool:
    """Return whether a worker that is at work does not come back to where it has waited for an event."""
    if key in _idle or key is running_taker() or key is current_thread():
        return False
    if isinstance(key, Thread):
        frame = _current_frames().get(key.ident or 0)
        frames = [] if frame is None else [one for one, _ in walk_stack(frame)]
    else:
        frames = frames_of(key, None)
    places = belt.workers[key].places
    return len(places) < FRAMES_MAX and not any(
        one.f_code is code and bytecode_flow.comes_to(code, one.f_lasti, offset)
        for one in frames
        for code, offset in places
    )


def _call(belt: Belt, key: Any, hop: Hop, frame: FrameType | None) -> None:
    """Start the work of a worker for a hop, while it is at work for something else: it may take the job before it waits."""
    taker = takers.get(key)
    if taker is not None and any(one.belt is belt and one.hold for one in taker.parcels):
        return  # it works for a hop of this event, and the others are its companions
    if isinstance(key, Thread):
        for ident, (thread, _) in list(called.items()):
            if not thread.is_alive():
                called.pop(ident, None)
        called[key.ident or 0] = (key, _hear)
    elif isinstance(key, Task) and key.get_loop() is _get_running_loop():
        belt.joined(key, is_woken=False)
    else:
        place = f"{belt.kind} set at {frame_place(frame)}, while its worker {_name(key)} was at work in another event loop"
        hop.untracked("event", place)


def _name(key: Any) -> str:
    return key.get_name() if isinstance(key, Task) else getattr(key, "name", "task")


def _hear(thread: Thread) -> None:
    """Start the work of the running thread for the hops that have called it.

    If it runs an event loop of its own in the course of its work, each task there has to be told.
    """
    call = called.pop(thread.ident or 0, None)  # first: what joins it asks which hop it works for
    try:
        _join(thread)
        taker = takers.get(thread)
        if taker is not None:
            taker.work()
    finally:
        if call is not None and running_taker() is not thread:
            called[thread.ident or 0] = call


def _join(key: Any, woken_by: Belt | None = None) -> None:
    """Start the work of a worker for all hops that have set an event of it: it may find the job of any of them."""
    with lock:
        found = [belt for belt in _signals if belt is not woken_by and key in belt.workers]
    for belt in found:
        if key in _busy(belt):
            belt.joined(key, is_woken=False)
    if woken_by is not None:
        woken_by.joined(key, is_woken=True)  # at last: these are the newest


def by_wait(wait: Callable[..., Any]) -> Callable[..., Any]:
    """Return the replacement of the `wait` of an event or a condition of asyncio."""

    async def waiting(self: Any) -> Any:
        frame = _getframe().f_back
        is_workers = not _is_part_of_hop(self, frame) and _begins(self, frame)
        once = None if is_workers else _begins_once(self, frame)
        try:
            return await wait(self)
        finally:
            if is_workers:
                _ends(self)
            waits_once.end(self, once)

    return waiting


def by_thread_wait(wait: Callable[..., Any]) -> Callable[..., Any]:
    """Return the replacement of the `wait` of an event or a condition between threads."""

    def waiting(self: Any, timeout: float | None = None) -> Any:
        frame = _getframe().f_back
        is_workers = not _is_part_of_hop(self, frame) and _begins(self, frame)
        once = None if is_workers else _begins_once(self, frame)
        try:
            return wait(self, timeout)
        finally:
            if is_workers:
                _ends(self)
            waits_once.end(self, once)

    return waiting


def _begins_once(event: Any, frame: FrameType | None) -> waits_once.Wait | None:
    """Record that code waits that is not a worker, unless it is a library's, or a request outside of all cascades."""
    return waits_once.begin(event, None if plain_request.get() else _user(frame))


def _is_part_of_hop(event: Any, frame: FrameType | None) -> bool:
    """Return whether the running code is a part of a hop, which is waited for by itself, and not a worker."""
    node = current.get()
    if node is None or node._errand is None or id(event) in belts or _is_next_round(frame):
        return False
    early_sets.is_signal(event)
    return True


def _is_next_round(frame: FrameType | None) -> bool:
    """Return whether a worker waits where it has waited for the event by which it has its work, for another event."""
    taker, key = at_work.get(), running_taker()
    user = None if taker is None or taker.key is not key else _user(frame)
    if taker is None or user is None:
        return False
    found = {parcel.belt for parcel in taker.parcels if parcel.belt.is_signal}
    return any(_is_at_place(belt, key, reach(user, root_of(key))) for belt in found)


def _is_at_place(belt: Belt, key: Any, frames: list[FrameType]) -> bool:
    """Return whether these are places of a worker at which it has waited for an event."""
    waits = belt.workers.get(key)
    return waits is not None and all((one.f_code, one.f_lasti) in waits.places for one in frames)


def _begins(event: Any, frame: FrameType | None) -> bool:
    """Record that a worker waits; return False if what waits is not a worker."""
    frame = _user(frame)
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
            other.idle(key, frame)
            _forget(other, frame)
    if belt is not None and not is_set:
        _forget(belt, frame, event)
    return True


def _has_come_round(
    key: Any, other: Belt, belt: Belt | None, waits: Waits, frames: list[FrameType]
) -> bool:
    """Return whether a worker that waits is done with what it has of an event.

    It is if it waits for that event, or for another one at the same place: some workers have a new one for each round. It
    is, too, if it has waited for the event before. If it was at work when a hop has set the event, it may
    wait for another one in the course of that work. If it has waited for the other one first, that is not likely: then
    the hop records that it is not known.
    """
    early = [one for one in takers[key].parcels if one.belt is other and not one.is_direct]
    if other is belt or not early or _is_at_place(other, key, frames):
        return True
    if other.workers[key].first < waits.first:
        return False
    for hop in {one.hold.hop: None for one in early if one.hold is not None}:
        place = f"{other.kind}, whose worker was at work, and then waits for something else at {frame_place(frames[0])}"
        hop.untracked("event", place)
    return True


def _ends(event: Any) -> None:
    """Start the work of a worker, which does not wait any more, for the hops that have woken it.

    Also if it waits no longer for another reason, like a timeout: it may find their jobs all the same.
    """
    key = running_taker()
    with lock:
        _idle.pop(key, None)
    if isinstance(key, Thread):
        called.pop(key.ident or 0, None)  # it is told now
    if key not in _of_workers.get(id(event), ()):
        return  # its coroutine is closed, in whatever task
    for hop, place in early_sets.found_by_worker(event).items():
        if is_driver(key, hop):
            continue
        _belt_of(event).put(event, hop, None, place)
        early_sets.is_held(event, hop)
    if _signals:
        _join(key, belts.get(id(event)))


def _forget(belt: Belt, frame: FrameType, event: Any = None) -> None:
    """Forget who has set an event, unless a worker is still at work: the others wait, and found nothing to do.

    A worker that is at work may have taken something without waiting for it: it had more to do when it came round.
    If the event is set by now, or about to be, the worker that waits for it wakes.
    """
    with lock:
        is_set = any(_is_being_set(one.item) for one in belt.waiting()) or _is_set(event)
        over = [] if is_set or _busy(belt) else belt.take_waiting()
    assume_done(over, frame)
    release_all(over)


def _has_ended(key: Any, told: Collection[Hop]) -> None:
    """Forget who has set the events of a worker that has ended, unless another worker is still at work, or is woken.

    If it has failed, or has not seen that an event was set, the job may be left: the hops record that it is not known. Its
    end tells the hops that it worked for, `told`, how it was.
    """
    with lock:
        found = [belt for belt in _signals if key in belt.workers]
    is_cut = isinstance(key, Task) and (key.cancelled() or key._exception is not None)
    for belt in found:
        waiting = [parcel for parcel in belt.waiting() if parcel.hold is not None]
        is_set = any(_is_set(parcel.item) for parcel in waiting)
        with lock:
            others = [one for one in belt.workers if one is not key and is_alive(one)]
        if not waiting or _busy(belt, without=key) or (is_set and others):
            continue
        for hop in {parcel.hold.hop: None for parcel in waiting if parcel.hold is not None}:
            if is_set or (is_cut and hop not in told):
                place = f"{belt.kind}, whose worker {_name(key)} has ended. It may have left something undone"
                hop.untracked("event", place)
            elif not is_cut:
                hop.assume(
                    f"assumes that worker {_name(key)} of {belt.kind} had done what there was to do when it ended"
                )
        belt.forget_waiting()


on_end.append(_has_ended)


def _busy(belt: Belt, without: Any = None) -> list[Any]:
    """Return the workers of an event that do not wait for it, and will."""
    with lock:
        return [
            key
            for key in belt.workers
            if key is not without
            and id(belt.workers) not in _idle.get(key, ())
            and is_alive(key)
            and not _has_left(belt, key)
        ]


def _is_worker(event: Any, frames: list[FrameType]) -> bool:
    """Return whether one of a worker's functions waits for the event in a loop, and has not made it there itself.

    In a loop that only looks whether to wait on, code waits for a connection or a lock; it is not given anything to do.
    So is a request outside of all cascades not, while it is served.
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
            if name not in given and name not in code.co_freevars and _has(value, event, depth=3):
                return False  # each call has one of its own
    return False


def _has(value: Any, event: Any, depth: int) -> bool:
    if value is event:
        return True
    parts = attributes_of(value).values() if depth else ()
    return any(_has(part, event, depth - 1) for part in parts)


def _is_set(event: Any) -> bool:
    """Return whether an event is set, or about to be; a condition is not."""
    return _is_being_set(event) or (hasattr(event, "is_set") and bool(event.is_set()))


def _is_being_set(event: Any) -> bool:
    return any(one is event for one in list(_being_set))


def _user(frame: FrameType | None) -> FrameType | None:
    """Return the frame of the code that waits for an event, by a function around it or not; None if that is a library's."""
    while frame is not None and (frame.f_globals.get("__name__"), frame.f_code.co_name) in _AROUND:
        frame = frame.f_back
    return None if frame is None or is_housekeeper(frame) else frame


def _kind(event: Any) -> str:
    kind = type(event)
    return f"{kind.__module__.partition('.')[0]}.{kind.__name__}"
