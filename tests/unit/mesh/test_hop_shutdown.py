"""What becomes of a hop when its agent is shut down: it has ended before anybody is told so."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from quiesce import Scope, UsageError
from quiesce.errors import CascadeCancelled
from quiesce.mesh import Settled, SettledWithLosses, Unknown
from tests.stress import CANCELLED, lasting, turns
from tests.unit.mesh.meshing import HandlerError, World, here, until

if TYPE_CHECKING:
    from pathlib import Path

    from quiesce.core.report import Report
    from quiesce.mesh import Cascade, Hop
    from quiesce.mesh.runtime.hop_parts import Part


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
        original = node.opened.note_hop_ended

        def ended(*args: Any) -> None:
            order.append("ended")
            original(*args)

        vars(node.opened)["note_hop_ended"] = ended
        report = await node.aclose(2)
        assert order == ["cleaned", "ended"]
        assert len(report.cancelled) == 1
        found = await cascade.settled(5, require="participants")
        assert [note.why for note in found.receipt.notes if note.name == "b"] == [
            "its agent was shut down"
        ]


@pytest.mark.parametrize("how", ["aclose", "drain"])
async def test_an_agent_closed_by_hand_has_ended_its_work_before_the_receipt(how: str) -> None:
    """What it has is not handed to somebody else, to run on."""
    async with World() as world:
        root, node = await world.add("a"), await world.add("b")
        order: list[str] = []
        original = node.opened.note_hop_ended

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

        vars(node.opened)["note_hop_ended"] = ended
        async with root.cascade("c") as cascade:
            await world.hand("b", handler)
        (hop,) = node.opened.running_hops.values()
        await (hop.aclose(1) if how == "aclose" else hop.drain(0.05))
        assert order == ["cleaned", "ended"]
        assert (await cascade.settled(5, require="participants")).receipt.cancelled == 1


async def test_a_handler_that_its_agent_cuts_short_is_cancelled() -> None:
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
        (hop,) = node.opened.running_hops.values()
        await node.aclose(1)
        await scope.drain(1)
        assert [*map(str, raised)] == ["cascade c was cancelled, because its node is shutting down"]
        assert (hop.end_status, hop.end_reason) == ("cancelled", "its agent was shut down")


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
        assert (found.receipt.hops, found.receipt.unknown) == (2, 1)
        with pytest.raises(UsageError):
            await node.open()
        gate.set()
        await turns(5)
        assert node.journal is not None
        node.journal.close()


# Messages that nobody begins.


class Taken:
    """A message that an agent has taken, and not begun."""

    def __init__(self, world: World) -> None:
        """Record the world."""
        self._world = world
        self.parts: list[Part] = []

    async def begin(self) -> Cascade:
        """Hand it over."""
        node, self.node = await self._world.add("a"), await self._world.add("b")
        async with node.cascade("c") as cascade:
            with here().delegate("http://b") as handing:
                self.parts.append(self.node.handle(handing.header))
                handing.answered(self.node.opened.answer(self.parts[0].hop))
        return cascade


async def lost(cascade: Cascade) -> None:
    """See that a message was lost, and why."""
    found = await cascade.settled(5)
    assert isinstance(found, SettledWithLosses)
    assert "lost" in str(found)
    assert "(its agent took it, and never began to work on it)" in str(found)


@pytest.mark.parametrize("ends", [lambda node: node.drain(0.2), lambda node: node.aclose()])
async def test_a_message_that_was_not_begun_is_lost_with_its_node(
    ends: Any, tmp_path: Path
) -> None:
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
async def test_a_message_whose_part_was_dropped_is_lost_at_once(
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
        assert "is lost: its agent accepted the message, but never entered" in line.getMessage()
        assert not taken.node.opened.running_hops


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
        assert "was dropped before the block ended" in line.getMessage()
        assert isinstance(await cascade.settled(0), Unknown)
        (stay,) = hop.holds.values()
        stay.release()  # type: ignore[attr-defined]  # it is a Stay
        hop.end_if_all()
        assert (await cascade.settled(5)).ok


# What goes wrong in a drain, and is not the drain's doing.


class InDrain:
    """A hop whose job waits for a word in the drain of its agent."""

    def __init__(self, world: World) -> None:
        """Record the world."""
        self._world = world
        self.gate = anyio.Event()
        self.job: Any = None

    async def begin(self, work: Any) -> Cascade:
        """Start the work in a hop of a cascade, and return the cascade."""
        root, self.node = await self._world.add("a"), await self._world.add("b")

        async def handler(hop: Hop) -> None:
            self.job = hop.spawn(work, self.gate, name="mail")

        async with root.cascade("c") as cascade:
            await self._world.hand("b", handler)
        return cascade

    async def drain(self, grace: float = 60.0) -> Report:
        """Drain the agent, and give the word when that has begun."""
        async with Scope("draining") as scope:
            draining = scope.spawn(self.node.drain, grace)
            await until(lambda: self.node.health.state != "ready")
            self.gate.set()
            return await draining


async def raises_at_the_word(gate: anyio.Event) -> None:
    """Fail when the word is given."""
    await gate.wait()
    raise HandlerError


async def raises_when_cut(_: anyio.Event) -> None:
    """Fail when cancelled, as libraries do that have an error of their own for it."""
    try:
        await anyio.sleep_forever()
    except CANCELLED:
        raise HandlerError from None


@pytest.mark.parametrize(("work", "within"), [(raises_at_the_word, 60.0), (raises_when_cut, 0.0)])
async def test_work_that_fails_in_a_drain_is_in_the_report(work: Any, within: float) -> None:
    """Nobody asks for its result: the sender is told that it failed, and so is who drains the agent."""
    async with World() as world:
        there = InDrain(world)
        cascade = await there.begin(work)
        report = await there.drain(within)
        assert not report.ok
        (item,) = report.failed
        assert (item.kind, item.name, type(item.error)) == ("job", "mail", HandlerError)
        found = await cascade.settled(5, require="participants")
        assert (found.ok, found.receipt.failed) == (False, 1)


async def test_work_that_fails_after_the_signal_is_in_the_report() -> None:
    """A server that was told to end drains the node later: it waits for its open requests first."""
    async with World() as world:
        there = InDrain(world)
        await there.begin(raises_at_the_word)
        there.node.opened.exchange.told_to_end(60.0)
        there.gate.set()
        await until(lambda: not there.node.opened.running_hops)
        assert [item.name for item in (await there.node.drain()).failed] == ["mail"]


async def test_work_that_failed_before_a_drain_is_not_in_its_report() -> None:
    """It was logged when it happened, and its sender knows."""
    async with World() as world:
        there = InDrain(world)
        there.gate.set()
        cascade = await there.begin(raises_at_the_word)
        await cascade.settled(5, require="participants")
        assert (await there.node.drain()).ok


async def test_work_that_its_cascade_cancels_in_a_drain_is_not_lost() -> None:
    """It was meant to end, however it does that."""
    async with World() as world:
        there = InDrain(world)
        cascade = await there.begin(raises_when_cut)
        async with Scope("draining") as scope:
            draining = scope.spawn(there.node.drain, 60.0)
            await until(lambda: there.node.health.state == "draining")
            await cascade.cancel()
            assert (await draining).ok


@pytest.mark.backends("asyncio", "uvloop")
async def test_work_that_other_code_cancels_in_a_drain_is_in_the_report() -> None:
    """The hop is *cancelled* for its sender, and for who drains the agent."""
    async with World() as world:
        there = InDrain(world)
        tasks: list[asyncio.Task[None]] = []

        async def work(_: anyio.Event) -> None:
            tasks.append(asyncio.create_task(anyio.sleep_forever()))

        async def cancel() -> None:
            await there.gate.wait()
            tasks[0].cancel()

        cascade = await there.begin(work)
        await until(lambda: tasks)
        canceller = asyncio.create_task(cancel())
        report = await there.drain()
        await canceller
        (item,) = report.cancelled
        assert item.kind == "hop"
        assert (await cascade.settled(5, require="participants")).receipt.cancelled == 1


@pytest.mark.backends("asyncio", "uvloop")
@pytest.mark.parametrize(
    ("how", "says"), [("is cancelled", False), ("is cancelled", True), ("fails", False)]
)
async def test_an_item_whose_worker_ends_in_a_drain_is_in_the_report(
    how: str, *, says: bool
) -> None:
    """It was not done; whatever the worker says in its `finally`."""
    async with World() as world:
        there = InDrain(world)
        queue: asyncio.Queue[str] = asyncio.Queue()
        taken = anyio.Event()

        async def worker() -> None:
            while True:
                await queue.get()
                try:
                    taken.set()
                    await there.gate.wait()
                    if how == "fails":
                        raise HandlerError
                    asyncio.current_task().cancel()  # type: ignore[union-attr]  # it is one
                    await anyio.sleep_forever()
                finally:
                    if says:
                        queue.task_done()

        async def work(_: anyio.Event) -> None:
            queue.put_nowait("item")

        task = asyncio.create_task(worker())
        cascade = await there.begin(work)
        await taken.wait()
        report = await there.drain()
        await asyncio.gather(task, return_exceptions=True)
        (item,) = report.failed if how == "fails" else report.cancelled
        assert item.kind == "hop"
        assert not (await cascade.settled(5, require="participants")).ok


@pytest.mark.backends("asyncio")
@pytest.mark.parametrize("how", ["asyncio", "loop"])
async def test_a_service_that_began_in_the_block_of_a_cascade_does_not_hold_up_the_close(
    how: str,
) -> None:
    """It is a service by its name, so the task that has started it does not have to end it."""
    async with World() as world:
        node = await world.add("a", services=["pool-*"])
        async with node.cascade("c") as cascade:
            make = (
                asyncio.create_task if how == "asyncio" else asyncio.get_running_loop().create_task
            )
            pools = []
            for number in range(2):
                pools.append(make(anyio.sleep_forever(), name=f"pool-{number}"))
                await turns(2)
        assert isinstance(await cascade.settled(5, require="participants"), Settled)
        began = anyio.current_time()
        await node.drain(60, cleanup=60)
        assert anyio.current_time() - began < 30
        assert all(pool.cancelled() for pool in pools)
