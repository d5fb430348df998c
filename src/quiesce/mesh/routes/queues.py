"""Queues: an item that a hop puts carries the hop to the task that takes the item.

This covers `asyncio.Queue` and its subclasses, `queue.Queue` and its subclasses, anyio's memory object streams, and
`Channel`. Items that a library puts for its own housekeeping (a connection that goes back into its pool) do not carry a
hop. `belts` records the items; this module replaces the functions that put and take them.
"""

from __future__ import annotations

import asyncio
import inspect
import queue as thread_queue
import threading
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary, finalize, ref

from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from quiesce.channels.channel import Channel
from quiesce.channels.read_loops import BatchReader, Reader
from quiesce.core.libraries import add_getter
from quiesce.core.python_private import get_frame, wait_code
from quiesce.core.tree import TreeNode, current
from quiesce.mesh.routes import bytecode_flow
from quiesce.mesh.routes.belts import Belt
from quiesce.mesh.routes.following import (
    calling_frame,
    frame_place,
    hop_now,
    is_declared,
)
from quiesce.mesh.routes.takers import at_work, running_taker, takers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import FrameType

    from quiesce.mesh.routes.takers import Parcel, Taker
    from quiesce.mesh.runtime.hop import Hop

__all__: list[str] = []

belts: dict[int, Belt] = {}
"""The belts of queues and events, by the id of the queue or event: a queue need not be hashable."""
_sending: set[object] = set()  # tasks inside a send whose item is already recorded
_asking: set[object] = set()  # tasks inside a get, which records the item itself
_taken: WeakKeyDictionary[Any, dict[tuple[int, int], _Taken]] = WeakKeyDictionary()
_TAKEN_MAX = 8  # items kept for one task outside of hops, which the task may put back
_TAKEN_MAX_OF_HOP = 1000
_FOUND_EMPTY = type("Nothing", (), {})()  # recorded as the item of a hop that found a queue empty
_EQUALS = (str, bytes, tuple, float, frozenset)  # types whose objects Python may share between uses
_LOOK_EVERY = 256  # puts between two searches for items that were removed from inside a queue
_for_task = threading.local()  # the queue from which a thread takes an item for a waiting task
_STACKS = (asyncio.LifoQueue, thread_queue.LifoQueue)


def belt_of(queue: Any) -> Belt | None:
    """Return the belt of a queue; None if a hop has never put anything into the queue."""
    return belts.get(id(_state(queue))) if belts else None


def keep(thing: Any, belt: Belt) -> None:
    """Keep the belt of a queue or event for as long as that exists."""
    key = id(thing)
    belts[key] = belt
    finalize(thing, _drop, key, belt).atexit = False


def _drop(key: int, belt: Belt) -> None:
    belts.pop(key, None)
    belt.release_waiting()


def _record_put(queue: Any, item: object) -> Parcel | None:
    """Record an item that is about to be put. Return None if the queue has nothing to do with hops."""
    belt = belt_of(queue)
    hop = hop_now()
    frame = None
    if hop is not None:
        frame = calling_frame()
        is_of_pool = belt is not None and belt.is_pool
        if is_declared(hop, frame) or _gives_back(_state(queue), item) or is_of_pool:
            hop = None
    if hop is not None and isinstance(queue, Channel) and queue.tap_lanes:
        hop.untracked("channel", f"{queue.name}, whose taps are not followed; {frame_place(frame)}")
        if queue.is_fan_out:
            return None  # only the taps get the item
    if belt is None:
        if hop is None:
            return None
        state = _state(queue)
        belt = Belt(_kind(queue), _present(state), is_stack=isinstance(queue, _STACKS))
        keep(state, belt)
    if belt.puts % _LOOK_EVERY == 0:
        present = _present(_state(queue))
        if present or getattr(queue, "empty", bool)():  # otherwise the queue's items are unknown
            belt.forget_removed(present)
    return belt.put(item, hop, frame)


