"""Seed 004: a runner process is registered when it is ready, and nobody knows of it before.

Cancelled in between, the pool has no entry for it, so a release does nothing, and the process
lives on.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

# Each ends by itself after a while, whoever forgets it.
SLOW = [sys.executable, "-I", "-S", "-c", "import signal; signal.alarm(20); signal.pause()"]
QUICK = [*SLOW[:-1], "import signal; signal.alarm(20); print(flush=True); signal.pause()"]

pids: list[int] = []
"""All that were started, so that a test can end those that a bug has left."""


def end_all() -> None:
    """Kill and bury what is left."""
    for pid in pids:
        with suppress(OSError):
            if os.waitpid(pid, os.WNOHANG) == (0, 0):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
    pids.clear()


async def outlast(task: asyncio.Task[Any]) -> None:
    """Wait for the end of a task, however often somebody cancels that; then pass it on."""
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled


class Pool:
    """Keeps one runner for each conversation."""

    def __init__(self, program: list[str]) -> None:
        self.program = program
        self.entries: dict[str, asyncio.subprocess.Process] = {}
        self.spawned = asyncio.Event()

    async def spawn_buggy(self, name: str) -> None:
        """Register the runner when it is ready."""
        process = await asyncio.create_subprocess_exec(*self.program, stdout=-1)  # LEFT
        pids.append(process.pid)
        self.spawned.set()
        assert process.stdout is not None
        await process.stdout.readline()
        self.entries[name] = process

    async def spawn_fixed(self, name: str) -> None:
        """Register the runner when it is ready, and end it if that does not come to pass."""
        spawning = asyncio.create_task(asyncio.create_subprocess_exec(*self.program, stdout=-1))
        try:
            await outlast(spawning)
            process = spawning.result()
            pids.append(process.pid)
            self.spawned.set()
            assert process.stdout is not None
            await process.stdout.readline()
        except BaseException:
            if spawning.exception() is None:
                await self.end(spawning.result())
            raise
        self.entries[name] = process

    async def end(self, process: asyncio.subprocess.Process) -> None:
        """Kill a runner, and wait until nothing is left of it."""
        with suppress(ProcessLookupError):
            process.kill()
        await outlast(asyncio.create_task(process.communicate()))

    async def release(self, name: str) -> None:
        """End the runner of a conversation, if there is one."""
        process = self.entries.pop(name, None)
        if process is not None:
            await self.end(process)


async def delete_session(pool: Pool, spawn: Callable[[str], Coroutine[None, None, None]]) -> None:
    """Cancel the turn that is waiting for its runner, and release the conversation."""
    turn = asyncio.create_task(spawn("conversation"))
    await pool.spawned.wait()
    turn.cancel()
    with suppress(asyncio.CancelledError):
        await turn
    await pool.release("conversation")


async def turn(pool: Any, spawn: Callable[[str], Coroutine[None, None, None]]) -> None:
    """Get a runner, and release it."""
    try:
        await spawn("conversation")
    finally:
        await pool.release("conversation")


def programs(
    make: Callable[[list[str]], Any], delete: Callable[[Any, Any], Coroutine[Any, Any, None]]
) -> tuple[Callable[[], Coroutine[Any, Any, None]], ...]:
    """Return the programs of a kind of pool: two that delete a session, two for a sweep."""

    async def buggy() -> None:
        """Leave the runner behind."""
        pool = make(SLOW)
        await delete(pool, pool.spawn_buggy)

    async def fixed() -> None:
        """Leave nothing behind."""
        pool = make(SLOW)
        await delete(pool, pool.spawn_fixed)

    async def swept_buggy() -> None:
        """Run the buggy version, which is right unless it is cancelled."""
        pool = make(QUICK)
        await turn(pool, pool.spawn_buggy)

    async def swept_fixed() -> None:
        """Run the fixed version, which is right also if it is cancelled."""
        pool = make(QUICK)
        await turn(pool, pool.spawn_fixed)

    return buggy, fixed, swept_buggy, swept_fixed


buggy, fixed, swept_buggy, swept_fixed = programs(Pool, delete_session)
