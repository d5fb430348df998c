"""Generators that the collector drops, in the midst of anything."""

from __future__ import annotations

import asyncio
import gc
from typing import TYPE_CHECKING, Any

import pytest

from quiesce import Scope

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator


async def _endless() -> AsyncGenerator[int, None]:
    while True:
        yield 1


@pytest.mark.quiesce(allow=["generator:_endless"])
@pytest.mark.backends("asyncio")
async def test_a_generator_that_is_collected_does_not_disturb_a_frontier() -> None:
    """It is held from then on, also while somebody looks at what is."""
    threshold = gc.get_threshold()
    async with Scope("s", adopt=True) as scope:
        holds = [scope.hold("x", str(number)) for number in range(50)]
        try:
            for count in range(300):
                gc.disable()
                dropped: list[Any] = [_endless()]
                await dropped[0].asend(None)
                dropped.append(dropped)
                del dropped
                gc.set_threshold(1 + count % 40)
                gc.enable()
                scope.frontier()
                gc.set_threshold(*threshold)
                for _ in range(3):
                    await asyncio.sleep(0)
        finally:
            gc.set_threshold(*threshold)
            gc.enable()
        for hold in holds:
            hold.release()
