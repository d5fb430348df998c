"""Takers: tasks and threads that have taken items of hops from queues, and for which hops they work.

A taker works for the hop of its newest item. A taker that belongs to another hop does so only if it is a worker (see
`two_hops`). All hops whose items a taker has wait for the messages that it sends meanwhile (see `shared_sends`).
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
from quiesce.core.python_private import exception_of, get_frame, running_loop
from quiesce.core.tree import ScopeState, current
from quiesce.core.visitors import worker_chain
from quiesce.mesh.routes import batches
from quiesce.mesh.routes.following import Followed, called, code_place, enters, frame_place
from quiesce.mesh.routes.thread_ends import call_at_thread_end
from quiesce.mesh.routes.two_hops import DoubtfulWork, taker_name

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
"""The taker for which the running code works: the running task or thread, or the taker that started it."""


class Item(Followed):
    """The hold that keeps a hop open for an item in a queue."""

    __slots__ = ("_belt", "_handler", "by")

    place_offset: int
    place_code: CodeType | None

    def __init__(
        self, belt: Belt, hop: Hop, frame: FrameType | None, place: Site | None = None
    ) -> None:
        """Hold a hop for an item that the code of `frame` puts, or that other code put before, at `place`."""
        self._belt = belt
        # While its handler runs, the first hold of a hop is the handler. Other threads must not read it.
        first: Any = next(iter(hop.holds.values()), None) if hop.backend.here() else None
        self._handler = first if getattr(first, "kind", "") == "handler" else None
        # The taker that put the item in the course of its work.
        self.by: Taker | None = at_work.get() if place is None else None
        super().__init__(hop, "item", f"in {belt.kind}", frame)
        if place is not None:
            self.place_code, self.place_offset = place

    @property
    def name(self) -> str:
        """The queue and whether the item was taken; for an event, whether all its workers have ended."""
        if not self._belt.is_signal:
            is_taken = self.name_given != f"in {self._belt.kind}"
            return self.name_given if is_taken else f"{self.name_given}, which no worker has taken"
        with lock:
            is_left = not any(map(is_alive, self._belt.workers))
        return f"{self.name_given}, whose workers have all ended" if is_left else self.name_given

    @property
    def details(self) -> Mapping[str, object]:
        """The function that put the item, and the request in whose handler it ran, if they are known."""
        request = {} if self._handler is None else {"request": self._handler.name}
        return {
            **({} if self.place_code is None else {"put_by": self.place_code.co_qualname}),
            **request,
        }

    def list_frames(self) -> list[Any]:
        with lock:  # show the frames of the taker, which works on the item
            keys = [one.key for one in takers.values() if self in (it.hold for it in one.parcels)]
        return worker_chain(keys[0]) if keys else []


class Parcel:
    """An item, from when it was put until the work on it is over."""

    __slots__ = (
        "belt", "doubt", "held_before", "hold", "host", "is_direct", "is_done", "is_early", "item", "place",
        "sizes_before", "taken_at", "variables",
    )  # fmt: skip

    def __init__(self, belt: Belt, item: object, hold: Followed | None) -> None:
        self.belt: Belt = belt
        self.item: object = item
        self.hold: Followed | None = hold  # None: a hop did not put the item
        self.host: Parcel | None = None  # the item with which the queue has merged this one
        self.sizes_before: batches.Sizes = {}  # sizes of the taker's containers at the take
        self.variables: batches.Variables = batches.UNKNOWN  # variables assigned by the take
        self.is_direct: bool = False  # whether the taker has taken the item itself
        self.place: Place | None = None  # where the item was taken
        self.is_done: bool = False  # whether `task_done()` was called for it, perhaps too early
        self.is_early: bool = False  # whether that call seems to have come too early
        self.held_before: frozenset[object] = frozenset()  # what the hop held at the take
        self.taken_at: tuple[CodeType, int] | None = None  # where the item was taken, for messages
        self.doubt: DoubtfulWork | None = None  # set if the taker belongs to another hop

    def __str__(self) -> str:
        place = code_place(*self.taken_at) if self.taken_at else "an unknown place"
        return f"{'work' if self.belt.is_signal else 'an item'} from {self.belt.kind} that was taken at {place}"


class Waits:
    """The waits of one worker for one event."""

    __slots__ = ("first", "places")

    def __init__(self, first: int) -> None:
        self.first: int = first  # a counter: orders a worker's events by their first waits
        self.places: set[tuple[CodeType, int]] = set()  # where the worker's functions have waited


def release_all(parcels: Iterable[Parcel]) -> None:
    """Release the hops of items that are over."""
    for parcel in parcels:
        if parcel.doubt is not None:
            parcel.doubt.tell()
        if parcel.hold is not None:
            parcel.hold.release()


class Taker:
    """A task or thread, and the items that it has taken and not finished."""

    __slots__ = (
        "_takes", "first", "has_turned", "is_at_work", "is_worker", "key", "outer", "parcels", "served", "within",
    )  # fmt: skip

    def __init__(self, key: object) -> None:
        self.key: object = key
        self.parcels: list[Parcel] = []
        self.first: WeakKeyDictionary[Belt, int] = WeakKeyDictionary()  # in order of first take
        self.served: WeakSet[Hop] = WeakSet()  # the hops whose items it has had
        self.outer: TreeNode | None = None  # the scope in which it works without an item
        self.is_at_work: bool = False  # whether it has an item of a hop
        self.is_worker: bool = False  # whether it takes items in a loop
        self.has_turned: bool = False  # whether it has waited since it took its newest item
        self.within: set[CodeType] = set()  # for a callback: the functions in which it took items
        self._takes: int = 0

    def took(self, parcel: Parcel) -> None:
        """Record that the taker has taken an item."""
        with lock:
            self.parcels.append(parcel)
            self.first.setdefault(parcel.belt, len(self.first))
        self._takes += 1
        self.has_turned = False
        if parcel.hold is not None:
            self.served.add(parcel.hold.hop)
        if self.key is None:
            self.within.update(_running_code())
        if parcel.hold is not None and parcel.hold.hop.backend.here():
            parcel.hold.hop.backend.soon(partial(self._note_turn, self._takes))

    def _note_turn(self, takes: int) -> None:
        self.has_turned = takes == self._takes

    def of(self, hop: Hop, belt: Belt) -> list[Parcel]:
        """Return the taker's items that a hop has put into a queue."""
        mine = (one for one in self.parcels if one.belt is belt)
        return [one for one in mine if one.hold is not None and one.hold.hop is hop]

    def hops(self) -> dict[Hop, Parcel]:
        """Return the hops whose items the taker has, each with its newest item; the newest hop is last."""
        found: dict[Hop, Parcel] = {}
        for parcel in self.parcels:
            if parcel.hold is not None:
                found.pop(parcel.hold.hop, None)
                found[parcel.hold.hop] = parcel
        return found

    def all_hops(self) -> dict[Hop, Parcel]:
        """Return the hops whose items the taker has, and the hops whose jobs it may have found by an event."""
        found: dict[Hop, Parcel] = {}
        for belt in {parcel.belt: None for parcel in self.parcels if parcel.belt.is_signal}:
            found.update((parcel.hold.hop, parcel) for parcel in belt.waiting() if parcel.hold)
        return found | self.hops()

    def work(self) -> None:
        """Set the current scope to the hop of the taker's newest item. Runs in the taker or in its context."""
        if not self.is_at_work:
            self.outer = current.get()
        outer: Any = None if self.outer is None else self.outer.hop_served
        own: Hop | None = None if outer is None or outer.phase is _CLOSED else outer
        if own is not None:
            self._watch_doubtful(own)
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
            loop = running_loop()
            if loop is not None and loop is not hop.backend.loop:
                for enter in enters:
                    enter(loop)

    def _watch_doubtful(self, own: Hop) -> None:
        """Watch what the taker starts from now on while it has an item of a hop other than its own."""
        for parcel in self.parcels:
            hop = None if parcel.hold is None else parcel.hold.hop
            if hop is None or hop is own or parcel.doubt is not None:
                continue
            if self.is_worker:
                what = f"is not work for this message, when it had {parcel}"
                parcel.doubt = DoubtfulWork(hop, own, self.key, what)
            else:
                what = f"is not work on {parcel}"
                parcel.doubt = DoubtfulWork(own, hop, self.key, what)


