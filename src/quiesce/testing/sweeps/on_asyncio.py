"""One run of a scenario on an event loop of asyncio or uvloop.

The scenario runs in its own task, inside the driver. With `where="all"` the loop also notices
the suspensions of all other tasks: it sees the steps of tasks among its callbacks. A task factory
would be worse. It would see only tasks made by `create_task`, would conflict with other factories,
and would have to wrap the coroutines, which then look like other code's.
(A task that an eager factory starts is seen from its second step on.)

A run that hangs is given up: its tasks are cancelled, and tasks that do not end then are left where
they are, on a loop that never runs again.
"""

from __future__ import annotations

import asyncio
import time
from functools import cache
from typing import TYPE_CHECKING, Any

import anyio

from quiesce.core.callsites import task_name
from quiesce.core.python_private import drop_silently
from quiesce.testing.clock import SeededLoop, VirtualLoop
from quiesce.testing.loop_steps import stepped_task
from quiesce.testing.sweeps.driver import (
    Points,
    await_place,
    bury_coroutine,
    described,
    drive,
    stack_of,
)
from quiesce.testing.sweeps.oracle import Oracle, WatchedExecutor
from quiesce.testing.sweeps.record import Hit, Run, interruption

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Task
    from collections.abc import Callable

    from quiesce.testing.sweeps.plan import SweepCut
    from quiesce.testing.sweeps.sweep_settings import SweepSettings

__all__: list[str] = []

_VIRTUAL_SECONDS_MAX = 86_400.0  # of mock time: a run that takes more than a day hangs
_GIVING_UP_TURNS = 50  # turns of the loop in which cancelled tasks may end
_TURNS_AFTER = 3  # turns of the loop for callbacks that are scheduled when a scenario ends
_CLOSING_SECONDS_MAX = 1.0  # how long async generators may take to end
_PARTS = 10  # the time limit of a run is counted in this many parts


@cache
def watching(base: Any) -> Any:
    """Make a class of event loops that report each suspension of a task."""
    call_soon = base.call_soon

    class WatchingLoop(base):  # type: ignore[misc]  # one class for each base
        on_suspension: Callable[[Task[Any]], None] | None = None

        def call_soon(self, callback: Any, *args: Any, context: Any = None) -> Any:
            task = stepped_task(callback) if self.on_suspension is not None else None
            if task is None:
                return call_soon(self, callback, *args, context=context)
            return call_soon(self, self._step, task, callback, *args, context=context)

        def _step(self, task: Task[Any], callback: Any, *args: Any) -> None:
            callback(*args)
            if self.on_suspension is not None and not task.done():
                self.on_suspension(task)

    return WatchingLoop


def make_swept_loop(cut: SweepCut, settings: SweepSettings) -> AbstractEventLoop:
    """Make the event loop of one run."""
    base: Any = VirtualLoop if settings.clock == "mock" else SeededLoop
    if cut.backend == "uvloop":
        import uvloop  # noqa: PLC0415 - optional

        base = uvloop.Loop
    loop: AbstractEventLoop = watching(base)() if cut.where == "all" else base()
    return loop


