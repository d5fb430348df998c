"""The same pieces as in `_subjects`, for other libraries that own tasks.

The results show a library that is not installed as missing.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from benchmarks._packages import Package
from benchmarks._subjects import noop, now, started, wait

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

    from benchmarks._subjects import Marks


async def spawn_taskgroup(count: int) -> float:
    """Start and finish no-ops in an asyncio.TaskGroup."""
    return await _spawn_group(asyncio.TaskGroup, count)


async def live_taskgroup(count: int, marks: Marks) -> None:
    """Close an asyncio.TaskGroup."""
    await _live_group(asyncio.TaskGroup, count, marks)


async def spawn_quattro(count: int) -> float:
    """Start and finish no-ops in a quattro.TaskGroup."""
    return await _spawn_group(import_module("quattro").TaskGroup, count)


async def live_quattro(count: int, marks: Marks) -> None:
    """Close a quattro.TaskGroup."""
    await _live_group(import_module("quattro").TaskGroup, count, marks)


async def spawn_aiotools(count: int) -> float:
    """Start and finish no-ops in an aiotools.TaskScope."""
    return await _spawn_group(import_module("aiotools").TaskScope, count)


async def live_aiotools(count: int, marks: Marks) -> None:
    """Close an aiotools.TaskScope."""
    await _live_group(import_module("aiotools").TaskScope, count, marks)


class _Stop(Exception):  # noqa: N818 - not an error: the way out of a group's body
    pass


async def _spawn_group(group_type: Callable[[], asyncio.TaskGroup], count: int) -> float:
    begin = now()
    async with group_type() as group:
        for _ in range(count):
            group.create_task(noop())
    return (now() - begin) / count


async def _live_group(
    group_type: Callable[[], asyncio.TaskGroup], count: int, marks: Marks
) -> None:
    # A task group has no close(): an exception in its body makes it cancel all tasks.
    try:
        async with group_type() as group:
            marks.empty()
            for _ in range(count):
                group.create_task(wait())
            await started()
            marks.live()
            raise _Stop  # noqa: TRY301 - the group itself must see it
    except* _Stop:
        marks.closed()


async def spawn_anyio(count: int) -> float:
    """Start and finish no-ops in an anyio task group."""
    begin = now()
    async with import_module("anyio").create_task_group() as group:
        for _ in range(count):
            group.start_soon(noop)
    return (now() - begin) / count


async def live_anyio(count: int, marks: Marks) -> None:
    """Close an anyio task group by its cancel scope."""
    async with import_module("anyio").create_task_group() as group:
        marks.empty()
        for _ in range(count):
            group.start_soon(wait)
        await started()
        marks.live()
        group.cancel_scope.cancel()
    marks.closed()


async def spawn_aiojobs(count: int) -> float:
    """Start and finish no-ops in an aiojobs.Scheduler without a limit."""
    scheduler = import_module("aiojobs").Scheduler(limit=None)
    begin = now()
    for _ in range(count):
        await scheduler.spawn(noop())
    while len(scheduler):
        await asyncio.sleep(0)
    seconds = now() - begin
    await scheduler.close()
    return seconds / count


async def live_aiojobs(count: int, marks: Marks) -> None:
    """Close an aiojobs.Scheduler; its default of 0.1 s for a close is too short for many."""
    scheduler = import_module("aiojobs").Scheduler(limit=None, close_timeout=60)
    marks.empty()
    for _ in range(count):
        await scheduler.spawn(wait())
    await started()
    marks.live()
    await scheduler.close()
    marks.closed()


@dataclass(frozen=True)
class Peer(Package):
    """Another library that owns tasks."""

    spawn: Callable[[int], Coroutine[Any, Any, float]]
    live: Callable[[int, Marks], Coroutine[Any, Any, None]]


PEERS = (
    Peer("asyncio.TaskGroup", "asyncio", spawn_taskgroup, live_taskgroup),
    Peer("quattro", "quattro", spawn_quattro, live_quattro),
    Peer("aiotools TaskScope", "aiotools", spawn_aiotools, live_aiotools),
    Peer("aiojobs", "aiojobs", spawn_aiojobs, live_aiojobs),
    Peer("anyio TaskGroup", "anyio", spawn_anyio, live_anyio),
)
