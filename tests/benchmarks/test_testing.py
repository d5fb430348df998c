"""The benchmarks of the testing kit run, with tiny sizes; no figure is judged here."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from benchmarks import _guarding
from benchmarks._sizes import GuardSizes

if TYPE_CHECKING:
    from pathlib import Path

TINY = GuardSizes(rounds=1, tests=2, suspensions=100)


@pytest.mark.parametrize("backend", ["asyncio", "uvloop"])
def test_the_guard_is_measured(backend: str) -> None:
    """Both figures are there, with their limits, from runs with the guard and without it."""
    overhead, ratio = _guarding.guard(backend, TINY)
    assert (overhead.name, overhead.limit) == ("guard_overhead_ms", 2.0)
    assert (ratio.name, ratio.limit) == ("guard_suite_ratio", 1.1)
    assert [row.label for row in ratio.rows] == [_guarding.OFF, _guarding.ON]


def test_a_suite_that_leaks_is_no_measurement(tmp_path: Path) -> None:
    """A suite that the guard finds fault with is an error, not a figure."""
    leak = "kept = []\nasync def test_{number}(): kept.append(__import__('socket').socket())\n"
    _guarding.write_suite(tmp_path, "asyncio", leak, 1)
    assert _guarding.run_suite(tmp_path, 1, guarded=False)
    with pytest.raises(RuntimeError, match="left behind: file:socket"):
        _guarding.run_suite(tmp_path, 1, guarded=True)
