"""A hop in which a job has closed a scope that it is in, and goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest

from quiesce.mesh import Settled
from tests.stress import lasting
from tests.unit.mesh.meshing import World

if TYPE_CHECKING:
    from pathlib import Path

    from quiesce import Scope
    from quiesce.mesh import Hop


@pytest.mark.backends("asyncio", "trio")
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("more", [0.0, 0.2])
async def test_a_hop_ends_after_a_job_that_has_closed_its_own_scope(
    more: float, depth: int, tmp_path: Path
) -> None:
    """While the scope is being closed nothing else is in flight; when the job has ended, nothing is at all."""
    ended: list[str] = []

    async def slow() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            await lasting(0.2)

    async def closes(scope: Scope) -> None:
        await scope.aclose()
        await lasting(more)
        ended.append("job")

    async def handler(hop: Hop) -> None:
        scope: Scope = hop
        for _ in range(depth):
            scope = scope.child("inner")
        scope.spawn(closes, scope)
        scope.spawn(slow)

    async with World(tmp_path) as world:
        root, _ = await world.add("a"), await world.add("b")
        async with root.cascade("c") as cascade:
            await world.hand("b", handler)
        found = await cascade.settled(5)
        assert isinstance(found, Settled), found
        assert ended == ["job"]
