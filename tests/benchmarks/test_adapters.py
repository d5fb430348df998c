"""The benchmarks of the adapters run, with tiny sizes; no figure is judged here."""

from __future__ import annotations

import pytest

from benchmarks import adapters
from tests.adapters.catalogue import ADAPTERS

TINY = adapters.AdapterSizes(rounds=1, messages=64)


@pytest.mark.parametrize("name", sorted(adapters.SUITE.measures))
def test_an_adapter_is_measured_with_both_ends_of_what_it_supports(name: str) -> None:
    """Each figure has a limit, and names the version that it is of."""
    results = adapters.measure(name, "asyncio", TINY)
    versions = ADAPTERS[name].ends
    assert {result.name.rpartition(", ")[2] for result in results} == set(versions)
    assert all(result.value for result in results)
