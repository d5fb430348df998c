"""What becomes of a hop when its agent is shut down: it has ended before anybody is told so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import pytest

from quiesce import Scope, UsageError
from quiesce.errors import CascadeCancelled
from quiesce.mesh import SettledWithLosses, Unknown
from tests.stress import CANCELLED, lasting, turns
from tests.unit.mesh.meshing import World, here

if TYPE_CHECKING:
    from pathlib import Path

    from quiesce.mesh import Cascade, Hop
    from quiesce.mesh.parts import Part


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


# Messages that nobody begins.


class Taken:
    """A message that an agent has taken, and not begun."""

    def __init__(self, world: World) -> None:
        """Know its world."""
        self._world = world
        self.parts: list[Part] = []

    async def begin(self) -> Cascade:
        """Hand it over."""
        node, self.node = await self._world.add("a"), await self._world.add("b")
        async with node.cascade("c") as cascade:
            with here().delegate("http://b") as handing:
                self.parts.append(self.node.handle(handing.header))
                handing.answered(self.node.answer(self.parts[0]._hop))
        return cascade


async def lost(cascade: Cascade) -> None:
    """See that a message was lost, and why."""
    found = await cascade.settled(5)
    assert isinstance(found, SettledWithLosses)
    assert "lost" in str(found)
    assert "(nobody has begun it)" in str(found)


@pytest.mark.parametrize("ends", [lambda node: node.drain(0.2), lambda node: node.aclose()])
async def test_what_nobody_has_begun_is_lost_with_its_node(ends: Any, tmp_path: Path) -> None:
    """It was taken, and nobody has done it: the report says so, and whoever has sent it is told."""
    async with World(tmp_path) as world:
        taken = Taken(world)
        cascade = await taken.begin()
        began = anyio.current_time()
        report = await ends(taken.node)
        assert anyio.current_time() - began < 1
        (item,) = report.undelivered
        assert (item.kind, item.name) == ("message", "not begun")
        await lost(cascade)


async def test_what_is_begun_in_a_drain_is_done(tmp_path: Path) -> None:
    """Whoever has it may have it in a queue: the drain waits for that, and says what it waits for."""
    async with World(tmp_path) as world, Scope("draining") as scope:
        taken = Taken(world)
        cascade = await taken.begin()
        (_, busy) = (await cascade.frontier()).entries
        assert busy.what == "not begun"
        job = scope.spawn(taken.node.drain, None)
        await turns(5)
        assert "message not begun" in str(taken.node.frontier())
        async with taken.parts[0]:
            await turns(5)
            assert "message not begun" not in str(taken.node.frontier())
        assert (await job).ok
        found = await cascade.settled(5)
        assert found.ok
        assert found.receipt.hops == 2


@pytest.mark.parametrize("draining", [False, True])
@pytest.mark.parametrize("elsewhere", [False, True])
@pytest.mark.real_time
async def test_what_nobody_can_begin_any_more_is_lost_at_once(
    draining: bool,  # noqa: FBT001 - a parameter of the test
    elsewhere: bool,  # noqa: FBT001 - another
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its part was dropped, in whatever thread: that is a mistake, and is told."""
    async with World(tmp_path) as world, Scope("draining") as scope:
        taken = Taken(world)
        cascade = await taken.begin()
        if draining:
            scope.spawn(taken.node.drain, None)
            await turns(5)
        if elsewhere:
            await anyio.to_thread.run_sync(taken.parts.clear)
        else:
            taken.parts.clear()
        await lost(cascade)
        (line,) = caplog.records
        assert "dropped before anybody has begun it: it is lost" in line.getMessage()
        assert not taken.node._hops


@pytest.mark.backends("asyncio")
async def test_what_was_begun_by_a_part_that_is_gone_is_not_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It may still run: that is told, and nothing else is."""
    async with World(tmp_path) as world:
        taken = Taken(world)
        cascade = await taken.begin()
        hop = taken.parts.pop().enter()
        await turns(3)
        (line,) = caplog.records
        assert "a part that was dropped before it ended" in line.getMessage()
        assert isinstance(await cascade.settled(0), Unknown)
        (stay,) = hop._holds.values()
        stay.release()  # type: ignore[attr-defined]  # it is a Stay
        hop._part_ended()
        assert (await cascade.settled(5)).ok
