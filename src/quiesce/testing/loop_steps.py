"""Find the task that a callback of an asyncio event loop steps."""

from __future__ import annotations

from asyncio import Task
from typing import Any

__all__: list[str] = []

# CPython's own names. A task's first step is an object without a name; later steps are functions.
_STEPS = frozenset({"__step", "__wakeup", "task_wakeup"})


def stepped_task(callback: object) -> Task[Any] | None:
    """Return the task that a callback steps; None for any other callback."""
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, Task) and getattr(callback, "__name__", "__step") in _STEPS:
        return owner
    return None
