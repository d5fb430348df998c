"""Queues: an item that a hop puts carries the hop to the task that takes it.

`asyncio.Queue` and its kinds, `queue.Queue` and its kinds, anyio's memory object streams, and `Channel`. What a library
puts that is known to keep house (a connection that goes back into its pool) carries nothing.
"""

from __future__ import annotations

import asyncio
import inspect
import queue as thread_queue
import sys
import threading
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary, finalize, ref

from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from quiesce.channels.channel import Channel
from quiesce.channels.readers import BatchReader, Reader
from quiesce.core.libraries import add_getter
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
"""What queues and events carry, by their ids: a queue need not be hashable."""
_sending: set[object] = set()  # tasks in the midst of a send, whose item is recorded already
_asking: set[object] = set()  # tasks in the midst of a get, which records the item itself
_taken: WeakKeyDictionary[Any, dict[tuple[int, int], _Taken]] = WeakKeyDictionary()
_TAKEN_MAX = 8  # of one task outside of hops, that it may put back
_TAKEN_MAX_OF_HOP = 1000
_NOTHING = type("Nothing", (), {})()  # what a hop has got that found a queue empty
_EQUALS = (str, bytes, tuple, float, frozenset)  # one object may stand for two things
_LOOK_EVERY = 256  # puts into a queue, for what was removed from its inside
_for_task = threading.local()  # the queue that a thread takes an item from, for a task that waits
_STACKS = (asyncio.LifoQueue, thread_queue.LifoQueue)


def belt_of(queue: Any) -> Belt | None:
    """Return what a queue carries of hops, if any hop has ever put something into it."""
    return belts.get(id(_state(queue))) if belts else None


def keep(thing: Any, belt: Belt) -> None:
    """Keep what a queue or an event carries for as long as it lives."""
    key = id(thing)
    belts[key] = belt
    finalize(thing, _drop, key, belt).atexit = False


def _drop(key: int, belt: Belt) -> None:
    belts.pop(key, None)
    belt.forget_waiting()


def _recorded(queue: Any, item: object) -> Parcel | None:
    """Record an item that is about to be put; None if no hop has to do with the queue."""
    belt = belt_of(queue)
    hop = hop_now()
    frame = None
    if hop is not None:
        frame = calling_frame()
        is_of_pool = belt is not None and belt.is_pool
        if is_declared(hop, frame) or _gives_back(_state(queue), item) or is_of_pool:
            hop = None
    if hop is not None and isinstance(queue, Channel) and queue._taps:
        hop.untracked("channel", f"{queue.name}, whose taps are not followed; {frame_place(frame)}")
        if queue._fan_out:
            return None  # only the taps get it
    if belt is None:
        if hop is None:
            return None
        state = _state(queue)
        belt = Belt(_kind(queue), _present(state), is_stack=isinstance(queue, _STACKS))
        keep(state, belt)
    if belt.puts % _LOOK_EVERY == 0:
        present = _present(_state(queue))
        if present or getattr(queue, "empty", bool)():  # else it is not known what the queue has
            belt.keep_present(present)
    return belt.put(item, hop, frame)


def _took(queue: Any, items: Iterable[Any], key: Any, frame: FrameType | None) -> None:
    """Record what was taken, and by which task."""
    belt = belt_of(queue)
    state = _state(queue)
    for item in items:
        own = hop_now()
        is_of_hop = own is not None and at_work.get() is None
        origin = None if belt is None else belt.took(item, key, frame)
        if origin is not None:
            _gives_back(state, item)  # if it is put back, that is to try it again
            if is_of_hop and own is not origin:
                _remember(own, state, item, origin)
            continue
        if own is not None:
            _remember(own, state, item)
        if key is not None and not is_of_hop:
            _remember(key, state, item)


class _Taken(NamedTuple):
    """What a hop or a task outside of hops has taken from a queue, and may put back."""

    queue: ref[Any]
    item: Callable[[], Any]
    origin: ref[Hop] | None  # the hop that has put it


def _remember(by: Any, state: Any, item: Any, origin: Hop | None = None) -> None:
    is_hop = isinstance(by, TreeNode)
    item = _token(item)
    if item is None:
        known: Callable[[], Any] = partial(_itself, item)
    elif type(item).__weakrefoffset__:
        known = ref(item)
    elif type(item) is int or (is_hop and type(item) not in _EQUALS):
        known = partial(_itself, item)  # a hop does not live for long
    else:
        return
    last = _taken.setdefault(by, {})
    last[id(state), id(item)] = _Taken(ref(state), known, None if origin is None else ref(origin))
    if len(last) > (_TAKEN_MAX_OF_HOP if is_hop else _TAKEN_MAX):
        last.pop(next(iter(last)), None)


def _itself(item: Any) -> Any:
    return item


