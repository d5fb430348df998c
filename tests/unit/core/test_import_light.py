"""What an import of quiesce loads: a program does not wait for modules that it does not use."""

from __future__ import annotations

import subprocess
import sys

import pytest

LOADED = (
    "import asyncio, sys; before = {*sys.modules}; import NAME; print(*{*sys.modules} - before)"
)


def loaded_by(name: str) -> set[str]:
    """Return the modules that an import loads in a fresh interpreter, beyond those of asyncio."""
    program = LOADED.replace("NAME", name)
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return set(found.stdout.split())


@pytest.mark.parametrize("name", ["quiesce", "quiesce.mesh"])
def test_an_import_loads_nothing_that_a_scope_does_not_need(name: str) -> None:
    """Neither anyio nor trio, nor modules of Python's own that are slow to import, nor other parts of quiesce."""
    loaded = loaded_by(name)
    slow = {
        "anyio",
        "sniffio",
        "trio",
        "uvloop",
        "json",
        "pathlib",
        "tempfile",
        "multiprocessing",
        "inspect",
    }
    assert loaded & slow - {"quiesce"} == set()
    parts = {".".join(module.split(".")[:2]) for module in loaded if module.startswith("quiesce.")}
    assert parts <= {"quiesce.core", "quiesce.errors", "quiesce.mesh"}
    assert {module for module in loaded if module.startswith("quiesce.mesh.")} == set()
    assert len(loaded) < 50


def test_receipts_are_imported_without_nodes() -> None:
    """The protocol is pure: who reads receipts loads neither the runtime nor the routes."""
    parts = {
        module.split(".")[2]
        for module in loaded_by("quiesce.mesh.protocol.codec")
        if module.count(".") > 1
    }
    assert {"runtime", "routes", "transport", "store"} & parts == set()
