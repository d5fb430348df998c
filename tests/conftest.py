"""How this project's async tests are run; see loops.py."""

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
from tests import loops, sampling

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

# In the background of a shell script SIGINT is ignored, also by what the tests start; servers have to begin as they do
# elsewhere. Here, before any test: the guard sees handlers that a test leaves behind.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

TESTS_BETWEEN_FREEZES = 20
finished = itertools.count(1)
# With it, each run tries other examples, as one that is sampled does; else always the same.
EXPLORES = bool(os.environ.get("QUIESCE_EXPLORE"))
SAMPLED_EXAMPLES = 15
# How long an example takes is up to the machine, and decides nothing. The guard against hangs is pytest's.
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
    database=None,  # what is tried is up to the seed alone
    max_examples=SAMPLED_EXAMPLES,
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let a run try samples."""
    sampling.add_option(parser)


@pytest.hookimpl(trylast=True)  # when pytest-randomly has made its seed
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
    config.addinivalue_line("markers", "real_time: let time be real, also on asyncio and trio")


@pytest.fixture(autouse=True)
def _exit_code() -> Iterator[None]:
    """Fail a test that makes this process exit with 1: the whole run would fail, and name no test."""
    yield
    if process_exit.is_lost():
        process_exit._lost = False
        pytest.fail(
            "the test has set the exit code of this process: patch `process_exit._lost`",
            pytrace=False,
        )


def pytest_collection_finish() -> None:
    """Take what was imported out of the collector's sight: it runs after every async test."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtestloop() -> Generator[None, object, object]:
    """Show all to the collector again in the end, before the guard looks for the last time."""
    result = yield
    gc.unfreeze()
    return result


def pytest_runtest_logfinish() -> None:
    """Do so now and then with what pytest keeps of each test: else each test is slower than the last."""
    if next(finished) % TESTS_BETWEEN_FREEZES == 0:
        gc.collect()
        gc.freeze()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each async test once a backend."""
    if inspect.iscoroutinefunction(metafunc.function):
        marker = metafunc.definition.get_closest_marker("backends")
        names = marker.args if marker is not None else loops.BACKENDS
        if "backend" not in metafunc.fixturenames:
            metafunc.fixturenames.append("backend")
        metafunc.parametrize("backend", names)


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
