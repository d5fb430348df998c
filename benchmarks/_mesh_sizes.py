"""How much is measured of the mesh."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class MeshSizes:
    """How much is measured of the mesh."""

    rounds: int
    rounds_large: int
    hops: tuple[int, int]  # in one cascade: few, and many
    cascades: tuple[int, int]  # at once: few, and many
    open_edges: tuple[int, ...]  # of one hop
    records: int  # of a journal, a round
    remembered: int  # by a node whose journal is made smaller
    worlds: int  # of the simulation
    requests: int  # to a server, a round

    def with_rounds(self, rounds: int) -> MeshSizes:
        """Return the same sizes with another number of rounds."""
        return replace(self, rounds=rounds, rounds_large=rounds)


FULL = MeshSizes(
    rounds=7,
    rounds_large=2,
    hops=(10_000, 1_000_000),
    cascades=(100, 10_000),
    open_edges=(100_000, 700_000, 1_000_000),  # at 700,000 tables have just grown, the worst size
    records=20_000,
    remembered=1_000_000,
    worlds=500,
    requests=500,
)
QUICK = MeshSizes(
    rounds=1,
    rounds_large=1,
    hops=(1_000, 10_000),
    cascades=(10, 1_000),
    open_edges=(10_000,),
    records=1_000,
    remembered=10_000,
    worlds=20,
    requests=50,
)
