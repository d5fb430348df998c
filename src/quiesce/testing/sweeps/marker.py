"""`@pytest.mark.sweep`: an async test that runs again and again, cancelled each time.

The marker takes the options of `sweep`; `backend` may also be several. Without `backend`, the test is
swept on the backend that it would run on: the one of anyio's plugin, trio if the test is marked so,
otherwise asyncio. A marked test must allow many runs: its fixtures are set up once, for all runs,
and outside the event loops of the runs.
"""

from __future__ import annotations

import functools
import inspect
import unittest
import warnings
from typing import TYPE_CHECKING, Any

from quiesce.errors import UsageError
from quiesce.testing.sweeps import plan
from quiesce.testing.sweeps.sweep_runs import sweep

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    from quiesce.testing.sweeps.result import Sweep

__all__ = ["SweepIncomplete", "run_marked"]


class SweepIncomplete(UserWarning):
    """A sweep did not cover everything that it should have."""


def run_marked(item: pytest.Function, marker: pytest.Mark, replay: str | None) -> None:
    """Sweep an async test as its marker says; with `replay`, repeat one run.

    Raises:
        SweepFailed: A run failed.
        UsageError: The test is not an async function, or the marker has positional arguments.
    """
    function = test_function(item, marker)
    names = inspect.signature(function).parameters
    arguments = {name: item.funcargs[name] for name in names if name in item.funcargs}
    for name, value in arguments.items():
        if type(value).__module__.startswith("pytest_trio."):
            message = f"{name}: an async fixture of pytest-trio has a value only in pytest-trio's own run: use a plain fixture"
            raise UsageError(message)
    make = functools.partial(function, **arguments)
    options: dict[str, Any] = dict(marker.kwargs)
    backends = options.pop("backend", None) or _own_backend(item)
    chosen = (backends,) if isinstance(backends, str) else tuple(backends)
    if replay is not None:
        wanted = plan.parse(replay).backend
        if wanted not in chosen:
            message = (
                f"{replay} is a run on {wanted}, but this test is swept on {', '.join(chosen)}"
            )
            raise UsageError(message)
        chosen = (wanted,)
    for backend in chosen:
        result = sweep(make, backend=backend, replay=replay, **options)
        result.raise_if_failed()
        _warn_if_incomplete(result)


def test_function(item: pytest.Function, marker: pytest.Mark) -> Callable[..., Any]:
    """Return the test's original async function, even if another plugin has wrapped it."""
    if marker.args:
        message = "@pytest.mark.sweep takes its arguments by name: sweep(depth=2)"
        raise UsageError(message)
    if item.cls is not None and issubclass(item.cls, unittest.TestCase):
        message = "@pytest.mark.sweep is for pytest's own tests: unittest runs its tests itself"
        raise UsageError(message)
    function: Callable[..., Any] = item.obj
    if not inspect.iscoroutinefunction(function):
        owner = item.module if item.instance is None else item.instance
        function = getattr(owner, item.originalname, function)
    if inspect.iscoroutinefunction(function):
        return function
    what = "an async generator" if inspect.isasyncgenfunction(function) else "not async"
    message = f"@pytest.mark.sweep is for tests that are async functions: {item.name} is {what}"
    raise UsageError(message)


def _own_backend(item: pytest.Function) -> str:
    """Return the backend that the test would run on."""
    given: Any = item.funcargs.get("anyio_backend")
    if given is None:
        return "asyncio" if item.get_closest_marker("trio") is None else "trio"
    if isinstance(given, str):
        return given
    name, options = given
    return "uvloop" if options.get("use_uvloop") else str(name)


def _warn_if_incomplete(result: Sweep) -> None:
    """Warn of what was not covered: a pass must not promise more than it has checked."""
    if result.not_covered:
        warnings.warn(str(result), SweepIncomplete, stacklevel=2)