def _record_taken(queue: Any, items: Iterable[Any], key: Any, frame: FrameType | None) -> None:
    """Record the items that were taken, and the task that took them."""
    belt = belt_of(queue)
    state = _state(queue)
    for item in items:
        own = hop_now()
        is_of_hop = own is not None and at_work.get() is None
        origin = None if belt is None else belt.on_take(item, key, frame)
        if origin is not None:
            _gives_back(state, item)  # forget an older take: a later put of this item is a new try
            if is_of_hop and own is not origin:
                _remember(own, state, item, origin)
            continue
        if own is not None:
            _remember(own, state, item)
        if key is not None and not is_of_hop:
            _remember(key, state, item)


class _Taken(NamedTuple):
    """An item that a hop, or a task outside of hops, has taken from a queue and may put back."""

    queue: ref[Any]
    item: Callable[[], Any]
    origin: ref[Hop] | None  # the hop that put the item


def _remember(by: Any, state: Any, item: Any, origin: Hop | None = None) -> None:
    """Record that a hop or a task has taken an item, if a later put of that item can be recognised."""
    is_hop = isinstance(by, TreeNode)
    item = _token(item)
    if item is None:
        known: Callable[[], Any] = partial(_identity, item)
    elif type(item).__weakrefoffset__:
        known = ref(item)
    elif type(item) is int or (is_hop and type(item) not in _EQUALS):
        known = partial(_identity, item)  # a hop does not live for long
    else:
        return
    last = _taken.setdefault(by, {})
    last[id(state), id(item)] = _Taken(ref(state), known, None if origin is None else ref(origin))
    if len(last) > (_TAKEN_MAX_OF_HOP if is_hop else _TAKEN_MAX):
        last.pop(next(iter(last)), None)


def _identity(item: Any) -> Any:
    return item


def _token(item: Any) -> Any:
    """Return the value that identifies an item. All bare `object()` items are alike, so they share one value."""
    return object if type(item) is object else item


def _recall(by: Any, state: Any, item: object) -> _Taken | None:
    """Return the record of an item that a hop or a task has taken from a queue; None if it has not taken the item."""
    item = _token(item)
    found = (_taken.get(by) or {}).get((id(state), id(item))) if by is not None else None
    is_same = found is not None and found.queue() is state and found.item() is item
    return found if is_same else None


def _gives_back(state: Any, item: object) -> bool:
    """Return whether the running code puts an item back into a pool.

    It does if its hop (in any task or thread) or the running task has taken the item before. An item that another hop
    had put may instead be a job that is tried again. But if that other hop had first found the queue empty, the queue is
    a pool that is filled on demand.
    """
    for by in (hop_now(), running_taker()):
        found = _recall(by, state, item)
        if found is None:
            continue
        if _token(item) not in (None, object):  # the code may have taken several of these
            del _taken[by][id(state), id(item)]
        if found.origin is None:
            return True
        if _recall(found.origin(), state, _FOUND_EMPTY) is not None:
            belts[id(state)].become_pool()
            return True
    return False


def _found_empty(queue: Any) -> None:
    """Record that the running code's hop has found a queue empty."""
    hop = hop_now()
    if hop is not None:
        _remember(hop, _state(queue), _FOUND_EMPTY)


def _present(state: Any) -> list[object]:
    """Return the items that a queue holds now."""
    for name in ("_queue", "queue", "buffer", "queued_items"):
        found = getattr(state, name, None)
        if found is not None:
            return [*found, *getattr(state, "waiting_senders", {}).values()]
    return []


def _release_dropped(queue: Any, newest: Parcel) -> None:
    """Release the items that an asyncio queue has dropped. Called in the step of a put that did not grow the queue.

    If the items of the queue are not certain, release none.
    """
    found = getattr(queue, "_queue", ())
    entries = [pair[::-1] for pair in found.items()] if isinstance(found, dict) else list(found)
    if len(entries) == queue.qsize() and queue.empty() is not bool(entries):
        newest.belt.release_dropped(entries, newest)


def by_put(put: Callable[..., Any], *, may_drop: bool = False) -> Callable[..., Any]:
    """Return the replacement of a function that puts an item in one step.

    If the function may drop items (`may_drop`), other threads must not take items meanwhile.
    """

    def putting(self: Any, item: Any, *args: Any, **options: Any) -> Any:
        parcel = None if _sending and running_taker() in _sending else _record_put(self, item)
        if parcel is None:
            return put(self, item, *args, **options)
        size = self.qsize() if may_drop else 0
        try:
            made = put(self, item, *args, **options)
        except BaseException:
            parcel.belt.withdraw(parcel)
            raise
        if may_drop and self.qsize() <= size:
            _release_dropped(self, parcel)
        return made

    return putting


