"""The tests of an adapter's known faults, with the version of its SDK that is on the path.

`test_known_faults.py` in the folder of an adapter imports them. All faults that were selected run at
once, some side by side, when the first of them is asked for: to import an SDK takes as long as most of
them. With pytest-xdist one worker has all of one way, therefore.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING

import pytest

from tests.adapters import catalogue
from tests.adapters.known_faults import ABSENT, CLEAN
from tests.integration import subjects

if TYPE_CHECKING:
    from tests.adapters.known_faults import KnownFault, Way

__all__ = ["pytest_generate_tests", "test_every_fault_is_recorded", "test_known_fault"]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make a test of each fault and each way."""
    adapter = metafunc.definition.path.parent.name
    if "fault" in metafunc.fixturenames:
        ways = [
            pytest.param(adapter, way, fault, id=f"{way}-{fault}", marks=_marks(adapter, way))
            for fault in catalogue.recorded()[adapter]
            for way in catalogue.WAYS
        ]
        metafunc.parametrize(("adapter", "way", "fault"), ways)


def _marks(adapter: str, way: Way) -> list[pytest.MarkDecorator]:
    """Keep those of one way together; that the SDK alone fails is the same with every interpreter."""
    together = pytest.mark.xdist_group(f"{adapter}, {way}")
    return [together] if way == "quiesce" else [together, pytest.mark.usual]


def test_known_fault(adapter: str, way: Way, fault: str, request: pytest.FixtureRequest) -> None:
    """With the adapter all is well; without it, what was recorded as wrong is, and what was not is not."""
    version = catalogue.ADAPTERS[adapter].version(os.environ[subjects.CHOSEN])
    assert version is not None, "the conftest collects a folder where its SDK is on the path"
    found = catalogue.outcomes(adapter, version, way, _selected(request, way))[fault]
    if way == "quiesce":
        assert found["outcome"] in {CLEAN, ABSENT}, found["details"]
        return
    expected = catalogue.recorded()[adapter][fault][version][way]
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
