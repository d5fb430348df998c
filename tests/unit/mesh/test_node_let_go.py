"""What a node lets go of: cascades that nobody asks for, the ids in an error, and itself when it is closed twice."""

from __future__ import annotations

import gc
import traceback
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
import pytest

from quiesce.errors import JournalBroken, UsageError
from quiesce.mesh import Node, Unknown
from quiesce.mesh.protocol.facts import EdgeClosed
from quiesce.mesh.protocol.receipt import Receipt
from quiesce.mesh.store.journal import Journal
from tests.stress import turns
from tests.unit.mesh.meshing import World, here, nothing, until

if TYPE_CHECKING:
    from pathlib import Path

    from quiesce.mesh import Hop

EDGE = b"\xfesecret-id-\xff"


async def test_a_journal_that_cannot_be_is_refused_without_an_id(tmp_path: Path) -> None:
    """What is wrong with it is logged, with its causes."""
    journal = Journal(tmp_path / "a.journal")
    journal.open()
    journal.write([EdgeClosed(EDGE, Receipt("done"))])
    journal.close()
    async with World(tmp_path) as world:
        with pytest.raises(JournalBroken) as caught:
            await world.add("a")
    told = "".join(traceback.format_exception(caught.value))
    assert repr(EDGE)[2:-1] not in told


async def test_dropped_cascades_are_not_kept_for_ever(tmp_path: Path) -> None:
    """Whoever has begun them has dropped them."""
    async with World(tmp_path) as world:
        node = await world.add("a")
        for _ in range(20):
            async with node.cascade("c"):
                pass
        assert len(node.opened.known_cascades) < 20


async def test_a_cascade_that_was_dropped_before_its_end_is_let_go_of_then(tmp_path: Path) -> None:
    """Until then its edges are open, and are seen to."""
    gate = anyio.Event()

    async def work(hop: Hop) -> None:
        hop.spawn(gate.wait)

    async with World(tmp_path) as world:
        node, _ = await world.add("a"), await world.add("b")
        async with node.cascade("c"):
            await world.hand("b", work)
        gc.collect()
        assert not node.opened.known_cascades
        assert node.opened.engine.known.roots()
        gate.set()
        await until(lambda: not node.opened.engine.known.roots())


async def test_a_cascade_that_is_dropped_after_its_end_is_let_go_of(tmp_path: Path) -> None:
    """It had settled, nobody was told, and now nobody can be; also in the journal it is over."""
    async with World(tmp_path) as world:
        node, _ = await world.add("a"), await world.add("b")
        async with node.cascade("c") as cascade:
            await world.hand("b", nothing)
        while "settled" not in repr(cascade):
            await anyio.lowlevel.checkpoint()
        assert node.opened.engine.known.roots()
        del cascade
        gc.collect()
        await until(lambda: not node.opened.engine.known.roots())
        await node.aclose()
        await node.open()
        assert node.recovered == ()


async def test_a_cascade_begun_before_a_restart_cannot_be_cancelled(tmp_path: Path) -> None:
    """It has another in its place; what was written of it then would be of something that is over."""
    async with World(tmp_path) as world:
        node = await world.add("a")
        async with node.cascade("c") as cascade:
            here().delegate("http://nobody")
        await node.aclose()
        await node.open()
        (again,) = node.recovered
        with pytest.raises(UsageError, match="recovered"):
            await cascade.cancel()
        await again.cancel()
        assert isinstance(await again.settled(5), Unknown)
        with pytest.raises(UsageError, match="recovered"):
            await cascade.cancel()
        await again.cancel()  # it is over: there is nothing to end
        await node.aclose()
        await node.open()  # and its journal is in order


async def test_a_cascade_dropped_after_a_restart_does_not_end_the_recovered_one(
    tmp_path: Path,
) -> None:
    """Whoever has the recovered one was not told yet."""
    async with World(tmp_path) as world:
        node = await world.add("a")
        async with node.cascade("c") as cascade:
            pass
        await node.aclose()
        await node.open()
        (again,) = node.recovered
        del cascade
        gc.collect()
        await turns(5)
        assert node.opened.engine.known.roots()
        assert (await again.settled(1)).ok


@pytest.mark.parametrize("again", ["aclose", "drain"])
@pytest.mark.parametrize("before", ["aclose", "drain"])
async def test_a_node_that_is_closed_may_be_closed_again(before: str, again: str) -> None:
    """It returns its report, as a scope does: `finally: await node.aclose()` hides no cancellation."""
    async with World() as world:
        node = await world.add("a")
        with anyio.CancelScope() as cancelled:
            cancelled.cancel()
            await getattr(node, before)()
        assert cancelled.cancelled_caught
        assert node.own_scope is None
        report = await getattr(node, again)()
        assert report.scope == "node a"
        await node.open()
        async with node.cascade("c"):
            pass
        assert (await node.drain()).seconds >= 0.0
        assert await getattr(node, again)() is not report


@pytest.mark.parametrize("how", ["aclose", "drain"])
async def test_a_node_that_was_never_opened_cannot_be_closed(how: str) -> None:
    """There is nothing to report: it was perhaps forgotten to open it."""
    with pytest.raises(UsageError, match="is not open"):
        await getattr(Node("a"), how)()
