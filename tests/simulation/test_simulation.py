"""No verdict is wrong, in whatever world; and the simulation would see it if one were."""

from __future__ import annotations

import os
from statistics import mean

import pytest

from tests.simulation.mutants import MUTANTS
from tests.simulation.runs import KINDS, failures, simulate
from tests.simulation.world import Sizes

# CI runs this many; `python tools/simulate.py --runs 100000` is for the night.
RUNS = int(os.environ.get("QUIESCE_SIMULATION_RUNS", "5000"))
MUTANT_RUNS = 1300

pytestmark = pytest.mark.usual


def test_no_verdict_is_wrong() -> None:
    """Nothing is in flight when a cascade has settled; and it settles, where that can be known."""
    assert list(failures(RUNS)) == []


# What was wrong: the root died after its journal was compacted, and before anybody was told; a copy of
# what an agent without a journal had refused was run after a restart, and nobody was blamed for it; one
# that it had taken was refused after a restart, and its sender believed that it had never run.
@pytest.mark.parametrize(
    ("kind", "seed"),
    [
        ("torn", 105307),
        ("everything", 105182),
        ("everything", 1058355),
        ("everything", 1073084),
    ],
)
def test_what_was_wrong_once_is_right(kind: str, seed: int) -> None:
    """A world whose verdict was wrong has a right one."""
    assert simulate(kind, seed).judge() == []


@pytest.mark.parametrize("name", MUTANTS)
def test_a_broken_protocol_is_found_out(name: str) -> None:
    """Each rule of the protocol is needed: without it, some verdict is wrong."""
    assert next(failures(MUTANT_RUNS, agent=MUTANTS[name]), None) is not None


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_gives_the_same_world_again(kind: str) -> None:
    """A failure can be replayed."""
    one, other = simulate(kind, 7), simulate(kind, 7)
    assert one.verdict == other.verdict
    assert (one.now, one.traffic) == (other.now, other.traffic)


def test_without_faults_a_verdict_is_as_early_as_it_can_be() -> None:
    """It comes exactly one message a level after the last work, where all messages take the same."""
    for seed in range(100):
        world = simulate("nothing", seed, sizes=Sizes(constant_delay=True))
        assert world.verdict is not None
        assert world.verdict.at == pytest.approx(world.bound(), abs=1e-9), seed


def test_without_faults_there_is_less_than_one_receipt_a_message() -> None:
    """Receipts that are ready by then ride on the answers, and cost no message."""
    traffic = [simulate("nothing", seed).traffic for seed in range(200)]
    assert mean(one.controls / one.messages for one in traffic) < 0.9