class AsyncioRun:
    """One run: its loop, its scenario, and the cancellations in it."""

    def __init__(self, cut: SweepCut, settings: SweepSettings) -> None:
        self._sweep_cut = cut
        self._settings = settings
        self._run = Run(cut)
        self._points = Points(cut.at, self._strike)
        self._loop: Any = make_swept_loop(cut, settings)
        self._executor = WatchedExecutor()
        self._loop.set_default_executor(self._executor)
        self._scope: anyio.CancelScope | None = None
        self._task: Task[Any]
        self._oracle = Oracle(settings)
        self._oracle.work = self._executor
        self._subject: Any = None
        self._given_up = False
        self._settling: Task[Any] | None = None

    def go(self) -> Run:
        """Run the scenario, and record what it leaves."""
        loop = self._loop
        try:
            self._task = loop.create_task(self._main(), name="scenario")
            self._task.add_done_callback(self._ended)
            self._limit_time()
            loop.run_forever()
            for task in (self._task, self._settling):
                if task is not None and task.done() and not task.cancelled():
                    task.result()  # otherwise an error in the check would be lost
        finally:
            self._close()
        return self._run

    async def _main(self) -> None:
        """Run the scenario in this task; look at what is left in the step in which it ends."""
        run = self._run
        self._oracle.begin()
        if self._sweep_cut.where == "all":
            self._loop.on_suspension = self._suspended
        try:
            await self._scenario()
            run.ended = "returned"
        except asyncio.CancelledError:
            run.ended = "cancelled"
        except BaseException as error:  # noqa: BLE001 - `Run.faults` judges it
            if (interrupted := interruption(error)) is not None:
                raise interrupted from None
            run.ended, run.error = "raised", error
        if self._given_up:
            run.ended, run.error = "hung", None
            return
        self._stop_counting()
        if self._scope is not None and self._scope.cancelled_caught:
            run.ended = "cancelled"
        self._look()
        run.check = self._settings.checked()

    def _look(self) -> None:
        """Record what is left. It may still end; or it may cancel the task that waits for that."""
        self._oracle.look()
        self._run.findings = self._oracle.left()

    async def _scenario(self) -> None:
        self._subject = self._settings.scenario()
        if self._sweep_cut.cancel != "scope":
            await drive(self._subject, self._points)
            return
        with anyio.CancelScope() as self._scope:
            await drive(self._subject, self._points)

    def _stop_counting(self) -> None:
        """Stop counting suspensions and cancelling."""
        self._run.points, self._run.others = self._points.count, self._points.others
        self._points.due = 0
        self._loop.on_suspension = None

    def _suspended(self, task: Task[Any]) -> None:
        """Record the suspension of another task; the driver sees the scenario's own task."""
        if task is not self._task:
            self._points.hit_other(task.get_coro(), task)

    def _strike(self, coroutine: object, task: Any) -> None:
        """Cancel in the same way as code outside the scenario does."""
        run, point = self._run, self._points.count
        stack = stack_of(coroutine)
        name = None if task is None else task_name(task, task.get_coro())
        run.hits.append(Hit(point, await_place(stack), stack, name))
        if self._sweep_cut.cancel == "child" and task is not None:
            task.cancel()
            return
        run.asked = True
        way = self._cancel
        if self._sweep_cut.cancel == "scope" and len(run.hits) == 1:
            self._points.resumed = self._resumed
            way = self._cancel_scope
        if task is None:  # the scenario's own step has to end first
            self._loop.call_soon(way)
        else:
            way()

    def _cancel(self) -> None:
        self._run.delivered |= self._task.cancel()

    def _cancel_scope(self) -> None:
        if self._scope is not None:
            self._scope.cancel()

    def _resumed(self, _: object, error: BaseException | None) -> None:
        """Record whether the run's own scope has cancelled the scenario."""
        if isinstance(error, asyncio.CancelledError) and f"{id(self._scope):x}" in str(error):
            self._run.delivered = True

    # --- its end --------------------------------------------------------------------------------

    def _ended(self, _: object) -> None:
        """Continue with the same loop and run: uvloop opens new sockets for each new run of a loop."""
        if self._given_up:
            return
        self._settling = self._loop.create_task(self._settle(), name="settling")
        self._settling.add_done_callback(lambda _: self._loop.stop())

    async def _settle(self) -> None:
        """Wait a little for leftovers to end, and record which of them have."""
        if not self._run.findings:
            # A callback that is already scheduled may still start something.
            for _ in range(_TURNS_AFTER):
                await asyncio.sleep(0)
            if len(self._tasks()) > 1:
                self._look()
        self._run.findings = await self._oracle.settled(asyncio.sleep)

    def _limit_time(self) -> None:
        """Limit the time of the run, whatever the scenario does."""
        seconds = self._settings.hang_seconds
        if self._settings.clock == "mock":
            self._loop.call_later(_VIRTUAL_SECONDS_MAX, self._give_up)
            self._deadline = time.monotonic() + seconds
            self._loop.on_turn = self._watch_busy
        else:
            self._wait(_PARTS)

    def _wait(self, parts: int) -> None:
        """End the run after this many parts of the time limit; a busy machine delays one part at a time."""
        if parts:
            self._loop.call_later(self._settings.hang_seconds / _PARTS, self._wait, parts - 1)
        else:
            self._give_up()

    def _watch_busy(self) -> None:
        """End a run that never stops working: its virtual time does not reach any timer."""
        if time.monotonic() > self._deadline:
            self._loop.on_turn = None
            self._loop.call_soon(self._give_up)

    def _give_up(self) -> None:
        """Record where all tasks are suspended, then cancel them."""
        if self._task.done() or self._given_up:
            return
        self._given_up = True
        self._stop_counting()
        self._run.stuck = [
            described("the scenario", self._subject)
            if task is self._task
            else described(f"task {task_name(task, task.get_coro())!r}", task.get_coro())
            for task in self._tasks()
        ]
        self._oracle.look()
        self._cancel_repeatedly(_GIVING_UP_TURNS)

    def _cancel_repeatedly(self, left: int) -> None:
        """Cancel all tasks again and again, then stop the loop for good."""
        tasks = self._tasks()
        if not tasks or not left:
            self._loop.stop()
            return
        for task in tasks:
            task.cancel()
        self._loop.call_soon(self._cancel_repeatedly, left - 1)

    def _tasks(self) -> list[Task[Any]]:
        tasks = asyncio.all_tasks(self._loop)
        return sorted(tasks, key=lambda task: (task is not self._task, task.get_name()))

    def _close(self) -> None:
        """End the leftovers in the loop as far as possible, and close it."""
        loop = self._loop
        loop.set_exception_handler(lambda *_: None)
        if not self._given_up:
            self._cancel_repeatedly(_GIVING_UP_TURNS)
            loop.run_forever()
        self._abandon()
        ending = loop.create_task(self._end())
        ending.add_done_callback(lambda _: loop.stop())
        loop.call_later(_CLOSING_SECONDS_MAX, loop.stop)
        loop.run_forever()
        self._abandon()
        self._executor.shutdown(wait=False, cancel_futures=True)
        loop.close()
        self._run.span = self._oracle.end()

    async def _end(self) -> None:
        """End the generators and processes that were left."""
        await self._loop.shutdown_asyncgens()
        await self._oracle.bury(asyncio.sleep)

    def _abandon(self) -> None:
        """Abandon tasks that do not end, without Python's warnings about them."""
        for task in self._tasks():
            drop_silently(task)
            bury_coroutine(task.get_coro())
            if task is self._task:
                bury_coroutine(self._subject)
