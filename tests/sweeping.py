"""Cancels a coroutine at every step, once in each run, and counts how often tasks wake up; for the tests of cancel safety.

"Every step" has two meanings: every suspension of the coroutine itself (`at_suspensions`, on
every backend), and every turn of the event loop (`at_turns`, on asyncio and trio). Turns also
hit a task that stays suspended during a close.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import anyio
import trio
import trio.testing
import uvloop

from quiesce.core.backends.asyncio.backend import owners
from quiesce.core.graveyard import graveyards
from quiesce.core.roots import roots
from quiesce.testing.sweeps.driver import Points, drive
from tests import sampling
from tests.loops import VirtualLoop, children, orphans

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterator

    Subject = Callable[[], Coroutine[Any, Any, Any]]

SAMPLE = 5  # in a sampled run: the points of a sweep, and the later points for each
RUNS_MAX = 400  # the most runs of one sweep: a longer subject does not belong in a unit test


@dataclass(frozen=True)
class Plan:
    """How and when a sweep cancels its subject."""

    kind: str
    """`native` (the task's own `cancel()`), or `anyio` (a cancel scope, which cancels again and again)."""
    by: str
    """What counts as a step: the subject's `suspensions`, or the loop's `turns`."""
    times: str
    """At each step: `once`, `twice` (there and at each later step), or `on` (twelve times in a row)."""


@dataclass
class Run:
    """One run of a subject: how it was cancelled, how it ended, and what it left behind."""

    steps: int = 0
    delivered: bool = False
    outcome: str = "?"
    left: list[str] = field(default_factory=list)

    def fault(self) -> str | None:
        """Return what is wrong with the run, or None."""
        if self.left:
            return f"{self.outcome}, and left {self.left}"
        wanted = "cancelled" if self.delivered else "returned"
        return None if self.outcome == wanted else f"{self.outcome}, not {wanted}"


class Canceller:
    """A canceller of the subject's task, natively or by an anyio cancel scope."""

    def __init__(self, kind: str, at: Collection[int], run: Run) -> None:
        """Cancel at the given steps."""
        self._kind = kind
        self._at = at
        self._run = run
        self._scope = anyio.CancelScope()
        self._task: asyncio.Task[Any] | None = None
        self.running = False

    def step(self) -> None:
        """Count one step of the subject, and cancel the subject if the step is chosen."""
        if self.running:
            self._run.steps += 1
            if self._run.steps in self._at:
                self._run.delivered = True
                if self._task is not None:
                    self._task.cancel()
                else:
                    self._scope.cancel()

    async def run(self, subject: Awaitable[Any]) -> None:
        """Run the subject, and record how it ends."""
        if self._kind == "native":
            self._task = asyncio.current_task()
        try:
            with self._scope:
                self.running = True
                try:
                    await subject
                finally:
                    self.running = False
                if (
                    self._task is None
                ):  # a cancel scope cancels at the next checkpoint, this one at the latest
                    await anyio.lowlevel.checkpoint()
                self._run.outcome = "returned"
        except asyncio.CancelledError:
            self._run.outcome = "cancelled"
        except BaseException as error:
            self._run.outcome = f"raised {error!r}"
        if self._scope.cancelled_caught:
            self._run.outcome = "cancelled"


class RealTurningLoop(asyncio.SelectorEventLoop):
    """An event loop that calls a function at each of its turns."""

    on_turn: Callable[[], None] | None = None

    def _run_once(self) -> None:
        if self.on_turn is not None:
            self.on_turn()
        super()._run_once()  # type: ignore[misc]  # not in the stubs


class TurningLoop(RealTurningLoop, VirtualLoop):
    """A `RealTurningLoop` in virtual time."""


class Turning(trio.abc.Instrument):
    """An instrument of trio that calls a function at each turn."""

    on_turn: Callable[[], None] | None = None

    def after_io_wait(self, timeout: float) -> None:
        """Call the function at the beginning of a turn."""
        if self.on_turn is not None:
            self.on_turn()


def make_loop(
    backend: str, on_complaint: Callable[[Any, dict[str, Any]], None], *, real_time: bool
) -> asyncio.AbstractEventLoop:
    """Return the event loop for one run."""
    loop: asyncio.AbstractEventLoop
    if backend == "uvloop":
        loop = uvloop.new_event_loop()
    else:
        loop = RealTurningLoop() if real_time else TurningLoop()
    loop.set_exception_handler(on_complaint)
    return loop


def run_once(
    backend: str, subject: Subject, plan: Plan, at: Collection[int], *, real_time: bool
) -> Run:
    """Run the subject on a new event loop, cancel it at the given steps, and return the run."""
    run = Run()
    before = children()
    watch = Turning()

    async def main() -> None:
        canceller = Canceller(plan.kind, at, run)
        if plan.by == "suspensions":
            at_each = Points(range(1, sys.maxsize), lambda *_: canceller.step())
            await canceller.run(drive(subject(), at_each))
            return
        turning = watch if backend == "trio" else asyncio.get_running_loop()
        assert isinstance(turning, Turning | RealTurningLoop)
        turning.on_turn = canceller.step
        await canceller.run(subject())
        turning.on_turn = None

    async def and_then_look() -> None:
        await main()
        task = asyncio.current_task()
        assert task is not None
        while task.cancelling():
            task.uncancel()
        tasks = asyncio.all_tasks() - {task}
        run.left.extend(f"task {left.get_name()}" for left in tasks)

    if backend == "trio":
        clock = None if real_time else trio.testing.MockClock(autojump_threshold=0)
        trio.run(main, clock=clock, instruments=[watch])
    else:
        loop = make_loop(
            backend, lambda _, context: run.left.append(str(context)), real_time=real_time
        )
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(and_then_look())
    run.left += [f"scope {root.name}" for root in roots]
    run.left += [f"stuck in {grave.name}" for grave in graveyards]
    run.left += [f"task {task.get_name()}" for task in owners]
    run.left += orphans(before)
    for table in (roots, graveyards, owners):
        table.clear()
    return run


def sweep(backend: str, subject: Subject, plan: Plan, *, real_time: bool = False) -> list[str]:
    """Cancel the subject at every step, or at a sample of them; return a line for each run with a fault."""
    base = run_once(backend, subject, plan, (), real_time=real_time)
    faults = [] if base.fault() is None else [f"undisturbed: {base.fault()}"]
    name = (backend, plan)
    steps = sampling.at_most(SAMPLE, range(1, base.steps + 1), name)
    points: list[tuple[int, ...]] = [(step,) for step in steps]
    for runs, point in enumerate(points):
        assert runs < RUNS_MAX, "the subject has too many steps"
        at = range(point[0], point[0] + 12) if plan.times == "on" else point
        run = run_once(backend, subject, plan, at, real_time=real_time)
        if run.fault() is not None:
            faults.append(f"cancelled at {at}: {run.fault()}")
        if plan.times == "twice" and len(point) == 1:
            later = range(point[0] + 1, run.steps + 1)
            points += [(point[0], step) for step in sampling.at_most(SAMPLE, later, (*name, point))]
    assert points, "the subject has no steps to cancel it at"
    return faults


class WakeUps(trio.abc.Instrument):
    """A counter of the wake-ups of tasks in the running event loop."""

    def __init__(self) -> None:
        """Start at zero."""
        self.count = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        """Count a step of a task, on trio."""
        self.count += 1

    @contextmanager
    def counted(self, backend: str) -> Iterator[None]:
        """Count wake-ups inside the block."""
        if backend == "trio":
            trio.lowlevel.add_instrument(self)
            yield
            trio.lowlevel.remove_instrument(self)
            return
        loop: Any = asyncio.get_running_loop()
        call_soon = loop.call_soon

        def count_and_call(*args: Any, **options: Any) -> Any:
            self.count += 1
            return call_soon(*args, **options)

        loop.call_soon = count_and_call
        yield
        del loop.call_soon
