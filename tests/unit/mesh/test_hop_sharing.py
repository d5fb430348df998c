"""Tasks that more than one hop has to do with: a load that two wait for, the loop of a library's pool."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from quiesce import Scope
from quiesce.errors import CascadeCancelled
from quiesce.mesh import Unknown
from tests.stress import turns
from tests.unit.mesh.meshing import World, until

if TYPE_CHECKING:
    from quiesce.mesh import Hop

pytestmark = pytest.mark.backends("asyncio", "uvloop")  # on trio every task has a nursery


async def test_cancelling_one_cascade_leaves_what_another_waits_for() -> None:
    """The load that the first hop has started goes on for the second one, which gets its result."""
    loads: list[asyncio.Task[str]] = []
    got: list[str] = []
    gate = asyncio.Event()

    async def load() -> str:
        await gate.wait()
        return "card"

    async def handler(_: Hop) -> None:
        async def work() -> None:
            if not loads:
                loads.append(asyncio.create_task(load()))
            got.append(await asyncio.shield(loads[0]))

        works.append(asyncio.create_task(work()))

    works: list[asyncio.Task[None]] = []
    async with World() as world:
        root, _ = await world.add("a"), await world.add("b")
        async with root.cascade("first") as first:
            await world.hand("b", handler)
        async with root.cascade("second") as second:
            await world.hand("b", handler)
        await turns(5)
        await first.cancel()
        await until(works[0].done)
        await turns(20)
        assert isinstance(
            await first.settled(0, require="participants"), Unknown
        )  # its load is still under way
        gate.set()
        found = [await one.settled(4, require="participants") for one in (first, second)]
        assert [one.ok for one in found] == [False, True]
        assert found[0].receipt.cancelled == 1
        assert got == ["card"]


async def test_what_the_loop_of_a_pool_waits_for_holds_no_hop() -> None:
    """The loop is declared, and starts tasks to wait for two things at once."""
    pools: list[asyncio.Task[None]] = []
    beats: list[int] = []

    async def keeps() -> None:
        stop = asyncio.Event()
        while True:
            beats.append(1)
            waits = {asyncio.create_task(stop.wait()), asyncio.create_task(asyncio.Event().wait())}
            try:
                await asyncio.wait(waits, return_when="FIRST_COMPLETED")
            finally:
                for one in waits:
                    one.cancel()

    async def handler(_: Hop) -> None:
        pools.append(asyncio.create_task(keeps(), name="pool keeper"))
        await until(lambda: beats)

    async with World() as world:
        root, _ = await world.add("a"), await world.add("b", services=["pool *"])
        async with root.cascade("c") as cascade:
            await world.hand("b", handler)
        assert (await cascade.settled(4, require="participants")).ok
        assert not pools[0].done()


async def test_cancelling_ends_the_part_of_a_task_that_other_code_awaits() -> None:
    """The task that works for the hop belongs to a server's scope, and a task of the server awaits its end."""
    seen: list[str] = []
    hops: list[Hop] = []
    gone = asyncio.Event()

    async def handler(hop: Hop) -> None:
        hops.append(hop)
        await gone.wait()

    async def part() -> None:
        try:
            async with hops[0].working("part"):
                gone.set()
                await asyncio.Event().wait()
        except CascadeCancelled as told:
            seen.append(str(told).replace(hops[0].mark, "MARK"))

    async def serve() -> None:
        await until(lambda: hops)
        await asyncio.create_task(part())
        seen.append("cleaned up")

    async with World() as world, Scope("server", adopt=True):
        root, _ = await world.add("a"), await world.add("b")
        serving = asyncio.create_task(serve())
        async with root.cascade("c") as cascade:
            await world.hand("b", handler)
        await cascade.cancel()
        await serving
        assert seen == ["hop MARK was cancelled with its cascade", "cleaned up"]
        settled = await cascade.settled(4, require="participants")
        assert settled.receipt.cancelled == 1