takers: dict[object, Taker] = {}
on_end: list[Callable[[Any, Collection[Hop]], None]] = []
"""Functions to call when a task or thread has ended, with that task or thread and the hops whose items it had."""
watched: WeakSet[Any] = WeakSet()
"""The tasks and threads that have taken an item from a queue, or have waited for an event as workers."""


def has_served(key: object, hop: Hop) -> bool:
    """Return whether a task or thread has had an item of a hop."""
    taker = takers.get(key)
    return taker is not None and hop in taker.served


def companions(hop: Hop) -> list[Hop]:
    """Return the other hops for which the running code may work, while it works for `hop`.

    These are the hops whose items its worker has, and the hops that have set the worker's event again. The running code
    may be a task that the worker has started.
    """
    taker = at_work.get()
    hops: dict[Hop, Parcel] = {} if taker is None else taker.all_hops()
    return [other for other in hops if other is not hop] if hop in hops else []


def tell_batch(taker: Taker, hops: dict[Hop, Parcel]) -> None:
    """Record in the hops of a batch that work was started for all of them, although only the newest hop holds it.

    The work may be a task, a call in a thread, a timer, or an item that the taker has put into another queue. Messages do
    not count: a message that is sent for all these hops holds each of them.
    """
    newest, parcel = next(reversed(hops.items()))
    if not newest.backend.here():  # posted, so that the hop first inserts this thread's holds
        newest.backend.post(tell_batch, taker, hops)
        return
    held = [newest.holds[key] for key in newest.holds.keys() - parcel.held_before]
    if not any(one.by is taker if isinstance(one, Item) else one.kind != "message" for one in held):
        return
    for other in hops:
        if other is not newest:
            place = f"started by the taker of several items from {parcel.belt.kind}, as a part of {newest.name}"
            other.untracked("batch", place)


