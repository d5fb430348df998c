"""No verdict is wrong, in whatever world; and the simulation would see it if one were."""

from __future__ import annotations

import os
import re
from pathlib import Path
from statistics import mean

import pytest

from tests import sampling
from tests.simulation.mutants import MUTANTS
from tests.simulation.runs import KINDS, failures, simulate
from tests.simulation.world import Sizes

# A full run tries this many, others a sample; `python tools/simulate.py --runs 100000` is for the night.
RUNS = int(os.environ.get("QUIESCE_SIMULATION_RUNS", "5000"))
SAMPLED_RUNS = 500
MUTANT_RUNS = 2600
# Where one shows that shows seldom elsewhere.
WHERE = {
    "AnswerIsBelieved": ["patient"],
    "PromisesNothing": ["keeps differ"],
    "AsksForTooLittle": ["keeps differ"],
    "NeverForNow": ["keeps differ"],
    "ForgetsWhatIsAhead": ["clocks apart"],
    "AsksWithoutItsClock": ["clocks apart"],
    "YoungIsBelieved": ["journals lost"],
    "SnapshotWithoutTaken": ["replicas, restarting"],
    "TakenAndDenied": ["replicas, restarting"],
}
SHARED = [kind for kind, faults in KINDS.items() if faults.replicas or faults.losing]
OLD = [kind for kind, faults in KINDS.items() if faults.keeps]

pytestmark = pytest.mark.usual


def test_no_verdict_is_wrong() -> None:
    """Nothing is in flight when a cascade has settled; and it settles, where that can be known."""
    first = 0 if sampling.Sample.seed is None else sampling.Sample.seed % 10**9
    assert list(failures(sampling.fewer(RUNS, SAMPLED_RUNS), first=first)) == []


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


@pytest.mark.sampled(13)
@pytest.mark.parametrize("name", MUTANTS)
def test_a_broken_protocol_is_found_out(name: str) -> None:
    """Each rule of the protocol is needed: without it, some verdict is wrong."""
    # That it raises an error proves nothing: so does any mutant with a slip of the pen.
    worlds = failures(MUTANT_RUNS, agent=MUTANTS[name], kinds=WHERE.get(name, KINDS))
    found = (wrong for _, _, wrong in worlds)
    assert any(not what.startswith("raised ") for wrong in found for what in wrong)


def test_the_page_says_by_what_each_rule_is_shown() -> None:
    """All that is broken here is named there, and nothing else."""
    page = Path(__file__).parents[2] / "docs" / "evidence" / "protocol.md"
    shown = page.read_text(encoding="utf-8")
    assert sorted(re.findall(r"`([A-Z]\w+)`", shown)) == sorted(MUTANTS)


@pytest.mark.parametrize("kind", SHARED)
def test_what_is_denied_was_taken_in_many_worlds(kind: str) -> None:
    """Worlds in which nobody could know are few, so that the others show something."""
    worlds = [simulate(kind, seed) for seed in range(100)]
    judged = [world for world in worlds if not world.is_beyond()]
    assert len(judged) >= 60
    assert sum(bool(world.denied & world.known) for world in judged) >= 10


@pytest.mark.parametrize("kind", OLD)
def test_what_is_old_is_known_in_many_worlds(kind: str) -> None:
    """It is forgotten, and met again, in some worlds; and not all of it is unknown for that."""
    worlds = [simulate(kind, seed) for seed in range(100)]
    verdicts = [world.verdict for world in worlds if world.verdict is not None]
    assert sum(not one.receipt.unknown for one in verdicts) >= 30
    assert sum(bool(world.doubted) for world in worlds) >= 5


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
