"""Measure everything: `python -m benchmarks`, which is `make bench`."""

from __future__ import annotations

from benchmarks import core, resources
from benchmarks._command import run

if __name__ == "__main__":
    raise SystemExit(run([core.SUITE, resources.SUITE], program="benchmarks"))
