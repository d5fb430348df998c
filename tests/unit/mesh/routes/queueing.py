"""What the tests of queues share: jobs, and cascades whose handlers put them into queues."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from quiesce import Scope
from quiesce.mesh import Settled, Unknown, current_hop
from tests.stress import turns
from tests.unit.mesh.meshing import World

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from quiesce.mesh import Cascade, Hop

on_asyncio = pytest.mark.backends("asyncio", "uvloop")
QUEUES = [asyncio.Queue, asyncio.LifoQueue, asyncio.PriorityQueue]


class Job:
    """Something to be done, which can be compared."""

    def __init__(self, name: str = "job") -> None:
        self.name = name
        self.gate = anyio.Event()
        self.hops: list[Hop | None] = []

    def __lt__(self, other: Job) -> bool:
        return self.name < other.name

    async def work(self) -> None:
        """Work on the item until the gate opens."""
        self.hops.append(current_hop())
        await self.gate.wait()


class Case:
    """Two nodes, a worker outside of every hop, and cascades whose handler calls `put`."""

    def __init__(self, world: World, app: Scope) -> None:
        self.world = world
        self.app = app

    async def cascade(self, *puts: Callable[[], object]) -> Cascade:
        """Hand a message to the agent for each of the functions that put something."""

        async def handler(put: Callable[[], object], hop: Hop) -> None:
            made: Any = put()
            if made is not None:
                await made

        async with self.world.nodes["a"].cascade("c") as cascade:
            for put in puts:
                await self.world.hand("b", lambda hop, put=put: handler(put, hop))  # type: ignore[misc]  # a default
        await turns(20)
        return cascade


async def run(folder: Path, scenario: Callable[[Case], Awaitable[None]]) -> None:
    """Run a scenario in a world."""
    async with World(folder) as world:
        app = await Scope.open("app")
        await world.add("a")
        await world.add("b")
        await world.add("c")
        try:
            await scenario(Case(world, app))
        finally:
            await app.aclose()


async def is_open(cascade: Cascade) -> bool:
    """Return whether a cascade has not settled."""
    return isinstance(await cascade.settled(within=0), Unknown)


async def settles(cascade: Cascade) -> None:
    """See that a cascade settles."""
    verdict = await cascade.settled(5)
    assert isinstance(verdict, Settled), verdict