def by_send(send: Callable[..., Any]) -> Callable[..., Any]:
    """Return the replacement of a function that may wait before the item is taken."""

    async def sending(self: Any, item: Any) -> Any:
        parcel = _record_put(self, item)
        if parcel is None:
            return await send(self, item)
        key = running_taker()
        _sending.add(key)
        try:
            return await send(self, item)
        except BaseException:
            parcel.belt.withdraw(parcel)
            raise
        finally:
            _sending.discard(key)

    return sending


def by_get_nowait(get: Callable[..., Any]) -> Callable[..., Any]:
    """Return the replacement of a function of an event loop that takes an item in one step."""

    def getting(self: Any) -> Any:
        key = running_taker()
        if key in _asking:
            return get(self)
        belt = belt_of(self)
        frame = None if belt is None else calling_frame()
        if belt is not None:
            belt.on_ask(key, self, frame)
        try:
            item = get(self)
        except Exception:
            _found_empty(self)
            raise
        _record_taken(self, (item,), key, frame)
        return item

    return getting


def by_look(look: Callable[[Any], int]) -> Callable[[Any], int]:
    """Return the replacement of `empty` or `qsize`. A taker that finds the queue empty has asked for more."""

    def looking(self: Any) -> int:
        found = look(self)
        belt = belt_of(self)
        if belt is not None and bool(found) is (type(found) is bool):
            frame = get_frame().f_back
            key = running_taker() if takers else None
            if key in takers and frame is not None and _decides(takers[key], belt, frame):
                belt.on_ask(key, self, frame, is_look=True)
        return found

    return looking


def _decides(taker: Taker, belt: Belt, frame: FrameType) -> bool:
    """Return whether the code that takes items from a queue decides by its size whether to take more."""
    codes = [one.place[0] for one in taker.parcels if one.belt is belt and one.place is not None]
    here = (frame.f_code, *frame.f_code.co_consts)  # a comprehension may have its own code object
    return any(code in here for code in codes) and bytecode_flow.is_decided(
        frame.f_code, frame.f_lasti
    )


def by_get(get: Callable[..., Any], *, gives_list: bool = False) -> Callable[..., Any]:
    """Return the replacement of a function that waits for an item or, with `gives_list`, for several.

    The task that calls the function works on the item, also if another task runs it: `create_task(queue.get())`.
    """

    def getting(self: Any, *args: Any) -> Any:
        asker = running_taker()
        taker = takers.get(asker)
        before = [] if taker is None else list(taker.parcels)
        return _for_asker(partial(get, self, *args), self, asker, before, gives_list=gives_list)

    return getting


async def _for_asker(
    get: Callable[[], Any], queue: Any, asker: Any, before: list[Parcel], *, gives_list: bool
) -> Any:
    """Wait for an item on behalf of `asker`, which had the items `before` when it asked."""
    key = running_taker()
    if asker is None or (key is not asker and isinstance(asker, asyncio.Task) and asker.done()):
        asker = key
    belt = belt_of(queue)
    if belt is not None and key is asker:
        belt.on_ask(asker, queue, calling_frame())
    elif belt is not None:
        belt.on_ask_ahead(asker, queue, before, is_waited_for=_waits_for(asker, key))
    _asking.add(key)
    try:
        found = await get()
    finally:
        _asking.discard(key)
    _record_taken(
        queue, found if gives_list else (found,), asker, calling_frame() if belts else None
    )
    return found


def _scope_of(getter: Any) -> tuple[Any] | None:
    """Return the asking task's own scope, if its items have moved it to another scope; see `core.libraries`."""
    asker = getter.cr_frame.f_locals["asker"]
    taker = takers.get(asker) if takers and asker is running_taker() else None
    if taker is None or not taker.is_at_work or current.get() not in taker.hops():
        return None
    return (taker.outer,)


