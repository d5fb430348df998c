"""The sweep itself: its runs in a fixed order, up to a limit."""

from __future__ import annotations

import sys
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from quiesce.core import arguments
from quiesce.core.platform_check import check_posix
from quiesce.testing.clock import check_run as check_backend
from quiesce.testing.sweeps import plan
from quiesce.testing.sweeps.oracle import look_back, watched
from quiesce.testing.sweeps.plan import DEPTH_MAX, SweepCut
from quiesce.testing.sweeps.result import Sweep, SweepFailure
from quiesce.testing.sweeps.sweep_settings import NoScenario, SweepSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Sequence

    from quiesce.testing.clock import Backend, Clock
    from quiesce.testing.sweeps.plan import Cancel, Where
    from quiesce.testing.sweeps.record import Run

__all__ = ["sweep"]

_HANGS_MAX = 10  # each hang takes `hang_seconds`, and further ones add little
_FAILURES_MAX = 100  # each failure may leave a file or thread that cannot be cleaned up
_TRIES_MAX = 3  # attempts to reach a point in a scenario that depends on time or other processes


def sweep(  # noqa: PLR0913 - options by name
    make: Callable[[], Coroutine[Any, Any, Any]],
    *,
    depth: int = 1,
    where: Where = "task",
    backend: Backend = "asyncio",
    cancel: Cancel | Sequence[Cancel] | None = None,
    clock: Clock = "real",
    runs_max: int = 2000,
    hang_seconds: float = 5.0,
    settle_seconds: float = 0.1,
    check: Callable[[], object] | None = None,
    raises: type[BaseException] | Iterable[type[BaseException]] = (),
    allow: Sequence[str] = (),
    replay: str | None = None,
) -> Sweep:
    """Run a scenario again and again, and cancel it each time at another of its suspensions.

    Each run has a fresh event loop. A run fails if the scenario leaves something behind (tasks,
    processes, threads, files, sockets, async generators, scopes), if something that it started ends
    only after it (`late`), if it hangs, if it returns as though it had not been cancelled, if it
    raises an exception other than the cancellation, or if `check` raises.

    Args:
        make: Returns a new coroutine: the scenario.
        depth: With 2, each run that was cancelled at one point is repeated and cancelled once
            more at each later point, in the middle of its cleanup.
        where: `task`: the suspensions of the scenario's own task; `all`: also those of the tasks
            that it starts.
        backend: `asyncio`, `uvloop` or `trio`.
        cancel: `native` cancels the scenario's task. `scope` cancels an anyio or trio scope around
            it. `child`, with `where="all"`, cancels a started task at its own suspensions, as code
            that cancels all tasks of a loop does. Default: every way that applies.
        clock: `mock` lets time jump as soon as no task can run, and finds a hang at once; not for
            scenarios with threads or processes.
        runs_max: The limit on the number of runs; `not_covered` names the runs that are left out.
        hang_seconds: After how long a run that has not ended is given up. A run that blocks its event
            loop cannot be given up: no other code runs there.
        settle_seconds: How long to wait for leftovers, to tell late ones from those that stay.
        check: Called when the scenario has ended; an exception is a fault.
        raises: Exceptions that the scenario may raise besides the cancellation.
        allow: Patterns of tolerated faults: `thread:*`, `late:task:*`, `swallowed`.
        replay: The id of a run, from a failure: runs only that one. The id sets backend and `where`.

    Raises:
        ArgumentError: An argument cannot work; the message says why.
        KeyboardInterrupt: Ctrl-C. SystemExit and `pytest.skip()` are passed on too; other errors are faults.
    """
    check_posix("sweep()")
    chosen = plan.parse(replay) if replay is not None else None
    if chosen is not None:
        backend, where = chosen.backend, chosen.where
    plan.check_plan(depth, where, runs_max)
    check_backend(backend, clock, None)
    arguments.check_callable(make, "sweep")
    settings = SweepSettings(
        make=make,
        clock=clock,
        hang_seconds=arguments.seconds("hang_seconds", hang_seconds),
        settle_seconds=arguments.seconds("settle_seconds", settle_seconds),
        check=check,
        raises=(raises,) if isinstance(raises, type) else tuple(raises),
        allow=arguments.patterns("allow", allow),
    )
    ways = plan.ways(backend, where, cancel)
    sweeping = Sweeping(settings, SweepCut(backend, where), ways, depth, runs_max)
    with watched():
        return sweeping.replay(chosen) if chosen is not None else sweeping.everything()


