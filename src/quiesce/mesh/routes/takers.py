"""Takers: tasks and threads that have taken items of hops from queues, and for whom they work.

A taker works for the hop of the newest item that it has; a task or thread of another hop does so only if it is a worker
(see `two_hops`). What it sends meanwhile is waited for by all hops whose items it has (see `sharing`).
"""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
from collections import deque
from contextlib import suppress
from contextvars import Context, ContextVar, copy_context
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakSet

from quiesce.core import libraries
from quiesce.core.tree import ScopeState, current
from quiesce.mesh.routes import batches
from quiesce.mesh.routes.following import Followed, called, code_place, frame_place
from quiesce.mesh.routes.two_hops import Beside, taker_name

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
    from types import CodeType, FrameType

    from quiesce.core.tree import TreeNode
    from quiesce.mesh.routes.belts import Belt
    from quiesce.mesh.runtime.hop import Hop

    Place = tuple[CodeType, int, tuple[int | None, ...]]
    Site = tuple[CodeType | None, int]

__all__: list[str] = []

_CLOSED = ScopeState.CLOSED
lock: Any = threading.RLock()  # for queues between threads; never held across a wait


at_work: ContextVar[Taker | None] = ContextVar("quiesce_taker", default=None)
"""The taker that the running code works for: itself, or the one that has started it."""


class Item(Followed):
    """What a hop holds of an item."""

    __slots__ = ("_belt", "_handler", "by")

    def __init__(
        self, belt: Belt, hop: Hop, frame: FrameType | None, place: Site | None = None
    ) -> None:
        """Hold a hop for what the code of a frame puts; or for what was put at a place before, by other code."""
        self._belt = belt
        # The first hold of a hop is its handler, while that runs. Other threads must not look.
        first: Any = next(iter(hop._holds.values()), None) if hop._backend.here() else None
        self._handler = first if getattr(first, "kind", "") == "handler" else None
        # The taker that has put it in the course of its work.
        self.by: Taker | None = at_work.get() if place is None else None
        super().__init__(hop, "item", f"in {belt.kind}", frame)
        if place is not None:
            self._code, self._offset = place

    @property
    def name(self) -> str:
        """Which one it is, and whether it waits to be taken; of an event, that nothing is left that could take it."""
        if not self._belt.is_signal:
            is_taken = self._name != f"in {self._belt.kind}"
            return self._name if is_taken else f"{self._name}, which no worker has taken"
        with lock:
            is_left = not any(map(is_alive, self._belt.workers))
        return f"{self._name}, whose workers have all ended" if is_left else self._name

    @property
    def details(self) -> Mapping[str, object]:
        """The function that has put it, and the request whose handler that was, if they are known."""
        request = {} if self._handler is None else {"request": self._handler.name}
        return {**({} if self._code is None else {"put_by": self._code.co_qualname}), **request}


class Parcel:
    """An item, from when it was put until the work on it is over."""

    __slots__ = (
        "at", "before", "belt", "beside", "hold", "host", "is_direct", "is_done", "is_early", "item", "others", "place",
        "variables",
    )  # fmt: skip

    def __init__(self, belt: Belt, item: object, hold: Followed | None) -> None:
        self.belt: Belt = belt
        self.item: object = item
        self.hold: Followed | None = hold  # None: no hop has put it
        self.host: Parcel | None = None  # what the queue has merged it with
        self.before: batches.Sizes = {}  # what the taker had collected when it took the item
        self.variables: batches.Variables = batches.UNKNOWN  # which of them have it by the take
        self.is_direct: bool = False  # whether the taker has taken it itself
        self.place: Place | None = None  # where it was taken
        self.is_done: bool = False  # whether the taker has said so, perhaps too early
        self.is_early: bool = False  # whether it seems to be so
        self.others: frozenset[object] = frozenset()  # what the hop held when the item was taken
        self.at: tuple[CodeType, int] | None = None  # where it was taken, for messages
        self.beside: Beside | None = None  # if its taker is of another hop

    def __str__(self) -> str:
        place = code_place(*self.at) if self.at else "an unknown place"
        return f"an item from {self.belt.kind} that was taken at {place}"


class Waits:
    """How a worker waits for an event."""

    __slots__ = ("first", "places")

    def __init__(self, first: int) -> None:
        self.first: int = first  # a number by which the events are in the order of its first waits
        self.places: set[tuple[CodeType, int]] = set()  # where the functions were that run in it


