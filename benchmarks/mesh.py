"""Measure the mesh: `python -m benchmarks.mesh`.

It measures how a cascade's cost grows with its hops, the memory of an open edge, the time and size of the
journal, the number of control messages, the delay of the verdict, and what taking part costs a server. Most
measures are of the engine, which uses no event loop: they run once, and are printed for each backend.
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
    """Run some pieces once, so that the interpreter is warm."""
    _mesh_journal.receive(2_000, len)
    _mesh_journal.send(2_000, len)


def once(measure: Measure) -> Measure:
    """Return a measure that runs once, and returns the same results for every backend."""
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
    """Run the chosen measures and print their results; return the exit code."""
    return run([SUITE], argv)


if __name__ == "__main__":
    raise SystemExit(main())
