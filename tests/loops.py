"""Runs async tests on every backend, in virtual time, and checks that they leave nothing behind.

An `async def` test runs on asyncio, uvloop and trio (`@pytest.mark.backends("asyncio", …)`
chooses). On asyncio and trio time is virtual: it jumps to the next timer as soon as nothing can
run, so a deadline of a minute costs nothing and nothing depends on the machine. uvloop's clock
cannot be replaced, so time on uvloop is real, and tests use short deadlines. `@pytest.mark.real_time`
makes time real on all backends, for tests with threads, whose work the clock cannot see.
"""

from __future__ import annotations

import asyncio
import gc
from typing import TYPE_CHECKING, Any

import anyio
import trio
import trio.testing
import uvloop

from quiesce.core import graveyard
from quiesce.core.backends.asyncio import backend as asyncio_backend
from quiesce.core.libraries import is_process_wide
from quiesce.core.roots import roots
from quiesce.testing import VirtualLoop
from quiesce.testing.leaks import child_processes_left

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from quiesce import Scope
    from quiesce.testing.leaks.child_processes_left import ProcessEntry

__all__ = ["VirtualLoop"]  # re-exported; mypy needs no entry for names defined here

BACKENDS = ("asyncio", "uvloop", "trio")
PROC = child_processes_left.has_proc()  # without /proc, child processes cannot be listed


def run(backend: str, fn: Callable[[], Coroutine[Any, Any, None]], *, real_time: bool) -> None:
    """Run an async test, and fail if it leaves a task, process or unclosed scope behind."""
    before = children()
    try:
        if backend == "trio":
            clock = None if real_time else trio.testing.MockClock(autojump_threshold=0)
            trio.run(fn, clock=clock)
        else:
            virtual = VirtualLoop if not real_time else asyncio.SelectorEventLoop
            factory = uvloop.new_event_loop if backend == "uvloop" else virtual
            run_asyncio(fn, factory)
    finally:
        left = what_is_left() + orphans(before)
    assert not left, "the test left: " + "; ".join(left)


async def let_others_run() -> None:
    """Wait until all other tasks have run some steps."""
    for _ in range(10):
        await anyio.lowlevel.checkpoint()


def count_waiters(scope: Scope) -> int:
    """Count the objects in memory that tasks await: whatever keeps one of them keeps a task that waits no more."""
    kind = type(scope.backend.waiter())
    gc.collect()
    return sum(type(thing) is kind for thing in gc.get_objects())


def what_is_left() -> list[str]:
    """Return what a test has left behind, and reset the records, so that the next test does not fail for it."""
    gc.collect()
    left = [f"scope {root.name!r} is still open" for root in roots]
    left += [
        f"stuck in {grave.name!r}: {list(grave.holds.values())}" for grave in graveyard.graveyards
    ]
    left += [f"owner task {task!r} still runs" for task in asyncio_backend.owners]
    roots.clear()
    graveyard.graveyards.clear()
    return left


def children() -> set[ProcessEntry]:
    """Return all descendant processes of this process, except the lifeline's watcher."""
    return set(child_processes_left.present_children(()))


def orphans(before: set[ProcessEntry]) -> list[str]:
    """Return the child processes that did not exist before, also the ones that are dead and not reaped."""
    new = sorted(children() - before)
    states = [child_processes_left.state_of(process.pid) for process in new]
    return [
        f"child process {process.pid} ({state.letter if state else 'gone'})"
        for process, state in zip(new, states, strict=True)
    ]


def run_asyncio(
    fn: Callable[[], Coroutine[Any, Any, None]], factory: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    """Run a test on an asyncio event loop; fail if tasks are left, or if the loop's exception handler was called."""
    complaints: list[str] = []
    left: list[str] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: complaints.append(str(context)))
        me = asyncio.current_task()
        try:
            await fn()
        finally:
            others = [task for task in asyncio.all_tasks() if task is not me]
            left.extend(repr(one) for one in others if not is_process_wide(one.get_coro()))
            left.extend(["a task factory"] if loop.get_task_factory() is not None else [])
            left.extend(["another create_task"] if "create_task" in vars(loop) else [])

    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(main())
        gc.collect()
        runner.run(asyncio.sleep(0))
    assert not left, f"the test left: {left}"
    assert not complaints, f"the event loop complained: {complaints}"