def release_all(parcels: Iterable[Parcel]) -> None:
    """Release the hops of items that are over."""
    for parcel in parcels:
        if parcel.beside is not None:
            parcel.beside.tell()
        if parcel.hold is not None:
            parcel.hold.release()


class Taker:
    """A task or thread, and the items that it has."""

    __slots__ = (
        "_takes", "first", "has_turned", "is_at_work", "is_worker", "key", "outer", "parcels", "within",
    )  # fmt: skip

    def __init__(self, key: object) -> None:
        self.key: object = key
        self.parcels: list[Parcel] = []
        self.first: WeakKeyDictionary[Belt, int] = (
            WeakKeyDictionary()
        )  # in the order of the first takes
        self.outer: TreeNode | None = None  # the scope that it works in without an item
        self.is_at_work: bool = False  # whether it has an item of a hop
        self.is_worker: bool = False  # whether it takes items again and again
        self.has_turned: bool = (
            False  # whether it has waited for something since it took its newest item
        )
        self.within: set[CodeType] = (
            set()
        )  # of a callback: the functions in which it has taken items
        self._takes: int = 0

    def took(self, parcel: Parcel) -> None:
        """Record that it has an item."""
        with lock:
            self.parcels.append(parcel)
            self.first.setdefault(parcel.belt, len(self.first))
        self._takes += 1
        self.has_turned = False
        if self.key is None:
            self.within.update(_running_code())
        if parcel.hold is not None and parcel.hold.hop._backend.here():
            parcel.hold.hop._backend.soon(partial(self._turned, self._takes))

    def _turned(self, takes: int) -> None:
        self.has_turned = takes == self._takes

    def of(self, hop: Hop, belt: Belt) -> list[Parcel]:
        """Return the items of a hop that it has of a queue."""
        mine = (one for one in self.parcels if one.belt is belt)
        return [one for one in mine if one.hold is not None and one.hold.hop is hop]

    def hops(self) -> dict[Hop, Parcel]:
        """Return the hops whose items it has, each with its newest item; the newest hop is the last."""
        found: dict[Hop, Parcel] = {}
        for parcel in self.parcels:
            if parcel.hold is not None:
                found.pop(parcel.hold.hop, None)
                found[parcel.hold.hop] = parcel
        return found

    def all_hops(self) -> dict[Hop, Parcel]:
        """Return the hops whose items it has; and those whose items it may have seen, without a take."""
        found: dict[Hop, Parcel] = {}
        for belt in {parcel.belt: None for parcel in self.parcels if parcel.belt.is_signal}:
            found.update((parcel.hold.hop, parcel) for parcel in belt.waiting() if parcel.hold)
        return found | self.hops()

    def work(self) -> None:
        """Set the scope of the running code, which is the taker's or in its context, to that of its newest item."""
        if not self.is_at_work:
            self.outer = current.get()
        outer: Any = None if self.outer is None else self.outer._errand
        own: Hop | None = None if outer is None or outer._state is _CLOSED else outer
        if own is not None:
            self._look_beside(own)
            if not self.is_worker:
                return
        newest = self.parcels[-1] if self.parcels else None
        hops = self.hops()
        self.is_at_work = bool(hops)
        at_work.set(self if hops else None)
        if newest is None or not hops or (newest.hold is None and newest.belt.counted):
            current.set(self.outer)
        else:
            hop = next(reversed(hops))
            current.set(self.outer if hop is own else hop)

    def _look_beside(self, own: Hop) -> None:
        """Look from now on what it starts while it has an item of another hop than its own."""
        for parcel in self.parcels:
            hop = None if parcel.hold is None else parcel.hold.hop
            if hop is None or hop is own or parcel.beside is not None:
                continue
            if self.is_worker:
                what = f"is not work for this message, when it had {parcel}"
                parcel.beside = Beside(hop, own, self.key, what)
            else:
                what = f"is not work on {parcel}"
                parcel.beside = Beside(own, hop, self.key, what)


takers: dict[object, Taker] = {}
on_end: list[Callable[[Any, Collection[Hop]], None]] = []
"""What is called when a task or thread has ended, with the hops whose items it had."""
_watched: WeakSet[Any] = WeakSet()


def companions(hop: Hop) -> list[Hop]:
    """Return the other hops that the running code may work on, while it works for one.

    These are the hops whose items its worker has, and those that have set the event again that has woken the worker.
    The running code may be a task that the worker has started.
    """
    taker = at_work.get()
    hops: dict[Hop, Parcel] = {} if taker is None else taker.all_hops()
    return [other for other in hops if other is not hop] if hop in hops else []


