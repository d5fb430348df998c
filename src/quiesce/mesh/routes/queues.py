"""Queues: an item that a hop puts carries the hop to the task that takes it.

`asyncio.Queue` and its kinds, `queue.Queue` and its kinds, and anyio's memory object streams. What a library puts
that is known to keep house (a connection that goes back into its pool) carries nothing.
"""

from __future__ import annotations

import asyncio
import inspect
import queue as thread_queue
import sys
import threading
from sys import _getframe
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, finalize

from anyio.streams.memory import MemoryObjectReceiveStream

from quiesce.mesh.routes.belts import GETTERS, Belt
from quiesce.mesh.routes.following import caller, hop_now, is_declared
from quiesce.resources.reading import SINGLE_READS

if TYPE_CHECKING:
    from collections.abc import Callable

    from quiesce.mesh.routes.belts import Parcel

__all__: list[str] = []

belts: WeakKeyDictionary[Any, Belt] = WeakKeyDictionary()
_under_way: set[int] = set()  # items that are being sent, and are placed already


def _placed(queue: Any, item: object, kind: str) -> tuple[Belt, Parcel] | None:
    """Hold the running code's hop for an item that is about to be put; None if it works for none."""
    hop = hop_now()
    if hop is None:
        return None
    frame = caller()
    if is_declared(hop, frame):
        return None
    belt = belts.get(queue)
    if belt is None:
        belt = belts[queue] = Belt(kind)
        finalize(queue, belt.dropped).atexit = False
    return belt, belt.put(item, hop, frame)


def by_put(put: Callable[..., Any]) -> Callable[..., Any]:
    """Return what stands in for a function that puts an item in one step."""

    def putting(self: Any, item: Any, *args: Any, **options: Any) -> Any:
        placed = None if id(item) in _under_way else _placed(_state(self), item, _kind(self))
        if placed is None:
            return put(self, item, *args, **options)
        try:
            return put(self, item, *args, **options)
        except BaseException:
            belt, parcel = placed
            belt.withdraw(parcel)
            raise

    return putting


def by_send(send: Callable[..., Any]) -> Callable[..., Any]:
    """Return what stands in for a function that may wait before the item is taken."""

    async def sending(self: Any, item: Any) -> Any:
        placed = _placed(_state(self), item, _kind(self))
        if placed is None:
            return await send(self, item)
        _under_way.add(id(item))
        try:
            return await send(self, item)
        except BaseException:
            belt, parcel = placed
            belt.withdraw(parcel)
            raise
        finally:
            _under_way.discard(id(item))

    return sending


def by_get_nowait(get: Callable[..., Any]) -> Callable[..., Any]:
    """Return what stands in for a function of an event loop that takes an item in one step."""

    def getting(self: Any) -> Any:
        belt = belts.get(_state(self)) if belts else None
        if belt is None:
            return get(self)
        key, frame = _task(), caller()
        if _getframe(1).f_code in _WAITING:  # where that was asked for, and is told of
            item = get(self)
            belt.just_took = (key, id(item))
        else:
            belt.asks(key, frame)
            try:
                item = get(self)
            except BaseException:
                belt.missed(key)
                raise
        belt.took(item, key, frame)
        return item

    return getting


def by_get(get: Callable[..., Any]) -> Callable[..., Any]:
    """Return what stands in for the function that waits for an item.

    It is asked for in the task that calls it, also if another one runs it: `create_task(queue.get())`.
    """

    def getting(self: Any) -> Any:
        belt = belts.get(_state(self)) if belts else None
        if belt is not None:
            belt.asks(_task(), caller())
        return waiting(get, self, _task())

    return getting


async def waiting(get: Callable[..., Any], queue: Any, asker: object) -> Any:
    """Wait for an item, on behalf of the task that asked for it."""
    try:
        item = await get(queue)
    except BaseException:
        belt = belts.get(_state(queue))
        if belt is not None:
            belt.missed(asker)
        raise
    belt = belts.get(_state(queue)) if belts else None
    if belt is not None:
        key = _task()
        if belt.just_took != (key, id(item)):  # a sender has handed it over
            belt.took(item, key, caller())
        belt.just_took = None
        if key is not asker:
            belt.pass_on(key, asker)
    return item


def by_read(read: Callable[..., Any]) -> Callable[..., Any]:
    """Return what stands in for a function of a `Channel` that waits for an item, or for a batch of them."""

    def reading(self: Any, *args: Any) -> Any:
        belt = belts.get(getattr(self, "_lane", self)) if belts else None
        if belt is not None:
            belt.asks(_task(), caller())
        return _read(read, self, args, _task())

    return reading


async def _read(read: Callable[..., Any], reader: Any, args: tuple[Any, ...], asker: object) -> Any:
    found = await read(reader, *args)
    belt = belts.get(getattr(reader, "_lane", reader)) if belts else None
    if belt is not None:
        key, frame = _task(), caller()
        for item in found if type(found) is list else (found,):
            belt.took(item, key, frame)
        if key is not asker:
            belt.pass_on(key, asker)
    return found


SINGLE_READS.add(_read.__code__)
GETTERS.update((waiting.__code__, _read.__code__))


def by_done(done: Callable[..., Any]) -> Callable[..., Any]:
    """Return what stands in for `task_done`."""

    def finishing(self: Any) -> None:
        done(self)
        belt = belts.get(self) if belts else None
        if belt is not None:
            belt.done(_task() or threading.current_thread())

    return finishing


def by_thread_get(get: Callable[..., Any]) -> Callable[..., Any]:
    """Return what stands in for `queue.Queue.get`."""

    def getting(self: Any, block: bool = True, timeout: float | None = None) -> Any:  # noqa: FBT001, FBT002 - its own
        belt = belts.get(self) if belts else None
        key: object = _task() or threading.current_thread()
        frame = caller()
        if belt is not None:
            belt.asks(key, frame, is_idle=block and timeout is None)
        try:
            item = get(self, block, timeout)
        except thread_queue.Empty:
            if belt is not None:
                belt.missed(key)
            raise
        belt = belts.get(self) if belts else None
        if belt is not None:
            belt.took(item, key, frame)
        return item

    return getting


def by_wait_for(wait_for: Callable[..., Any]) -> Callable[..., Any]:
    """Return what stands in for `asyncio.wait_for` of 3.11, which has a task of its own wait.

    Then the taker of an item would be another task than the one that works on it.
    """

    async def waited(fut: Any, timeout: float | None) -> Any:  # noqa: ASYNC109 - its own
        if inspect.iscoroutine(fut) and fut.cr_code is waiting.__code__:
            async with asyncio.timeout(timeout):
                return await fut
        return await wait_for(fut, timeout)

    return waited


def _state(queue: Any) -> Any:
    """Return what both ends of a queue share."""
    return getattr(queue, "_state", queue)


def _kind(queue: Any) -> str:
    kind = type(queue)
    return f"{kind.__module__.partition('.')[0]}.{kind.__name__}"


def _task() -> object:
    """Return the running task, or None in a thread without an event loop."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        trio = sys.modules.get("trio")
        if trio is None or not trio.lowlevel.in_trio_task():
            return None
        task: object = trio.lowlevel.current_task()
        return task


_WAITING = frozenset((asyncio.Queue.get.__code__, MemoryObjectReceiveStream.receive.__code__))
