"""What the simulation has found, and is not mended: both say of what ran that it never did."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from quiesce.mesh import Unknown
from tests.stress import lasting
from tests.unit.mesh.meshing import World, here

if TYPE_CHECKING:
    from pathlib import Path

    from quiesce.mesh import Hop

in_virtual_time = pytest.mark.backends("asyncio", "trio")


@in_virtual_time
async def test_that_an_old_copy_is_refused_says_nothing_of_the_first(tmp_path: Path) -> None:
    """It ran, its answer was lost, and it is forgotten when the copy comes, too late."""
    async with World(tmp_path) as world:
        node, _ = await world.add("a", keep_seconds=60), await world.add("b", keep_seconds=60)
        ran: list[str] = []

        async def work(hop: Hop) -> None:
            ran.append(hop.mark)

        async with node.cascade("c") as cascade:
            with here().delegate("http://b") as handing:
                await world.deliver("b", handing.header, work)  # its answer is lost
                await lasting(3000)
                world.wall += 3000
                handing.answered(await world.deliver("b", handing.header, work))
        found = await cascade.settled(5)
        assert len(ran) == 1
        assert isinstance(found, Unknown), found


@in_virtual_time
async def test_a_question_says_how_long_messages_of_the_process_before_may_take(
    tmp_path: Path,
) -> None:
    """Its keep_seconds is less than it was; who is asked would forget before the message is too late."""
    async with World(tmp_path) as world:
        node, _ = await world.add("a", keep_seconds=3600), await world.add("b", keep_seconds=60)
        ran: list[str] = []

        async def work(hop: Hop) -> None:
            ran.append(hop.mark)

        async with node.cascade("c"):
            with here().delegate("http://b") as handing:
                world.lines.cut.add("http://b")
                shutil.copyfile(tmp_path / "a.journal", tmp_path / "a.copy")  # it is killed here
        await node.aclose()
        world.lines.cut.clear()
        again = await world.add("a", store=tmp_path / "a.copy", keep_seconds=60)
        (cascade,) = again.recovered
        found = await cascade.settled(5)
        await lasting(3300)
        world.wall += 3300
        await world.deliver("b", handing.header, work)
        assert isinstance(found, Unknown) or not ran, found
