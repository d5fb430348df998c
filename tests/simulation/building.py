"""Agents for a world, and their misfortunes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce.mesh.protocol.horizon import DRIFT_SECONDS
from tests.simulation.agent import Agent
from tests.simulation.world import LONG

if TYPE_CHECKING:
    from tests.simulation.world import World


def build(world: World, kind: type[Agent] = Agent) -> None:
    """Fill a world with agents, and plan its misfortunes; the cascade begins at the first."""
    faults, chance = world.faults, world.random
    count = world.sizes.agents
    others = [f"n{number}" for number in range(1, count)]
    opaque = set(chance.sample(others, min(faults.opaque, len(others))))
    forgetful = set(chance.sample(others, min(faults.forgetful, len(others))))
    for name in ["n0", *others]:
        world.agents[name] = kind(
            world, name, takes_part=name not in opaque, lasting=name not in forgetful
        )
    for _ in range(faults.crashes):
        agent = world.agents[chance.choice(list(world.agents))]
        world.after(chance.uniform(1, faults.end / 2), agent.crash)
    for _ in range(faults.partitions):
        begin = chance.uniform(0, faults.end / 2)
        some = frozenset(name for name in world.agents if chance.random() < 0.4)
        world.cut(begin, begin + chance.uniform(5, faults.end / 2), some)
    haunt(world, kind)
    first = world.agents["n0"]
    world.after(0.0, first.step, first.begin_cascade)


def haunt(world: World, kind: type[Agent]) -> None:
    """Plan what the newer kinds of misfortune have in store."""
    faults, fate, names = world.faults, world.fate, list(world.agents)
    for name in fate.sample(names, min(faults.unaddressed, len(names))):
        world.agents[name].home = None
    for name in fate.sample(names, min(faults.replicas, len(names))):
        twin = world.twins[f"{name}'"] = kind(world, name)
        twin.key = f"{name}'"
        if faults.crashes:
            world.after(fate.uniform(1, faults.end / 2), twin.crash)
    for name in fate.sample(names[1:], min(faults.losing, len(names) - 1)):
        world.agents[name].loses = True  # not the root's: nobody would wait for it
    if faults.keeps:
        for agent in world.agents.values():
            most = DRIFT_SECONDS / 2
            agent.clock_error = fate.choice([-most, most, fate.uniform(-most, most)])
            agent.clock_error *= faults.skew
    for agent in (*world.agents.values(), *world.twins.values()):
        world.after(0.0, agent.step, agent.open)
    for _ in range(faults.sleeps):
        agent = world.agents[fate.choice(names)]
        world.after(fate.uniform(0.5, 30), agent.sleep, fate.uniform(40, LONG))