def tell_batch(taker: Taker, hops: dict[Hop, Parcel]) -> None:
    """Record in the hops of a batch that something was started for all of them, which only the newest hop holds.

    It may be a task, a call in a thread, a timer, or an item that the taker has put into another queue. A message that is
    sent for all of them holds each.
    """
    newest, parcel = next(reversed(hops.items()))
    if not newest._backend.here():  # what a thread starts is held there first
        newest._backend.post(tell_batch, taker, hops)
        return
    held = [newest._holds[key] for key in newest._holds.keys() - parcel.others]
    if not any(one.by is taker if isinstance(one, Item) else one.kind != "message" for one in held):
        return
    for other in hops:
        if other is not newest:
            place = f"started by the taker of several items from {parcel.belt.kind}, as a part of {newest.name}"
            other.untracked("batch", place)


def after(callback: Any, args: tuple[Any, ...], frame: FrameType) -> Context | None:
    """Return the context for a callback of the event loop that sets itself again after it has taken items.

    The next call is not the work on these items, unless the callback keeps one: it takes others then. That is an
    assumption, and the hops of the items record it. None: the call is work of the hop that the running code works for.
    """
    taker = at_work.get()
    if taker is None or not taker.within:
        return None
    own, given = _parts(callback)
    reach = (*given, *args)
    if getattr(own, "__code__", None) not in taker.within or any(
        _is_in(one, parcel.item) for one in reach for parcel in taker.parcels
    ):
        return None
    for hop, parcel in taker.hops().items():
        hop.assume(
            f"assumes that callback {own.__qualname__} was done with an item from {parcel.belt.kind} when it set itself"
            f" again at {frame_place(frame)}"
        )
    context = copy_context()
    context.run(current.set, taker.outer)
    context.run(at_work.set, None)
    return context


def _parts(callback: Any) -> tuple[Any, list[object]]:
    """Return the function below partials and methods, and what they keep: arguments, attributes, variables around it."""
    kept: list[object] = []
    while hasattr(callback, "func"):
        kept += [*callback.args, *callback.keywords.values()]
        callback = callback.func
    if not hasattr(callback, "__code__"):  # neither a function nor a method
        callback = getattr(callback, "__call__", callback)  # noqa: B004 - the method itself
    own: Any = getattr(callback, "__func__", callback)
    if own is not callback:
        kept += getattr(callback.__self__, "__dict__", {}).values()
    for cell in getattr(own, "__closure__", None) or ():
        with suppress(ValueError):  # it is empty
            kept.append(cell.cell_contents)
    return own, kept


def _running_code() -> Iterator[CodeType]:
    frame = libraries.starting_frame(sys._getframe(1))
    while frame is not None and not libraries.is_root(frame):
        yield frame.f_code
        frame = frame.f_back


def taker_of(key: object, backend: Any) -> Taker:
    """Return the taker for a task or thread; a new one is forgotten when that has ended (2)."""
    with lock:
        taker = takers.get(key)
        if taker is not None:
            return taker
        taker = takers[key] = Taker(key)
    watch(key, backend)
    return taker


def watch(key: Any, backend: Any) -> None:
    """See to it that the end of a task or thread is noticed, once."""
    call = partial(_finished, key)
    if key is None:
        if backend is not None and backend.here():
            backend.soon(call)  # a callback of the event loop, which has ended by then
        return
    with lock:
        if key in _watched:
            return
        if isinstance(key, asyncio.Task):
            key.add_done_callback(lambda _: call())
        elif isinstance(key, threading.Thread):
            _ends.guard = Guard(call, getattr(_ends, "guard", None))
        elif backend is not None and backend.here():
            backend.watch(call)  # a task of trio
        else:
            return
        _watched.add(key)


def _finished(key: object) -> None:
    if isinstance(
        key, threading.Thread
    ):  # which must not join hops any more, while it is taken apart
        called.pop(key.ident or 0, None)
    with lock:
        taker = takers.pop(key, None)
    hops = {} if taker is None else taker.hops()
    for parcel in () if taker is None else taker.parcels:
        if parcel.hold is None:
            continue
        if not parcel.hold.released:  # or its hop was closed before
            _tell_end(key, parcel)
        release_all([parcel])
    for tell in on_end:
        tell(key, hops)


