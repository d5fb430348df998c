"""Measure the mesh: `python -m benchmarks.mesh`.

How a cascade's cost grows with its hops, what an open edge holds, what the journal takes and keeps, how
many messages there are about messages, how late the verdict comes, and what taking part costs a server. Most
of it is of the engine, which knows of no event loop: it is taken once, and told for each.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from benchmarks import _mesh_control, _mesh_http, _mesh_journal, _mesh_memory, _mesh_scale
from benchmarks._command import Suite, run
from benchmarks._mesh_sizes import FULL, QUICK, MeshSizes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from benchmarks._harness import Result

    Measure = Callable[[str, MeshSizes], list[Result]]


def warm_up(_: str) -> None:
    """Let the specialising interpreter settle before the first figure."""
    _mesh_journal.receive(2_000, len)
    _mesh_journal.send(2_000, len)


def once(measure: Measure) -> Measure:
    """Take a measure that no event loop has a part in once for all of them."""
    taken = cache(lambda sizes: measure("", sizes))
    return lambda _, sizes: taken(sizes)


SUITE = Suite(
    name="mesh",
    description=(
        "Measure the mesh: hops, open edges, the journal, control messages. The full run takes "
        "about ten minutes, and two gigabytes of memory for a million hops that wait for each other."
    ),
    rounds_note="; fewer for the largest",
    warm_up=warm_up,
    measures={
        "hops": once(_mesh_scale.hops),
        "concurrent": once(_mesh_scale.concurrent),
        "open_edges": once(_mesh_memory.memory),
        "engine": once(_mesh_journal.node),
        "journal": once(_mesh_journal.journal),
        "control": once(_mesh_control.control),
        "served": once(_mesh_http.served),
        "served_a2a": once(_mesh_http.served_a2a),
        "latency": once(_mesh_http.latency),
    },
    peers=(),
    full=FULL,
    quick=QUICK,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the chosen measures and print them; give the exit code."""
    return run([SUITE], argv)


if __name__ == "__main__":
    raise SystemExit(main())