def after(callback: Any, args: tuple[Any, ...], frame: FrameType) -> Context | None:
    """Return the context for a callback that schedules itself again after it has taken items.

    The next call will take other items, so it is not work on these ones. That is an assumption, and the hops of the items
    record it. Return None if the callback keeps one of the items, or is another function: then the next call is work of
    the current hop.
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
    """Return the function inside partials and methods, and the objects it keeps: arguments, attributes, closure."""
    kept: list[object] = []
    while isinstance(callback, partial):
        kept += [*callback.args, *callback.keywords.values()]
        callback = callback.func
    if not hasattr(callback, "__code__"):  # neither a function nor a method
        callback = getattr(callback, "__call__", callback)  # noqa: B004 - the method object is used
    own: Any = getattr(callback, "__func__", callback)
    if own is not callback:
        kept += getattr(callback.__self__, "__dict__", {}).values()
    for cell in getattr(own, "__closure__", None) or ():
        with suppress(ValueError):  # the cell is empty
            kept.append(cell.cell_contents)
    return own, kept


def _running_code() -> Iterator[CodeType]:
    frame = libraries.starting_frame(get_frame(1))
    while frame is not None and not libraries.is_root(frame):
        yield frame.f_code
        frame = frame.f_back


def taker_of(key: object, backend: Any) -> Taker:
    """Return the taker for a task or thread. It is removed when the task or thread ends (2)."""
    with lock:
        taker = takers.get(key)
        if taker is not None:
            return taker
        taker = takers[key] = Taker(key)
    watch(key, backend)
    return taker


def watch(key: Any, backend: Any) -> None:
    """Arrange, once, that the end of a task or thread is noticed."""
    call = partial(_finished, key)
    if key is None:
        if backend is not None and backend.here():
            backend.soon(call)  # by the next turn of the loop, the running callback has ended
        return
    with lock:
        if key in watched:
            return
        if isinstance(key, asyncio.Task):
            key.add_done_callback(lambda _: call())
        elif isinstance(key, threading.Thread):
            call_at_thread_end(call)
        elif backend is not None and backend.here():
            backend.watch(call)  # a task of trio
        else:
            return
        watched.add(key)


def _finished(key: object) -> None:
    """Release the hops of an ended task or thread, after recording how it has ended."""
    if isinstance(key, threading.Thread):  # an ending thread must not join hops any more
        called.pop(key.ident or 0, None)
    with lock:
        taker = takers.pop(key, None)
    hops = {} if taker is None else taker.hops()
    for parcel in () if taker is None else taker.parcels:
        if parcel.hold is None:
            continue
        if not parcel.hold.released:  # otherwise the hop has closed already
            _tell_end(key, parcel)
        release_all([parcel])
    for tell in on_end:
        tell(key, hops)


def call_returns(result: object) -> None:
    """Release the hops of the items that a call in an executor has taken. The call has ended; its thread goes on."""
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
            place = (
                f"from {kind}, taken by a call in a thread that returned the item, so the work on the item is not followed."
                " Take items by `await asyncio.to_thread(queue.get)`"
            )
            hop.untracked("item", place)
        elif not parcel.is_done and parcel.item is not None:
            hop.assume(f"assumes that a call in a thread was done with {parcel} when it returned")
        release_all([parcel])


def _tell_end(key: object, parcel: Parcel) -> None:
    """Record in the hop of an item how its taker has ended: the work on the item may be unfinished.

    An item None is a request to end, not a job. `events` handles the end of an event's worker.
    """
    if parcel.hold is None:
        return
    hop, result = parcel.hold.hop, None
    if isinstance(key, asyncio.Task):
        if key.cancelled():
            hop.note_cut_unheard()
            return
        if (error := exception_of(key)) is not None:
            hop.note_failed_unheard(error, hop)
            return
        result = key.result()
    if _is_in(result, parcel.item):
        place = (
            f"from {parcel.belt.kind}, taken by a task that returned the item, so the work on the item is not followed."
            " Take items in the task that works on them"
        )
        hop.untracked("item", place)
    elif not parcel.is_done and parcel.item is not None and not parcel.belt.is_signal:
        hop.assume(f"assumes that {taker_name(key)} was done with {parcel} when it ended")


def _is_in(result: object, item: object) -> bool:
    return (result is item and item is not None) or (  # None as an item is a request to end
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
    """Return the frames of a taker's own code: from `frame` outwards if the taker runs, or all if it waits."""
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
    """Set the scope of a waiting task, after other code has taken items for the task or finished its items.

    This runs in the task's own event loop, because the loop cannot run a task whose context another thread has entered.
    """
    if not isinstance(taker.key, asyncio.Task):
        return
    loop = taker.key.get_loop()
    if loop is not running_loop():
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(work_elsewhere, taker, context=Context())
        return
    context = task_context(taker.key)
    if context is not None:
        with suppress(RuntimeError):  # the running task shares the context, and sets the scope
            context.run(taker.work)


def task_context(task: asyncio.Task[Any]) -> Context | None:
    """Return the context in which a task runs."""
    if sys.version_info >= (3, 12):
        return task.get_context()
    found = (one for one in gc.get_referents(task) if isinstance(one, Context))
    return next(found, None)  # the task's own; CPython 3.11 has no other way to read it


def is_alive(key: Any) -> bool:
    """Return whether a task or thread has not ended."""
    return key.is_alive() if isinstance(key, threading.Thread) else root_of(key) is not None


def root_of(key: object) -> FrameType | None:
    """Return the outermost frame of a task that has not ended."""
    coro = key.get_coro() if hasattr(key, "get_coro") else getattr(key, "coro", None)
    found: FrameType | None = getattr(coro, "cr_frame", None)
    return found
