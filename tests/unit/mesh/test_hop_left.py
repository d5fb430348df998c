"""Work that leaves a hop by a way that nobody follows is in the receipt, and the verdict names it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from quiesce.mesh import Settled, Unknown
from tests.unit.mesh.meshing import World

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from quiesce.mesh import Hop


async def test_untracked_work_is_named_in_both_modes(tmp_path: Path) -> None:
    """Route, place and agent are in the verdict, two notes of one place once."""

    async def handler(hop: Hop) -> None:
        hop.untracked("thread", "started at app.py:12 in pay")
        hop.untracked("thread", "started at app.py:12 in pay")

    async with World(tmp_path) as world:
        root, _ = await world.add("a"), await world.add("b")
        async with root.cascade("c") as cascade:
            await world.hand("b", handler)
        found = await cascade.settled(5, require="participants")
        assert isinstance(found, Unknown)
        assert found.receipt.untracked == 1
        (missing,) = found.missing
        assert "of b has ended: thread, started at app.py:12 in pay" in missing


async def test_what_is_handed_to_another_system_is_opaque(tmp_path: Path) -> None:
    """A program that says so gets what a message to an agent that takes no part gets."""

    async def handler(hop: Hop) -> None:
        hop.opaque("celery")

    async with World(tmp_path) as world:
        root, _ = await world.add("a"), await world.add("b")
        async with root.cascade("c") as cascade:
            await world.hand("b", handler)
        assert isinstance(await cascade.settled(5, require="participants"), Settled)
        found = await cascade.settled(5)
        assert isinstance(found, Unknown)
        assert found.receipt.opaque == 1


async def test_other_threads_may_say_that_work_leaves(tmp_path: Path) -> None:
    """What a thread says in the last step of the handler is in the receipt, before the event loop runs again."""

    async def handler(hop: Hop) -> None:
        thread = threading.Thread(target=hop.untracked, args=("socket", "app.py:3"))
        thread.start()
        thread.join()
        assert hop.left_sendings is not None

    async with World(tmp_path) as world:
        root, _ = await world.add("a"), await world.add("b")
        async with root.cascade("c") as cascade:
            await world.hand("b", handler)
        assert (await cascade.settled(5)).receipt.untracked == 1


async def test_what_leaves_after_the_end_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The receipt is final by then."""
    hops: list[Hop] = []

    async def handler(hop: Hop) -> None:
        hops.append(hop)

    async with World(tmp_path) as world:
        root, _ = await world.add("a"), await world.add("b")
        async with root.cascade("c") as cascade:
            await world.hand("b", handler)
        assert isinstance(await cascade.settled(5), Settled)
        hops[0].untracked("thread", "app.py:3")
    assert "no verdict waits for that: thread, app.py:3" in caplog.text
