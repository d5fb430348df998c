"""`queue.SimpleQueue`, whose methods cannot be replaced, and queues that are shut down.

While a node is open, the name `queue.SimpleQueue` stands for a subclass whose items carry hops. A queue that was made
before the node opened, or by a name that was imported before, is an ordinary one.
"""

from __future__ import annotations

from _queue import SimpleQueue as Plain
from typing import TYPE_CHECKING, Any

from quiesce.core import libraries
from quiesce.core.python_private import get_frame
from quiesce.mesh.routes import queues

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

__all__: list[str] = []

_put = queues.by_put(Plain.put)
_get = queues.by_thread_get(Plain.get)


class _Kind(type):
    def __instancecheck__(cls, one: object) -> bool:
        return isinstance(one, Plain)


class SimpleQueue(Plain[Any], metaclass=_Kind):
    """A queue between threads whose items carry hops, except for items of the standard library's own pools."""

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:  # noqa: FBT001, FBT002 - as it is
        if _is_of_library(get_frame(1)):
            Plain.put(self, item, block, timeout)
        else:
            _put(self, item, block, timeout)

    def put_nowait(self, item: Any) -> None:
        if _is_of_library(get_frame(1)):
            Plain.put(self, item)
        else:
            _put(self, item)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:  # noqa: FBT001, FBT002 - as it is
        if libraries.is_housekeeper(get_frame(1)):
            return Plain.get(self, block, timeout)
        return _get(self, block, timeout)

    def get_nowait(self) -> Any:
        return _get(self, False)  # noqa: FBT003 - as it is


def _is_of_library(caller: FrameType) -> bool:
    """Return whether a known library puts an item for its own housekeeping, and not for the user's code."""
    frame = libraries.frame_behind_call(caller, "put", "put_nowait")
    return frame is not None and libraries.is_housekeeper(frame)


SimpleQueue.__module__ = "queue"


def followed(_: object) -> type:
    """Return the replacement of `queue.SimpleQueue`."""
    return SimpleQueue


def by_shutdown(shutdown: Callable[..., None]) -> Callable[..., None]:
    """Return the replacement of a queue's `shutdown`. Items that it drops are never taken."""

    def shut(self: Any, immediate: bool = False) -> None:  # noqa: FBT001, FBT002 - as it is
        shutdown(self, immediate)
        belt = queues.belt_of(self) if immediate else None
        if belt is not None:
            belt.release_waiting()

    return shut