add_getter(_for_asker.__code__, _scope_of)


def _waits_for(asker: Any, getter: object) -> bool:
    """Return whether a task waits for the task that gets an item for it, and does not work meanwhile."""
    waits_for = getattr(asker, "_fut_waiter", None)
    if waits_for is getter or getter in getattr(waits_for, "_children", ()):  # of `gather`
        return True
    coro = asker.get_coro() if isinstance(asker, asyncio.Task) else None
    while (inner := getattr(coro, "cr_await", None)) is not None:
        coro = inner
        if getattr(coro, "cr_code", None) is _WAIT:
            return True
    return False


_WAIT = wait_code()


def by_done(done: Callable[..., Any]) -> Callable[..., Any]:
    """Return the replacement of `task_done`."""

    def finishing(self: Any) -> None:
        done(self)
        belt = belt_of(self)
        if belt is not None:
            names = ("_unfinished_tasks", "unfinished_tasks")
            left = next((getattr(self, name) for name in names if hasattr(self, name)), None)
            belt.on_task_done(running_taker(), left)

    return finishing


def by_thread_get(get: Callable[..., Any]) -> Callable[..., Any]:
    """Return the replacement of `queue.Queue.get`."""

    def getting(self: Any, block: bool = True, timeout: float | None = None) -> Any:  # noqa: FBT001, FBT002 - its own
        if getattr(_for_task, "queue", None) is self:
            return get(self, block, timeout)
        belt = belt_of(self)
        frame = calling_frame() if belts else None
        if belt is not None:
            belt.on_ask(running_taker(), self, frame)
        try:
            item = get(self, block, timeout)
        except thread_queue.Empty:
            _found_empty(self)
            raise
        # A first hop may have used the queue meanwhile.
        frame = frame or (calling_frame() if belts else None)
        _record_taken(self, (item,), running_taker(), frame)
        return item

    return getting


def by_to_thread(
    to_thread: Callable[..., Any], *, takes_options: bool = False
) -> Callable[..., Any]:
    """Return the replacement of `asyncio.to_thread`. The task that waits for an item is the taker, not the thread.

    With `takes_options`, keyword arguments belong to `to_thread` itself (anyio) and not to the function (asyncio).
    """

    async def called(func: Any, /, *args: Any, **options: Any) -> Any:
        queue = getattr(func, "__self__", None)
        is_get = getattr(func, "__name__", None) in {"get", "get_nowait"}
        if not (is_get and isinstance(queue, thread_queue.Queue | thread_queue.SimpleQueue)):
            return await to_thread(func, *args, **options)
        belt = belt_of(queue)
        frame = calling_frame()
        if belt is not None:
            belt.on_ask(running_taker(), queue, frame)
        given, own = ({}, options) if takes_options else (options, {})

        def take() -> Any:
            _for_task.queue = queue
            try:
                return func(*args, **given)
            finally:
                _for_task.queue = None

        found = await to_thread(take, **own)
        _record_taken(queue, (found,), running_taker(), frame)
        return found

    return called


def by_wait_for(wait_for: Callable[..., Any]) -> Callable[..., Any]:
    """Return the replacement of `asyncio.wait_for` of Python 3.11, which runs a coroutine in a new task.

    That new task would be the taker of an item on which the waiting task works. With the replacement, the coroutine runs
    in the waiting task, as in later versions of Python.
    """

    async def waited(fut: Any, timeout: float | None) -> Any:  # noqa: ASYNC109 - its own
        if not inspect.iscoroutine(fut) or (timeout is not None and timeout <= 0):
            return await wait_for(fut, timeout)
        async with asyncio.timeout(timeout):
            return await fut

    return waited


def _state(queue: Any) -> Any:
    """Return the object that both ends of a queue share."""
    if isinstance(queue, MemoryObjectSendStream | MemoryObjectReceiveStream):
        return queue._state  # noqa: SLF001 - anyio has no public way to find both ends of a stream
    return queue.lane if isinstance(queue, Reader | BatchReader) else queue


def _kind(queue: Any) -> str:
    kind = type(queue)
    return f"{kind.__module__.partition('.')[0]}.{kind.__name__}"
