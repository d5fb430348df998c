"""Which runs a sweep makes, in which order, up to which bound; and how it tells of them."""

from __future__ import annotations

import itertools
import warnings
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from anyio.lowlevel import checkpoint as turn

from quiesce.errors import ArgumentError, QuiesceError, UsageError
from quiesce.testing import SweepFailed, sweep
from quiesce.testing.sweeps.marker import SweepIncomplete, run_marked
from quiesce.testing.sweeps.plan import SweepCut, parse
from tests.unit.testing import sweep_scenarios as scenarios

if TYPE_CHECKING:
    from quiesce.testing.clock import Backend

ALL: tuple[Backend, ...] = ("asyncio", "uvloop", "trio")


async def three_steps() -> None:
    """Suspend three times."""
    for _ in range(3):
        await turn()


async def swallowing_thrice() -> None:
    """Suspend three times, and swallow what comes."""
    for _ in range(3):
        await scenarios.swallowing()


def test_every_point_is_cut_once_then_every_pair() -> None:
    """The order is fixed: natively, by a scope; then twice, in the same order."""
    result = sweep(swallowing_thrice, depth=2)
    ids = [failure.id.removeprefix("asyncio:task:") for failure in result.failures]
    once = [f"{way}:{point}" for way in ("native", "scope") for point in (1, 2, 3)]
    assert ids[:3] == once[:3]
    natively = [i for i in ids if i.startswith("native:") and "+" in i]
    assert natively == [f"native:{a}+{b}" for a, b in itertools.combinations((1, 2, 3), 2)]
    assert result.runs == 1 + 6 + 6
    again = sweep(swallowing_thrice, depth=2)
    assert [failure.id for failure in again.failures] == [f.id for f in result.failures]


@pytest.mark.parametrize("backend", ALL)
def test_a_cut_that_is_survived_needs_no_second_one(backend: Backend) -> None:
    """Where a cancellation ends the scenario at once, there is no later point to cut."""
    result = sweep(three_steps, depth=2, backend=backend)
    assert result.points == 3
    assert result.runs == 1 + 3 * (1 if backend == "trio" else 2)
    assert not result.not_covered


@pytest.mark.parametrize(
    ("text", "cut"),
    [
        ("asyncio:task:native:12", SweepCut("asyncio", "task", "native", (12,))),
        ("uvloop:all:child:12+17", SweepCut("uvloop", "all", "child", (12, 17))),
        ("trio:all:undisturbed", SweepCut("trio", "all")),
    ],
)
def test_an_id_can_be_read(text: str, cut: SweepCut) -> None:
    """The id of a cut, read, gives the cut."""
    assert parse(text) == cut
    assert cut.id == text


@pytest.mark.parametrize(
    "text",
    ["", "native:12", "asyncio:task:native", "asyncio:task:native:x", "curio:task:native:1", "12"],
)
def test_what_is_no_id_is_refused(text: str) -> None:
    """The message shows what one looks like."""
    with pytest.raises(ArgumentError, match=r"asyncio:task:native:12\+17"):
        sweep(three_steps, replay=text)


@pytest.mark.parametrize(
    "options",
    [
        {"depth": 3},
        {"depth": 0},
        {"where": "everywhere"},
        {"runs_max": 0},
        {"backend": "curio"},
        {"backend": "uvloop", "clock": "mock"},
        {"backend": "trio", "cancel": "native"},
        {"cancel": "child"},
        {"backend": "trio", "where": "all", "cancel": ["scope", "child"]},
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, Any]) -> None:
    """A wrong argument is an error before anything runs."""
    with pytest.raises(ArgumentError):
        sweep(three_steps, **options)


@pytest.mark.parametrize("depth", [1, 2])
def test_the_bound_on_runs_is_kept_and_told(depth: int) -> None:
    """What was not run is counted, by how often it would have been cancelled."""
    result = sweep(swallowing_thrice, depth=depth, runs_max=3, allow=["swallowed"])
    assert result.ok
    assert result.runs == 3
    (told,) = result.not_covered
    assert "4 runs that are cancelled once" in told
    assert ("twice" in told) is (depth == 2)
    assert "runs_max=3" in told
    assert told in str(result)


def test_after_many_hangs_it_is_enough() -> None:
    """A scenario that always hangs does not take for ever."""

    async def hanging() -> None:
        for _ in range(20):
            await turn()
        await scenarios.closing_under_the_lock()

    async def always() -> None:
        try:
            await hanging()
        finally:
            await scenarios.stubborn()

    result = sweep(always, clock="mock", cancel="native")
    assert len(result.failures) == 10
    assert "10 runs hung" in result.not_covered[0]


def test_after_many_failures_it_is_enough() -> None:
    """What a scenario leaves each time is not piled up without a bound."""

    async def long_leak() -> None:
        for _ in range(120):
            await scenarios.swallowing()

    result = sweep(long_leak)
    assert len(result.failures) == 100
    assert "100 runs failed" in result.not_covered[0]


def test_a_point_that_is_not_there_again_is_tried_and_told() -> None:
    """A scenario that goes another way each time is run some times more, and then named."""
    lengths = itertools.chain([3], itertools.repeat(2))

    async def shrinking() -> None:
        for _ in range(next(lengths)):
            await turn()

    result = sweep(shrinking, cancel="native")
    assert result.ok
    assert result.runs == 1 + 2 + 3
    assert "asyncio:task:native:3" in result.not_covered[0]


