"""Drivers: the tasks that begin cascades. A driver is not a worker for the hops of its own cascades.

A test or a script may run the agents in its own process. Its task waits for an event that a handler sets, and then for
the verdict. If the hop took that task for a worker and waited for it, the task would wait for itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakSet

from quiesce.mesh.routes.takers import running_taker

if TYPE_CHECKING:
    from quiesce.mesh.runtime.cascade import Cascade
    from quiesce.mesh.runtime.hop import Hop

__all__: list[str] = []

_cascades: WeakKeyDictionary[Any, WeakSet[Cascade]] = WeakKeyDictionary()


def begins(cascade: Cascade) -> None:
    """Record that the running task or thread begins a cascade."""
    key = running_taker()
    if key is not None:
        _cascades.setdefault(key, WeakSet()).add(cascade)


def is_driver(key: Any, hop: Hop) -> bool:
    """Return whether a task or thread has begun the cascade of a hop."""
    mine = _cascades.get(key) if _cascades and key is not None else None
    return mine is not None and any(one.id == hop.cascade for one in mine)


def has_begun(key: Any) -> bool:
    """Return whether a task or thread has begun any cascade."""
    return key in _cascades
