"""A sweep finds what does not stand being cancelled, at the right line, and can run it again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from quiesce.testing import sweep
from tests.unit.testing import sweep_scenarios as scenarios
from tests.unit.testing.sweep_scenarios import line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from quiesce.testing import Fault, Sweep
    from quiesce.testing.clock import Backend
    from quiesce.testing.sweeps.plan import Where
    from tests.unit.testing.sweep_scenarios import Scenario

ALL: tuple[Backend, ...] = ("asyncio", "uvloop", "trio")
ON_ASYNCIO: tuple[Backend, ...] = ("asyncio", "uvloop")
WHERES: tuple[Where, ...] = ("task", "all")
HANG_SECONDS = 0.1  # of scenarios that take no time at all unless they hang

LEAKS: list[tuple[Scenario, str, tuple[Backend, ...]]] = [
    (scenarios.task_without_owner, "task", ON_ASYNCIO),
    (scenarios.system_task, "system task", ("trio",)),
    (scenarios.process_between_spawn_and_registry, "process", ALL),
    (scenarios.thread_left, "thread", ALL),
    (scenarios.file_left, "file", ALL),
]
FIXED: list[Scenario] = [
    scenarios.task_with_owner,
    scenarios.process_owned,
    scenarios.thread_stopped,
    scenarios.file_closed,
    scenarios.generator_closed,
    scenarios.passing_on,
    scenarios.closing_without_the_lock,
]


@pytest.fixture(autouse=True)
def _cleaned_up() -> Iterator[None]:
    """End what scenarios have left."""
    yield
    scenarios.clean_up()


def cases(
    table: list[tuple[Scenario, str, tuple[Backend, ...]]],
) -> list[tuple[Scenario, str, Backend]]:
    """Return one case for each backend."""
    return [(scenario, tag, backend) for scenario, tag, there in table for backend in there]


def swept(scenario: Scenario, backend: Backend, where: Where, depth: int = 1) -> Sweep:
    """Sweep a scenario; what stays is known to stay soon."""
    return sweep(scenario, backend=backend, where=where, depth=depth, settle_seconds=0.02)


def faults(result: Sweep) -> list[Fault]:
    """Return all faults, of all runs."""
    return [fault for failure in result.failures for fault in failure.faults]


def check_replay(scenario: Scenario, result: Sweep, hang_seconds: float = 5.0) -> None:
    """See that the id of the first failure runs just that one again."""
    failure = result.failures[0]
    again = sweep(scenario, replay=failure.id, hang_seconds=hang_seconds, settle_seconds=0.02)
    assert again.runs == 1
    assert [other.id for other in again.failures] == [failure.id]
    assert {fault.label for fault in again.failures[0].faults} == {
        fault.label for fault in failure.faults
    }
    assert again.failures[0].where == failure.where


@pytest.mark.sampled(1, "scenario")
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("where", WHERES)
@pytest.mark.parametrize(("scenario", "tag", "backend"), cases(LEAKS))
def test_what_is_left_is_found_with_its_line(
    scenario: Scenario, tag: str, backend: Backend, where: Where, depth: int
) -> None:
    """A task, process, thread or file that a cancelled scenario leaves is named, and its await."""
    result = swept(scenario, backend, where, depth)
    failure = result.failures[0]
    assert failure.hits, f"it fails undisturbed: {result}"
    assert failure.where == line(f"{tag} await")
    assert failure.kinds == {"leak"}
    finding = failure.faults[0].finding
    assert finding is not None
    assert not finding.late
    assert finding.kind == tag.rpartition(" ")[2]
    if tag != "file":  # who opened it is known to tracemalloc alone
        assert finding.where == line(tag)
    assert any(frame.function == scenario.__name__ for frame in failure.hits[0].stack)
    check_replay(scenario, result)


@pytest.mark.parametrize("where", WHERES)
@pytest.mark.parametrize("backend", ALL)
def test_a_generator_left_to_the_collector_is_found(backend: Backend, where: Where) -> None:
    """An async generator that nobody closes is named by the line that began to read it."""
    result = swept(scenarios.generator_half_read, backend, where)
    assert result.failures[0].where == line("generator await")
    found = {fault.finding.where for fault in faults(result) if fault.finding is not None}
    assert {fault.finding.kind for fault in faults(result) if fault.finding} == {"generator"}
    assert found == {line("generator")}
    check_replay(scenarios.generator_half_read, result)


@pytest.mark.parametrize("where", WHERES)
@pytest.mark.parametrize("backend", ON_ASYNCIO)
def test_what_ends_only_after_the_scenario_is_late(backend: Backend, where: Where) -> None:
    """A task that is cancelled and not awaited is told from one that stays."""
    result = swept(scenarios.cancelled_and_not_awaited, backend, where)
    failure = result.failures[0]
    assert failure.kinds == {"late"}
    assert failure.where == line("late await")
    assert failure.faults[0].finding is not None
    assert failure.faults[0].finding.where == line("late")
    check_replay(scenarios.cancelled_and_not_awaited, result)


@pytest.mark.parametrize("where", WHERES)
@pytest.mark.parametrize("backend", ALL)
@pytest.mark.parametrize(
    ("scenario", "kind", "tag"),
    [
        (scenarios.swallowing, "swallowed", "swallowed"),
        (scenarios.translating, "wrong exception", "translated"),
    ],
)
def test_an_end_that_is_not_the_cancellation_is_found(
    scenario: Scenario, kind: str, tag: str, backend: Backend, where: Where
) -> None:
    """A cancelled scenario that returns, or raises something else, is found."""
    result = swept(scenario, backend, where)
    ways = 1 if backend == "trio" else 2
    assert [failure.kinds for failure in result.failures] == [{kind}] * ways * result.points
    assert {failure.where for failure in result.failures} == {line(tag)}
    check_replay(scenario, result)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("where", WHERES)
@pytest.mark.parametrize("backend", ALL)
def test_a_hang_is_found_and_bounded(backend: Backend, where: Where) -> None:
    """A cleanup that deadlocks is given up, and told with the awaits that everything stands in."""
    scenario = scenarios.closing_under_the_lock
    result = sweep(scenario, backend=backend, where=where, hang_seconds=HANG_SECONDS)
    assert {kind for failure in result.failures for kind in failure.kinds} == {"hang"}
    assert line("hang await") in {failure.where for failure in result.failures}
    assert line("hang") in str(result)
    check_replay(scenario, result, HANG_SECONDS)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("where", WHERES)
@pytest.mark.parametrize("backend", ALL)
def test_what_never_ends_is_given_up(backend: Backend, where: Where) -> None:
    """Code that cannot be cancelled at all does not stop the sweep."""
    result = sweep(
        scenarios.stubborn, backend=backend, where=where, hang_seconds=HANG_SECONDS, runs_max=3
    )
    assert result.runs > 1
    assert all(failure.kinds == {"hang"} for failure in result.failures)
    assert len(result.failures) == result.runs


@pytest.mark.sampled(2)
@pytest.mark.parametrize("where", WHERES)
@pytest.mark.parametrize("backend", ON_ASYNCIO)
def test_a_cleanup_cut_short_is_found_at_depth_two(backend: Backend, where: Where) -> None:
    """One cancellation is survived; a second one, in the middle of the cleanup, is not."""
    scenario = scenarios.cleanup_cut_short
    once = sweep(scenario, backend=backend, where=where, cancel="native")
    assert once.ok
    result = sweep(
        scenario, backend=backend, where=where, cancel="native", depth=2, settle_seconds=0.02
    )
    (failure,) = result.failures
    assert failure.id.endswith("native:1+2")
    assert [hit.place for hit in failure.hits] == [line("second await"), line("second cleanup")]
    assert failure.faults[0].finding is not None
    assert failure.faults[0].finding.where == line("second")
    check_replay(scenario, result)


@pytest.mark.parametrize("backend", ALL)
def test_a_scope_that_stays_cancelled_cuts_a_cleanup_short_at_once(backend: Backend) -> None:
    """A cancel scope cancels every await of a cleanup that has no shield: depth 1 is enough."""
    result = sweep(
        scenarios.cleanup_cut_short, backend=backend, cancel="scope", settle_seconds=0.02
    )
    (failure,) = result.failures
    assert failure.kinds == {"leak"}


@pytest.mark.sampled(2, "scenario")
@pytest.mark.parametrize("where", WHERES)
@pytest.mark.parametrize("backend", ALL)
@pytest.mark.parametrize("scenario", FIXED)
def test_the_fixed_scenarios_pass(scenario: Scenario, backend: Backend, where: Where) -> None:
    """Nothing is found where nothing is wrong, and everything was run."""
    result = sweep(scenario, backend=backend, where=where, depth=2)
    assert result.ok, str(result)
    assert not result.not_covered
    assert result.runs > result.points > 0
