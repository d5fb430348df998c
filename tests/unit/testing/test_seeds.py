"""The five seeds: guard and sweep find each bug, with its line, and pass the fixed versions.

The programs are in tests/seeds; each is run in a process of its own.
"""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.seeds.cases import CASES, Case

ROOT = Path(__file__).parents[3]
GUARDED = [case for case in CASES if case.left is not None]
SWEPT = [case for case in CASES if case.swept]
SECONDS_MAX = 60


def named(case: Case) -> str:
    """Return the name of a case, for the names of tests."""
    return case.name


@functools.cache
def watch(how: str, case: Case) -> dict[str, list[dict[str, str]]]:
    """Run a seed under guard or sweep, and give what was found, in each version."""
    command = [sys.executable, "-m", "tests.seeds.watch", how, case.name]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS_MAX, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, list[dict[str, str]]] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("case", GUARDED, ids=named)
def test_the_guard_finds_the_bug_and_the_line_that_started_what_is_left(case: Case) -> None:
    """What is left is named, with the marked line."""
    found = watch("guard", case)["buggy"]
    lines = {each["where"] for each in found if each["kind"] == case.left}
    assert f"{case.path}:{case.line('LEFT')}" in lines


@pytest.mark.parametrize("case", GUARDED, ids=named)
def test_the_guard_passes_the_fixed_version(case: Case) -> None:
    """There is no false alarm."""
    assert watch("guard", case)["fixed"] == []


@pytest.mark.parametrize("case", SWEPT, ids=named)
def test_a_sweep_finds_the_bug_and_its_line(case: Case) -> None:
    """The kind of fault is the one expected, and the marked line is in what is said of it."""
    found = watch("sweep", case)["buggy"]
    assert set(case.swept) <= {each["kind"] for each in found}
    mark = "HANGS" if "hang" in case.swept else "LEFT"
    place = f"{case.path}:{case.line(mark)}"
    assert any(place in each["text"] for each in found if each["kind"] in case.swept)


@pytest.mark.parametrize("case", SWEPT, ids=named)
def test_a_sweep_passes_the_fixed_version(case: Case) -> None:
    """No cancellation, at any point, leaves anything."""
    assert watch("sweep", case)["fixed"] == []


def test_all_five_seeds_are_there() -> None:
    """Each seed has a case for the guard and one for the sweep."""
    assert {case.seed for case in GUARDED} == {f"00{number}" for number in range(5)}
    assert {case.seed for case in SWEPT} == {f"00{number}" for number in range(5)}
