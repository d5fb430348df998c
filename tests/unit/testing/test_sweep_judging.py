"""What a sweep takes for a fault, and what it does not."""

from __future__ import annotations

import asyncio
import functools
import os
import socket
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import anyio
import pytest
import trio
from anyio.lowlevel import checkpoint as turn

from quiesce.errors import LeakError, UsageError
from quiesce.testing import sweep
from quiesce.testing.leaks.guard import guard
from quiesce.testing.leaks.instrument import watch
from tests.unit.testing import sweep_scenarios as scenarios
from tests.unit.testing.sweep_scenarios import hold_up, line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from quiesce.testing import Sweep
    from quiesce.testing.clock import Backend
    from tests.unit.testing.sweep_scenarios import Scenario

ALL: tuple[Backend, ...] = ("asyncio", "uvloop", "trio")
ON_ASYNCIO: tuple[Backend, ...] = ("asyncio", "uvloop")
WITH_MOCK: tuple[Backend, ...] = ("asyncio", "trio")


@pytest.fixture(autouse=True)
def _nothing_stays() -> Iterator[None]:
    """End what scenarios have left, and see that nobody watches any more."""
    before = list(watch.censuses)
    yield
    scenarios.clean_up()
    assert watch.censuses == before


def kinds(result: Sweep) -> set[str]:
    """Return the kinds of all faults."""
    return {kind for failure in result.failures for kind in failure.kinds}


@pytest.mark.parametrize("backend", ALL)
def test_what_is_shielded_to_its_end_has_swallowed_nothing(backend: Backend) -> None:
    """A cancel scope whose cancellation comes too late is nobody's fault."""

    async def shielded() -> None:
        with anyio.CancelScope(shield=True):
            await turn()

    assert sweep(shielded, backend=backend, cancel="scope").ok


@pytest.mark.parametrize("backend", ALL)
def test_an_own_cancel_scope_may_end_quietly(backend: Backend) -> None:
    """A timeout inside the scenario, also a shielded one, swallows its own cancellation alone."""

    async def with_timeouts() -> None:
        with anyio.move_on_after(0):
            await anyio.sleep_forever()
        with anyio.CancelScope(shield=True), anyio.move_on_after(0):
            await anyio.sleep_forever()

    result = sweep(with_timeouts, backend=backend, cancel="scope")
    assert result.ok, str(result)


@pytest.mark.parametrize("backend", ALL)
def test_an_own_cancel_scope_may_not_swallow_the_outer_one(backend: Backend) -> None:
    """Whose cancellation was swallowed is known, also where there are others."""

    async def greedy() -> None:
        with suppress(BaseException), anyio.move_on_after(60):
            await turn()

    result = sweep(greedy, backend=backend, cancel="scope")
    assert kinds(result) == {"swallowed"}


@pytest.mark.parametrize("backend", ON_ASYNCIO)
def test_a_started_task_is_cancelled_on_its_own(backend: Backend) -> None:
    """A task that others wait for is cancelled, and the scenario hangs: that is told as such."""

    async def waiting() -> None:
        ready = anyio.Event()

        async def tell() -> None:
            await turn()
            ready.set()

        async with asyncio.TaskGroup() as group:
            group.create_task(tell())
            await ready.wait()

    result = sweep(waiting, backend=backend, where="all", hang_seconds=0.1)
    assert kinds(result) == {"hang"}
    (failure,) = result.failures
    assert ":child:" in failure.id
    assert failure.hits[0].task == waiting.__qualname__ + ".<locals>.tell"
    assert "alone, was cancelled" in str(failure)
    assert sweep(waiting, backend=backend, where="all", cancel=("native", "scope")).ok


@pytest.mark.parametrize("backend", ["asyncio", "uvloop", "trio"])
def test_a_machine_that_is_held_up_makes_no_hang(backend: Backend) -> None:
    """A run is given up after a time in which it could run, not after one in which nothing could."""

    async def held_up() -> None:
        hold_up(0.15)
        for _ in range(5):
            await turn()

    assert sweep(held_up, backend=backend, hang_seconds=0.1, runs_max=1).ok


@pytest.mark.parametrize("backend", ON_ASYNCIO)
def test_a_lost_task_may_make_the_scenario_raise(backend: Backend) -> None:
    """What a scenario raises because a task of its own was cancelled is its own affair."""

    async def telling() -> None:
        task = asyncio.create_task(asyncio.sleep(0))
        try:
            await asyncio.wait([task])
            if task.cancelled():
                raise ConnectionError
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    result = sweep(telling, backend=backend, where="all")
    assert result.ok, str(result)


@pytest.mark.parametrize("backend", ALL)
def test_the_scenario_is_cancelled_where_other_tasks_stand(backend: Backend) -> None:
    """With where="all", what a scenario does at one await is cut in as many places as others go."""

    async def busy() -> None:
        for _ in range(3):
            await turn()

    async def waiting() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(busy)

    own = sweep(waiting, backend=backend, where="task")
    every = sweep(waiting, backend=backend, where="all")
    assert own.ok
    assert every.ok
    assert every.points >= own.points + 3


