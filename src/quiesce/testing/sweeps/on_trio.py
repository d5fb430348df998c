"""One run of a scenario on trio.

With `where="all"` an instrument tells of the steps of all other tasks, those that the scenario
has started in the system nursery among them. What is cancelled is always the cancel scope around
the scenario: on trio nobody can cancel somebody else's task.

A run that hangs is given up in two stages: the scope is cancelled, also through shields; and if
that does not help, the clock, which is ours, raises, which ends `trio.run` on the spot.
"""

from __future__ import annotations

import inspect
import math
import time
from typing import TYPE_CHECKING, Any

import trio
import trio.testing

from quiesce.testing.clock import seeded_trio
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

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from quiesce.testing.sweeps.plan import SweepCut
    from quiesce.testing.sweeps.sweep_settings import SweepSettings

__all__: list[str] = []

_REASON = "quiesce.testing.sweep"
# Before trio 0.31 nobody can tell whose cancellation has reached the scenario.
TELLS_WHOSE: bool = "reason" in inspect.signature(trio.CancelScope.cancel).parameters
_PARTS = 10  # of the time that a run may take
_GIVING_UP_SECONDS = 0.2  # for tasks to end once they are cancelled, shields or not
_BLOCKED_SECONDS_MAX = 0.05  # of mock time: nothing can run, and no timer is set
_SEED = 0


class Abandoned(BaseException):
    """Ends `trio.run`."""


class Bound:
    """Sees to it that a run ends: it knows what trio asks its clock, which is once a turn at least."""

    def __init__(self, on_deadline: Callable[[], None], seconds: float) -> None:
        self.part: float = seconds / _PARTS
        self._checked = time.monotonic()
        self.deadline: float = self._checked + seconds
        self._on_deadline = on_deadline
        self._blocked_since: float | None = None

    def check(self) -> float:
        """See whether the time is over; trio asks for it in a turn, tasks ask, too."""
        now = time.monotonic()
        # A machine that was held up has not let anybody run meanwhile: that is a part of the time, at most.
        self.deadline += max(0.0, now - self._checked - self.part)
        self._checked = now
        if now > self.deadline and not _in_task():
            self._on_deadline()
        return now

    def check_blocked(self, timer: float) -> None:
        """See whether nothing can run any more, in mock time: no timer is set."""
        now = self.check()
        if timer < math.inf:
            self._blocked_since = None
        elif self._blocked_since is None:
            self._blocked_since = now
        elif now - self._blocked_since > _BLOCKED_SECONDS_MAX:
            self._blocked_since = None
            self._on_deadline()


class RealClock(trio.abc.Clock):
    """The time of the machine, with a bound for the whole run."""

    def __init__(self, bound: Bound) -> None:
        self._bound = bound

    def start_clock(self) -> None:
        """Do nothing: it runs already."""

    def current_time(self) -> float:
        """Return the time."""
        return self._bound.check()

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Return the time to wait for something to happen: not longer than the run may take."""
        now = self._bound.check()
        return min(deadline, self._bound.deadline, now + self._bound.part) - now


def mock_clock(bound: Bound) -> trio.abc.Clock:
    """Make a virtual clock with a bound in real time; trio wants its own class, and nothing else."""
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
    """One run: its scenario, and what is done to it."""

    def __init__(self, cut: SweepCut, settings: SweepSettings) -> None:
        self._cut = cut
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
        """Run it, and look at what it leaves."""
        instruments = [self] if self._cut.where == "all" else []
        mock = self._settings.clock == "mock"
        clock = mock_clock(self._bound) if mock else RealClock(self._bound)
        try:
            with seeded_trio(_SEED, required=False):
                trio.run(self._main, clock=clock, instruments=instruments)
        except trio.TrioInternalError as error:
            for coroutine in (self._subject, *(task.coro for task in self._tasks())):
                bury_coroutine(coroutine)
            if not self._given_up:
                self._broke(error)
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
        except BaseException as error:  # noqa: BLE001 - it is judged later
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
        """Ignore what comes now."""
        self._run.points, self._run.others = self._points.count, self._points.others
        self._points.due, self._watching = 0, False

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        """See another task suspend; the scenario's own has the driver for that."""
        if self._watching and task not in self._not_ours and _is_suspended(task):
            self._points.other(task.coro, task)

    def _strike(self, coroutine: object, task: trio.lowlevel.Task | None) -> None:
        run, stack = self._run, stack_of(coroutine)
        name = None if task is None else task.name
        run.hits.append(Hit(self._points.count, await_place(stack), stack, name))
        run.asked = True
        self._points.resumed = self._resumed
        self._scope.cancel(**({"reason": _REASON} if TELLS_WHOSE else {}))

    def _resumed(self, value: Any, _: BaseException | None) -> None:
        """See whether it is our scope's cancellation that the scenario is woken with."""
        error = getattr(value, "error", None)
        if isinstance(error, trio.Cancelled) and getattr(error, "reason", None) == _REASON:
            self._run.delivered = True

    def _broke(self, error: trio.TrioInternalError) -> None:
        """Record that trio itself did not survive the scenario, or what the scenario has left."""
        run = self._run
        if run.ended == "hung":  # it was under way
            self._stop_counting()
            self._oracle.look()
            run.check = self._settings.checked()
        run.ended, run.error, run.broke = "raised", error, True
        # Outside of its run, trio has put the handler of Ctrl-C back.
        run.findings = [each for each in self._oracle.left() if each.kind != "handler"]

    # --- its end --------------------------------------------------------------------------------

    def _give_up(self) -> None:
        """Record where everything stands, and cancel it all; the second time, crash."""
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
    """Return whether a step ends in an await; what is not a native coroutine has none."""
    return getattr(task.coro, "cr_frame", task) is not None


def _cancel_inside(task: trio.lowlevel.Task) -> None:
    """Cancel all scopes around a task, those that shield it too: it is not wanted any more."""
    status: Any = getattr(task, "_cancel_status", None)
    while status is not None and (scope := getattr(status, "_scope", None)) is not None:
        scope.cancel()
        status = getattr(status, "_parent", None)
