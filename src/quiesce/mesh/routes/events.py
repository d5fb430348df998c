"""Events: a hop that wakes a worker has given it something to do.

A `deque` and an `asyncio.Event` are a queue, too. A task outside of all hops that waits for an event in a loop is a
worker: woken by a hop, it works for that hop until it waits for the event again, or ends. An event that is waited
for once, and not in a loop, is a signal, and carries nothing.
"""

from __future__ import annotations

import asyncio
import dis
from bisect import bisect_right
from functools import lru_cache
from sys import _getframe
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from quiesce.core.known import is_housekeeper
from quiesce.core.node import current
from quiesce.mesh.routes.belts import Belt
from quiesce.mesh.routes.following import hop_now, is_declared
from quiesce.mesh.routes.queues import belts

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FrameType

__all__: list[str] = []

_of_workers: WeakSet[Any] = WeakSet()


def by_set(signal: Callable[..., None]) -> Callable[..., None]:
    """Return what stands in for `Event.set`."""

    def setting(self: Any) -> None:
        hop = hop_now() if self in _of_workers else None
        if hop is not None:
            frame = _caller(_getframe(1))
            belt = belts.get(self)
            if belt is None:
                belt = belts[self] = Belt("asyncio.Event")
            if not (is_declared(hop, frame) or belt.has(self, hop)):
                belt.put(self, hop, frame)
        signal(self)

    return setting


def by_wait(wait: Callable[..., Any]) -> Callable[..., Any]:
    """Return what stands in for `Event.wait`."""

    async def waiting(self: Any) -> Any:
        frame = _caller(_getframe(1))
        node = current.get()
        belt = belts.get(self) if belts else None
        if frame is None or not is_in_loop(frame):
            return await wait(self)
        task = asyncio.current_task()
        if belt is not None:
            belt.asks(task, frame, is_idle=True)
        if node is None or node._errand is None or belt is not None:
            _of_workers.add(self)
        found = await wait(self)
        belt = belts.get(self) if belts else None
        while belt is not None and belt.took(self, task, frame):
            pass  # all that woke it
        return found

    return waiting


def _caller(frame: FrameType | None) -> FrameType | None:
    """Return the frame of the code that uses an event, or anyio's around it; None if that is a library's own."""
    if frame is not None and frame.f_globals.get("__name__") == "anyio._backends._asyncio":
        frame = frame.f_back
    return None if frame is None or is_housekeeper(frame) else frame


def is_in_loop(frame: FrameType) -> bool:
    """Tell whether the code of a frame comes back to where it is."""
    return _is_in_loop(frame.f_code, frame.f_lasti)


@lru_cache(maxsize=1024)
def _is_in_loop(code: CodeType, offset: int) -> bool:
    """Follow the code from an instruction on, apart from exceptions, and see whether it comes back."""
    found = list(dis.get_instructions(code))
    places = {one.offset: place for place, one in enumerate(found)}
    begin = (
        bisect_right([one.offset for one in found], offset) - 1
    )  # it may be in the cache behind one
    seen: set[int] = set()
    ahead = [begin]
    while ahead:
        place = ahead.pop()
        one = found[place]
        after = [place + 1] if one.opname not in _NOT_ON and place + 1 < len(found) else []
        if one.opcode in _JUMPS and one.opname != _OF_AWAIT:
            after.append(places[one.argval])
        if begin in after:
            return True
        ahead += [one for one in after if one not in seen]
        seen.update(after)
    return False


_JUMPS = frozenset((*dis.hasjrel, *dis.hasjabs))
_OF_AWAIT = "JUMP_BACKWARD_NO_INTERRUPT"  # which goes on with what is awaited
_NOT_ON = frozenset((
    "JUMP_BACKWARD", "JUMP_FORWARD", "RAISE_VARARGS", "RERAISE", "RETURN_CONST", "RETURN_VALUE", _OF_AWAIT,
))  # fmt: skip
