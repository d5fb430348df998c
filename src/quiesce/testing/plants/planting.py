"""Planting: something in flight is put into a system, to see what its shutdown makes of it.

If a planted task can survive your shutdown, and your gate stays green, your teardown is decoration.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio

from quiesce.core import arguments
from quiesce.testing.plants.kinds import (
    Planted,
    PlantedDelegation,
    PlantedItem,
    PlantedLateStart,
    PlantedStream,
    PlantedStubbornTask,
    PlantedTask,
)
from quiesce.testing.plants.process_kind import PlantedProcess

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from quiesce.testing.plants.kinds import Way

__all__ = ["PLANTS", "Planted", "plant"]

CLASSES: dict[str, type[Planted]] = {
    each.kind: each
    for each in (
        PlantedTask,
        PlantedStubbornTask,
        PlantedItem,
        PlantedProcess,
        PlantedStream,
        PlantedLateStart,
        PlantedDelegation,
    )
}

PLANTS: tuple[str, ...] = tuple(CLASSES)
"""The kinds of things that can be planted."""


@asynccontextmanager
async def plant(
    target: object, kind: str, *, seconds: float = 0.2, by: Way | None = None
) -> AsyncIterator[Planted]:
    """Put something in flight into a system, and take it out at the end of the block.

    ```python
    async with plant(scope, "task") as planted:
        report = await scope.aclose()
        assert not planted.alive()
    ```

    Args:
        target: A `Scope`; or any other object: then it is put into the event loop, owned by
            nobody, where that is possible.
        kind: One of `PLANTS`.
        seconds: How long the work takes that comes to an end by itself.
        by: How to put it into a target that is no scope. A function, async or not, of the target
            and of what is to be put into it: an async function (`"task"`, `"stubborn task"`,
            `"late start"`) to start; a list of arguments (`"process"`) to start; a function that
            gives an async generator (`"unread stream"`), to be read once and kept; a text
            (`"queued item"`, `"delegation"`), and then it returns a function that tells whether
            that is still there.

    At the end of the block it is gone, whatever the shutdown did: tasks have ended, also those
    that swallow cancellation, and processes are killed.

    *Cancel safety*: cancelled, it is taken out as well.

    *Raises*: `UsageError` if there is no way to plant it there, or what was planted does not begin.
    """
    arguments.one_of("kind", kind, PLANTS)
    planted = CLASSES[kind](target, arguments.seconds("seconds", seconds), by)
    try:
        await planted.put()
        yield planted
    finally:
        planted.let_go()
        with anyio.CancelScope(shield=True):
            await planted.remove()
