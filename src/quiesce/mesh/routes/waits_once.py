"""Waits of code that is not a worker: it waits for an event or a condition once, not in a loop.

A hop that wakes such code may have given it a job. If the code belongs to the same cascade, the verdict waits for it
anyway. If the code is a task of the app or belongs to another cascade, quiesce cannot know, so the hop records the
assumption that there is no job. Three kinds of code are left out: the task that began the cascade, a request outside of
all cascades while it is served, and libraries, which wait for locks and connections.
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
    """One wait that has not ended."""

    hop: Hop | None  # the hop of the waiting code
    place: Callsite
    key: object  # the task or thread that waits
    mark: object  # a unique object, so that two waits are never equal


of_events: dict[int, list[Wait]] = {}
"""By the id of an event. The event exists for as long as code waits for it."""


def begin(event: Any, frame: FrameType | None) -> Wait | None:
    """Record that the running code waits for an event; `frame` is None for code that is left out."""
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
    """Record a hop's assumption that the code which it wakes outside of its cascade has no job from it."""
    with lock:
        found = list(of_events.get(id(event), ()))
    for one in found:
        is_other = one.hop is None or one.hop.cascade != hop.cascade
        if is_other and not is_driver(one.key, hop):
            hop.assume(
                f"assumes that nothing is to be done for {kind}, set at {frame_place(frame)}, which is waited for once at"
                f" {describe(*one.place)}"
            )
