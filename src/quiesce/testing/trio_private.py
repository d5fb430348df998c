"""The private names of trio that the test tools need; no public name of trio does the same.

- `_core._run._r` and `_ALLOW_DETERMINISTIC_SCHEDULING`: the order in which trio runs tasks. pytest-trio and
  hypothesis set them in the same way.
- `_core._run.Runner`, `_core._asyncgens.AsyncGenerators`: the methods that start tasks and end generators.
- `_job` of a thread in `_core._thread_cache`: a thread without a job waits for work.
- `_core.reschedule`: trio's own modules call this function, not the one in `trio.lowlevel`.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from quiesce.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["is_worker_free", "reschedulers", "seeded_trio", "starters"]


@contextmanager
def seeded_trio(seed: int | None, *, required: bool = True) -> Iterator[None]:
    """Order trio's tasks by a seed, as pytest-trio and hypothesis do."""
    if seed is None:
        yield
        return
    from trio._core import _run  # noqa: PLC0415 - optional

    scheduler: Any = _run
    if not hasattr(scheduler, "_r") or not hasattr(scheduler, "_ALLOW_DETERMINISTIC_SCHEDULING"):
        if not required:
            yield
            return
        message = "this version of trio does not support a seed: leave `seed` out"
        raise UsageError(message)
    order, state = scheduler._r, scheduler._r.getstate()
    allowed = scheduler._ALLOW_DETERMINISTIC_SCHEDULING
    scheduler._ALLOW_DETERMINISTIC_SCHEDULING = True
    order.seed(seed)
    try:
        yield
    finally:
        order.setstate(state)
        scheduler._ALLOW_DETERMINISTIC_SCHEDULING = allowed


def starters(trio: Any) -> tuple[Any, Any] | None:
    """Return the classes that start tasks and that end generators; None if this trio lacks them."""
    try:
        return trio._core._run.Runner, trio._core._asyncgens.AsyncGenerators
    except AttributeError:
        return None


def reschedulers(trio: Any) -> tuple[Any, Any]:
    """Return the modules whose `reschedule` wakes a task."""
    return trio.lowlevel, trio._core


def is_worker_free(worker: Any) -> bool:
    """Return whether a thread that trio keeps has no work."""
    return worker._job is None