class Sweeping:
    """A sweep in progress."""

    def __init__(
        self,
        settings: SweepSettings,
        base: SweepCut,
        ways: Sequence[Cancel],
        depth: int,
        runs_max: int,
    ) -> None:
        self._settings = settings
        self._base = base
        self._ways = ways
        self._depth = depth
        self._runs_max = runs_max
        self._begun = time.monotonic()
        self._points = 0
        self._hangs = 0
        self._failures: list[SweepFailure] = []
        self._not_covered: list[str] = []
        self._missed: list[str] = []
        self._done: list[Run] = []
        self._tries: dict[SweepCut, int] = {}

    def everything(self) -> Sweep:
        """Run the scenario uncancelled, then cancelled once at each point, then twice."""
        base = self._run(self._base)
        self._points = base.points
        if base.error is not None and (
            _is_outcome(base.error) or isinstance(base.error, NoScenario)
        ):
            raise base.error
        if base.ended in {"raised", "cancelled"} and self._failures:
            self._not_covered.append("all points: the scenario fails without being cancelled")
            return self._result()
        self._not_covered += blind_spots(self._base)
        if not base.points:
            self._not_covered.append("anything: the scenario never suspends")
        cuts = deque(plan.first_cuts(self._base, self._ways, base.points, set(base.others)))
        while cuts:
            if self._over(cuts):
                break
            cut = cuts.popleft()
            run = self._run(cut)
            if len(run.hits) < len(cut.at):
                self._missing(cut, cuts)
            elif self._depth == DEPTH_MAX:
                cuts.extend(plan.second_cuts(cut, run.points))
        return self._result()

    def _missing(self, cut: SweepCut, cuts: deque[SweepCut]) -> None:
        """Queue a cut again if its point was not reached; give up after some tries."""
        self._tries[cut] = self._tries.get(cut, 0) + 1
        if self._tries[cut] < _TRIES_MAX:
            cuts.append(cut)
        else:
            self._missed.append(cut.id)

    def replay(self, cut: SweepCut) -> Sweep:
        """Run one cut only."""
        self._not_covered += blind_spots(cut)
        run = self._run(cut)
        self._points = run.points
        if len(run.hits) < len(cut.at):
            self._missed.append(cut.id)
        return self._result()

    def _over(self, cuts: Sequence[SweepCut]) -> bool:
        """Return whether to stop here; record what is left out, and why."""
        if len(self._done) >= self._runs_max:
            why = f"runs_max={self._runs_max} was reached"
        elif self._hangs >= _HANGS_MAX:
            why = f"{self._hangs} runs hung"
        elif len(self._failures) >= _FAILURES_MAX:
            why = f"{len(self._failures)} runs failed"
        else:
            return False
        twice = sum(cut.second for cut in cuts)
        parts = [
            f"{count} runs that are cancelled {times}"
            for count, times in ((len(cuts) - twice, "once"), (twice, "twice"))
            if count
        ]
        begun = self._depth == DEPTH_MAX and twice < len(cuts)
        more = ", and the runs cancelled twice that would follow from them" if begun else ""
        self._not_covered.append(f"{' and '.join(parts)}{more}: {why}")
        return True

    def _run(self, cut: SweepCut) -> Run:
        """Run the scenario once, and judge the run."""
        run = run_once(cut, self._settings)
        self._hangs += run.ended == "hung"
        self._done.append(run)
        self._judge(run)
        return run

    def _judge(self, run: Run) -> None:
        faults = run.faults(self._settings.raises, self._settings.allow)
        if faults:
            error = run.error if not run.cut.at else None
            failure = SweepFailure(run.cut.id, tuple(run.hits), tuple(faults), error)
            self._failures.append(failure)

    def _result(self) -> Sweep:
        for run in look_back(self._done):
            self._judge(run)
        if self._missed:
            ids = ", ".join(self._missed[:5]) + (", …" if len(self._missed) > 5 else "")  # noqa: PLR2004 - enough
            self._not_covered.append(
                f"{len(self._missed)} points that a repeated run did not reach, because the scenario "
                f"takes another path each time: {ids}"
            )
        return Sweep(
            backend=self._base.backend,
            where=self._base.where,
            depth=self._depth,
            points=self._points,
            runs=len(self._done),
            failures=tuple(self._failures),
            not_covered=tuple(self._not_covered),
            seconds=time.monotonic() - self._begun,
        )


def _is_outcome(error: BaseException) -> bool:
    """Return whether an exception is from `pytest.skip()` or the like, which is not a failure."""
    pytest = sys.modules.get("_pytest.outcomes")
    return pytest is not None and isinstance(error, pytest.OutcomeException)


def blind_spots(cut: SweepCut) -> list[str]:
    """List what a sweep cannot see with the installed versions of other packages."""
    if cut.backend == "trio":
        from quiesce.testing.sweeps.on_trio import TELLS_WHOSE  # noqa: PLC0415 - optional

        if not TELLS_WHOSE:
            return ["whether a cancellation is swallowed: this needs trio 0.31 or newer"]
    return []


def run_once(cut: SweepCut, settings: SweepSettings) -> Run:
    """Run the scenario on a fresh event loop, with the cancellations of the cut."""
    if cut.backend == "trio":
        from quiesce.testing.sweeps.on_trio import TrioRun  # noqa: PLC0415 - optional

        return TrioRun(cut, settings).go()
    from quiesce.testing.sweeps.on_asyncio import AsyncioRun  # noqa: PLC0415 - only one of the two

    return AsyncioRun(cut, settings).go()