def _token(item: Any) -> Any:
    """Return what stands for an item: a bare `object()` carries nothing, and is as good as any other."""
    return object if type(item) is object else item


def _recall(by: Any, state: Any, item: object) -> _Taken | None:
    """Return what is known of an item that a hop or a task has taken from a queue, if it has."""
    item = _token(item)
    found = (_taken.get(by) or {}).get((id(state), id(item))) if by is not None else None
    is_same = found is not None and found.queue() is state and found.item() is item
    return found if is_same else None


def _gives_back(state: Any, item: object) -> bool:
    """Return whether the running code puts something back into a pool.

    The hop that it works for has taken it, in any of its tasks and threads, or the running task has. What another hop
    has put may be a job that is tried again. It is a connection of a pool that is filled when it is used, if the
    other hop had first found the queue empty.
    """
    for by in (hop_now(), running_taker()):
        found = _recall(by, state, item)
        if found is None:
            continue
        if _token(item) not in (None, object):  # of those it may have taken several
            del _taken[by][id(state), id(item)]
        if found.origin is None:
            return True
        if _recall(found.origin(), state, _NOTHING) is not None:
            belts[id(state)].is_known_as_pool()
            return True
    return False


def _found_empty(queue: Any) -> None:
    """Record that the hop that the running code works for has found a queue empty."""
    hop = hop_now()
    if hop is not None:
        _remember(hop, _state(queue), _NOTHING)


def _present(state: Any) -> list[object]:
    """Return the items that are in a queue."""
    for name in ("_queue", "queue", "buffer", "_items"):
        found = getattr(state, name, None)
        if found is not None:
            return [*found, *getattr(state, "waiting_senders", {}).values()]
    return []


def _see_dropped(queue: Any, newest: Parcel) -> None:
    """Release what a queue of asyncio has dropped, in the step of a put after which it has no item more.

    Nothing is released if it is not certain what the queue has.
    """
    found = getattr(queue, "_queue", ())
    entries = [pair[::-1] for pair in found.items()] if isinstance(found, dict) else list(found)
    if len(entries) == queue.qsize() and queue.empty() is not bool(entries):
        newest.belt.keep_only(entries, newest)


def by_put(put: Callable[..., Any], *, may_drop: bool = False) -> Callable[..., Any]:
    """Return the replacement of a function that puts an item in one step.

    If it may drop items, no other thread takes one meanwhile.
    """

    def putting(self: Any, item: Any, *args: Any, **options: Any) -> Any:
        parcel = None if _sending and running_taker() in _sending else _recorded(self, item)
        if parcel is None:
            return put(self, item, *args, **options)
        size = self.qsize() if may_drop else 0
        try:
            made = put(self, item, *args, **options)
        except BaseException:
            parcel.belt.withdraw(parcel)
            raise
        if may_drop and self.qsize() <= size:
            _see_dropped(self, parcel)
        return made

    return putting


def by_send(send: Callable[..., Any]) -> Callable[..., Any]:
    """Return the replacement of a function that may wait before the item is taken."""

    async def sending(self: Any, item: Any) -> Any:
        parcel = _recorded(self, item)
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
            belt.asks(key, self, frame)
        try:
            item = get(self)
        except Exception:
            _found_empty(self)
            raise
        _took(self, (item,), key, frame)
        return item

    return getting


def by_look(look: Callable[[Any], int]) -> Callable[[Any], int]:
    """Return the replacement of `empty` or `qsize`: a taker that finds the queue empty has asked for more."""

    def looking(self: Any) -> int:
        found = look(self)
        belt = belt_of(self)
        if belt is not None and bool(found) is (type(found) is bool):
            frame = sys._getframe().f_back
            key = running_taker() if takers else None
            if key in takers and frame is not None and _decides(takers[key], belt, frame):
                belt.asks(key, self, frame, is_look=True)
        return found

    return looking


def _decides(taker: Taker, belt: Belt, frame: FrameType) -> bool:
    """Return whether the code that takes items from a queue decides by its size whether to take more."""
    codes = [one.place[0] for one in taker.parcels if one.belt is belt and one.place is not None]
    here = (frame.f_code, *frame.f_code.co_consts)  # a comprehension may have a code of its own
    return any(code in here for code in codes) and bytecode_flow.is_decided(
        frame.f_code, frame.f_lasti
    )


