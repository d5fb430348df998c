"""The set-up of this project's tests: event loops (loops.py), samples (sampling.py), checks after each test."""

from __future__ import annotations

import functools
import gc
import inspect
import itertools
import os
import signal
from typing import TYPE_CHECKING, Any

import hypothesis  # it looks for referrers of trio's random, so it is imported before we freeze
import pytest

from quiesce.core import process_exit
from quiesce.testing.leaks.instrument import watch
from tests import loops, sampling

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

# A shell script's background jobs ignore SIGINT, and so do processes that the tests start. Servers must start as they do
# elsewhere, so SIGINT is restored here: before any test, because the guard reports handlers that a test leaves behind.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

TESTS_BETWEEN_FREEZES = 20
finished = itertools.count(1)
# With this variable, each run tries other examples, as a sampled run does; otherwise the examples are always the same.
EXPLORES = bool(os.environ.get("QUIESCE_EXPLORE"))
SAMPLED_EXAMPLES = 15
# No deadline: how long an example takes depends on the machine. pytest's timeout ends tests that hang.
hypothesis.settings.register_profile(
    "quiesce",
    deadline=None,
    derandomize=not EXPLORES,
    print_blob=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("quiesce")
hypothesis.settings.register_profile(
    "sampled",
    hypothesis.settings.get_profile("quiesce"),
    derandomize=False,
    database=None,  # the seed alone decides which examples are tried
    max_examples=SAMPLED_EXAMPLES,
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option for sampled runs."""
    sampling.add_option(parser)


@pytest.hookimpl(trylast=True)  # after pytest-randomly has made its seed
def pytest_configure(config: pytest.Config) -> None:
    """Declare the markers, and choose the samples before test modules are imported."""
    sampling.choose(config)
    if sampling.is_sampled():
        hypothesis.settings.load_profile("sampled")
        hypothesis.core.global_force_seed = sampling.Sample.seed  # type: ignore[assignment]  # typed by its default
    config.addinivalue_line("markers", "backends(*names): run this async test on these only")
    config.addinivalue_line(
        "markers", "usual: the same with every interpreter, CI runs it with one"
    )
    config.addinivalue_line(
        "markers", "sampled(number, *names): a sampled run tries so many cases for each of these"
    )
    config.addinivalue_line("markers", "real_time: let time be real, also on asyncio and trio")


@pytest.fixture(autouse=True)
def _exit_code() -> Iterator[None]:
    """Fail a test that sets this process's exit code to 1: otherwise the run would fail without naming a test."""
    yield
    if process_exit.is_lost():
        process_exit._lost = False
        pytest.fail(
            "the test has set the exit code of this process: patch `process_exit._lost`",
            pytrace=False,
        )


@pytest.hookimpl(tryfirst=True)  # before pytest-randomly changes the order
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out cases, if this run is sampled."""
    sampling.leave_out(config, items)


def pytest_collection_finish() -> None:
    """Freeze all imported objects: the garbage collector runs after every async test, and should skip them."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtestloop() -> Generator[None, object, object]:
    """Unfreeze all objects at the end, before the guard looks for leaks for the last time."""
    result = yield
    gc.unfreeze()
    return result


def pytest_runtest_logfinish() -> None:
    """Freeze, from time to time, what pytest keeps of each test: otherwise each test is slower than the one before."""
    if next(finished) % TESTS_BETWEEN_FREEZES == 0:
        gc.collect()
        gc.freeze()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each async test on every backend; `sampling.leave_out` says on which in a sampled run."""
    if inspect.iscoroutinefunction(metafunc.function):
        marker = metafunc.definition.get_closest_marker("backends")
        names = marker.args if marker is not None else loops.BACKENDS
        if sampling.LOOP not in metafunc.fixturenames:
            metafunc.fixturenames.append(sampling.LOOP)
        metafunc.parametrize(sampling.LOOP, names)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run async tests on the backend they are parametrized with."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    arguments: dict[str, Any] = {name: pyfuncitem.funcargs[name] for name in names}
    real_time = pyfuncitem.get_closest_marker("real_time") is not None
    test = functools.partial(pyfuncitem.obj, **arguments)
    loops.run(str(pyfuncitem.callspec.params["backend"]), test, real_time=real_time)
    return True


@pytest.fixture
def unwatched() -> Iterator[None]:
    """Stop every census until the end of the test, also if the run as a whole is guarded."""
    before = list(watch.censuses)
    kept = (list(watch.events), dict(watch.births), dict(watch.readings))
    for census in before:
        watch.stop(census)
    yield
    for census in before:
        watch.start(census)
    watch.events.extend(kept[0])
    watch.births.update(kept[1])
    watch.readings.update(kept[2])
