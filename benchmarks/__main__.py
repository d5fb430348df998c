"""Measure everything: `python -m benchmarks`, which is `make bench`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks import a2a, adapters, asgi, core, imports, mesh, process, resources, testing
from benchmarks._command import run

if TYPE_CHECKING:
    from benchmarks._command import Suite

SUITES: list[Suite[Any]] = [
    core.SUITE,
    imports.SUITE,
    resources.SUITE,
    process.SUITE,
    testing.SUITE,
    adapters.SUITE,
    a2a.SUITE,
    asgi.SUITE,
    mesh.SUITE,
]

if __name__ == "__main__":
    raise SystemExit(run(SUITES, program="benchmarks"))