def call_returns(result: object) -> None:
    """Release the hops of the items that a call in an executor has taken: it has ended, and its thread has not."""
    taker = takers.get(threading.current_thread())
    if taker is None or not taker.parcels:
        return
    with lock:
        over, taker.parcels = taker.parcels, []
    taker.work()
    for parcel in over:
        if parcel.hold is None:
            continue
        hop, kind = parcel.hold.hop, parcel.belt.kind
        if _is_in(result, parcel.item):
            place = f"from {kind}, by a call in a thread that returned it. Take items by `await asyncio.to_thread(queue.get)`"
            hop.untracked("item", place)
        elif not parcel.is_done and parcel.item is not None:
            hop.assume(f"assumes that a call in a thread was done with {parcel} when it returned")
        release_all([parcel])


def _tell_end(key: object, parcel: Parcel) -> None:
    """Record in the hop of an item how its taker has ended: the item may not be done, or not yet.

    A None tells the taker to end. What the end of an event's worker says is for `events` to know.
    """
    if parcel.hold is None:
        return
    hop, result = parcel.hold.hop, None
    if isinstance(key, asyncio.Task):
        if key.cancelled():
            hop._cut_unheard()
            return
        if key._exception is not None:
            hop._fail_unheard(key._exception, hop)
            return
        result = key.result()
    if _is_in(result, parcel.item):
        place = f"from {parcel.belt.kind}, by a task that returned it. Take items in the task that works on them"
        hop.untracked("item", place)
    elif not parcel.is_done and parcel.item is not None and not parcel.belt.is_signal:
        hop.assume(f"assumes that {taker_name(key)} was done with {parcel} when it ended")


def _is_in(result: object, item: object) -> bool:
    return (result is item and item is not None) or (  # a None tells the taker to end
        isinstance(result, list | tuple | set | deque | dict)
        and any(one is item for one in (result.values() if isinstance(result, dict) else result))
    )


def running_taker() -> object:
    """Return the running task, or the thread where no task runs; None in a callback of an event loop."""
    try:
        task: object = asyncio.current_task()
    except RuntimeError:
        trio = sys.modules.get("trio")
        if trio is not None and trio.lowlevel.in_trio_task():
            task = trio.lowlevel.current_task()
        else:
            task = threading.current_thread()
    return task


def frames_of(key: object, frame: FrameType | None) -> list[FrameType]:
    """Return the frames of a taker's own code: of what runs, from `frame` on; of a task that waits, all of it."""
    coro = key.get_coro() if isinstance(key, asyncio.Task) else getattr(key, "coro", None)
    root: Any = getattr(coro, "cr_frame", None)
    if key is running_taker():
        return batches.reach(frame, root)
    found: list[FrameType] = []
    while coro is not None:
        made = getattr(coro, "cr_frame", None)
        if made is not None:
            found = [*batches.reach(made, made), *found]
        coro = getattr(coro, "cr_await", None)
    return found


def work_elsewhere(taker: Taker) -> None:
    """Set the scope of a task that waits, by what other code has taken for it, or has said to be done.

    That is done in the task's own event loop: while another thread is in its context, the loop cannot run the task.
    """
    if not isinstance(taker.key, asyncio.Task):
        return
    loop = taker.key.get_loop()
    if loop is not asyncio._get_running_loop():
        with suppress(RuntimeError):  # it is closed
            loop.call_soon_threadsafe(work_elsewhere, taker, context=Context())
        return
    context = _context_of(taker.key)
    if context is not None:
        with suppress(
            RuntimeError
        ):  # the running task shares its context, and works for whom it has to
            context.run(taker.work)


def _context_of(task: asyncio.Task[Any]) -> Context | None:
    if sys.version_info >= (3, 12):
        return task.get_context()
    found = (one for one in gc.get_referents(task) if isinstance(one, Context))
    return next(found, None)  # its own is the first: CPython 3.11 has no other way to ask


def is_alive(key: Any) -> bool:
    """Return whether a task or thread has not ended."""
    return key.is_alive() if isinstance(key, threading.Thread) else root_of(key) is not None


def root_of(key: object) -> FrameType | None:
    """Return the outermost frame of a task that has not ended."""
    coro = key.get_coro() if hasattr(key, "get_coro") else getattr(key, "coro", None)
    found: FrameType | None = getattr(coro, "cr_frame", None)
    return found


class Guard:
    """Calls a function when the thread ends in which it is kept."""

    def __init__(self, call: partial[None], other: Guard | None) -> None:
        self._call = call
        self._other = other

    def __del__(self) -> None:
        """Call it: the thread's variables are dropped when it has ended."""
        self._call()


_ends = threading.local()
