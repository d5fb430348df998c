"""The tests of an adapter's known faults, with the version of its SDK that is on the path.

`test_known_faults.py` in the folder of an adapter imports them. All faults that were selected run at
once, some side by side, when the first of them is asked for: to import an SDK takes as long as most of
them. The workers of pytest-xdist share what came of them.
"""

from __future__ import annotations

import fcntl
import importlib
import json
import os
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests import sampling
from tests.adapters import catalogue
from tests.adapters.known_faults import ABSENT, CLEAN
from tests.integration import subjects

if TYPE_CHECKING:
    from pathlib import Path

    from tests.adapters.known_faults import KnownFault, Way

BARE_SAMPLE = 2
__all__ = ["pytest_generate_tests", "test_every_fault_is_recorded", "test_known_fault"]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make a test of each fault and each way."""
    adapter = metafunc.definition.path.parent.name
    if "fault" in metafunc.fixturenames:
        ways = [
            pytest.param(adapter, way, fault, id=f"{way}-{fault}", marks=_marks(way))
            for way in catalogue.WAYS
            for fault in _tried(adapter, way)
        ]
        metafunc.parametrize(("adapter", "way", "fault"), ways)


def _tried(adapter: str, way: Way) -> list[str]:
    """Name the faults to try: with the adapter all of them, and of the SDK alone a sample may do."""
    faults = list(catalogue.recorded()[adapter])
    return faults if way == "quiesce" else sampling.at_most(BARE_SAMPLE, faults, adapter)


def _marks(way: Way) -> list[pytest.MarkDecorator]:
    """Mark that the SDK alone fails as the same with every interpreter."""
    return [] if way == "quiesce" else [pytest.mark.usual]


def test_known_fault(adapter: str, way: Way, fault: str, request: pytest.FixtureRequest) -> None:
    """With the adapter all is well; without it, what was recorded as wrong is, and what was not is not."""
    version = catalogue.ADAPTERS[adapter].version(os.environ[subjects.CHOSEN])
    assert version is not None, "the conftest collects a folder where its SDK is on the path"
    found = _outcomes(adapter, version, way, request)[fault]
    if way == "quiesce":
        assert found["outcome"] in {CLEAN, ABSENT}, found["details"]
        return
    expected = catalogue.recorded()[adapter][fault][version][way]
    if sys.version_info >= catalogue.CLEAN_SINCE.get((adapter, fault), (4,)):
        expected = CLEAN
    # How it goes wrong may differ from run to run: what is left is gone sooner or later. That it does
    # may not; and a fault that is wrong where it was not has one of its own, and proves nothing.
    assert _gist(found["outcome"]) == _gist(expected), (
        f"it was {expected!r}, and is {found['outcome']!r}: if that is right, run"
        f" tools/compatibility.py\n{found['details']}"
    )


def test_every_fault_is_recorded(request: pytest.FixtureRequest) -> None:
    """A new fault has to be recorded, and so gets into the table of the documentation."""
    adapter = request.path.parent.name
    modules = map(importlib.import_module, catalogue.ADAPTERS[adapter].fault_modules)
    faults: list[KnownFault] = [one for module in modules for one in module.known_fault.all]
    assert {one.name for one in faults} == set(catalogue.recorded()[adapter])


def _outcomes(
    adapter: str, version: str, way: Way, request: pytest.FixtureRequest
) -> dict[str, Any]:
    """Run all faults of a way that were asked for, or read what another worker has found."""
    place: Path = request.getfixturevalue("tmp_path_factory").getbasetemp()
    place = place.parent if "PYTEST_XDIST_WORKER" in os.environ else place
    kept = place / f"{adapter}-{version}-{way}.json"
    with kept.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not kept.exists():
            found = catalogue.outcomes(adapter, version, way, _selected(request, way))
            kept.write_text(json.dumps(found), encoding="utf-8")
    outcomes: dict[str, Any] = json.loads(kept.read_text(encoding="utf-8"))
    return outcomes


def _selected(request: pytest.FixtureRequest, way: Way) -> frozenset[str]:
    """Name the faults of a way that this run of pytest was asked for."""
    items = [item for item in request.session.items if isinstance(item, pytest.Function)]
    chosen = [
        item.callspec.params for item in items if item.originalname == test_known_fault.__name__
    ]
    return frozenset(str(params["fault"]) for params in chosen if params["way"] == way)


def _gist(outcome: str) -> str:
    """Return whether it is clean, or absent, or goes wrong."""
    return outcome if outcome in {CLEAN, ABSENT} else "wrong"
