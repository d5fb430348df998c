"""Work that a handler starts in its last step, in whichever way, belongs to its hop."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import anyio
import pytest

from quiesce.mesh import Unknown
from tests.stress import lasting
from tests.unit.core.adoption_work import Work
from tests.unit.core.test_adoption import WAYS, by_call_later
from tests.unit.mesh.meshing import World

if TYPE_CHECKING:
    from quiesce.mesh import Hop
    from tests.unit.core.test_adoption import Way


async def by_callbacks(work: Work) -> object:
    """Leave a callback that leaves another, which starts it."""
    loop = asyncio.get_running_loop()
    kept: list[object] = []
    loop.call_soon(loop.call_soon, lambda: kept.append(loop.create_task(work())))
    return kept


async def by_gather_callback(work: Work) -> object:
    """Start the work when two other awaitables have ended."""
    kept: list[object] = []

    async def nothing() -> None: ...

    both = asyncio.gather(nothing(), nothing())
    both.add_done_callback(lambda _: kept.append(asyncio.get_running_loop().create_task(work())))
    return kept


async def settled_while(start: Way) -> list[object]:
    """Return what is said of a cascade while what its handler has left is at work; nothing if nothing is."""
    work = Work()
    found: list[object] = []

    async def handler(_: Hop) -> None:
        await start(work)

    async with World() as world, anyio.create_task_group() as group:
        root, _ = await world.add("a"), await world.add("b")

        async def begin() -> None:
            async with root.cascade("c") as cascade:
                await world.hand("b", handler)
            found.append(await cascade.settled(0.05, require="participants"))

        group.start_soon(begin)
        with anyio.fail_after(2):
            await work.begun.wait()
        with anyio.move_on_after(0.2):
            while not found:
                await lasting(0.01)
        work.gate.set()
    return found


# One that has its time is documented: it may be that of a loop that never ends.
@pytest.mark.backends("asyncio", "uvloop")
@pytest.mark.parametrize("start", [way for way in WAYS if way is not by_call_later])
async def test_what_is_started_in_the_last_step_of_a_handler_belongs_to_its_hop(start: Way) -> None:
    """Each of these is adopted by a scope."""
    found = await settled_while(start)
    assert not found or isinstance(found[0], Unknown), found


@pytest.mark.backends("asyncio", "uvloop")
async def test_callbacks_of_callbacks_are_waited_for() -> None:
    """As long as one of the hop's is about to be called, it has not ended; uvloop is given some turns."""
    for start in (by_callbacks, by_gather_callback):
        found = await settled_while(start)
        assert not found or isinstance(found[0], Unknown), found
