"""The benchmark of the ASGI middleware runs, with tiny sizes; no figure is judged here."""

from __future__ import annotations

import pytest

from benchmarks import asgi

TINY = asgi.AsgiSizes(rounds=1, requests=50)


@pytest.mark.usual
@pytest.mark.parametrize("name", sorted(asgi.SUITE.measures))
def test_the_middleware_is_measured_beside_the_app_alone(name: str) -> None:
    """There is a figure in processor time and one in real time, each also against the yardstick."""
    results = asgi.SUITE.measures[name]("asyncio", TINY)
    assert [result.name for result in results] == [name, f"{name}_wall"]
    for result in results:
        assert result.value
        assert [row.label for row in result.rows] == ["bare", "quiesce", *asgi.PEERS]
        assert all(result.against[peer] for peer in asgi.PEERS)
