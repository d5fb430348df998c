"""The benchmarks of the mesh run, with tiny sizes; only what no machine can change is judged here."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

from benchmarks import _mesh_memory, _mesh_wiring, mesh
from benchmarks._mesh_sizes import MeshSizes

if TYPE_CHECKING:
    from collections.abc import Callable

TINY = MeshSizes(
    rounds=1, rounds_large=1, hops=(20, 50), cascades=(2, 5), open_edges=(200,), records=50, worlds=5,
    requests=5, remembered=50,
)  # fmt: skip
LIMITS = {
    "hop_flatness": 1.3,
    "open_edge_bytes": 400.0,
    "control_messages_per_message": 1.0,
    "latency_over_bound_simulated": 1.0,
    "request_overhead_ratio": 0.9,
    "a2a_overhead_ratio": 0.9,
    "latency_over_bound": 1.5,
}


@pytest.mark.parametrize("name", mesh.SUITE.measures)
def test_a_measure_gives_its_figures(name: str) -> None:
    """Each has rows, the limit that it has to have, and is the same for every event loop."""
    results = mesh.SUITE.measures[name]("asyncio", TINY)
    assert results == mesh.SUITE.measures[name]("uvloop", TINY)
    for result in results:
        assert result.limit == LIMITS.get(result.name)
        assert result.rows
        assert result.limit is None or result.value is not None


@pytest.mark.parametrize(
    "work", [_mesh_wiring.tree, _mesh_wiring.star, _mesh_wiring.chain, _mesh_wiring.cascades]
)
@pytest.mark.parametrize("hops", [3, 12, 123])
def test_every_shape_settles(work: Callable[[_mesh_wiring.Mesh, int], None], hops: int) -> None:
    """With as many hops as it was to have: else it raises."""
    seen: list[_mesh_wiring.Mesh] = []

    def watched(found: _mesh_wiring.Mesh, count: int) -> None:
        work(found, count)
        seen.append(found)

    assert _mesh_wiring.timed(watched, hops) >= 0
    assert sum(receipt.hops for receipt in seen[0].settled) == hops


@pytest.mark.parametrize("kind", _mesh_memory.KINDS)
def test_an_open_edge_holds_little(kind: str) -> None:
    """Python's own count of it is the same on every machine; with a hop of its own it is more."""
    size = partial(_mesh_memory.held, 2_000, kind, traced=True)()
    assert 100 < size < (1_000 if kind == _mesh_memory.HOPS else 400)
