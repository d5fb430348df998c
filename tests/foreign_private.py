"""The private names of other libraries that tests need, and why: no public name does the same.

No other test reads them from an object or a module. What quiesce itself needs of that kind is in
`quiesce.core.python_private` and `quiesce.testing.trio_private`, and tests take it from there. A new version of
Python or trio is checked against this list:

- `is_waited_for` (`_waiters` of the conditions of threads and of asyncio): whether somebody waits by now.
- `timers_of` (`_scheduled` of asyncio's loops): that no timer is left.
- `handles_of` (`_ready` of asyncio's loops): what the loop calls next, of all that is in line.
- `callbacks_of` (`_callbacks` of asyncio's futures): that no reader of the end of a job is left.
- `python_task` (`asyncio.tasks._PyTask`): the class of tasks that a program may put in the place of the one in C.
- `drop_last` (`_queue` of asyncio's queues): programs remove items this way, and quiesce has to see that.
- `raw_threads` (`_thread._count`): threads that `threading` does not list.
- `end_late` (`threading.Thread._delete`): a thread is held in the last step of its end.
- `stop_resource_tracker` (of multiprocessing): the child that a test with shared memory leaves.
- `call_manager` (`_callmethod` of multiprocessing's proxies): what the methods of all proxies call.
- `trio_instruments` (of trio's run): that no instrument is left.
- `trio_random` (of trio's scheduler): that its own random numbers go on afterwards.
- `without_trio_seed` (of trio's scheduler): a version of trio that cannot be seeded.
- `delay_trio_jobs` (`_handle_job` of trio's worker threads): a worker that is slow to begin.
- `shutdown_watcher` (of sse-starlette): the coroutine function that quiesce knows by this name.
"""

from __future__ import annotations

import _thread
import asyncio
from multiprocessing import resource_tracker
from typing import TYPE_CHECKING, Any

import trio
from trio._core._thread_cache import WorkerThread

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

python_task: Any = asyncio.tasks._PyTask  # type: ignore[attr-defined]  # not in the stubs


def is_waited_for(lock: Any) -> bool:
    """Return whether a thread or a task waits for a condition, an event or a semaphore."""
    return bool(getattr(lock, "_cond", lock)._waiters)


def timers_of(loop: Any) -> int:
    """Count the timers of one of asyncio's own loops."""
    return len(loop._scheduled)


def handles_of(loop: Any) -> list[asyncio.Handle]:
    """Return what is in line in one of asyncio's own loops."""
    return list(loop._ready)


def callbacks_of(future: Any) -> int:
    """Count the callbacks of a future of asyncio's own."""
    return len(future._callbacks or ())


def drop_last(queue: Any) -> None:
    """Remove the last item of a queue of asyncio, as code does that purges the queue."""
    queue._queue.pop()


def raw_threads() -> int:
    """Count the threads that were started by `_thread`, those of `threading` included."""
    return _thread._count()


def end_late(thread: Any, hold: Callable[[], object]) -> None:
    """Call `hold` in a thread that is about to end, just before Python removes the thread from its list."""
    remove = thread._delete

    def late() -> None:
        hold()
        remove()

    thread._delete = late


def stop_resource_tracker() -> None:
    """End the child process that multiprocessing starts for shared memory and semaphores."""
    resource_tracker._resource_tracker._stop()  # type: ignore[attr-defined]  # not in the stubs


def call_manager(proxy: Any, name: str, args: tuple[object, ...]) -> object:
    """Call a method of the object of a manager, as the methods of all proxies do."""
    return proxy._callmethod(name, args)


def trio_instruments() -> object:
    """Return the instruments of the current run of trio."""
    return trio._core._run.GLOBAL_RUN_CONTEXT.runner.instruments["_all"]


def trio_random() -> tuple[object, bool]:
    """Return the state of the random numbers of trio's scheduler, and whether its order is fixed."""
    scheduler: Any = trio._core._run
    return scheduler._r.getstate(), scheduler._ALLOW_DETERMINISTIC_SCHEDULING


def without_trio_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make trio a version without the switch that fixes the order of its scheduler."""
    monkeypatch.delattr(trio._core._run, "_ALLOW_DETERMINISTIC_SCHEDULING")


def delay_trio_jobs(monkeypatch: pytest.MonkeyPatch, hold: Callable[[], object]) -> None:
    """Call `hold` in each worker thread of trio before it begins a job."""
    handle = WorkerThread._handle_job

    def late(worker: WorkerThread[Any]) -> None:
        hold()
        handle(worker)

    monkeypatch.setattr(WorkerThread, "_handle_job", late)


def shutdown_watcher(owner: Any) -> Any:
    """Return the coroutine function of sse-starlette that waits for the end of the server; `owner` stands for it."""
    return owner._shutdown_watcher