def test_a_replay_that_comes_to_no_point_says_so() -> None:
    """An id of an older version of the scenario is not a pass."""
    result = sweep(three_steps, replay="asyncio:task:native:9")
    assert result.runs == 1
    assert result.not_covered


def test_a_scenario_that_never_suspends_is_not_covered() -> None:
    """There is nothing to cancel, which is not a pass to be proud of."""

    async def at_once() -> None:
        pass

    result = sweep(at_once)
    assert result.ok
    assert "never suspends" in result.not_covered[0]


def test_a_failed_sweep_can_be_raised() -> None:
    """The error has the result, and tells each way to fail once, with the ids of all."""
    result = sweep(swallowing_thrice)
    with pytest.raises(SweepFailed) as caught:
        result.raise_if_failed()
    assert isinstance(caught.value, QuiesceError)
    assert caught.value.sweep is result
    text = str(caught.value)
    assert text.count("the scenario was cancelled, but returned as if it had not been") == 1
    assert "pytest --quiesce-replay asyncio:task:native:1" in text
    assert "the same at native:2, native:3" in text
    assert scenarios.line("swallowed") in text
    sweep(three_steps).raise_if_failed()


# --- the marker ---------------------------------------------------------------------------------


def marked(function: Any, replay: str | None = None, /, **options: Any) -> None:
    """Run a test function as the plugin does."""
    mark: Any = SimpleNamespace(args=(), kwargs=options)
    run_marked(item_of(function), mark, replay)


def item_of(function: Any) -> Any:
    """Make what the plugin has for a test."""
    return SimpleNamespace(
        obj=function,
        name=function.__name__,
        originalname=function.__name__,
        cls=None,
        instance=None,
        module=SimpleNamespace(),
        funcargs={"count": 2, "request": None},
        get_closest_marker=lambda _: None,
    )


def test_a_marked_test_is_swept_with_its_arguments() -> None:
    """It is called with the fixtures that it asks for, on each backend."""
    counts: list[int] = []

    async def test(count: int) -> None:
        counts.append(count)
        await turn()

    marked(test, backend=ALL)
    assert counts == [2] * (3 + 3 + 2)


def test_a_marked_test_that_fails_raises() -> None:
    """The failure of a run is the failure of the test."""
    with pytest.raises(SweepFailed, match="returned as if it had not been"):
        marked(scenarios.swallowing)
    marked(scenarios.swallowing, allow=["swallowed"])


def test_a_marked_test_is_run_again() -> None:
    """With an id there is one run, and on the backend that the id names."""
    runs: list[None] = []

    async def test() -> None:
        runs.append(None)
        await turn()

    marked(test, "uvloop:task:native:1", backend=ALL)
    assert len(runs) == 1
    with pytest.raises(UsageError, match="trio"):
        marked(test, "trio:task:scope:1", backend="asyncio")


def test_a_marked_test_that_is_not_covered_warns() -> None:
    """A pass must not seem to be more than it is."""
    with pytest.warns(SweepIncomplete, match="runs_max=2"):
        marked(three_steps, runs_max=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        marked(three_steps)


def test_a_test_that_another_plugin_has_wrapped_is_found() -> None:
    """What was written is swept, not what runs it; and a test that is not async is not."""
    item = item_of(lambda: None)
    item.originalname = "test"
    mark: Any = SimpleNamespace(args=(), kwargs={})
    with pytest.raises(UsageError, match="is not async"):
        run_marked(item, mark, None)
    item.module.test = scenarios.swallowing
    with pytest.raises(SweepFailed):
        run_marked(item, mark, None)


@pytest.mark.parametrize(
    ("given", "marked_trio", "library"),
    [
        (None, False, "asyncio"),
        (None, True, "trio"),
        ("trio", False, "trio"),
        ("asyncio", True, "asyncio"),
        (("asyncio", {"use_uvloop": True}), False, "uvloop"),
        (("asyncio", {"debug": True}), False, "asyncio"),
    ],
)
def test_a_test_is_swept_on_what_it_would_run_on(
    given: object, library: str, *, marked_trio: bool
) -> None:
    """The backend of anyio's plugin, or a marker, says it, unless the sweep's own marker does."""
    item = item_of(three_steps)
    item.funcargs["anyio_backend"] = given
    item.get_closest_marker = lambda name: name if marked_trio and name == "trio" else None
    mark: Any = SimpleNamespace(args=(), kwargs={})
    run_marked(item, mark, f"{library}:task:scope:1")
    with pytest.raises(UsageError, match=f"swept on {library}"):
        run_marked(item, mark, "trio:task:scope:1" if library != "trio" else "asyncio:task:scope:1")
    mark.kwargs["backend"] = "uvloop"
    run_marked(item, mark, "uvloop:task:scope:1")


def test_only_async_tests_can_be_swept() -> None:
    """A plain function, or an argument without a name, is an error."""
    with pytest.raises(UsageError):
        marked(lambda: None)
    mark: Any = SimpleNamespace(args=(2,), kwargs={})
    with pytest.raises(UsageError, match="by name"):
        run_marked(item_of(three_steps), mark, None)
