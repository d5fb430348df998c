"""What holds for all adapters: their record, the table of the documentation, and what they export."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.adapters import catalogue
from tests.adapters.known_faults import ABSENT, CLEAN
from tests.integration import subjects
from tools import compatibility

_SECONDS_MAX = 280.0  # a guard against hangs


@pytest.mark.parametrize("adapter", list(catalogue.ADAPTERS))
def test_every_fault_is_one_without_the_adapter(adapter: str) -> None:
    """A fault that no version has would prove nothing."""
    faults = catalogue.recorded()[adapter]
    wrong = {
        _without_backend(fault)
        for fault, versions in faults.items()
        if any(ways["bare"] not in {CLEAN, ABSENT} for ways in versions.values())
    }
    assert {_without_backend(fault) for fault in faults} == wrong


def _without_backend(fault: str) -> str:
    return fault.removesuffix(" (trio)").removesuffix(" (uvloop)")


def test_the_table_of_the_documentation_is_what_was_recorded() -> None:
    """docs/reference/compatibility.md is written by tools/compatibility.py."""
    assert compatibility.PAGE.read_text(encoding="utf-8") == compatibility.page(
        catalogue.recorded()
    )


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
@pytest.mark.parametrize("adapter", list(catalogue.ADAPTERS.values()), ids=list(catalogue.ADAPTERS))
def test_what_an_adapter_exports_is_documented(adapter: catalogue.Folder) -> None:
    """As tests/test_tidy.py asks it of the package, which is looked at without the SDKs."""
    done = subprocess.run(
        [sys.executable, "-c", _EXPORTS.format(name=adapter.module)],
        cwd=catalogue.ROOT,
        env=subjects.environment(adapter.newest),
        check=False,
        capture_output=True,
        text=True,
        timeout=_SECONDS_MAX,
    )
    assert (done.stdout.strip(), done.stderr, done.returncode) == ("", "", 0)


def test_each_folder_has_its_tests() -> None:
    """A folder of tests that the catalogue does not name would be run by nobody."""
    here = catalogue.RECORD.parent
    with_tests = {path.parent.name for path in here.glob("*/test_*.py")}
    assert with_tests == set(catalogue.FOLDERS)
    assert not list(here.glob("test_*.py"))
