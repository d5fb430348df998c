"""The journal of a node that goes on without it, and of a machine that is started anew: what it may not have."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import anyio
import pytest

from quiesce.errors import ArgumentError
from quiesce.mesh import Node, Settled, SettledWithLosses, Unknown
from tests.unit.mesh.meshing import Full, World, here, leaves, nothing

if TYPE_CHECKING:
    from pathlib import Path

    from quiesce.mesh import Hop

# Going on without.


async def test_a_node_may_go_on_without_its_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that has none: its receipts are volatile; when there is room, they are not."""
    full = Full(monkeypatch, tmp_path / "b.journal")
    async with World(tmp_path) as world:
        node, other = await world.add("a"), await world.add("b", on_trouble="serve")
        full.left = 0
        async with node.cascade("c") as cascade:
            await world.hand("b", nothing)
        found = await cascade.settled(5)
        assert isinstance(found, Unknown)
        assert found.receipt.volatile == 1
        assert isinstance(await cascade.settled(1, require="participants"), Settled)
        health = other.health
        assert (health.state, health.takes_messages, health.ok) == ("behind", True, False)
        full.left = None
        assert other.opened.retry_writing()
        assert other.health.ok
        async with node.cascade("d") as cascade:
            await world.hand("b", nothing)
        assert (await cascade.settled(1)).ok


@pytest.mark.parametrize("mode", ["serve", "refuse"])
async def test_a_node_that_went_on_without_its_journal_says_unknown_after_a_restart(
    mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has run a message, and sent others, of which nothing was written."""
    full = Full(monkeypatch, tmp_path / "b.journal")
    async with World(tmp_path) as world:
        node = await world.add("a")
        other = await world.add("b", on_trouble="serve")
        gate = anyio.Event()

        async def handler(hop: Hop) -> None:
            full.left = 0
            with hop.delegate("http://c"):
                pass  # in doubt, and not written
            hop.spawn(gate.wait)

        async with node.cascade("c") as cascade:
            await world.hand("b", handler)
            with here().delegate("http://b") as second:
                await world.deliver("b", second.header, handler)  # its answer is lost
            shutil.copyfile(tmp_path / "b.journal", tmp_path / "b.copy")  # it is killed here,
            world.lines.leave("http://b", other.opened.exchange.serve)  # and answers nobody
        world.wall += 5
        full.left = None
        await world.add("b", store=tmp_path / "b.copy", on_trouble=mode)
        found = await cascade.settled(5, require="participants")
        assert isinstance(found, Unknown), found
        assert found.receipt.unknown == 2
        assert found.is_final
        gate.set()


async def test_a_node_whose_journal_is_complete_knows_all_after_a_restart(
    tmp_path: Path,
) -> None:
    """The process before it wrote everything: what it lost is lost, and what never came never came."""
    async with World(tmp_path) as world:
        node, other = await world.add("a"), await world.add("b")
        world.wall += 5
        async with node.cascade("c") as cascade:
            await world.hand("b", leaves)
            with here().delegate("http://b"):
                pass  # in doubt
            shutil.copyfile(tmp_path / "b.journal", tmp_path / "b.copy")  # it is killed here,
            world.lines.leave("http://b", other.opened.exchange.serve)  # and answers nobody
        world.wall += 5
        await world.add("b", store=tmp_path / "b.copy", on_trouble="serve")
        found = await cascade.settled(5)
        assert isinstance(found, SettledWithLosses), found
        assert (found.receipt.lost, found.receipt.undelivered) == (1, 1)


# A machine that is started anew.


@pytest.mark.parametrize(
    ("durability", "boot", "verdict"),
    [
        ("process", "1", SettledWithLosses),
        ("process", "2", Unknown),
        ("power", "2", SettledWithLosses),
    ],
)
async def test_what_a_machine_may_have_lost_is_unknown(
    durability: str, boot: str, verdict: type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last of what a process wrote may not have come to the disk, unless it waited for that."""
    monkeypatch.setattr("quiesce.mesh.store.journal_keeper._BOOT", tmp_path / "boot")
    (tmp_path / "boot").write_text("1")
    async with World(tmp_path) as world:
        node, other = await world.add("a"), await world.add("b", durability=durability)
        world.wall += 5
        async with node.cascade("c") as cascade:
            await world.hand("b", leaves)
            with here().delegate("http://b"):
                pass  # in doubt
            shutil.copyfile(tmp_path / "b.journal", tmp_path / "b.copy")  # it is killed here,
            world.lines.leave("http://b", other.opened.exchange.serve)  # and answers nobody
        world.wall += 5
        (tmp_path / "boot").write_text(boot)
        await world.add("b", store=tmp_path / "b.copy", durability=durability)
        found = await cascade.settled(5)
        assert type(found) is verdict, found
        receipt = found.receipt
        told = (receipt.lost, receipt.unknown, receipt.undelivered)
        assert told == ((1, 2, 0) if verdict is Unknown else (1, 0, 1))


@pytest.mark.parametrize("mode", ["refuse", "serve"])
async def test_a_node_that_was_closed_well_knows_all_after_a_start_of_the_machine(
    mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for the disk when it is closed; so what never came is known not to have run."""
    monkeypatch.setattr("quiesce.mesh.store.journal_keeper._BOOT", tmp_path / "boot")
    (tmp_path / "boot").write_text("1")
    async with World(tmp_path) as world:
        node, other = await world.add("a"), await world.add("b", on_trouble=mode)
        world.wall += 5
        world.lines.cut.add("http://b")
        async with node.cascade("c") as cascade:
            with here().delegate("http://b"):
                pass  # in doubt
        await other.drain(1)
        world.wall += 5
        (tmp_path / "boot").write_text("2")
        await other.open()
        world.lines.cut.clear()
        found = await cascade.settled(5)
        assert isinstance(found, Settled), found
        assert found.receipt.undelivered == 1


def test_what_to_do_without_room_is_one_of_two() -> None:
    """Anything else is refused when it is given."""
    with pytest.raises(ArgumentError, match="on_trouble"):
        Node("a", on_trouble="ignore")
