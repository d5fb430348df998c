"""A belt: what one queue carries of hops, and the tasks that work on it.

An item that is put by a hop holds that hop until the work on it is over. The task that takes it works for the hop
meanwhile: what it sends is sent for the hop. Queues do not tell when that work is over; these things do, whichever
comes first:

1. The taker calls `task_done()`.
2. The taker ends.
3. The taker asks for more, and has waited for something other than the queue since it took the item.
4. The taker asks for more, and has not put the item into a list, a set or a dictionary of its own.
5. The taker asks for more, and has started something else for the hop, like a task that works on the item.
6. The taker asks for more at the line where it took its first item, after it has asked at other lines.

A taker that collects several items before it works on them (a batch) meets none of these between two of them, so
it has all of them until its work on the batch is over. A taker that works for the hop already, as one of its tasks
or on an item of another queue, has nothing more to hold: what holds the hop there ends after this. (A program reads
the last item of a queue, and never asks that queue again.)
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from quiesce.core.node import State, current
from quiesce.mesh.routes.following import Followed

if TYPE_CHECKING:
    from types import CodeType, FrameType

    from quiesce.core.node import Node
    from quiesce.mesh.hop import Hop

    Site = tuple[CodeType, int] | None

__all__: list[str] = []

_LOOKED_AT = 10_000  # items of one list
_CLOSED = State.CLOSED
GETTERS: set[object] = set()
"""The code of what `create_task(queue.get())` runs: such a task ends at once, and another works on the item."""


class Parcel:
    """An item of a hop, from when it was put until the work on it is over."""

    __slots__ = ("has_waited", "hold", "item", "others", "site")

    def __init__(self, item: object, hold: Followed) -> None:
        self.item: object = item
        self.hold: Followed = hold
        self.site: Site = None
        self.has_waited: bool = False
        self.others: int = 0  # what the hop held when the item was taken

    def has_turned(self) -> None:
        """Record that the taker has waited for something (3)."""
        self.has_waited = True

    def is_collected(self, frame: FrameType | None) -> bool:
        """Tell whether the taker has put the item into a list, a set or a dictionary of its own (4)."""
        if frame is None:
            return False
        found = frame.f_locals
        places = [*found.values(), *getattr(found.get("self"), "__dict__", {}).values()]
        return any(
            one is self.item
            for place in places
            if isinstance(place, list | set | tuple | deque | dict)
            for one in islice(place.values() if isinstance(place, dict) else place, _LOOKED_AT)
        )


class Taker:
    """A task or thread that has taken items."""

    __slots__ = ("last_site", "outer", "parcels")

    def __init__(self, outer: Node | None) -> None:
        self.parcels: list[Parcel] = []
        self.outer: Node | None = outer
        self.last_site: Site = None


class Belt:
    """What one queue carries of hops."""

    __slots__ = ("_lock", "_parcels", "_takers", "just_took", "kind")

    def __init__(self, kind: str) -> None:
        self.kind: str = kind
        self.just_took: tuple[object, int] | None = None
        self._lock = threading.Lock()  # for queues between threads; never held across a wait
        self._parcels: dict[int, deque[Parcel]] = {}
        self._takers: dict[object, Taker] = {}

    # Putting.

    def put(self, item: object, hop: Hop, frame: FrameType | None) -> Parcel:
        """Hold a hop for an item, before anybody can take it."""
        parcel = Parcel(item, Followed(hop, "item", f"in {self.kind}", frame))
        with self._lock:
            self._parcels.setdefault(id(item), deque()).append(parcel)
        return parcel

    def has(self, item: object, hop: Hop) -> bool:
        """Tell whether an item of this hop waits to be taken."""
        return any(parcel.hold.hop is hop for parcel in self._parcels.get(id(item), ()))

    def withdraw(self, parcel: Parcel) -> None:
        """Release the hop of an item that the queue did not accept."""
        if self._pick(parcel.item, parcel) is not None:
            parcel.hold.release()

    def _pick(self, item: object, wanted: Parcel | None = None) -> Parcel | None:
        with self._lock:
            waiting = self._parcels.get(id(item))
            if waiting is None or (wanted is not None and wanted not in waiting):
                return None
            parcel = wanted or waiting[0]
            waiting.remove(parcel)
            if not waiting:
                del self._parcels[id(item)]
            return parcel

    # Taking.

    def took(self, item: object, key: object, frame: FrameType | None) -> bool:
        """Have the running code work for the hop of the item that it took; False if no hop put it."""
        parcel = self._pick(item)
        if parcel is None:
            return False
        hold, hop = parcel.hold, parcel.hold.hop
        if self._is_covered(hop, key):
            hold.release()
            return True
        hold._name = f"taken from {self.kind}"
        with self._lock:
            taker = self._takers.get(key)
            if taker is None:
                taker = self._takers[key] = Taker(current.get())
                self._watch(hop, key)
            parcel.site = taker.last_site = _site(frame)
            taker.parcels.append(parcel)
        self._work_for(hop, parcel, key)
        parcel.others = len(hop._holds)
        if hop._backend.here():
            for one in taker.parcels:  # they were not worked on while it waited for this one
                one.has_waited = False
                hop._backend.soon(one.has_turned)
        return True

    def _is_covered(self, hop: Hop, key: object) -> bool:
        """Return whether the running task holds the hop by something other than items of this queue."""
        if key is None or not hop._backend.here():
            return False
        node: Node = getattr(key, "_node", hop)  # of its own tasks, in a scope below it perhaps
        held = (node if node._is_within(hop) else hop)._holds.get(key)
        if held is None or getattr(current.get(), "_errand", None) is not hop:
            return False
        if isinstance(key, asyncio.Task) and getattr(key.get_coro(), "cr_code", None) in GETTERS:
            return False
        taker = self._takers.get(key)
        return taker is None or all(parcel.hold is not held for parcel in taker.parcels)

    def _work_for(self, hop: Hop, parcel: Parcel, key: object) -> None:
        node = current.get()
        at_work = None if node is None else node._errand
        if at_work is hop:
            return
        if (
            at_work is None
            or at_work._state is _CLOSED
            or any(
                one.hold.hop is at_work for taker in [self._takers[key]] for one in taker.parcels
            )
        ):
            current.set(hop)
            if hop._backend.here():
                parcel.hold.worked_on_by(key)

    def _watch(self, hop: Hop, key: object) -> None:
        """Have what a taker has be released when it has ended (2)."""
        call = partial(self.finished, key)
        if hop._backend.here():
            hop._backend.watch(call)
        else:
            _ends.guard = Guard(call, getattr(_ends, "guard", None))

    def pass_on(self, key: object, other: object) -> None:
        """Record that a task took an item for another one, which has it now."""
        with self._lock:
            taker = self._takers.pop(key, None)
            if taker is None:
                return
            heir = self._takers.get(other)
            if heir is None:
                heir = self._takers[other] = Taker(None)
            heir.parcels += taker.parcels
            heir.last_site = taker.last_site
        for parcel in taker.parcels:
            parcel.has_waited = False
            parcel.hold.worked_on_by(other)

    def asks(self, key: object, frame: FrameType | None, *, is_idle: bool = False) -> None:
        """Release what the taker has worked on, now that it asks for more (3 to 6)."""
        taker = self._takers.get(key)
        if taker is None:
            return
        site, before = _site(frame), taker.last_site
        taker.last_site = site
        is_round = taker.parcels[0].site == site != before
        left = [
            parcel
            for parcel in taker.parcels
            if not (
                is_idle
                or is_round
                or parcel.has_waited
                or len(parcel.hold.hop._holds) > parcel.others
                or not parcel.is_collected(frame)
            )
        ]
        if len(left) < len(taker.parcels):
            self._leave(key, taker, left)

    def missed(self, key: object) -> None:
        """Record that the taker asked and got nothing: it works on what it has, and then asks again."""
        taker = self._takers.get(key)
        for parcel in () if taker is None else taker.parcels:
            backend = parcel.hold.hop._backend
            parcel.has_waited = (
                not backend.here()
            )  # of a thread nobody can tell: its batch is whole now
            if backend.here():
                backend.soon(parcel.has_turned)

    def done(self, key: object) -> None:
        """Release the oldest item that the taker has; or, if it has none, that any taker has (1)."""
        key = key if key in self._takers else next(iter(self._takers), None)
        taker = self._takers.get(key)
        if taker is not None:
            self._leave(key, taker, taker.parcels[1:])

    def _leave(self, key: object, taker: Taker, left: list[Parcel]) -> None:
        gone = [parcel for parcel in taker.parcels if parcel not in left]
        at_work = getattr(current.get(), "_errand", None)
        with self._lock:
            taker.parcels = left
            if not left:
                self._takers.pop(key, None)
        if any(parcel.hold.hop is at_work for parcel in gone):
            current.set(left[-1].hold.hop if left else taker.outer)
        for parcel in gone:
            parcel.hold.release()

    def dropped(self) -> None:
        """Release the items that are left in a queue that no program has any more: they are never taken."""
        with self._lock:
            left = [parcel for parcels in self._parcels.values() for parcel in parcels]
            self._parcels.clear()
        for parcel in left:
            parcel.hold.release()

    def finished(self, key: object) -> None:
        """Release all that a taker had, which has ended (2)."""
        with self._lock:
            taker = self._takers.pop(key, None)
        for parcel in () if taker is None else taker.parcels:
            parcel.hold.release()


class Guard:
    """Calls a function when the thread ends in which it is kept."""

    def __init__(self, call: partial[None], other: Guard | None) -> None:
        self._call = call
        self._other = other

    def __del__(self) -> None:
        """Call it: the thread's variables are dropped when it has ended."""
        self._call()


_ends = threading.local()


def _site(frame: FrameType | None) -> Site:
    return None if frame is None else (frame.f_code, frame.f_lineno)
