"""What a review has found: `never` is also said of what has run and was forgotten; and answers that are lost."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import anyio
import pytest

from quiesce.mesh import Patience, Settled, Unknown
from tests.stress import lasting
from tests.unit.mesh.meshing import World, here

if TYPE_CHECKING:
    from pathlib import Path

    from quiesce.mesh import Hop

in_virtual_time = pytest.mark.backends("asyncio", "trio")


@in_virtual_time
@pytest.mark.parametrize("hours", [0.1, 3])
@pytest.mark.parametrize("what", ["opaque", "unknown"])
async def test_a_sender_that_was_down_for_long_does_not_take_forgotten_for_never_run(
    what: str, hours: float, tmp_path: Path
) -> None:
    """The receipt rode on an answer that the sender did not live to read, and told of what nobody knows."""
    async with World(tmp_path) as world:
        node, _ = await world.add("a"), await world.add("b")

        async def work(hop: Hop) -> None:
            if what == "opaque":
                with hop.delegate("http://takes-no-part") as handing:
                    handing.answered(None)  # and works on it for hours
            else:
                with hop.delegate("http://c") as handing:
                    handing.in_doubt()
                await lasting(5)  # c was not heard of: given up

        async with node.cascade("c"):
            with here().delegate("http://b") as handing:
                world.lines.cut.add("http://b")
                told = await world.deliver("b", handing.header, work)
                assert "s=closed" in told
                shutil.copyfile(tmp_path / "a.journal", tmp_path / "a.copy")  # it is killed here
        await node.aclose()
        world.lines.cut.clear()
        await lasting(hours * 3600)
        world.wall += hours * 3600
        again = await world.add("a", store=tmp_path / "a.copy")
        (cascade,) = again.recovered
        found = await cascade.settled(5)
        assert isinstance(found, Unknown), found


@in_virtual_time
async def test_a_sender_that_was_restarted_still_knows_that_a_message_was_taken(
    tmp_path: Path,
) -> None:
    """Whoever says that it never will run is another at that address, or has lost its journal."""
    async with World(tmp_path) as world:
        node, other = await world.add("a"), await world.add("b")
        gate = anyio.Event()
        at_work: list[str] = []

        async def work(hop: Hop) -> None:
            async def long() -> None:
                at_work.append("at work")
                await gate.wait()
                at_work.clear()

            hop.spawn(long)

        async with node.cascade("c"):
            await world.hand("b", work)  # answered: working
            shutil.copyfile(tmp_path / "a.journal", tmp_path / "a.copy")  # it is killed here
        await node.aclose()
        # Another node has the address now: a replica, or one whose journal was moved away.
        world.lines.leave("http://b", other.opened.exchange.serve)
        await world.add("b", store=tmp_path / "other.journal")
        again = await world.add("a", store=tmp_path / "a.copy")
        (cascade,) = again.recovered
        found = await cascade.settled(5)
        assert at_work
        assert isinstance(found, Unknown), found
        gate.set()


@in_virtual_time
async def test_the_end_of_work_whose_answer_was_lost_is_learned_at_once() -> None:
    """The answer would have said that the receiver posts no receipt, because it does not know the sender as a peer."""
    patience = Patience(retry_first=0.01, ask_in_doubt=0.02, ask_every=5000, give_up=9000)
    gate = anyio.Event()

    async def works(hop: Hop) -> None:
        hop.spawn(gate.wait)

    async with World() as world:
        node = await world.add("a", patience=patience)
        await world.add("b", peers=[])
        async with node.cascade("c") as cascade:
            with here().delegate("http://b") as handing:
                await world.deliver("b", handing.header, works)
        found = await cascade.settled(0.5)
        assert isinstance(found, Unknown)
        gate.set()
        settled = await cascade.settled(60, require="participants")
    assert isinstance(settled, Settled)
