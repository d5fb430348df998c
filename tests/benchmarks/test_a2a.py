"""The benchmarks of the A2A adapter run, with tiny sizes; no figure is judged here."""

from __future__ import annotations

import pytest

from benchmarks import a2a
from benchmarks.adapters import AdapterSizes
from tests.adapters.catalogue import ADAPTERS

TINY = AdapterSizes(rounds=1, messages=16)


@pytest.mark.parametrize("name", sorted(a2a.SUITE.measures))
def test_the_adapter_is_measured_with_both_ends_of_what_it_supports(name: str) -> None:
    """One figure of each version has a limit, and none is empty."""
    results = a2a.SUITE.measures[name]("asyncio", TINY)
    limited = [result for result in results if result.limit is not None]
    assert [result.name.rpartition(", ")[2] for result in limited] == ADAPTERS["a2a"].ends
    assert all(result.name.partition("_ratio")[1] for result in limited)
    assert all(result.value for result in results)
