"""One run of a scenario on trio.

With `where="all"` an instrument sees the steps of all other tasks, including those that the
scenario has started in the system nursery. A cut always cancels the cancel scope around the
scenario: on trio, code cannot cancel another task.

A run that hangs is given up in two stages. First the scope is cancelled, also through shields. If
that does not help, the run's clock raises an error, which ends `trio.run` at once.
"""

from __future__ import annotations

import inspect
import math
import time
from typing import TYPE_CHECKING, Any

import trio
import trio.testing

from quiesce.testing.sweeps.driver import (
    Points,
    await_place,
    bury_coroutine,
    described,
    drive,
    stack_of,
)
from quiesce.testing.sweeps.oracle import Oracle
from quiesce.testing.sweeps.record import Hit, Run, interruption
from quiesce.testing.trio_private import seeded_trio

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from quiesce.testing.sweeps.plan import SweepCut
    from quiesce.testing.sweeps.sweep_settings import SweepSettings

__all__: list[str] = []

_REASON = "quiesce.testing.sweep"
# Before trio 0.31 a cancellation does not say which scope it comes from.
TELLS_WHOSE: bool = "reason" in inspect.signature(trio.CancelScope.cancel).parameters
_PARTS = 10  # the time limit of a run is counted in this many parts
_GIVING_UP_SECONDS = 0.2  # how long cancelled tasks may take to end, even with shields
_BLOCKED_SECONDS_MAX = 0.05  # how long a run in mock time may have no runnable task and no timer
_SEED = 0


class Abandoned(BaseException):
    """An exception that ends `trio.run`."""


class Bound:
    """The time limit of a run. It is checked when trio reads its clock, at least once a turn."""

    def __init__(self, on_deadline: Callable[[], None], seconds: float) -> None:
        self.part: float = seconds / _PARTS
        self._checked = time.monotonic()
        self.deadline: float = self._checked + seconds
        self._on_deadline = on_deadline
        self._blocked_since: float | None = None

    def check(self) -> float:
        """Check the time limit; trio's loop and tasks call it when they read the clock."""
        now = time.monotonic()
        # While the machine was held up, no task ran: such a pause counts as at most one part.
        self.deadline += max(0.0, now - self._checked - self.part)
        self._checked = now
        if now > self.deadline and not _in_task():
            self._on_deadline()
        return now

    def check_blocked(self, timer: float) -> None:
        """Check for a run in mock time in which no task can run and no timer is set."""
        now = self.check()
        if timer < math.inf:
            self._blocked_since = None
        elif self._blocked_since is None:
            self._blocked_since = now
        elif now - self._blocked_since > _BLOCKED_SECONDS_MAX:
            self._blocked_since = None
            self._on_deadline()


