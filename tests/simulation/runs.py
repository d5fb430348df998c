"""Which worlds are simulated: the kinds of misfortune, and how to run one of each again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.agent import Agent
from tests.simulation.building import build
from tests.simulation.world import Faults, Sizes, World

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

KINDS: dict[str, Faults] = {
    "nothing": Faults(),
    "cancelled": Faults(cancels=True),
    "opaque": Faults(opaque=1),
    "lossy": Faults(loss=0.15, twice=0.2, late=0.05),
    "late copies": Faults(loss=0.05, twice=0.4, late=0.3),
    "refusing": Faults(loss=0.1, twice=0.3, late=0.1, refusals=0.2),
    "restarting": Faults(loss=0.05, twice=0.1, late=0.05, crashes=3),
    "torn": Faults(loss=0.05, twice=0.2, late=0.1, crashes=1, torn=0.02),
    "partitioned": Faults(loss=0.05, partitions=2, twice=0.1),
    "dying": Faults(loss=0.05, twice=0.1, crashes=2, restarts=0.4),
    "forgetful": Faults(loss=0.1, twice=0.2, late=0.1, crashes=2, forgetful=3),
    "forgetful, late copies": Faults(twice=0.6, late=0.5, crashes=4, forgetful=4),
    "forgetful, refusing": Faults(
        loss=0.1, twice=0.3, late=0.2, crashes=4, forgetful=4, refusals=0.3
    ),
    "everything": Faults(
        loss=0.1, twice=0.2, late=0.1, crashes=2, restarts=0.8, torn=0.01, partitions=1, opaque=1,
        forgetful=1, cancels=True, refusals=0.05,
    ),
    "cancelled, long work": Faults(cancels=True, background=20.0),
    "unaddressed": Faults(cancels=True, unaddressed=3),
    "unaddressed, lossy": Faults(loss=0.15, twice=0.2, late=0.05, crashes=2, unaddressed=4),
    "replicas": Faults(replicas=3, background=4.0),
    "replicas, restarting": Faults(loss=0.02, crashes=4, replicas=3, background=8.0),
    "journals lost": Faults(loss=0.02, crashes=6, losing=4, background=8.0),
    "old": Faults(
        loss=0.1, twice=0.2, late=0.1, stale=0.1, crashes=3, torn=0.005, sleeps=1, keeps=(60.0,)
    ),
    "asleep": Faults(loss=0.1, twice=0.1, stale=0.1, patient=0.1, sleeps=3, keeps=(60.0,)),
    "patient": Faults(loss=0.05, stale=0.1, patient=0.8, keeps=(60.0,)),
    "clocks apart": Faults(
        loss=0.2, twice=0.2, stale=0.5, crashes=3, sleeps=1, keeps=(2000.0,), skew=12.0
    ),
    "keeps differ": Faults(loss=0.2, stale=0.9, crashes=8, keeps=(60.0, 2000.0, 2000.0)),
}  # fmt: skip


def simulate(
    kind: str,
    seed: int,
    agent: type[Agent] = Agent,
    sizes: Sizes = Sizes(),  # noqa: B008 - frozen
) -> World:
    """Run one world; the same seed gives the same."""
    world = World(seed, KINDS[kind], sizes)
    build(world, agent)
    world.run()
    return world


def examine(kind: str, seed: int, agent: type[Agent] = Agent) -> tuple[str, list[str]]:
    """Run one world; gives its verdict in a word, and what is wrong with it."""
    try:
        world = simulate(kind, seed, agent)
        wrong = world.judge()
    except Exception as error:
        return "crash", [f"raised {error!r}"]
    if world.verdict is None:
        return "none", wrong
    receipt = world.verdict.receipt
    if receipt.unknown:
        return "unknown", wrong
    return "settled with losses" if receipt.lost else "settled", wrong


def failures(
    count: int, *, first: int = 0, agent: type[Agent] = Agent, kinds: Iterable[str] = KINDS
) -> Iterator[tuple[str, int, list[str]]]:
    """Run `count` worlds, the kinds in turn; give those with a wrong verdict."""
    chosen = list(kinds)
    for number in range(first, first + count):
        kind = chosen[number % len(chosen)]
        _, wrong = examine(kind, number, agent)
        if wrong:
            yield kind, number, wrong
