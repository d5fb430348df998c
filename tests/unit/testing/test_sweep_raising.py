"""What a sweep makes of what a scenario raises, or breaks, and of what cannot be swept."""

from __future__ import annotations

import asyncio
import gc
import os
from typing import TYPE_CHECKING, Any

import anyio
import pytest
import trio
from anyio.lowlevel import checkpoint as turn

from quiesce.errors import ArgumentError, SweepFailed
from quiesce.testing import sweep
from quiesce.testing.sweeps import on_trio
from quiesce.testing.sweeps.oracle import Oracle
from tests.unit.testing import sweep_scenarios as scenarios

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator

    from quiesce.testing import Sweep
    from quiesce.testing.clock import Backend
    from tests.unit.testing.sweep_scenarios import Scenario

ALL: tuple[Backend, ...] = ("asyncio", "uvloop", "trio")


class Alarm(BaseException):
    """Nothing that `except Exception` catches."""


@pytest.fixture(autouse=True)
def _nothing_stays() -> Iterator[None]:
    """End what scenarios have left."""
    yield
    scenarios.clean_up()


def kinds(result: Sweep) -> set[str]:
    """Return the kinds of all faults."""
    return {kind for failure in result.failures for kind in failure.kinds}


def raising(error: BaseException, *, only_if_cancelled: bool) -> Scenario:
    """Make a scenario that raises, always or only if it is cancelled."""

    async def scenario() -> None:
        try:
            await turn()
        except BaseException:
            raise error from None
        if not only_if_cancelled:
            raise error

    return scenario


FATAL = [GeneratorExit(), Alarm(), BaseExceptionGroup("both", [GeneratorExit(), KeyError()])]


@pytest.mark.parametrize("backend", ALL)
@pytest.mark.parametrize("error", FATAL, ids=lambda error: type(error).__name__)
def test_whatever_is_raised_is_judged(backend: Backend, error: BaseException) -> None:
    """An exception that few catch is a failure like any other, cancelled or not."""
    result = sweep(raising(error, only_if_cancelled=False), backend=backend)
    assert kinds(result) == {"failed"}
    assert type(error).__name__ in str(result)
    with pytest.raises(SweepFailed) as caught:
        result.raise_if_failed()
    assert caught.value.__cause__ is error
    result = sweep(raising(error, only_if_cancelled=True), backend=backend)
    assert kinds(result) == {"wrong exception"}
    assert sweep(raising(error, only_if_cancelled=True), backend=backend, raises=type(error)).ok


@pytest.mark.parametrize("backend", ALL)
@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit()], ids=repr)
@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("late", [False, True])
def test_what_ends_the_program_goes_out(
    backend: Backend, error: BaseException, *, grouped: bool, late: bool
) -> None:
    """Ctrl-C ends the sweep, also if it came in a group, as trio's nurseries wrap it."""
    raised = BaseExceptionGroup("", [ValueError(), error]) if grouped else error
    with pytest.raises(type(error)) as caught:
        sweep(raising(raised, only_if_cancelled=late), backend=backend)
    assert caught.value is error


@pytest.mark.parametrize("backend", ALL)
@pytest.mark.parametrize("error", [pytest.fail.Exception("no"), Alarm(), KeyError()], ids=repr)
def test_whatever_a_check_raises_is_a_fault(backend: Backend, error: BaseException) -> None:
    """pytest.fail() in a check is no exception that `except Exception` catches."""

    def check() -> None:
        raise error

    result = sweep(scenarios.passing_on, backend=backend, check=check)
    assert kinds(result) == {"check"}
    assert len(result.failures) == result.runs


@pytest.mark.parametrize("backend", ALL)
def test_a_check_may_be_interrupted(backend: Backend) -> None:
    """Ctrl-C in a check ends the sweep."""

    def check() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sweep(scenarios.passing_on, backend=backend, check=check)


async def crashing_task() -> None:
    """Start a system task of trio's that fails."""

    async def fail() -> None:
        raise ConnectionError

    trio.lowlevel.spawn_system_task(fail)
    for _ in range(9):  # trio cancels this, unless it is shielded, and breaks
        await turn()


async def crashing_if_cancelled() -> None:
    """Break trio only if cancelled."""
    try:
        await turn()  # HERE
    except trio.Cancelled:
        with trio.CancelScope(shield=True):
            await crashing_task()
        raise


def test_breaking_trio_is_a_failure_of_that_run() -> None:
    """A TrioInternalError is told with its cause, and the sweep can say what was not covered."""
    result = sweep(crashing_task, backend="trio")
    assert kinds(result) == {"failed"}
    assert "the scenario broke the event loop: TrioInternalError" in str(result)
    assert "ConnectionError" in str(result)
    assert "without being cancelled" in result.not_covered[0]


def test_breaking_trio_when_cancelled_is_a_failure_of_that_run() -> None:
    """The other runs go on; and an exception that may be raised may not break trio."""
    result = sweep(crashing_if_cancelled, backend="trio", raises=Exception)
    (failure,) = result.failures
    assert failure.kinds == {"wrong exception"}
    assert failure.id == "trio:task:scope:1"
    assert result.runs == 2


def test_a_process_in_a_broken_trio_is_found_and_ended() -> None:
    """What was left is told also if nobody could wait for its end."""
    started: list[Any] = []

    async def crashing() -> None:
        started.append(scenarios.child())
        await crashing_task()

    assert kinds(sweep(crashing, backend="trio")) == {"failed", "leak"}
    with pytest.raises(ProcessLookupError):
        os.kill(started[0].pid, 0)
    started[0].wait()


