"""A part of a hop that no task has entered yet holds the hop; one that is dropped before that is untracked."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from quiesce import Scope
from quiesce.mesh import Settled, Unknown
from tests.stress import turns
from tests.unit.mesh.meshing import World, here, until

if TYPE_CHECKING:
    from pathlib import Path

    from quiesce.mesh import Hop
    from quiesce.mesh.runtime.hop_parts import Part


async def test_a_part_that_is_dropped_before_a_task_enters_it_is_untracked(tmp_path: Path) -> None:
    """The hop does not wait for ever, and the verdict names the part and the line that made it."""
    line = handler.__code__.co_firstlineno + 2
    async with World(tmp_path) as world:
        root, _ = await world.add("a"), await world.add("b")
        async with root.cascade("c") as cascade:
            await world.hand("b", handler)
        found = await cascade.settled(60)
        assert isinstance(found, Unknown)
        assert found.is_final
        assert (found.receipt.untracked, found.receipt.cancelled) == (1, 0)
        (missing,) = found.missing
        place = f"{__file__}:{line} in handler"
        assert f"of b has ended: part, invoice started at {place}, and dropped before" in missing


async def handler(hop: Hop) -> None:
    """Make a part, and drop it."""
    hop.working("invoice")


async def test_a_part_may_be_dropped_in_another_thread(tmp_path: Path) -> None:
    """The hop ends in its event loop."""
    parts: list[Part] = []

    async def keeps(hop: Hop) -> None:
        parts.append(hop.working("invoice"))

    async with World(tmp_path) as world:
        root, _ = await world.add("a"), await world.add("b")
        async with root.cascade("c") as cascade:
            await world.hand("b", keeps)
        thread = threading.Thread(target=parts.clear)
        thread.start()
        thread.join()
        found = await cascade.settled(60)
        assert isinstance(found, Unknown)
        assert found.receipt.untracked == 1


async def test_a_part_that_a_task_enters_is_done_with_its_block(tmp_path: Path) -> None:
    """Nothing is untracked, also if the part is dropped when its block has ended."""
    parts: list[Part] = []

    async def keeps(hop: Hop) -> None:
        parts.append(hop.working("invoice"))

    async def work() -> None:
        async with parts.pop():
            await turns(3)

    async with World(tmp_path) as world, Scope("workers") as workers:
        root, _ = await world.add("a"), await world.add("b")
        async with root.cascade("c") as cascade:
            await world.hand("b", keeps)
        workers.spawn(work)
        found = await cascade.settled(60)
        assert isinstance(found, Settled)
        assert found.receipt.untracked == 0


async def test_an_open_verdict_says_that_no_task_has_entered_a_part() -> None:
    """Until a task has: it may have been forgotten in a list."""
    parts: list[Part] = []

    async with World() as world, Scope("workers") as workers:
        node = await world.add("a")
        async with node.cascade("c") as cascade:
            parts.append(here().working("invoice"))
        found = await cascade.settled(0)
        assert isinstance(found, Unknown)
        assert "handler invoice, which no task has entered yet since " in found.missing[0]

        async def work() -> None:
            async with parts[0]:
                await until(lambda: not parts)

        workers.spawn(work)
        await turns(3)
        found = await cascade.settled(0)
        assert isinstance(found, Unknown)
        assert "handler invoice since " in found.missing[0]
        parts.clear()
        assert (await cascade.settled(60)).ok
