"""A belt: the items of hops in one queue, and the tasks and threads that work on them.

An item that a hop puts holds that hop until the work on the item is over. The task or thread that takes the item, its
*taker*, works for the hop until then: the hop answers for every message that the taker sends. A queue does not say when
the work on an item is over. The first of these events ends it:

1. The taker has called `task_done()` for all its items, in any order. A taker that calls it in the same step as the
   take, or in a thread, may still work on the item afterwards. Then the work is over when the taker asks for more. That
   is an assumption if the taker seems to collect a batch.
2. The taker has ended. If it returned the item, another task may work on the item, and the hop records that.
3. The taker asks the queue for more, does not collect a batch (see `batches`), and does not use `task_done()`. That is
   an assumption, and the hop's receipt names it (`Hop.assume`).

From the first put by a hop on, a belt records every put and take of its queue, so that equal items stay distinct.
"""

from __future__ import annotations

import sys
from asyncio import CancelledError
from collections import deque
from itertools import islice
from threading import Thread
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from quiesce.core import libraries
from quiesce.core.tree import ScopeState, current
from quiesce.mesh.routes import batches, bytecode_flow, two_hops
from quiesce.mesh.routes.drivers import is_driver
from quiesce.mesh.routes.following import frame_place
from quiesce.mesh.routes.takers import (
    Item,
    Parcel,
    Taker,
    Waits,
    frames_of,
    lock,
    release_all,
    running_taker,
    taker_of,
    takers,
    tell_batch,
    work_elsewhere,
)

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import CodeType, FrameType

    from quiesce.mesh.routes.takers import Site
    from quiesce.mesh.runtime.hop import Hop

    Place = tuple[CodeType, int, tuple[int | None, ...]]

__all__: list[str] = []

_CLOSED = ScopeState.CLOSED
_NO_WORKERS: WeakKeyDictionary[Any, Waits] = WeakKeyDictionary()
_BEING_PUT_MAX = 64  # items that threads have recorded, and not yet put


