"""Early sets: a hop sets an event, or notifies a condition, for which no worker has waited yet.

The event may be a mere flag. But a worker may come later, find the event set, and do the job of the hop. A worker that
comes while the hop is open works for the hop. If no worker has come when the hop ends, the hop records the assumption
that there is none. Two kinds of event need no assumption: an event that no longer exists was the hop's own, and an event
for which other code has waited is a signal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import finalize

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
    """An event that hops have set before a worker has waited for the event."""

    __slots__ = ("assumption", "hops", "kind")

    def __init__(self, kind: str) -> None:
        self.kind: str = kind
        self.hops: dict[Hop, Callsite] = {}  # open hops, and where each has set the event
        self.assumption: str = ""  # the assumption of the hop that ended last


_of_events: dict[int, EarlySet] = {}
of_hops: dict[Hop, set[int]] = {}
"""By hop, until it ends, the ids of the events that it has set early."""


def note(event: Any, kind_of: Callable[[Any], str], frame: FrameType | None) -> None:
    """Record that the running code, if it works for a hop, sets an event for which no worker has waited."""
    while frame is not None and (frame.f_globals.get("__name__"), frame.f_code.co_name) in _AROUND:
        frame = frame.f_back
    # Check this first for speed: an HTTP client sets three events for each request.
    if frame is None or is_housekeeper(frame):
        return
    hop = hop_behind(current.get())
    waits = getattr(getattr(event, "_cond", event), "_waiters", None)
    if hop is None or (waits and id(event) not in waits_once.of_events):
        return  # only code of a library waits for the event
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


def is_noted(event: Any) -> bool:
    """Return whether a hop has set an event early."""
    return id(event) in _of_events


def is_signal(event: Any) -> None:
    """Forget which hops have set an event: the code that waits for the event is not a worker."""
    with lock:
        _of_events.pop(id(event), None)


def found_by_worker(event: Any) -> dict[Hop, Callsite]:
    """Return the open hops that have set an event, and where each did. A worker has just found the event set.

    A hop that has ended already cannot be held again. The log warns about it.
    """
    with lock:
        early = _of_events.get(id(event))
        if early is None:
            return {}
        assumption, early.assumption = early.assumption, ""
        found = {hop: place for hop, place in early.hops.items() if hop_behind(hop) is not None}
    if assumption:
        logger.warning(
            "a worker has found an event set by a hop that had ended, which %s. The"
            " verdict does not cover what this worker does now",
            assumption,
        )
    return found


def is_held(event: Any, hop: Hop) -> None:
    """Record that a worker works for a hop that set an event early. Runs in the hop's loop, after the worker's hold."""
    if not hop.backend.here():
        hop.backend.post(is_held, event, hop)
        return
    with lock:
        early = _of_events.get(id(event))
        if early is not None:
            early.hops.pop(hop, None)


def tell_end(hop: Hop) -> None:
    """Record the assumptions of an ending hop about the events that it set and that no worker has found."""
    with lock:
        for number in of_hops.pop(hop, ()):
            early = _of_events.get(number)
            place = None if early is None else early.hops.pop(hop, None)
            if early is not None and place is not None:
                early.assumption = (
                    f"assumes that no worker has something to do for {early.kind}, set at {describe(*place)} before a"
                    " worker had waited for it"
                )
                hop.assume(early.assumption)
