"""How much is measured of shared stores."""

from __future__ import annotations

from dataclasses import dataclass, replace

STORES = ("sqlite", "postgres", "nats")


@dataclass(frozen=True)
class LedgerSizes:
    """How much is measured of shared stores."""

    rounds: int
    rounds_large: int
    batch_rows: tuple[int, ...]  # claims in a batch, with as many puts
    batches: int  # a round
    messages: int  # from one agent to the other, a round
    at_once: tuple[int, ...]  # of these messages
    writers: int
    commits: int  # of each writer, a round
    verdicts: int
    filled: tuple[int, ...]  # rows that are in the store already
    cascades: int  # after which the memory of a node is looked at, and again after as many
    stores: tuple[str, ...] = STORES

    def with_rounds(self, rounds: int) -> LedgerSizes:
        """Return the same sizes with another number of rounds."""
        return replace(self, rounds=rounds, rounds_large=rounds)


FULL = LedgerSizes(
    rounds=5,
    rounds_large=3,
    batch_rows=(1, 8, 64),
    batches=30,
    messages=1_024,
    at_once=(8, 64, 512),
    writers=8,
    commits=50,
    verdicts=60,
    filled=(1_000, 10_000, 100_000),
    cascades=1_000,
)
QUICK = LedgerSizes(
    rounds=1,
    rounds_large=1,
    batch_rows=(8,),
    batches=5,
    messages=64,
    at_once=(8, 64),
    writers=8,
    commits=5,
    verdicts=5,
    filled=(100, 1_000),
    cascades=20,
)
