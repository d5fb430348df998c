"""The event loops that quiesce runs on: a small interface, and two implementations.

On asyncio, jobs are plain tasks, because a task in an anyio task group costs five times as much. On
trio, jobs are system tasks. All code outside of this package is the same for both.

The modules, in reading order:

- `base`: what core needs from an event loop.
- `asyncio`: asyncio, and uvloop.
- `trio_backend`: trio; a job is a system task, so any task may start or end it.
"""

from __future__ import annotations

import sys
from asyncio import current_task
from typing import Any

from quiesce.core.backends.base import Backend, Bell, Body, Waiter
from quiesce.core.python_private import running_loop
from quiesce.errors import UsageError

__all__ = ["Backend", "Bell", "Body", "Waiter", "running_backend"]


def running_backend() -> Backend:
    """Return the backend of the event loop that runs here.

    In trio's guest mode an asyncio loop runs in the same thread; then the kind of the running task decides.
    """
    trio = sys.modules.get("trio")
    if trio is not None and trio.lowlevel.in_trio_run() and not _in_host_task(trio):
        from quiesce.core.backends.trio_backend import TrioBackend  # noqa: PLC0415 - trio is optional

        return TrioBackend()
    from quiesce.core.backends.asyncio.backend import AsyncioBackend  # noqa: PLC0415 - slow to import

    backend = AsyncioBackend.running()
    if backend is None:
        message = "no event loop runs here: open the scope inside async code (asyncio or trio)"
        raise UsageError(message)
    return backend


def _in_host_task(trio: Any) -> bool:
    """Return whether the running code is a task of the asyncio loop that hosts trio."""
    return (
        not trio.lowlevel.in_trio_task()
        and running_loop() is not None
        and current_task() is not None
    )
