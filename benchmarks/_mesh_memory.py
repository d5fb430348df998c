"""The memory of an open edge at its sender, by tracemalloc, and by the growth of the process.

Each figure is measured in a process of its own, which runs this module.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks._harness import Result, Row, progress
from benchmarks._mesh_wiring import CASCADE, NAMES, new_engine

if TYPE_CHECKING:
    from benchmarks._mesh_sizes import MeshSizes
    from quiesce.mesh.protocol.engine import Engine
    from quiesce.mesh.protocol.states import Sending

_MOST = 400.0
_ROOT = Path(__file__).parent.parent
_SECONDS_MAX = 300
_STATM = Path("/proc/self/statm")
_MANY_PEERS = 10_000
_A_SECOND = 20_000  # how many edges are opened in a second of the engine's clock

TAKEN, DOUBT, PEERS, HOPS = "one hop", "in doubt", "many peers", "a hop each"
KINDS = {
    TAKEN: "all from one hop, to one node",
    DOUBT: "the same, not known to have arrived",
    PEERS: f"the same, to {_MANY_PEERS:,} nodes in turn",
    HOPS: "each from a hop of its own, with that hop",
}


def open_edges(engine: Engine, count: int, kind: str) -> None:
    """Open edges, as a node does, and leave them open."""
    hop = engine.begin(os.urandom(12), CASCADE, 0.0)
    nodes = [f"{NAMES[1]}/{number}" for number in range(_MANY_PEERS if kind == PEERS else 1)]
    how: Sending = "is in doubt" if kind == DOUBT else "is taken"
    for number in range(count):
        now = number / _A_SECOND
        if kind == HOPS:
            hop = engine.begin(os.urandom(12), CASCADE, now)
        edge = os.urandom(12)
        engine.send(hop, edge, nodes[number % len(nodes)], now)
        engine.take_writes()
        engine.sent(edge, how, now)


def _resident() -> int:
    return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def held(count: int, kind: str, *, traced: bool) -> float:
    """Return the bytes for an edge, with `count` open edges in this process."""
    open_edges(new_engine(), 1_000, kind)  # fills what is allocated only once
    gc.collect()
    engine = new_engine()
    if traced:
        tracemalloc.start()
        try:
            open_edges(engine, count, kind)
            gc.collect()
            return tracemalloc.get_traced_memory()[0] / count
        finally:
            tracemalloc.stop()
    before = _resident()
    open_edges(engine, count, kind)
    gc.collect()
    return (_resident() - before) / count


def _measured(count: int, kind: str, *, traced: bool) -> float:
    progress(f"memory: {count:,} edges, {kind}, {'traced' if traced else 'resident'}")
    command = [sys.executable, "-m", "benchmarks._mesh_memory", str(count), kind, str(int(traced))]
    done = subprocess.run(  # noqa: S603 - itself
        command, cwd=_ROOT, capture_output=True, text=True, check=True, timeout=_SECONDS_MAX
    )
    found: float = json.loads(done.stdout)
    return found


def memory(_: str, sizes: MeshSizes) -> list[Result]:
    """Measure the bytes of an open edge: the most, over all sizes and both ways to measure."""
    ways = {"traced": True, "resident": False} if _STATM.exists() else {"traced": True}
    found: dict[tuple[str, int, str], float] = {}
    for kind in KINDS:
        for count in sizes.open_edges if kind == TAKEN else sizes.open_edges[:1]:
            for way, traced in ways.items():
                found[kind, count, way] = _measured(count, kind, traced=traced)
    rows = tuple(
        Row(f"{kind}, {count:,}, {way}", size, size, size, "bytes")
        for (kind, count, way), size in found.items()
    )
    return [
        Result(
            name="open_edge_bytes",
            about="what an open edge holds at its sender, at the worst size; with its id",
            rows=rows,
            value=max(size for (kind, _, _), size in found.items() if kind == TAKEN),
            limit=_MOST,
            base=rows[0].label,
            notes=tuple(f"{kind}: {about}" for kind, about in KINDS.items()),
        )
    ]


if __name__ == "__main__":
    print(json.dumps(held(int(sys.argv[1]), sys.argv[2], traced=sys.argv[3] == "1")))