@pytest.mark.parametrize("backend", ALL)
def test_tasks_started_behind_the_loops_back_are_seen(backend: Backend) -> None:
    """A task that is made without create_task, or is a system task, has its points as well."""

    async def forgotten() -> None:
        await turn()
        await turn()

    async def starting() -> None:
        if backend == "trio":
            trio.lowlevel.spawn_system_task(forgotten)
            for _ in range(9):
                await turn()
        else:
            await asyncio.Task(forgotten(), loop=asyncio.get_running_loop())

    result = sweep(starting, backend=backend, where="all", allow=["*"])
    own = sweep(starting, backend=backend, where="task", allow=["*"])
    assert result.points == own.points + 2


@pytest.mark.parametrize("abandon", [True, False])
@pytest.mark.parametrize("backend", ALL)
def test_work_left_in_a_thread_is_found(backend: Backend, *, abandon: bool) -> None:
    """A thread whose work goes on is left, and one that only waits for the next work is not."""
    scenario = functools.partial(scenarios.work_in_a_thread, abandon=abandon)
    # The points of the other task: at the scenario's own the thread need not have begun.
    result = sweep(scenario, backend=backend, where="all", cancel="scope", settle_seconds=0.03)
    if not abandon:
        assert result.ok, str(result)
        return
    finding = result.failures[-1].faults[0].finding
    assert finding is not None
    assert finding.kind == "thread"
    assert finding.where == line("in a thread")


@pytest.mark.parametrize("backend", ON_ASYNCIO)
def test_work_left_in_the_default_executor_is_found(backend: Backend) -> None:
    """What `run_in_executor` has started goes on when its caller is cancelled, and is named."""
    scenario = scenarios.work_in_the_default_executor
    result = sweep(scenario, backend=backend, cancel="native", settle_seconds=0.03)
    failure = result.failures[-1]
    assert failure.where == line("executor await")
    (fault,) = failure.faults
    assert fault.finding is not None
    assert fault.finding.label == "thread:work"
    assert fault.finding.where == line("executor")


@pytest.mark.parametrize("backend", ON_ASYNCIO)
def test_what_the_loop_closes_by_itself_is_not_late(backend: Backend) -> None:
    """A transport that was closed gives its socket back in a later turn, which nobody awaits."""

    async def closing() -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            _, writer = await asyncio.open_connection(sock=ours)
            writer.close()

    result = sweep(closing, backend=backend, runs_max=1)
    assert result.ok, str(result)


@pytest.mark.parametrize("backend", ALL)
def test_a_process_that_was_left_is_killed(backend: Backend) -> None:
    """A sweep that finds orphans leaves none."""
    started: list[Any] = []

    async def orphaning() -> None:
        started.append(scenarios.child())
        await turn()
        started[-1].kill()
        started[-1].wait()

    assert kinds(sweep(orphaning, backend=backend, settle_seconds=0.02)) == {"leak"}
    for process in started:
        with pytest.raises(ProcessLookupError):
            os.kill(process.pid, 0)
        process.wait()


@pytest.mark.parametrize("scenario", [scenarios.thread_left, scenarios.generator_half_read])
def test_a_guard_around_a_sweep_does_not_tell_it_again(scenario: Scenario) -> None:
    """What a sweep has found is its own to tell, and what comes after it is the guard's."""
    with guard():
        assert not sweep(scenario, settle_seconds=0.02).ok

    def leak_after_a_sweep() -> None:
        with guard(settle=0.0):
            sweep(scenario, settle_seconds=0.02)
            scenarios.opened.append(os.open(__file__, os.O_RDONLY))

    with pytest.raises(LeakError) as caught:
        leak_after_a_sweep()
    assert [finding.kind for finding in caught.value.findings] == ["file"]


def test_a_hung_run_is_ended_politely_first() -> None:
    """A cleanup that waits behind a shield of trio's is cancelled all the same, and can clean up."""
    log: list[str] = []

    async def hanging() -> None:
        try:
            with trio.CancelScope(shield=True):
                await trio.sleep_forever()
        finally:
            log.append("cleaned up")

    sweep(hanging, backend="trio", clock="mock", runs_max=1)
    assert log == ["cleaned up"]


@pytest.mark.parametrize("backend", ALL)
def test_what_is_allowed_is_no_fault(backend: Backend) -> None:
    """Patterns name a kind of fault, a fault, or what was left."""
    for pattern in ("swallowed", "swallowed:*"):
        assert sweep(scenarios.swallowing, backend=backend, allow=[pattern]).ok
    for pattern in ("thread:ticker", "leak:thread:*", "leak"):
        result = sweep(
            scenarios.thread_left, backend=backend, allow=[pattern], settle_seconds=0.001
        )
        assert result.ok, str(result)
    assert not sweep(scenarios.swallowing, backend=backend, allow=["thread:*"]).ok