class Belt:
    """The record of one queue: its items, which hop put each, and who works on them."""

    __slots__ = (
        "__weakref__", "_backend", "_merged", "_waiting", "counted", "is_done_early", "is_pool",
        "is_signal", "is_stack", "kind", "puts", "workers",
    )  # fmt: skip

    def __init__(
        self,
        kind: str,
        present: Iterable[object] = (),
        *,
        is_stack: bool = False,
        is_signal: bool = False,
    ) -> None:
        """Start to record.

        Args:
            kind: The name of the queue's class, for messages.
            present: The items in the queue now. No hop has put them.
            is_stack: Whether the newest item is taken first.
            is_signal: Whether the queue is an event, which wakes a worker without naming its job.
        """
        self.is_signal: bool = is_signal
        self.kind: str = kind
        self.workers: WeakKeyDictionary[Any, Waits] = _NO_WORKERS
        """The workers that have waited for the event, if the queue is an event."""
        self.is_stack: bool = is_stack
        self.counted: bool = False
        """Whether the program calls `task_done()` on the queue."""
        self.is_done_early: bool = False
        """Whether the program may call `task_done()` before it has worked on the item."""
        self.is_pool: bool = False
        """Whether the queue is a pool: its items are not jobs, but are taken, used and put back."""
        self.puts: int = 0
        """The number of items that were put."""
        self._backend: Any = None  # of the hops that have put something
        self._waiting: dict[int, deque[Parcel]] = {}
        self._merged: dict[int, list[Parcel]] = {}  # items merged with a waiting item
        for item in present:
            self.put(item, None, None)

    # Putting.

    def put(
        self, item: object, hop: Hop | None, frame: FrameType | None, place: Site | None = None
    ) -> Parcel:
        """Record an item before it can be taken, and hold the hop that puts it; see `Item` for `place`."""
        hold = None if hop is None else Item(self, hop, frame, place)
        self._backend = self._backend if hop is None else hop.backend
        parcel = Parcel(self, item, hold)
        with lock:
            self.puts += 1
            self._waiting.setdefault(id(item), deque()).append(parcel)
        return parcel

    def has_waiting(self, item: object, hop: Hop) -> bool:
        """Return whether this item waits to be taken, put by this hop."""
        with lock:
            return any(
                parcel.hold is not None and parcel.hold.hop is hop
                for parcel in self._waiting.get(id(item), ())
            )

    def waiting(self) -> list[Parcel]:
        """Return the items that wait to be taken."""
        with lock:
            every = (*self._waiting.values(), *self._merged.values())
            return [parcel for parcels in every for parcel in parcels]

    def withdraw(self, parcel: Parcel) -> None:
        """Release the hop of an item that the queue did not accept."""
        if self._remove_waiting(parcel.item, parcel) is not None and parcel.hold is not None:
            parcel.hold.release()

    def release_dropped(self, entries: list[Any], newest: Parcel) -> None:
        """Release the items that the queue has dropped: they are not in its entries.

        An entry is an item, or a tuple or list that contains an item. Another kind of entry means that the queue stores
        its items in a form of its own, and this method releases nothing. If the newest item equals a kept item, the queue
        has merged the two, and the work on the kept item counts for both. The same holds for an object that was put more
        often than the queue keeps it.
        """
        with lock:
            left = {key: list(parcels) for key, parcels in self._waiting.items()}
        kept: dict[int, object] = {}
        for entry in entries:
            parts = (entry, *entry) if isinstance(entry, tuple | list) else (entry,)
            parcels = next((found for part in parts if (found := left.get(id(part)))), None)
            if parcels is None:
                return
            item = parcels.pop(0).item
            kept[id(item)] = item
        for key, parcels in left.items():
            for parcel in parcels:
                same = [kept[key]] if key in kept else []
                if parcel is newest and not same:
                    same = [item for item in kept.values() if _is_equal(item, parcel.item)]
                if same:
                    self._merge(parcel, same[0])
                else:
                    self.withdraw(parcel)
            release_all(() if key in kept else self._merged.pop(key, ()))

    def forget_removed(self, entries: list[Any]) -> None:
        """Forget items that no hop put and that code has removed from inside the queue, without a take."""
        present = {id(entry) for entry in entries}
        present |= {id(part) for one in entries if isinstance(one, tuple | list) for part in one}
        with lock:
            old = [
                one for one in self.waiting() if one.hold is None and id(one.item) not in present
            ]
        for parcel in old[:-_BEING_PUT_MAX]:
            self._remove_waiting(parcel.item, parcel)

    def _merge(self, parcel: Parcel, item: object) -> None:
        """Record that an item will be taken together with the last put of the object `item`."""
        if self._remove_waiting(parcel.item, parcel) is not None and parcel.hold is not None:
            parcel.item = item
            with lock:
                self._merged.setdefault(id(item), []).append(parcel)

    def _remove_waiting(self, item: object, wanted: Parcel | None = None) -> Parcel | None:
        with lock:
            waiting = self._waiting.get(id(item))
            if waiting is None or (wanted is not None and wanted not in waiting):
                return None
            parcel = wanted or waiting[-1 if self.is_stack else 0]
            waiting.remove(parcel)
            if not waiting:
                del self._waiting[id(item)]
            return parcel

    def take_waiting(self) -> list[Parcel]:
        """Remove and return the items that wait to be taken, without releasing their hops."""
        with lock:
            left = self.waiting()
            self._waiting.clear()
            self._merged.clear()
        return left

    def release_waiting(self) -> None:
        """Release the items that wait to be taken, and never will be."""
        release_all(self.take_waiting())

    def become_pool(self) -> None:
        """Release all items of the queue, and hold no hop for later ones: the queue is a pool of connections."""
        self.is_pool = True
        self.release_waiting()
        for taker in list(takers.values()):
            self._release_parcels(taker, [one for one in taker.parcels if one.belt is self])

    # Taking.

    def on_take(self, item: object, key: object, frame: FrameType | None) -> Hop | None:
        """Start a taker's work for the hop of the item it took. Return the hop; None if no hop put the item.

        The taker is the running task or thread, or a task for which the running task has taken the item.
        """
        parcel = self._remove_waiting(item)
        if parcel is None:
            parcel = Parcel(self, item, None)
        origin = self._start_work(parcel, key, frame)
        with lock:
            merged = [] if id(item) in self._waiting else self._merged.pop(id(item), [])
        for one in merged:
            one.host = parcel
            origin = self._start_work(one, key, frame) or origin
        return origin

    def _start_work(self, parcel: Parcel, key: object, frame: FrameType | None) -> Hop | None:
        """Start a taker's work on one parcel, unless the hop already waits for the taker. Return the parcel's hop."""
        hold = parcel.hold
        if hold is not None and self._is_covered(hold.hop, key):
            hold.release()
            return hold.hop
        taker = taker_of(key, self._backend)
        is_running = key is running_taker()
        parcel.is_direct = is_running
        if hold is not None and not taker.is_worker:
            taker.is_worker = two_hops.is_worker(key, frames_of(key, frame))
        taker.took(parcel)
        if hold is not None:
            self._record_take(parcel, taker, frame)
        if is_running:
            taker.work()
        elif hold is not None:
            work_elsewhere(taker)
        return None if hold is None else hold.hop

    def _record_take(self, parcel: Parcel, taker: Taker, frame: FrameType | None) -> None:
        """Record where a hop's item was taken, and what the taker had then, to judge later whether it is done."""
        hold = parcel.hold
        assert hold is not None  # noqa: S101 - it is an item of a hop
        hop = hold.hop
        hold.name_given = f"taken from {self.kind}"
        parcel.taken_at = None if frame is None else (frame.f_code, frame.f_lineno)
        if hop.backend.here():
            hold.worked_on_by(taker.key)
        if not self.counted:
            parcel.place = _place(frame)
        if self.is_done_early or not self.counted:
            frames = frames_of(taker.key, frame)
            parcel.sizes_before = batches.sizes(frames)
            parcel.variables = batches.variables(frames, parcel.item)
        parcel.held_before = frozenset(hop.holds)

    def _is_covered(self, hop: Hop, key: object) -> bool:
        """Return whether the taker is a task of the hop, which the hop already waits for."""
        if key is None or not hop.backend.here():
            return False
        return two_hops.is_task_of(hop, key) and getattr(current.get(), "hop_served", None) is hop

    def on_ask(
        self, key: object, queue: object, frame: FrameType | None, *, is_look: bool = False
    ) -> None:
        """Release the items that the running taker has worked on, now that it asks this queue for more (3).

        These are its items from this queue, and its items from queues that it first used after this one: it uses those
        queues in the course of its work. `is_look` says that the taker only checks whether the queue has more.
        """
        taker = takers.get(key)
        if taker is None or not taker.parcels:
            return
        first = taker.first
        found = [
            one
            for one in taker.parcels
            if one.belt is self
            or (one.is_direct and self in first and first[self] < first[one.belt])
        ]
        self._release_worked_on(taker, found, queue, frame, is_look=is_look)

    def on_ask_ahead(
        self, key: object, queue: object, before: list[Parcel], *, is_waited_for: bool
    ) -> None:
        """Release the items that a taker has worked on, now that another task asks the queue on its behalf.

        Args:
            key: The taker.
            queue: The queue that is asked.
            before: The taker's items at the time of the request.
            is_waited_for: Whether the taker waits for the other task. If not, it may still work on its newest item.
        """
        taker = takers.get(key)
        if taker is not None:
            mine = [one for one in before if one.belt is self and one in taker.parcels]
            self._release_worked_on(taker, mine if is_waited_for else mine[:-1], queue, None)

    def _release_worked_on(
        self,
        taker: Taker,
        found: list[Parcel],
        queue: object,
        frame: FrameType | None,
        *,
        is_look: bool = False,
    ) -> None:
        hopped = [parcel for parcel in found if parcel.hold is not None]
        if not hopped:
            self._release_parcels(taker, found)
            return
        frames = frames_of(taker.key, frame)
        counts = not self.counted and any(
            bytecode_flow.is_called_on(one, "task_done", queue) for one in frames
        )
        place = None if is_look else _place(frame)
        over = [
            parcel
            for parcel in found
            if (
                parcel.is_done
                if parcel.belt.counted or (counts and parcel.belt is self)
                else parcel.hold is None or not self._is_kept(taker, parcel, frames, place)
            )
        ]
        collects = any(parcel.hold is not None for parcel in over) and batches.is_collecting(
            frames, hopped[0].sizes_before, [parcel.item for parcel in hopped]
        )
        if collects:
            over = [parcel for parcel in over if parcel.hold is None or parcel.is_done]
        for parcel in over:  # `task_done()` may have come before the work
            parcel.is_early = collects or batches.reads_item_later(
                frames, parcel.item, parcel.variables
            )
        own = (one for one in frames if not libraries.is_housekeeper(one))
        assume_done(over, frame or next(own, None))
        self._release_parcels(taker, over)

    def _is_kept(
        self, taker: Taker, parcel: Parcel, frames: list[FrameType], place: Place | None
    ) -> bool:
        """Return whether the taker's code still has an item at hand when it asks for another."""
        return (
            _is_later_in_line(parcel.place, place)
            or batches.reads_item_later(frames, parcel.item, parcel.variables)
            or (not taker.has_turned and batches.makes_comprehension(frames, parcel.item))
        )

    def on_join(self, key: object, *, is_woken: bool) -> None:
        """Start a worker's work for all hops that have set its event; other workers may be woken, too.

        Args:
            key: The worker: the running task or thread, or a task of the running event loop.
            is_woken: Whether the worker waited for the event. If not, it was at work when a hop set the event.
        """
        for waiting in self.waiting():
            taker = takers.get(key)
            hold = waiting.hold
            mine = [] if taker is None or hold is None else taker.of(hold.hop, self)
            if hold is None or mine or is_driver(key, hold.hop):
                for parcel in mine:
                    parcel.is_direct |= is_woken
                continue
            own = Parcel(
                self, waiting.item, Item(self, hold.hop, None, (hold.place_code, hold.place_offset))
            )
            taker = taker_of(key, self._backend)
            own.is_direct = is_woken
            taker.is_worker = True
            taker.took(own)
            self._record_take(own, taker, None)
            if isinstance(key, Thread) or key is running_taker():
                taker.work()
            else:
                work_elsewhere(taker)

    def on_idle(self, key: object) -> None:
        """Release the items of this belt that a waiting taker has. Their hops record an assumption when all takers wait."""
        taker = takers.get(key)
        if taker is not None:
            over = [one for one in taker.parcels if one.belt is self]
            self._release_parcels(taker, over)

    def on_task_done(self, key: object, unfinished: int | None) -> None:
        """Release the item that the caller of `task_done()` has worked on (1).

        A caller that has not taken an item works on an item of its hop that another taker took.
        """
        self.counted = True
        hop = getattr(current.get(), "hop_served", None)
        with lock:
            mine = takers.get(key)
            everyones = [mine] if mine is not None else list(takers.values())
            found = [
                (taker, parcel)
                for taker in everyones
                for parcel in taker.parcels
                if parcel.belt is self and not parcel.is_done
            ]
            if mine is None or not found:
                found = [
                    (taker, parcel)
                    for taker in takers.values()
                    for parcel in taker.parcels
                    if parcel.belt is self
                    and not parcel.is_done
                    and (None if parcel.hold is None else parcel.hold.hop) is hop
                ]
        is_cut = isinstance(sys.exc_info()[1], CancelledError)  # a `finally` calls task_done()
        for taker, parcel in found[:1]:
            if is_cut and parcel.hold is not None:
                parcel.hold.hop.note_cut_unheard()
            self._mark_done(taker, parcel, is_takers=taker is mine)
        if unfinished == 0:
            for taker in list(takers.values()):
                over = [one for one in taker.parcels if one.belt is self and not one.is_done]
                self._release_parcels(taker, over)

    def _mark_done(self, taker: Taker, parcel: Parcel, *, is_takers: bool) -> None:
        """Record a `task_done()` for a parcel, and release the taker's parcels if that is certain to end their work."""
        if not is_takers:
            self._release_parcels(taker, [parcel])
            return
        for one in taker.parcels:
            one.is_done = one.is_done or one is parcel or one.host is parcel
        mine = [one for one in taker.parcels if one.belt is self]
        if parcel.hold is None and not any(one.hold is not None for one in mine):
            self._release_parcels(taker, [parcel])
        elif taker.has_turned and all(one.is_done for one in mine):
            self._release_parcels(taker, mine)
        else:  # the work may follow in the same step or in a thread, or the call was for another item
            self.is_done_early = True

    def _release_parcels(self, taker: Taker, over: list[Parcel]) -> None:
        if not over:
            return
        hops = taker.all_hops()
        with lock:
            taker.parcels = [parcel for parcel in taker.parcels if parcel not in over]
        if taker.key is running_taker():
            taker.work()
        elif any(parcel.hold is not None for parcel in over):
            work_elsewhere(taker)
        if len(hops) > 1:
            tell_batch(taker, hops)
        release_all(over)


