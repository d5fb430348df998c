"""The adapters, against the real SDKs: each version in a process of its own.

The rows (tests/adapters/*_rows.py) are run with the SDK alone and with the adapter; what is wrong
with which version stands in tests/adapters/outcomes.json, as tools/compatibility.py has seen it. The
cases (tests/adapters/*_cases.py) are tests of their own, which need an SDK.
"""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.adapters import runs
from tests.adapters.rows import ABSENT, CLEAN
from tests.integration import subjects
from tools import compatibility

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.adapters.rows import Way

_SECONDS_MAX = 280.0  # a guard against hangs
_CASES_SECONDS_MAX = 840.0  # each of them has a limit of its own


def _rows() -> Iterator[object]:
    for adapter, rows in runs.recorded().items():
        for row, versions in rows.items():
            for version in versions:
                for way in runs.WAYS:
                    yield pytest.param(
                        adapter,
                        version,
                        way,
                        row,
                        id=f"{adapter}-{version}-{way}-{row}",
                        marks=_marks(runs.ADAPTERS[adapter], version, way),
                    )


def _marks(adapter: runs.Adapter, version: str, way: Way) -> list[pytest.MarkDecorator]:
    """Say when a row is run: the adapter with the newest SDK, always."""
    if version not in adapter.ends:
        return [pytest.mark.every_version]  # `make test-versions`
    # That the SDK alone fails is the same with every interpreter, and so is the oldest.
    always = way == "quiesce" and version == adapter.versions[-1]
    return [] if always else [pytest.mark.usual]


def _cases() -> Iterator[object]:
    """Return the modules that one process runs: to import an SDK takes as long as most of them."""
    for adapter in runs.ADAPTERS.values():
        for version in adapter.ends:
            modules = adapter.case_modules
            # The carriers of the mesh know little of an SDK, and their sweeps take long; those of A2A,
            # whose two kinds of SDK have little in common, are tried with both.
            is_seldom = version != adapter.versions[-1] and adapter.name != "a2a"
            seldom = [module for module in modules if is_seldom and "_mesh_" in module]
            always = [module for module in modules if module not in seldom]
            subject, name = adapter.subject(version), f"{adapter.name}-{version}"
            yield pytest.param(subject, always, id=name)
            if seldom:
                yield pytest.param(
                    subject, seldom, marks=pytest.mark.every_version, id=f"{name}-mesh"
                )


@pytest.mark.parametrize(("adapter", "version", "way", "row"), list(_rows()))
def test_row(adapter: str, version: str, way: Way, row: str) -> None:
    """With the adapter all is well; without it, what was recorded as wrong is, and what was not is not."""
    found = runs.outcomes(adapter, version, way)[row]
    if way == "quiesce":
        assert found["outcome"] in {CLEAN, ABSENT}, found["details"]
        return
    expected = runs.recorded()[adapter][row][version][way]
    # How it goes wrong may differ from run to run: what is left is gone sooner or later. That it does
    # may not; and a row that is wrong where it was not has a fault of its own, and proves nothing.
    assert _gist(found["outcome"]) == _gist(expected), (
        f"it was {expected!r}, and is {found['outcome']!r}: if that is right, run"
        f" tools/compatibility.py\n{found['details']}"
    )


def _gist(outcome: str) -> str:
    """Return whether it is clean, or absent, or goes wrong."""
    return outcome if outcome in {CLEAN, ABSENT} else "wrong"


@pytest.mark.parametrize("adapter", list(runs.ADAPTERS))
def test_every_row_is_recorded(adapter: str) -> None:
    """A new row has to be recorded, and so gets into the table of the documentation."""
    ran = runs.outcomes(adapter, runs.ADAPTERS[adapter].versions[-1], "quiesce")
    assert set(ran) == set(runs.recorded()[adapter])


@pytest.mark.parametrize("adapter", list(runs.ADAPTERS))
def test_every_row_goes_wrong_without_the_adapter(adapter: str) -> None:
    """A row that no version gets wrong would prove nothing."""
    rows = runs.recorded()[adapter]
    wrong = {
        _without_backend(row)
        for row, versions in rows.items()
        if any(ways["bare"] not in {CLEAN, ABSENT} for ways in versions.values())
    }
    assert {_without_backend(row) for row in rows} == wrong


def _without_backend(row: str) -> str:
    return row.removesuffix(" (trio)").removesuffix(" (uvloop)")


def test_the_table_of_the_documentation_is_what_was_recorded() -> None:
    """docs/reference/compatibility.md is written by tools/compatibility.py."""
    assert compatibility.PAGE.read_text(encoding="utf-8") == compatibility.page(runs.recorded())


_EXPORTS = """
import importlib
from quiesce import integrations
from tests import exports
package = importlib.import_module("quiesce.integrations.{name}")
inner = exports.inner_modules(integrations)
assert exports.exported(package)
print(*exports.export_faults(package, inner), *exports.undocumented(package, inner), sep="\\n")
"""


@pytest.mark.usual
@pytest.mark.parametrize("adapter", list(runs.ADAPTERS.values()), ids=list(runs.ADAPTERS))
def test_what_an_adapter_exports_is_documented(adapter: runs.Adapter) -> None:
    """As tests/test_tidy.py asks it of the package, which is looked at without the SDKs."""
    done = subprocess.run(
        [sys.executable, "-c", _EXPORTS.format(name=adapter.module)],
        cwd=runs.ROOT,
        env=subjects.environment(adapter.subject(adapter.versions[-1])),
        check=False,
        capture_output=True,
        text=True,
        timeout=_SECONDS_MAX,
    )
    assert (done.stdout.strip(), done.stderr, done.returncode) == ("", "", 0)


@pytest.mark.usual
@pytest.mark.timeout(_CASES_SECONDS_MAX + 60.0)
@pytest.mark.parametrize(("subject", "modules"), list(_cases()))
def test_cases(subject: str, modules: list[str]) -> None:
    """The other tests of an adapter pass with its oldest and its newest SDK."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout", "60"),
            *(f"tests/adapters/{module}.py" for module in modules),
        ],
        cwd=runs.ROOT,
        env=subjects.environment(subject),
        check=False,
        capture_output=True,
        text=True,
        timeout=_CASES_SECONDS_MAX,
    )
    if done.returncode:
        pytest.fail(f"{done.stdout}\n{done.stderr}", pytrace=False)
