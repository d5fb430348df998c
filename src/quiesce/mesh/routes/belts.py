"""A belt: what one queue carries of hops, and who works on it.

An item that a hop puts holds that hop until the work on it is over. The task or thread that takes it, its *taker*,
works for the hop meanwhile: what the taker sends is sent for the hop. A queue does not tell when that work is over.
These things do, whichever comes first:

1. The taker has called `task_done()` for all items that it has: it need not work on them in the order in which it took
   them. If it did so in the very step in which it took the item, or in a thread, its work may come after that: then the
   item is over when it asks for more. That is an assumption if it seems to collect a batch.
2. The taker has ended. If it returned the item, another task may work on it: then the hop records that.
3. The taker asks the queue for more, does not collect a batch (see `batches`), and does not use `task_done()`. That is
   an assumption, and the hop's receipt names it (`Hop.assume`).

All puts and takes of a queue are recorded from the first that a hop makes, so that equal items are told apart.
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
_NOBODY: WeakKeyDictionary[Any, Waits] = WeakKeyDictionary()
_BEING_PUT_MAX = 64  # items that threads have recorded, and not yet put


class Belt:
    """What one queue carries of hops."""

    __slots__ = (
        "__weakref__",
        "_along",
        "_backend",
        "_waiting",
        "counted",
        "is_early",
        "is_pool",
        "is_signal",
        "is_stack",
        "kind",
        "puts",
        "workers",
    )

    def __init__(
        self,
        kind: str,
        present: Iterable[object] = (),
        *,
        is_stack: bool = False,
        is_signal: bool = False,
    ) -> None:
        """Begin to record.

        Args:
            kind: What the queue is called.
            present: The items that are in it, which no hop has put.
            is_stack: Whether the newest item is taken first.
            is_signal: Whether it is an event, which does not say what there is to do.
        """
        self.is_signal: bool = is_signal
        self.kind: str = kind
        self.workers: WeakKeyDictionary[Any, Waits] = _NOBODY
        """Of an event: the workers that have waited for it."""
        self.is_stack: bool = is_stack
        self.counted: bool = False
        """Whether the program says when it is done with an item."""
        self.is_early: bool = False
        """Whether it may say so before the work."""
        self.is_pool: bool = False
        """Whether its items are no jobs: they are taken, used and given back."""
        self.puts: int = 0
        """How many items were put."""
        self._backend: Any = None  # of the hops that have put something
        self._waiting: dict[int, deque[Parcel]] = {}
        self._along: dict[int, list[Parcel]] = {}  # what was merged with an item that waits
        for item in present:
            self.put(item, None, None)

    # Putting.

    def put(
        self, item: object, hop: Hop | None, frame: FrameType | None, place: Site | None = None
    ) -> Parcel:
        """Record an item before anybody can take it, and hold the hop that puts it; see `Item` for its place."""
        hold = None if hop is None else Item(self, hop, frame, place)
        self._backend = self._backend if hop is None else hop._backend
        parcel = Parcel(self, item, hold)
        with lock:
            self.puts += 1
            self._waiting.setdefault(id(item), deque()).append(parcel)
        return parcel

    def has(self, item: object, hop: Hop) -> bool:
        """Return whether an item of this hop waits to be taken."""
        with lock:
            return any(
                parcel.hold is not None and parcel.hold.hop is hop
                for parcel in self._waiting.get(id(item), ())
            )

    def waiting(self) -> list[Parcel]:
        """Return all that waits to be taken."""
        with lock:
            every = (*self._waiting.values(), *self._along.values())
            return [parcel for parcels in every for parcel in parcels]

    def withdraw(self, parcel: Parcel) -> None:
        """Release the hop of an item that the queue did not accept."""
        if self._pick(parcel.item, parcel) is not None and parcel.hold is not None:
            parcel.hold.release()

    def keep_only(self, entries: list[Any], newest: Parcel) -> None:
        """Release the items that are not in the entries of the queue: it has dropped them.

        An entry is an item, or a tuple or list with an item in it. If it is neither, the queue keeps something else
        than what was put, and nothing is known of any item. If the newest item is equal to one that is kept, the queue
        has merged them, and the work on that one is for both. So it is if an object was put more often than it is kept.
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
            release_all(() if key in kept else self._along.pop(key, ()))

    def keep_present(self, entries: list[Any]) -> None:
        """Forget the items of no hop that are not in the queue any more: code has removed them from its inside."""
        present = {id(entry) for entry in entries}
        present |= {id(part) for one in entries if isinstance(one, tuple | list) for part in one}
        with lock:
            old = [
                one for one in self.waiting() if one.hold is None and id(one.item) not in present
            ]
        for parcel in old[:-_BEING_PUT_MAX]:
            self._pick(parcel.item, parcel)

    def _merge(self, parcel: Parcel, item: object) -> None:
        """Record that an item is taken together with the last of those that are this object."""
        if self._pick(parcel.item, parcel) is not None and parcel.hold is not None:
            parcel.item = item
            with lock:
                self._along.setdefault(id(item), []).append(parcel)

    def _pick(self, item: object, wanted: Parcel | None = None) -> Parcel | None:
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
        """Return all that waits to be taken, and forget it; its hops are not released."""
        with lock:
            left = self.waiting()
            self._waiting.clear()
            self._along.clear()
        return left

    def forget_waiting(self) -> None:
        """Release the items that nobody has taken, and nobody will."""
        release_all(self.take_waiting())

    def is_known_as_pool(self) -> None:
        """Release all that the queue carries, now and later: a connection has come back."""
        self.is_pool = True
        self.forget_waiting()
        for taker in list(takers.values()):
            self._leave(taker, [one for one in taker.parcels if one.belt is self])

    # Taking.

    def took(self, item: object, key: object, frame: FrameType | None) -> Hop | None:
        """Start the work of a taker for the hop of an item that it took. Return the hop; None if no hop has put it.

        The taker is what runs, or a task for which another one has taken the item.
        """
        parcel = self._pick(item)
        if parcel is None:
            parcel = Parcel(self, item, None)
        origin = self._takes(parcel, key, frame)
        with lock:
            along = [] if id(item) in self._waiting else self._along.pop(id(item), [])
        for one in along:
            one.host = parcel
            origin = self._takes(one, key, frame) or origin
        return origin

    def _takes(self, parcel: Parcel, key: object, frame: FrameType | None) -> Hop | None:
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
            self._begun(parcel, taker, frame)
        if is_running:
            taker.work()
        elif hold is not None:
            work_elsewhere(taker)
        return None if hold is None else hold.hop

    def _begun(self, parcel: Parcel, taker: Taker, frame: FrameType | None) -> None:
        hold = parcel.hold
        assert hold is not None  # noqa: S101 - it is an item of a hop
        hop = hold.hop
        hold._name = f"taken from {self.kind}"
        parcel.at = None if frame is None else (frame.f_code, frame.f_lineno)
        if hop._backend.here():
            hold.worked_on_by(taker.key)
        if not self.counted:
            parcel.place = _place(frame)
        if self.is_early or not self.counted:
            frames = frames_of(taker.key, frame)
            parcel.before = batches.sizes(frames)
            parcel.variables = batches.variables(frames, parcel.item)
        parcel.others = frozenset(hop._holds)

    def _is_covered(self, hop: Hop, key: object) -> bool:
        """Return whether the taker is a task of the hop, which is held by itself."""
        if key is None or not hop._backend.here():
            return False
        return two_hops.is_task_of(hop, key) and getattr(current.get(), "_errand", None) is hop

    def asks(
        self, key: object, queue: object, frame: FrameType | None, *, is_look: bool = False
    ) -> None:
        """Release what the running taker has worked on, now that it asks for more (3).

        That is what it has taken from this queue; and from queues that it has taken from later than from this one,
        which it uses in the course of its work. If it only looks whether there is more, it takes nothing there.
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
        self._leave_worked_on(taker, found, queue, frame, is_look=is_look)

    def asked_ahead(
        self, key: object, queue: object, before: list[Parcel], *, is_waited_for: bool
    ) -> None:
        """Release what a taker has worked on that had another task ask for it.

        Args:
            key: The taker.
            queue: What it asked.
            before: What it had then.
            is_waited_for: Whether it waits for that task. If not, it may have begun with the newest item only then.
        """
        taker = takers.get(key)
        if taker is not None:
            mine = [one for one in before if one.belt is self and one in taker.parcels]
            self._leave_worked_on(taker, mine if is_waited_for else mine[:-1], queue, None)

    def _leave_worked_on(
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
            self._leave(taker, found)
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
            frames, hopped[0].before, [parcel.item for parcel in hopped]
        )
        if collects:
            over = [parcel for parcel in over if parcel.hold is None or parcel.is_done]
        for parcel in over:  # of which it has said so at once
            parcel.is_early = collects or batches.reads_item_later(
                frames, parcel.item, parcel.variables
            )
        own = (one for one in frames if not libraries.is_housekeeper(one))
        assume_done(over, frame or next(own, None))
        self._leave(taker, over)

    def _is_kept(
        self, taker: Taker, parcel: Parcel, frames: list[FrameType], place: Place | None
    ) -> bool:
        """Return whether the taker has an item itself at hand, when it asks for another."""
        return (
            _is_later_in_line(parcel.place, place)
            or batches.reads_item_later(frames, parcel.item, parcel.variables)
            or (not taker.has_turned and batches.makes_comprehension(frames, parcel.item))
        )

    def joined(self, key: object, *, is_woken: bool) -> None:
        """Start the work of a worker for all hops that have set its event; other workers may be woken, too.

        Args:
            key: The worker: what runs, or a task of the running event loop.
            is_woken: Whether it has waited. If not, it was at work when a hop has set the event.
        """
        for waiting in self.waiting():
            taker = takers.get(key)
            hold = waiting.hold
            mine = [] if taker is None or hold is None else taker.of(hold.hop, self)
            if hold is None or mine or is_driver(key, hold.hop):
                for parcel in mine:
                    parcel.is_direct |= is_woken
                continue
            own = Parcel(self, waiting.item, Item(self, hold.hop, None, (hold._code, hold._offset)))
            taker = taker_of(key, self._backend)
            own.is_direct = is_woken
            taker.is_worker = True
            taker.took(own)
            self._begun(own, taker, None)
            if isinstance(key, Thread) or key is running_taker():
                taker.work()
            else:
                work_elsewhere(taker)

    def idle(self, key: object, frame: FrameType | None) -> None:
        """Release all that a taker has of this queue: it waits for more, and collects nothing."""
        taker = takers.get(key)
        if taker is not None:
            over = [one for one in taker.parcels if one.belt is self]
            assume_done(over, frame)
            self._leave(taker, over)

    def done(self, key: object, unfinished: int | None) -> None:
        """Release the item that the caller of `task_done()` has worked on (1).

        If the caller has none, it works on what another has taken: an item of the hop that it works for.
        """
        self.counted = True
        hop = getattr(current.get(), "_errand", None)
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
        is_cut = isinstance(sys.exc_info()[1], CancelledError)  # it is said in a `finally`
        for taker, parcel in found[:1]:
            if is_cut and parcel.hold is not None:
                parcel.hold.hop._cut_unheard()
            self._said_done(taker, parcel, is_takers=taker is mine)
        if unfinished == 0:
            for taker in list(takers.values()):
                over = [one for one in taker.parcels if one.belt is self and not one.is_done]
                self._leave(taker, over)

    def _said_done(self, taker: Taker, parcel: Parcel, *, is_takers: bool) -> None:
        if not is_takers:
            self._leave(taker, [parcel])
            return
        for one in taker.parcels:
            one.is_done = one.is_done or one is parcel or one.host is parcel
        mine = [one for one in taker.parcels if one.belt is self]
        if parcel.hold is None and not any(one.hold is not None for one in mine):
            self._leave(taker, [parcel])
        elif taker.has_turned and all(one.is_done for one in mine):
            self._leave(taker, mine)
        else:  # its work may come after this, in the same step or in a thread; or this was said of another item
            self.is_early = True

    def _leave(self, taker: Taker, over: list[Parcel]) -> None:
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
    except Exception:  # noqa: BLE001 - of the program's own class
        return False


def assume_done(over: list[Parcel], frame: FrameType | None) -> None:
    """Record in the hops of items that these are taken to be done, because their taker asks for more.

    Of the loops of well-known libraries that is known, and not assumed.
    """
    for parcel in () if libraries.is_relay(frame) else over:
        if parcel.hold is not None and (parcel.is_early or not parcel.is_done):
            parcel.hold.hop.assume(
                f"assumes that a worker was done with an item from {parcel.belt.kind} when it asked for more"
                f" at {frame_place(frame)}"
            )


def _place(frame: FrameType | None) -> Place | None:
    if frame is None:
        return None
    # By its columns: the compiler may have written one call down twice.
    found = next(islice(frame.f_code.co_positions(), frame.f_lasti // 2, None), (None,) * 4)
    return frame.f_code, frame.f_lineno, found[2:]


def _is_later_in_line(one: Place | None, other: Place | None) -> bool:
    """Return whether a call comes after another in a line of code, as in `work(await q.get(), await q.get())`."""
    if one is None or other is None or one[:2] != other[:2] or None in (*one[2], *other[2]):
        return False
    return one[2] < other[2]