class RealClock(trio.abc.Clock):
    """The real clock, with a time limit for the whole run."""

    def __init__(self, bound: Bound) -> None:
        self._bound = bound

    def start_clock(self) -> None:
        """Do nothing: the real time runs already."""

    def current_time(self) -> float:
        return self._bound.check()

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Return how long to wait for an event; at most the time that is left for the run."""
        now = self._bound.check()
        return min(deadline, self._bound.deadline, now + self._bound.part) - now


def mock_clock(bound: Bound) -> trio.abc.Clock:
    """Make a mock clock with a time limit in real time; trio accepts only its own class."""
    clock: Any = trio.testing.MockClock(autojump_threshold=0)
    time_of, wait_of = clock.current_time, clock.deadline_to_sleep_time

    def current_time() -> float:
        bound.check()
        return float(time_of())

    def deadline_to_sleep_time(deadline: float) -> float:
        bound.check_blocked(deadline)
        return float(wait_of(deadline))

    clock.current_time, clock.deadline_to_sleep_time = current_time, deadline_to_sleep_time
    made: trio.abc.Clock = clock
    return made


def _in_task() -> bool:
    try:
        trio.lowlevel.current_task()
    except RuntimeError:
        return False
    return True


class TrioRun(trio.abc.Instrument):
    """One run: its scenario, and the cancellations in it."""

    def __init__(self, cut: SweepCut, settings: SweepSettings) -> None:
        self._sweep_cut = cut
        self._settings = settings
        self._run = Run(cut)
        self._points = Points(cut.at, self._strike)
        self._oracle = Oracle(settings)
        self._subject: Any = None
        self._scope = trio.CancelScope()
        self._task: trio.lowlevel.Task | None = None
        self._root: trio.lowlevel.Task | None = None
        self._not_ours: set[trio.lowlevel.Task] = set()
        self._watching = False
        self._given_up = False
        self._bound = Bound(self._give_up, settings.hang_seconds)

    def go(self) -> Run:
        """Run the scenario, and record what it leaves."""
        instruments = [self] if self._sweep_cut.where == "all" else []
        mock = self._settings.clock == "mock"
        clock = mock_clock(self._bound) if mock else RealClock(self._bound)
        try:
            with seeded_trio(_SEED, required=False):
                trio.run(self._main, clock=clock, instruments=instruments)
        except trio.TrioInternalError as error:
            for coroutine in (self._subject, *(task.coro for task in self._tasks())):
                bury_coroutine(coroutine)
            if not self._given_up:
                self._record_trio_failure(error)
        finally:
            self._run.span = self._oracle.end()
        return self._run

    async def _main(self) -> None:
        run = self._run
        self._task = trio.lowlevel.current_task()
        self._root = trio.lowlevel.current_root_task()
        self._not_ours = set(self._tasks())
        self._oracle.begin()
        self._watching = True
        try:
            with self._scope:
                self._subject = self._settings.scenario()
                await drive(self._subject, self._points)
                run.ended = "returned"
        except BaseException as error:  # noqa: BLE001 - `Run.faults` judges it
            if (interrupted := interruption(error)) is not None:
                raise interrupted from None
            run.ended, run.error = "raised", error
        if self._given_up:
            run.ended, run.error = "hung", None
            return
        self._stop_counting()
        if self._scope.cancelled_caught:
            run.ended = "cancelled"
        self._oracle.look()
        run.check = self._settings.checked()
        run.findings = await self._oracle.settled(trio.sleep)

    def _stop_counting(self) -> None:
        """Stop counting suspensions and cancelling."""
        self._run.points, self._run.others = self._points.count, self._points.others
        self._points.due, self._watching = 0, False

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        """Record the suspension of another task; the driver sees the scenario's own task."""
        if self._watching and task not in self._not_ours and _is_suspended(task):
            self._points.hit_other(task.coro, task)

    def _strike(self, coroutine: object, task: trio.lowlevel.Task | None) -> None:
        run, stack = self._run, stack_of(coroutine)
        name = None if task is None else task.name
        run.hits.append(Hit(self._points.count, await_place(stack), stack, name))
        run.asked = True
        self._points.resumed = self._resumed
        self._scope.cancel(**({"reason": _REASON} if TELLS_WHOSE else {}))

    def _resumed(self, value: Any, _: BaseException | None) -> None:
        """Record whether the run's own scope has cancelled the scenario."""
        error = getattr(value, "error", None)
        if isinstance(error, trio.Cancelled) and getattr(error, "reason", None) == _REASON:
            self._run.delivered = True

    def _record_trio_failure(self, error: trio.TrioInternalError) -> None:
        """Record that trio itself failed because of the scenario or its leftovers."""
        run = self._run
        if run.ended == "hung":  # the initial value: the scenario had not ended
            self._stop_counting()
            self._oracle.look()
            run.check = self._settings.checked()
        run.ended, run.error, run.broke = "raised", error, True
        # After its run, trio has restored the handler of Ctrl-C.
        run.findings = [each for each in self._oracle.left() if each.kind != "handler"]

    # --- its end --------------------------------------------------------------------------------

    def _give_up(self) -> None:
        """Record where all tasks are suspended, and cancel them. The second call raises an error."""
        if self._given_up:
            raise Abandoned
        self._given_up = True
        self._stop_counting()
        self._run.ended = "hung"
        tasks = [task for task in self._tasks() if task not in self._not_ours]
        tasks = [self._task, *tasks] if self._task is not None else tasks
        self._run.stuck = [
            described("the scenario", self._subject)
            if task is self._task
            else described(f"task {task.name!r}", task.coro)
            for task in tasks
        ]
        self._oracle.look()
        self._bound.deadline = time.monotonic() + _GIVING_UP_SECONDS
        self._scope.cancel()
        for task in tasks:
            _cancel_inside(task)

    def _tasks(self) -> Iterator[trio.lowlevel.Task]:
        """List all tasks of the run, parents first."""
        waiting = [self._root] if self._root is not None else []
        while waiting:
            task = waiting.pop(0)
            yield task
            for nursery in task.child_nurseries:
                waiting += sorted(nursery.child_tasks, key=lambda child: child.name)


def _is_suspended(task: trio.lowlevel.Task) -> bool:
    """Return whether a task's step ended in an await; a coroutine that is not native has none."""
    return getattr(task.coro, "cr_frame", task) is not None


def _cancel_inside(task: trio.lowlevel.Task) -> None:
    """Cancel all scopes around a task, including shielded ones: the run is given up."""
    status: Any = getattr(task, "_cancel_status", None)
    while status is not None and (scope := getattr(status, "_scope", None)) is not None:
        scope.cancel()
        status = getattr(status, "_parent", None)
