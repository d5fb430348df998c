"""Waits that are not a worker's: code waits once for an event or a condition, and not in a loop.

A hop that wakes it may have given it something to do. If it is a part of the same cascade, the verdict waits for it anyhow.
If it is a task of the app, or a part of another cascade, nobody can tell, unless the task has begun the cascade itself: the hop records what it assumes. A request
outside of cascades is not looked at while it is served. Nor is the code of libraries: they wait for locks and connections.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from quiesce.core.callsites import Callsite, describe
from quiesce.core.tree import current
from quiesce.mesh.routes.drivers import is_driver
from quiesce.mesh.routes.following import frame_place, hop_behind
from quiesce.mesh.routes.takers import lock, running_taker

if TYPE_CHECKING:
    from types import FrameType

    from quiesce.mesh.runtime.hop import Hop

__all__: list[str] = []


class Wait(NamedTuple):
    """One wait, which goes on."""

    hop: Hop | None  # the hop that it is a part of
    place: Callsite
    key: object  # the task or thread that waits
    mark: object  # by which it is told from others


of_events: dict[int, list[Wait]] = {}
"""By the id of an event, which lives for as long as something waits for it."""


def begin(event: Any, frame: FrameType | None) -> Wait | None:
    """Record that the running code waits for an event; `frame` is None if that is not looked at."""
    if frame is None:
        return None
    place = Callsite(frame.f_code, frame.f_lasti)
    made = Wait(hop_behind(current.get()), place, running_taker(), object())
    with lock:
        of_events.setdefault(id(event), []).append(made)
    return made


def end(event: Any, made: Wait | None) -> None:
    """Record that a wait is over."""
    if made is None:
        return
    with lock:
        found = of_events[id(event)]
        found.remove(made)
        if not found:
            del of_events[id(event)]


def tell(event: Any, kind: str, hop: Hop, frame: FrameType | None) -> None:
    """Record in a hop that the code of a frame wakes what may work for it, outside of its cascade."""
    with lock:
        found = list(of_events.get(id(event), ()))
    for one in found:
        is_other = one.hop is None or one.hop.cascade != hop.cascade
        if is_other and not is_driver(one.key, hop):
            hop.assume(
                f"assumes that nothing is to be done for {kind}, set at {frame_place(frame)}, which is waited for once at"
                f" {describe(*one.place)}"
            )