@pytest.mark.parametrize("backend", ALL)
def test_what_may_be_raised_is_no_fault(backend: Backend) -> None:
    """One or several kinds of exceptions may be allowed."""
    assert sweep(scenarios.translating, backend=backend, raises=ConnectionError).ok
    assert sweep(scenarios.translating, backend=backend, raises=[KeyError, OSError]).ok
    assert kinds(sweep(scenarios.translating, backend=backend, raises=KeyError)) == {
        "wrong exception"
    }


@pytest.mark.parametrize("backend", ALL)
def test_the_callers_own_check_is_asked_after_each_run(backend: Backend) -> None:
    """It is called when the scenario has ended, and its error is a fault."""
    calls: list[None] = []

    def check() -> None:
        calls.append(None)
        assert len(calls) != 2, "the books do not balance"

    result = sweep(scenarios.passing_on, backend=backend, check=check)
    assert len(calls) == result.runs
    (failure,) = result.failures
    assert failure.kinds == {"check"}
    assert "the books do not balance" in str(failure)


@pytest.mark.parametrize("backend", WITH_MOCK)
def test_in_mock_time_a_hang_is_found_at_once(backend: Backend) -> None:
    """When nothing can run and no timer is set, nobody waits for the bound."""
    result = sweep(
        scenarios.closing_under_the_lock, backend=backend, clock="mock", hang_seconds=600
    )
    assert kinds(result) == {"hang"}
    assert result.seconds < 60


@pytest.mark.parametrize("backend", WITH_MOCK)
def test_in_mock_time_what_is_busy_for_ever_is_given_up(backend: Backend) -> None:
    """A scenario that never waits is bounded by real time."""

    async def busy() -> None:
        while True:
            await turn()

    result = sweep(busy, backend=backend, clock="mock", hang_seconds=0.05, runs_max=1)
    assert kinds(result) == {"hang"}


@pytest.mark.parametrize("backend", WITH_MOCK)
def test_in_mock_time_an_hour_is_no_hang(backend: Backend) -> None:
    """A long timeout that comes is waited for."""

    async def patient() -> None:
        with anyio.move_on_after(3600):
            await anyio.sleep_forever()

    result = sweep(patient, backend=backend, clock="mock", depth=2, where="all")
    assert result.ok, str(result)
    assert result.seconds < 60


@pytest.mark.skipif(sys.version_info < (3, 12), reason="there are no eager tasks before 3.12")
def test_eager_tasks_may_be_used() -> None:
    """A factory of the scenario's own stays what it is, and its tasks are seen as well."""

    async def work() -> None:
        await turn()
        await turn()

    async def eager() -> None:
        loop = asyncio.get_running_loop()
        loop.set_task_factory(getattr(asyncio, "eager_task_factory"))  # noqa: B009 - since 3.12
        async with asyncio.TaskGroup() as group:
            group.create_task(work())

    result = sweep(eager, where="all", depth=2)
    assert result.ok, str(result)
    assert result.points > 1


@pytest.mark.parametrize("backend", ALL)
def test_a_scenario_that_fails_undisturbed_is_not_swept(backend: Backend) -> None:
    """Its own error is the cause, and the sweep says that nothing was covered."""

    async def failing() -> None:
        await turn()
        raise KeyError

    result = sweep(failing, backend=backend)
    assert result.runs == 1
    assert kinds(result) == {"failed"}
    assert "without being cancelled" in result.not_covered[0]
    with pytest.raises(Exception, match="KeyError") as caught:
        result.raise_if_failed()
    assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.parametrize("backend", ALL)
@pytest.mark.parametrize("error", [KeyboardInterrupt, pytest.skip.Exception])
def test_what_is_not_the_scenarios_goes_out(backend: Backend, error: type[BaseException]) -> None:
    """Ctrl-C and a skipped test end the sweep as they would end anything."""

    async def raising() -> None:
        await turn()
        raise error

    with pytest.raises(error):
        sweep(raising, backend=backend)


def test_a_sweep_inside_a_loop_is_refused() -> None:
    """Called from async code, it says what to do."""

    async def main() -> None:
        with pytest.raises(UsageError, match="plain function"):
            sweep(scenarios.passing_on)

    asyncio.run(main())
    trio.run(main)


async def _swallows() -> None:
    with suppress(asyncio.CancelledError):
        await asyncio.sleep(0)


async def _obeys() -> None:
    await asyncio.sleep(0)


def test_a_sweep_is_true_if_no_run_failed() -> None:
    """`assert sweep(...)` works, and its short form names the runs that failed."""
    good, bad = sweep(_obeys, clock="mock"), sweep(_swallows, clock="mock")
    assert good
    assert not bad
    assert bad.failures[0].id in repr(bad)
    assert "\n" not in repr(bad)
    assert repr(good).startswith("<sweep on asyncio")
