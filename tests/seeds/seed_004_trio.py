"""Seed 004 on trio: a process is no task, so no nursery knows of it either."""

from __future__ import annotations

import subprocess
from contextlib import suppress
from typing import TYPE_CHECKING

import trio

from tests.seeds.seed_004 import pids, programs

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


class Pool:
    """Keeps one runner for each conversation."""

    def __init__(self, program: list[str]) -> None:
        self.program = program
        self.entries: dict[str, trio.Process] = {}
        self.spawned = trio.Event()

    async def spawn_buggy(self, name: str) -> None:
        """Register the runner when it is ready."""
        process = await trio.lowlevel.open_process(self.program, stdout=subprocess.PIPE)  # LEFT
        pids.append(process.pid)
        self.spawned.set()
        assert process.stdout is not None
        await process.stdout.receive_some()
        self.entries[name] = process

    async def spawn_fixed(self, name: str) -> None:
        """Register the runner when it is ready, and end it if that does not come to pass."""
        with trio.CancelScope(shield=True):  # to start it takes a thread, which goes on anyway
            process = await trio.lowlevel.open_process(self.program, stdout=subprocess.PIPE)
        try:
            pids.append(process.pid)
            self.spawned.set()
            assert process.stdout is not None
            await process.stdout.receive_some()
        except BaseException:
            await self.end(process)
            raise
        self.entries[name] = process

    async def end(self, process: trio.Process) -> None:
        """Kill a runner, wait for its end, and close the pipe."""
        process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()
            assert process.stdout is not None
            await process.stdout.aclose()

    async def release(self, name: str) -> None:
        """End the runner of a conversation, if there is one."""
        process = self.entries.pop(name, None)
        if process is not None:
            await self.end(process)


async def delete_session(pool: Pool, spawn: Callable[[str], Awaitable[None]]) -> None:
    """Cancel the turn that is waiting for its runner, and release the conversation."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(spawn, "conversation")
        await pool.spawned.wait()
        nursery.cancel_scope.cancel()
    with suppress(trio.Cancelled):
        await pool.release("conversation")


buggy, fixed, swept_buggy, swept_fixed = programs(Pool, delete_session)
