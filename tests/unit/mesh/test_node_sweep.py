"""A cascade over three nodes, cancelled at every await: nothing is left, and nobody is told too early."""

from __future__ import annotations

import itertools
import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import pytest

from quiesce import Scope
from quiesce.mesh import Settled, SettledWithLosses
from quiesce.testing import sweep
from tests.stress import lasting, turns
from tests.unit.mesh.meshing import World, here

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any, Literal

    from quiesce.mesh import Hop, Settlement

pytestmark = pytest.mark.usual  # it takes long, and suspends at the same places everywhere


class Work:
    """What the handlers of a run are at: nobody may say that it has ended before it has."""

    def __init__(self) -> None:
        """Start with nothing at work."""
        self.at_work: dict[int, str] = {}
        self._ids = itertools.count()

    async def do(self, name: str) -> None:
        """Work for a while, and clean up for a while."""
        own = next(self._ids)
        self.at_work[own] = name
        try:
            await turns(2)
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.lowlevel.checkpoint()
            del self.at_work[own]

    def check(self, found: Settlement) -> None:
        """See that what was found is so."""
        if isinstance(found, Settled | SettledWithLosses):
            assert not self.at_work, f"{found}\nbut {self.at_work}"


async def cascade(folder: str | None, *, cancels: bool = False, drains: bool = False) -> None:
    """Run a cascade over three nodes; the first asks, the others post and answer."""
    world = World(None if folder is None else Path(folder))
    work = Work()
    a, b, c = world.make("a", url=None), world.make("b"), world.make("c")

    async def low(hop: Hop) -> None:
        hop.spawn(work.do, "low")
        await work.do("low handler")

    async def mid(hop: Hop) -> None:
        await world.hand("c", low)
        hop.spawn(work.do, "mid")

    async with Scope("servers") as world.servers, a, b, c:
        async with a.cascade("c") as begun:
            here().spawn(world.hand, "c", low)
            await world.hand("b", mid)
        if cancels:
            await begun.cancel()
        if drains:
            await b.drain(1)
        work.check(await begun.settled(within=1, require="participants"))


async def opening(folder: str | None) -> None:
    """Open and close a node, and one that is not alone."""
    async with Scope("program"):
        world = World(None if folder is None else Path(folder))
        node = await world.make("a").open()
        async with world.make("b"):
            await lasting(0)
        await node.drain(1)
        await node.open()


SCENARIOS: dict[str, Callable[[str | None], Coroutine[Any, Any, None]]] = {
    "opening": opening,
    "settling": cascade,
    "cancelling": lambda folder: cascade(folder, cancels=True),
    "draining": lambda folder: cascade(folder, drains=True),
}


@pytest.mark.sampled(1, "scenario")
@pytest.mark.parametrize(
    ("backend_name", "where", "depth"),
    [
        ("asyncio", "task", 2),
        ("asyncio", "all", 1),
        ("uvloop", "task", 2),
        ("trio", "task", 1),
        ("trio", "all", 1),
    ],
)
@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("journal", [False, True])
def test_cancelled_at_every_await_it_leaves_nothing(
    backend_name: Literal["asyncio", "uvloop", "trio"],
    where: Literal["task", "all"],
    depth: int,
    scenario: str,
    journal: bool,  # noqa: FBT001 - a case
) -> None:
    """Once, and again in the midst of the cleanup; also the tasks of the nodes themselves."""

    async def run() -> None:
        with tempfile.TemporaryDirectory() if journal else nullcontext() as folder:
            await SCENARIOS[scenario](folder)

    clock: Literal["real", "mock"] = "real" if backend_name == "uvloop" else "mock"
    found = sweep(
        run, backend=backend_name, clock=clock, where=where, depth=depth, runs_max=600
    )  # fmt: skip
    assert found.ok, found
    assert found.points > 3
