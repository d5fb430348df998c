"""Whatever bytes come in, a parser gives a value or the one error that it may raise."""

from __future__ import annotations

import os
import tracemalloc

import pytest

from tests import sampling
from tests.unit.mesh.fuzzing import BLOCK, TARGETS, Fuzzer

# CI tries this many; `python tools/fuzz.py --inputs 10_000_000` is for the night.
INPUTS = int(os.environ.get("QUIESCE_FUZZ_INPUTS", str(sampling.fewer(100_000, 20_000))))
SEED = int(os.environ.get("QUIESCE_FUZZ_SEED", str(sampling.Sample.seed or 20261116)))


@pytest.mark.usual
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", TARGETS)
def test_a_parser_takes_anything(name: str) -> None:
    """It does not crash, does not hang, and keeps nothing; some of the inputs are even right."""
    fuzzer = Fuzzer(name, SEED)
    tracemalloc.start()
    try:
        fuzzer.run(0, BLOCK)
        kept = tracemalloc.get_traced_memory()[0]
        fuzzer.run(BLOCK, INPUTS // len(TARGETS) - BLOCK)
        grown = tracemalloc.get_traced_memory()[0] - kept
    finally:
        tracemalloc.stop()
    assert fuzzer.right > 0
    assert grown < 200_000
