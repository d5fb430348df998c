"""What becomes of a hop when its agent is shut down: it has ended before anybody is told so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import pytest

from quiesce import Scope, UsageError
from quiesce.errors import CascadeCancelled
from quiesce.mesh import Unknown
from tests.stress import CANCELLED, lasting, turns
from tests.unit.mesh.meshing import World

if TYPE_CHECKING:
    from pathlib import Path

    from quiesce.mesh import Hop


async def test_what_an_agent_cuts_short_has_ended_before_its_receipt() -> None:
    """A close of the node cancels it, and waits for its cleanup; then the sender is told."""
    async with World() as world:
        root, node = await world.add("a"), await world.add("b")
        order: list[str] = []

        async def slow() -> None:
            try:
                await anyio.sleep_forever()
            finally:
                await lasting(0.05)
                order.append("cleaned")

        async def handler(hop: Hop) -> None:
            hop.spawn(slow)
            await turns(2)

        async with root.cascade("c") as cascade:
            await world.hand("b", handler)
        original = node._ended

        def ended(*args: Any) -> None:
            order.append("ended")
            original(*args)

        vars(node)["_ended"] = ended
        report = await node.aclose(2)
        assert order == ["cleaned", "ended"]
        assert len(report.cancelled) == 1
        found = await cascade.settled(5, require="participants")
        assert [note.why for note in found.receipt.notes if note.name == "b"] == [
            "its agent was shut down"
        ]


@pytest.mark.parametrize("how", ["aclose", "drain"])
async def test_one_that_is_closed_by_hand_has_ended_before_its_receipt(how: str) -> None:
    """What it has is not handed to somebody else, to run on."""
    async with World() as world:
        root, node = await world.add("a"), await world.add("b")
        order: list[str] = []
        original = node._ended

        def ended(*args: Any) -> None:
            order.append("ended")
            original(*args)

        async def slow() -> None:
            try:
                await anyio.sleep_forever()
            finally:
                await lasting(0.05)
                order.append("cleaned")

        async def handler(hop: Hop) -> None:
            hop.spawn(slow)
            await turns(2)

        vars(node)["_ended"] = ended
        async with root.cascade("c") as cascade:
            await world.hand("b", handler)
        (hop,) = node._hops.values()
        await (hop.aclose(1) if how == "aclose" else hop.drain(0.05))
        assert order == ["cleaned", "ended"]
        assert (await cascade.settled(5, require="participants")).receipt.cancelled == 1


async def test_a_handler_that_its_agent_cuts_short_is_told_so() -> None:
    """It ends with `CascadeCancelled`, and its hop as cancelled."""
    async with World() as world:
        node = await world.add("b")
        raised: list[BaseException] = []
        scope = await Scope.open("server")

        async def serve() -> None:
            try:
                async with node.cascade("c"):
                    await anyio.sleep_forever()
            except CascadeCancelled as error:
                raised.append(error)

        scope.spawn(serve)
        await turns(3)
        (hop,) = node._hops.values()
        await node.aclose(1)
        await scope.drain(1)
        assert len(raised) == 1
        assert (hop._status, hop._why) == ("cancelled", "its agent was shut down")


async def test_what_is_stuck_has_no_receipt(tmp_path: Path) -> None:
    """It runs on after the close: nobody says that it has ended, and nobody may take up its journal."""
    gate = anyio.Event()

    async def stubborn() -> None:
        while not gate.is_set():
            with anyio.CancelScope(shield=True):
                try:
                    await gate.wait()
                except CANCELLED:
                    continue

    async with World(tmp_path) as world:
        root, node = await world.add("a"), await world.add("b")

        async def handler(hop: Hop) -> None:
            hop.spawn(stubborn)

        async with root.cascade("c") as cascade:
            await world.hand("b", handler)
        report = await node.aclose(0.05)
        assert len(report.stuck) == 1
        found = await cascade.settled(0.1)
        assert isinstance(found, Unknown)
        assert found.receipt.hops == 0
        with pytest.raises(UsageError):
            await node.open()
        gate.set()
        await turns(5)
        assert node._journal is not None
        node._journal.close()
