"""Early sets: a hop sets an event, or notifies a condition, that nobody waits for, and that no worker has waited for.

It may be a flag. But a worker may come later, find it set, and do the job of the hop. If a worker comes while the hop is
open, it works for the hop. If none has come when the hop ends, the hop records what it assumes. An event that is gone by
then was the hop's own, and one that other code has waited for is a signal: they say nothing of a worker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, finalize

from quiesce.core.callsites import Callsite, describe
from quiesce.core.libraries import is_housekeeper
from quiesce.core.tree import current, logger
from quiesce.mesh.routes import waits_once
from quiesce.mesh.routes.following import hop_behind, is_declared_service
from quiesce.mesh.routes.takers import lock

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from quiesce.mesh.runtime.hop import Hop

__all__: list[str] = []

_AROUND = frozenset({
    ("anyio._backends._asyncio", "set"), ("asyncio.locks", "notify_all"), ("threading", "notify_all"),
})  # fmt: skip
_EVENTS_MAX = 64  # of one hop


class EarlySet:
    """An event that hops have set before a worker has waited for it."""

    __slots__ = ("hops", "kind", "told")

    def __init__(self, kind: str) -> None:
        self.kind: str = kind
        self.hops: dict[Hop, Callsite] = {}  # those that are open, and where each has set it
        self.told: str = ""  # what the last of them that has ended has assumed


_of_events: dict[int, EarlySet] = {}
of_hops: WeakKeyDictionary[Hop, set[int]] = WeakKeyDictionary()
"""By hop, the ids of the events that it has set early."""


def note(event: Any, kind_of: Callable[[Any], str], frame: FrameType | None) -> None:
    """Record that the running code sets an event that no worker has waited for, if that is the code of a hop."""
    while frame is not None and (frame.f_globals.get("__name__"), frame.f_code.co_name) in _AROUND:
        frame = frame.f_back
    if frame is None or is_housekeeper(
        frame
    ):  # first: a client of HTTP sets three for each request
        return
    hop = hop_behind(current.get())
    waits = getattr(getattr(event, "_cond", event), "_waiters", None)
    if hop is None or (waits and id(event) not in waits_once.of_events):
        return  # what waits now is a library's
    if is_declared_service(hop, frame):
        return
    if waits:
        waits_once.tell(event, kind_of(event), hop, frame)
        return
    with lock:
        mine = of_hops.setdefault(hop, set())
        if len(mine) >= _EVENTS_MAX:
            return
        if id(event) not in _of_events:
            _of_events[id(event)] = EarlySet(kind_of(event))
            finalize(event, _of_events.pop, id(event), None).atexit = False
        mine.add(id(event))
        _of_events[id(event)].hops[hop] = Callsite(frame.f_code, frame.f_lasti)


def is_signal(event: Any) -> None:
    """Forget who has set an event: what waits for it is not a worker."""
    with lock:
        _of_events.pop(id(event), None)


def found_by_worker(event: Any) -> dict[Hop, Callsite]:
    """Return the hops that have set an event which a worker finds set, and that are open, each with the place.

    A hop that has ended before cannot be held any more: the log says so.
    """
    with lock:
        early = _of_events.get(id(event))
        if early is None:
            return {}
        told, early.told = early.told, ""
        found = {hop: place for hop, place in early.hops.items() if hop_behind(hop) is not None}
    if told:
        logger.warning("a worker has found an event set by a hop that had ended, which %s", told)
    return found


def is_held(event: Any, hop: Hop) -> None:
    """Record that a worker works for a hop that has set an event early; after what holds the hop has reached its loop."""
    if not hop._backend.here():
        hop._backend.post(is_held, event, hop)
        return
    with lock:
        early = _of_events.get(id(event))
        if early is not None:
            early.hops.pop(hop, None)


def tell_end(hop: Hop) -> None:
    """Record in a hop that ends which events it has set that no worker has found."""
    with lock:
        for number in of_hops.pop(hop, ()):
            early = _of_events.get(number)
            place = None if early is None else early.hops.pop(hop, None)
            if early is not None and place is not None:
                early.told = (
                    f"assumes that no worker has something to do for {early.kind}, set at {describe(*place)} before a"
                    " worker had waited for it"
                )
                hop.assume(early.told)
