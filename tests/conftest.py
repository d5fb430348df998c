"""How this project's async tests are run; see loops.py."""

from __future__ import annotations

import functools
import gc
import inspect
from typing import Any

import hypothesis  # noqa: F401 - it looks for referrers of trio's random, so before we freeze
import pytest

from tests import loops


def pytest_configure(config: pytest.Config) -> None:
    """Declare the markers."""
    config.addinivalue_line("markers", "backends(*names): run this async test on these only")
    config.addinivalue_line("markers", "real_time: let time be real, also on asyncio and trio")


def pytest_collection_finish() -> None:
    """Take what was imported out of the collector's sight: it runs after every async test."""
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
