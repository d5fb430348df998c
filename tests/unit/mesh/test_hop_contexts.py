"""What a hop has entered is left after its receipt was given."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio
import pytest

from quiesce.mesh import Settled, Unknown
from tests.stress import lasting
from tests.unit.mesh.meshing import World

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from quiesce.mesh import Hop


@pytest.mark.backends("asyncio", "trio")
async def test_what_a_hop_has_entered_is_left_before_it_has_ended(tmp_path: Path) -> None:
    """Its end is work as any other: it flushes, it says goodbye, it may hand something to others."""
    log: list[str] = []
    gate = anyio.Event()

    @asynccontextmanager
    async def client() -> AsyncIterator[None]:
        yield
        log.append("flushing")
        await gate.wait()
        await lasting(0.01)
        log.append("flushed")

    async def handler(hop: Hop) -> None:
        await hop.enter(client())

    async with World(tmp_path) as world:
        root, _ = await world.add("a"), await world.add("b")
        async with root.cascade("c") as cascade:
            await world.hand("b", handler)
        early = await cascade.settled(0.5)
        assert log != ["flushing"] or isinstance(early, Unknown), early
        gate.set()
        found = await cascade.settled(5)
        assert isinstance(found, Settled)
        assert log == ["flushing", "flushed"]