def _is_equal(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except Exception:  # noqa: BLE001 - the program's `__eq__` may raise anything
        return False


def assume_done(over: list[Parcel], frame: FrameType | None) -> None:
    """Record in the hops of these items that each item is assumed done, because its taker asks for more.

    The loops of well-known libraries are known to be done then, so nothing is recorded for them.
    """
    for parcel in () if libraries.is_relay(frame) else over:
        if parcel.hold is not None and (parcel.is_early or not parcel.is_done):
            is_signal, kind = parcel.belt.is_signal, parcel.belt.kind
            what = f"what {kind} woke it for" if is_signal else f"an item from {kind}"
            when = "waited again" if is_signal else "asked for more"
            place = frame_place(frame)
            parcel.hold.hop.assume(
                f"assumes that a worker was done with {what} when it {when} at {place}"
            )


def _place(frame: FrameType | None) -> Place | None:
    if frame is None:
        return None
    # Compare columns, because the compiler may emit the bytecode of one call twice.
    found = next(islice(frame.f_code.co_positions(), frame.f_lasti // 2, None), (None,) * 4)
    return frame.f_code, frame.f_lineno, found[2:]


def _is_later_in_line(one: Place | None, other: Place | None) -> bool:
    """Return whether `other` is a later call in the same line, as in `work(await q.get(), await q.get())`."""
    if one is None or other is None or one[:2] != other[:2] or None in (*one[2], *other[2]):
        return False
    return one[2] < other[2]