def by_get(get: Callable[..., Any], *, gives_list: bool = False) -> Callable[..., Any]:
    """Return the replacement of a function that waits for an item; or, if it gives a list, for several.

    The task that calls it is the one that works on the item, also if another task runs it: `create_task(queue.get())`.
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
    """Wait for an item, on behalf of the task that asked for it, and that had some before."""
    key = running_taker()
    if asker is None or (key is not asker and isinstance(asker, asyncio.Task) and asker.done()):
        asker = key
    belt = belt_of(queue)
    if belt is not None and key is asker:
        belt.asks(asker, queue, calling_frame())
    elif belt is not None:
        belt.asked_ahead(asker, queue, before, is_waited_for=_waits_for(asker, key))
    _asking.add(key)
    try:
        found = await get()
    finally:
        _asking.discard(key)
    _took(queue, found if gives_list else (found,), asker, calling_frame() if belts else None)
    return found


def _scope_of(getter: Any) -> tuple[Any] | None:
    """Return the scope of the task that a coroutine gets an item for, if that task is elsewhere now by its items."""
    asker = getter.cr_frame.f_locals["asker"]
    taker = takers.get(asker) if takers and asker is running_taker() else None
    if taker is None or not taker.is_at_work or current.get() not in taker.hops():
        return None
    return (taker.outer,)


add_getter(_for_asker.__code__, _scope_of)


def _waits_for(asker: Any, getter: object) -> bool:
    """Return whether a task waits for the one that gets an item for it, and does not work on another meanwhile."""
    waits_for = getattr(asker, "_fut_waiter", None)
    if waits_for is getter or getter in getattr(waits_for, "_children", ()):  # of `gather`
        return True
    coro = asker.get_coro() if isinstance(asker, asyncio.Task) else None
    while (inner := getattr(coro, "cr_await", None)) is not None:
        coro = inner
        if getattr(coro, "cr_code", None) is _WAIT:
            return True
    return False


_WAIT = asyncio.tasks._wait.__code__  # type: ignore[attr-defined]  # where `asyncio.wait` waits


def by_done(done: Callable[..., Any]) -> Callable[..., Any]:
    """Return the replacement of `task_done`."""

    def finishing(self: Any) -> None:
        done(self)
        belt = belt_of(self)
        if belt is not None:
            names = ("_unfinished_tasks", "unfinished_tasks")
            left = next((getattr(self, name) for name in names if hasattr(self, name)), None)
            belt.done(running_taker(), left)

    return finishing


def by_thread_get(get: Callable[..., Any]) -> Callable[..., Any]:
    """Return the replacement of `queue.Queue.get`."""

    def getting(self: Any, block: bool = True, timeout: float | None = None) -> Any:  # noqa: FBT001, FBT002 - its own
        if getattr(_for_task, "queue", None) is self:
            return get(self, block, timeout)
        belt = belt_of(self)
        frame = calling_frame() if belts else None
        if belt is not None:
            belt.asks(running_taker(), self, frame)
        try:
            item = get(self, block, timeout)
        except thread_queue.Empty:
            _found_empty(self)
            raise
        frame = frame or (
            calling_frame() if belts else None
        )  # the first hop may have come meanwhile
        _took(self, (item,), running_taker(), frame)
        return item

    return getting


def by_to_thread(
    to_thread: Callable[..., Any], *, takes_options: bool = False
) -> Callable[..., Any]:
    """Return the replacement of `asyncio.to_thread`: the task that waits for an item is the one that has it.

    `anyio.to_thread.run_sync` takes options of its own; with `asyncio.to_thread`, they are the function's.
    """

    async def called(func: Any, /, *args: Any, **options: Any) -> Any:
        queue = getattr(func, "__self__", None)
        is_get = getattr(func, "__name__", None) in {"get", "get_nowait"}
        if not (is_get and isinstance(queue, thread_queue.Queue | thread_queue.SimpleQueue)):
            return await to_thread(func, *args, **options)
        belt = belt_of(queue)
        frame = calling_frame()
        if belt is not None:
            belt.asks(running_taker(), queue, frame)
        given, own = ({}, options) if takes_options else (options, {})

        def take() -> Any:
            _for_task.queue = queue
            try:
                return func(*args, **given)
            finally:
                _for_task.queue = None

        found = await to_thread(take, **own)
        _took(queue, (found,), running_taker(), frame)
        return found

    return called


def by_wait_for(wait_for: Callable[..., Any]) -> Callable[..., Any]:
    """Return the replacement of `asyncio.wait_for` of 3.11, which runs a coroutine in a task of its own.

    The taker of an item would be another task than the one that works on it. As in later versions, the coroutine runs
    in the task that waits.
    """

    async def waited(fut: Any, timeout: float | None) -> Any:  # noqa: ASYNC109 - its own
        if not inspect.iscoroutine(fut) or (timeout is not None and timeout <= 0):
            return await wait_for(fut, timeout)
        async with asyncio.timeout(timeout):
            return await fut

    return waited


def _state(queue: Any) -> Any:
    """Return what both ends of a queue share."""
    if isinstance(queue, MemoryObjectSendStream | MemoryObjectReceiveStream):
        return queue._state
    return queue._lane if isinstance(queue, Reader | BatchReader) else queue


def _kind(queue: Any) -> str:
    kind = type(queue)
    return f"{kind.__module__.partition('.')[0]}.{kind.__name__}"
