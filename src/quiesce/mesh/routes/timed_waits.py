"""Timed waits: a loop that waits for a queue or an event with a timeout, and looks for jobs when the time is up."""

from __future__ import annotations

import gc
import math
from types import MethodType
from typing import TYPE_CHECKING, Any

from quiesce.core import libraries
from quiesce.mesh.routes.timeout_flow import after_timeout

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import FrameType

    from quiesce.mesh.routes.timeout_flow import Ways

__all__: list[str] = []

_RAISES: Ways = frozenset({"raises"})
_RETURNS_FALSE: Ways = frozenset({"false"})
_BY_RETURN = frozenset({"quiesce.mesh.routes.events", "threading"})
"""The modules whose waits return False when the time is up."""
_WAITING = _BY_RETURN | {
    "asyncio.tasks", "queue", "quiesce.mesh.routes.queues", "quiesce.mesh.routes.simple_queue",
}  # fmt: skip
_BLOCKS = frozenset({("asyncio.timeouts", "Timeout"), ("async_timeout", "Timeout")})
_SCOPES = frozenset({"CancelScope"})
_DEEP = 2  # levels of nested `contextlib` generators that are searched


def polling_frame(frames: list[tuple[FrameType, object]]) -> FrameType | None:
    """Return the frame of the user's loop in which a task or thread waits, if the loop does something after a timeout.

    Args:
        frames: The frames of the task or thread, outermost first, each with its coroutine.
    """
    ways: Ways = frozenset()
    works = False
    for frame, coro in reversed(frames):
        package = libraries.package_of(frame.f_globals.get("__name__"))
        if package in libraries.PLUMBING:
            ways = _ways_of(frame) or ways
            continue
        if coro is not None and _has_deadline(gc.get_referents(coro)):
            ways |= _RAISES
        if not ways:
            continue
        found = after_timeout(frame.f_code, frame.f_lasti, ways)
        if found.goes_round and (works or found.works) and package not in libraries.WITH_LOOPS:
            return frame
        works = bool(found.ways) and (works or found.works_before)
        ways = found.ways
    return None


def _ways_of(frame: FrameType) -> Ways | None:
    """Return how a waiting function of Python or of quiesce ends at its timeout; None if it has no timeout."""
    module, name = frame.f_globals.get("__name__"), frame.f_code.co_name
    if module not in _WAITING:
        return None
    given = frame.f_locals
    if name == "called":  # `to_thread(queue.get, timeout=1)`
        return _RAISES if "timeout" in given["options"] or len(given["args"]) > 1 else None
    if given.get("timeout") is None:
        return None
    if name == "_wait":  # the function behind `asyncio.wait`
        return frozenset({"returns"})
    return _RETURNS_FALSE if module in _BY_RETURN else _RAISES


def _has_deadline(things: Iterable[Any], deep: int = _DEEP) -> bool:
    """Return whether one of the objects that a waiting coroutine refers to is a block with a timeout."""
    for thing in things:
        owner: Any = thing.__self__ if type(thing) is MethodType else thing
        kind = type(owner)
        if (kind.__module__, kind.__name__) in _BLOCKS:
            if (owner.when() if hasattr(owner, "when") else owner.deadline) is not None:
                return True
        elif kind.__name__ in _SCOPES and libraries.package_of(kind.__module__) in {
            "anyio",
            "trio",
        }:
            if owner.deadline != math.inf:
                return True
        elif (
            deep
            and kind.__module__ == "contextlib"
            and _has_deadline(gc.get_referents(getattr(owner, "gen", None)), deep - 1)
        ):
            return True
    return False