@pytest.mark.parametrize("backend", ALL)
def test_a_process_in_a_run_that_hangs_is_ended(backend: Backend) -> None:
    """A hung run that is given up leaves no process."""
    started: list[Any] = []

    async def hanging() -> None:
        started.append(scenarios.child())
        await anyio.sleep_forever()

    assert "hang" in kinds(sweep(hanging, backend=backend, hang_seconds=0.05, runs_max=1))
    with pytest.raises(ProcessLookupError):
        os.kill(started[0].pid, 0)
    started[0].wait()


def test_what_this_version_of_trio_cannot_tell_is_not_covered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without the reason of a cancellation nobody knows what was swallowed; that is said."""
    monkeypatch.setattr(on_trio, "TELLS_WHOSE", False)
    for replay in (None, "trio:task:scope:1"):
        result = sweep(scenarios.passing_on, backend="trio", replay=replay)
        assert result.ok
        assert "swallowed: this needs trio 0.31" in result.not_covered[0]


@pytest.mark.parametrize(
    "options",
    [
        {"allow": "task:*"},
        {"allow": [1]},
        {"cancel": ()},
        {"hang_seconds": -1},
        {"settle_seconds": "long"},
    ],
    ids=str,
)
def test_options_that_would_hide_everything_are_refused(options: dict[str, Any]) -> None:
    """A lone string as `allow` would allow all that its letters match, one of which is a star."""
    with pytest.raises(ArgumentError, match=next(iter(options))):
        sweep(scenarios.passing_on, **options)


def test_a_coroutine_instead_of_a_function_is_refused() -> None:
    """It could be run only once."""
    given: Any = scenarios.passing_on()
    with pytest.raises(ArgumentError, match="sweep"):
        sweep(given)


@pytest.mark.parametrize("backend", ALL)
def test_a_function_that_gives_no_coroutine_is_refused(backend: Backend) -> None:
    """It is the caller's mistake, and no run to be looked into; the error says what was given."""

    def plain() -> Coroutine[Any, Any, None]:
        nothing: Any = 7
        return nothing  # type: ignore[no-any-return]  # that is the mistake

    with pytest.raises(ArgumentError, match="returned 7, which is not a coroutine"):
        sweep(plain, backend=backend)


@pytest.mark.parametrize("backend", ["asyncio", "uvloop"])
def test_what_is_left_cannot_keep_the_sweep_from_telling(backend: Backend) -> None:
    """A task that cancels all others, the sweep's own among them, is told of."""

    async def wild() -> None:
        while True:
            await asyncio.sleep(0)
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()

    async def leaving() -> None:
        kept.append(asyncio.create_task(wild()))

    kept: list[asyncio.Task[None]] = []
    assert kinds(sweep(leaving, backend=backend, runs_max=1)) == {"leak"}


@pytest.mark.parametrize("backend", ["asyncio", "uvloop"])
def test_a_task_that_is_started_after_the_end_is_found(backend: Backend) -> None:
    """A callback that was about to run revives what was closed."""
    kept: list[asyncio.Task[Any]] = []

    async def reviving() -> None:
        loop = asyncio.get_running_loop()

        def start() -> None:
            kept.append(loop.create_task(asyncio.Event().wait()))

        loop.call_soon(loop.call_soon, start)

    result = sweep(reviving, backend=backend, settle_seconds=0.01)
    assert kinds(result) == {"leak"}


@pytest.mark.parametrize("backend", ALL)
def test_a_look_that_fails_is_no_pass(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mistake of the sweep's own comes out, and is not taken for nothing found."""

    def broken(*_: object) -> None:
        raise ZeroDivisionError

    for name in ("look", "settled"):
        with monkeypatch.context() as patch:
            patch.setattr(Oracle, name, broken)
            with pytest.raises(ZeroDivisionError):
                sweep(scenarios.passing_on, backend=backend)


async def failing() -> None:
    """Fail, in a task that nobody asks."""
    raise ConnectionError


@pytest.mark.parametrize(
    ("backend", "what"), [*((each, "coroutine") for each in ALL), ("asyncio", "task failure")]
)
@pytest.mark.parametrize("bad", [1, 2])
def test_what_only_a_full_collection_can_tell_is_told_in_the_end(
    backend: Backend, what: str, bad: int
) -> None:
    """What is forgotten in a ring that has grown old is said of its own run."""
    runs: list[None] = []

    async def forgetting() -> None:
        runs.append(None)
        if len(runs) == bad:
            coroutine = failing()
            ring: list[object] = [
                coroutine if what == "coroutine" else asyncio.create_task(coroutine)
            ]
            ring.append(ring)
        try:
            await turn()
        finally:
            gc.collect()  # it is in the oldest generation now

    for allow in ([], [f"{what}:*"]):
        runs.clear()
        result = sweep(forgetting, backend=backend, cancel="scope", allow=allow)
        assert len(runs) == 2
        assert result.ok == bool(allow)
        if not allow:
            (failure,) = result.failures
            (fault,) = failure.faults
            assert fault.kind == "leak"
            assert fault.finding is not None
            assert fault.finding.label == f"{what}:failing"
            # Nobody knows when a coroutine was made: it may have been in a run before.
            assert len(failure.hits) == bad - 1 or what == "coroutine"
