"""How much is measured: for figures, and for a smoke test."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    rounds: int
    rounds_short: int  # of pieces that take well under a second
    rounds_flat: int
    rounds_largest: int  # of the largest of the sizes in `flat`
    rounds_peers: int
    spawn: int
    memory: tuple[int, ...]  # several, so that no one step of a growing table decides
    close: int
    wake: int
    flat: tuple[int, ...]
    flat_total: int  # smaller sizes are repeated up to this many jobs
    frontier: int

    def with_rounds(self, rounds: int) -> Sizes:
        """Return the same sizes with another number of rounds, for all but flatness."""
        return replace(
            self,
            rounds=rounds,
            rounds_short=2 * rounds,
            rounds_peers=min(self.rounds_peers, rounds),
        )


FULL = Sizes(
    rounds=7,
    rounds_short=14,
    rounds_flat=2,
    rounds_largest=2,
    rounds_peers=1,
    spawn=100_000,
    memory=(4_000, 8_000, 16_000),
    close=10_000,
    wake=5_000,
    flat=(1_000, 10_000, 100_000, 1_000_000),
    flat_total=100_000,
    frontier=10_000,
)
QUICK = Sizes(
    rounds=2,
    rounds_short=4,
    rounds_flat=1,
    rounds_largest=1,
    rounds_peers=1,
    spawn=10_000,
    memory=(2_000, 4_000),
    close=1_000,
    wake=1_000,
    flat=(1_000, 10_000),
    flat_total=10_000,
    frontier=1_000,
)


@dataclass(frozen=True)
class ResourceSizes:
    """How much is measured of channels and streams."""

    rounds: int
    rounds_peers: int
    items: int  # through a channel
    items_streamed: int
    items_peers: int  # some are ten times as slow
    queued: int  # at once, for the memory

    def with_rounds(self, rounds: int) -> ResourceSizes:
        """Return the same sizes with another number of rounds."""
        return replace(self, rounds=rounds, rounds_peers=min(self.rounds_peers, rounds))


RESOURCES_FULL = ResourceSizes(
    rounds=15,
    rounds_peers=3,
    items=100_000,
    items_streamed=50_000,
    items_peers=20_000,
    queued=100_000,
)
RESOURCES_QUICK = ResourceSizes(
    rounds=2,
    rounds_peers=1,
    items=5_000,
    items_streamed=2_000,
    items_peers=1_000,
    queued=10_000,
)


@dataclass(frozen=True)
class ProcessSizes:
    """How much is measured of child processes."""

    rounds: int
    rounds_at_once: int
    rounds_drain: int
    rounds_grown: int
    rounds_peers: int
    starts: int  # one after the other, a round
    starts_grown: int  # the same, from a parent with much memory
    at_once: int
    stubborn: int
    grace_seconds: float
    grown_megabytes: int  # by how much more memory the parent has

    def with_rounds(self, rounds: int) -> ProcessSizes:
        """Return the same sizes with another number of rounds."""
        return replace(
            self,
            rounds=rounds,
            rounds_at_once=rounds,
            rounds_drain=min(self.rounds_drain, rounds),
            rounds_grown=min(self.rounds_grown, rounds),
            rounds_peers=min(self.rounds_peers, rounds),
        )


PROCESS_FULL = ProcessSizes(
    rounds=40,
    rounds_at_once=7,
    rounds_drain=3,
    rounds_grown=25,
    rounds_peers=3,
    starts=20,
    starts_grown=10,
    at_once=200,
    stubborn=5,
    grace_seconds=1.0,
    grown_megabytes=512,
)
PROCESS_QUICK = ProcessSizes(
    rounds=2,
    rounds_at_once=2,
    rounds_drain=1,
    rounds_grown=2,
    rounds_peers=1,
    starts=10,
    starts_grown=5,
    at_once=50,
    stubborn=5,
    grace_seconds=0.5,
    grown_megabytes=64,
)


@dataclass(frozen=True)
class GuardSizes:
    """How much is measured of the testing kit."""

    rounds: int
    tests: int  # in a suite
    suspensions: int  # of a scenario

    def with_rounds(self, rounds: int) -> GuardSizes:
        """Return the same sizes with another number of rounds."""
        return replace(self, rounds=rounds)


GUARD_FULL = GuardSizes(rounds=7, tests=1_000, suspensions=100_000)
GUARD_QUICK = GuardSizes(rounds=1, tests=20, suspensions=1_000)
