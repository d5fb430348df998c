"""Drivers: the tasks that begin cascades. A driver is not a worker of the hops of its own cascades.

A test, or a script, may run the agents in its own process. It waits for an event that a handler sets, and then for the
verdict: if the hop waited for that task, the task would wait for itself.
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
    """Record that the running task begins a cascade."""
    key = running_taker()
    if key is not None:
        _cascades.setdefault(key, WeakSet()).add(cascade)


def is_driver(key: Any, hop: Hop) -> bool:
    """Return whether a task has begun the cascade of a hop."""
    mine = _cascades.get(key) if _cascades and key is not None else None
    return mine is not None and any(one.id == hop.cascade for one in mine)
