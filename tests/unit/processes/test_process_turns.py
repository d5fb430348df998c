"""Many starts at once: the event loop gets its turn between the forks."""

from __future__ import annotations

import asyncio
from typing import Any

import anyio
import pytest
import trio

from quiesce import Scope, ScopeClosed
from quiesce.processes import process_spawn
from quiesce.processes.fork_queue import of
from quiesce.processes.process import start_process
from tests.unit.processes.small_programs import counted

pytestmark = pytest.mark.real_time

STARTS = 12


async def test_others_run_between_the_forks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks that start processes at the same time do not do so in one turn of the loop."""
    steps = 0
    seen: list[int] = []
    spawn = process_spawn.spawn

    def noting(*args: object, **options: object) -> process_spawn.SpawnedChild:
        seen.append(steps)
        return spawn(*args, **options)  # type: ignore[arg-type]  # whatever it was given

    monkeypatch.setattr(process_spawn, "spawn", noting)

    async def tick() -> None:
        nonlocal steps
        while True:
            steps += 1
            await anyio.lowlevel.checkpoint()

    with counted():
        async with Scope("a") as scope:
            scope.spawn(tick, service=True)
            for _ in range(STARTS):
                scope.spawn(start_process, ["true"])
        assert len(seen) == STARTS
        assert len(set(seen)) >= STARTS // 2


async def test_a_turn_of_one_who_was_cancelled_goes_to_the_next() -> None:
    """Those who give up while they wait hold nobody up."""
    with counted() as census:
        async with Scope("a") as scope:
            jobs = [scope.spawn(start_process, ["true"]) for _ in range(STARTS)]
            await anyio.lowlevel.checkpoint()
            await anyio.lowlevel.checkpoint()
            for job in jobs[::2]:
                job.cancel()
            for job in jobs[1::2]:
                await (await job).wait()
            assert len(census.pids) >= STARTS // 2
            turns = of(scope.backend)
        assert not turns.queue


async def test_a_scope_that_is_closed_before_the_turn_comes_starts_nothing() -> None:
    """Whether it may start is decided in the step of the fork."""
    scope = await Scope.open("a")
    turns = of(scope.backend)
    refused: list[ScopeClosed] = []

    async def start() -> None:
        try:
            await start_process(["true"], scope=scope)
        except ScopeClosed as error:
            refused.append(error)

    with counted() as census:
        async with anyio.create_task_group() as group:
            for _ in range(STARTS):
                group.start_soon(start)
            while not turns.queue:
                await anyio.lowlevel.checkpoint()
            waiting = len(turns.queue)
            await scope.aclose()
        assert len(refused) >= waiting
        assert len(census.pids) == STARTS - len(refused)


def test_two_loops_of_one_thread_start_processes_at_once() -> None:
    """In trio's guest mode asyncio runs in the same thread: neither waits for the other's turns."""

    async def start_many(name: str) -> tuple[str, int]:
        scope = await Scope.open(name)
        codes = list[int]()

        async def start() -> None:
            process = await start_process(["true"], scope=scope)
            codes.append(await process.wait())

        for _ in range(STARTS):
            scope.spawn(start)
        await scope.drain(grace=None)
        return scope.backend.name, codes.count(0)

    async def host() -> None:
        loop = asyncio.get_running_loop()
        guest: asyncio.Future[Any] = loop.create_future()
        trio.lowlevel.start_guest_run(
            start_many,
            "guest",
            run_sync_soon_threadsafe=loop.call_soon_threadsafe,
            run_sync_soon_not_threadsafe=loop.call_soon,
            done_callback=guest.set_result,
            host_uses_signal_set_wakeup_fd=True,
        )
        assert await start_many("host") == ("asyncio", STARTS)
        assert (await guest).unwrap() == ("trio", STARTS)

    asyncio.run(host())
