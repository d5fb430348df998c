"""Which of an event loop's callbacks is a step of a task, and of which."""

from __future__ import annotations

from asyncio import Task
from typing import Any

__all__: list[str] = []

# CPython's own names: a task's first step is an object without a name, later ones are functions.
_STEPS = frozenset({"__step", "__wakeup", "task_wakeup"})


def stepped_task(callback: object) -> Task[Any] | None:
    """Return the task that a callback is a step of; None if it is anything else."""
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, Task) and getattr(callback, "__name__", "__step") in _STEPS:
        return owner
    return None
