"""What a node keeps, and what it says of what it has forgotten."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest

from quiesce.mesh import Settled
from tests.stress import lasting
from tests.unit.mesh.meshing import World, nothing
from tests.unit.mesh.test_node_recovery import restarted

if TYPE_CHECKING:
    from pathlib import Path

    from quiesce.mesh import Hop

in_virtual_time = pytest.mark.backends("asyncio", "trio")


@in_virtual_time
async def test_a_hop_whose_receipt_was_asked_for_is_forgotten_in_time(tmp_path: Path) -> None:
    """Nobody posts it, so nobody ever says that it was taken: it may not be kept for ever."""
    async with World(tmp_path) as world:
        node, other = await world.add("a", url=None), await world.add("b")
        gate = anyio.Event()

        async def work(hop: Hop) -> None:
            hop.spawn(gate.wait)

        async with node.cascade("c") as cascade:
            for _ in range(10):
                await world.hand("b", work)
        gate.set()
        assert isinstance(await cascade.settled(60), Settled)
        detector = other.opened.engine.detector
        for _ in range(40):
            await lasting(3600)
        assert len(detector.known.hop_records) == 0
        assert not [one for one in detector.known.snapshot() if hasattr(one, "edge")]


@in_virtual_time
async def test_a_receipt_that_was_never_taken_is_forgotten_in_time(tmp_path: Path) -> None:
    """Its sender is gone for good."""
    async with World(tmp_path) as world:
        node, other = await world.add("a"), await world.add("b")
        gate = anyio.Event()

        async def work(hop: Hop) -> None:
            hop.spawn(gate.wait)

        async with node.cascade("c"):
            await world.hand("b", work)
        world.lines.cut.add("http://a")
        gate.set()
        for _ in range(40):
            await lasting(3600)
        assert len(other.opened.engine.known.hop_records) == 0


@in_virtual_time
async def test_what_rode_on_an_answer_is_after_a_restart_forgotten_in_time(tmp_path: Path) -> None:
    """A journal has it as closed, and nobody asks."""
    async with World(tmp_path) as world:
        node, other = await world.add("a", url=None), await world.add("b")
        async with node.cascade("c") as cascade:
            for _ in range(10):
                await world.hand("b", nothing)
        assert isinstance(await cascade.settled(60), Settled)
        assert len(other.opened.engine.known.hop_records) == 0
        again = await restarted(world, other, tmp_path)
        for _ in range(40):
            await lasting(3600)
        assert len(again.opened.engine.known.hop_records) == 0
