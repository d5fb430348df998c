"""Each row as a test of its own, with the adapter, and with the SDK that is on the path.

`pytest` does not collect it by itself: tests/integration/test_adapters.py runs the rows of a version
all at once. The mutants name single ones here.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.adapters import runs
from tests.adapters.rows import ABSENT, CLEAN

MODULES = {adapter.name: adapter.row_modules for adapter in runs.ADAPTERS.values()}


@pytest.mark.parametrize(
    ("adapter", "row"),
    [
        pytest.param(adapter, row, id=row)
        for adapter, rows in runs.recorded().items()
        for row in rows
    ],
)
def test_row(adapter: str, row: str) -> None:
    """All is well with the adapter."""
    found = []
    for module in MODULES[adapter]:
        done = subprocess.run(
            [sys.executable, "-m", "tests.adapters.rows", f"tests.adapters.{module}", "quiesce",
             "--only", row],
            cwd=runs.ROOT, check=True, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        found += [json.loads(line) for line in done.stdout.splitlines()]
    (outcome,) = [each for each in found if each["row"] == row]
    assert outcome["outcome"] in {CLEAN, ABSENT}, outcome["details"]
