"""Ending programs that ignore SIGTERM: all at the same time, beside one after the other."""

from __future__ import annotations

import asyncio
from functools import partial
from subprocess import DEVNULL, PIPE
from typing import TYPE_CHECKING, Any

import quiesce
from benchmarks._harness import OURS, Result, Samples, compare, interleave
from benchmarks._process_starters import OURS_ON_TRIO, has_loop, run_on
from benchmarks._subjects import wall
from quiesce import ready

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from benchmarks._sizes import ProcessSizes

    Way = Callable[[int, float], Coroutine[Any, Any, float]]

# The program ends by itself after a minute, in case the benchmark fails.
STUBBORN = ("/bin/sh", "-c", "trap '' TERM; echo ready; exec sleep 60")
READY = "^ready$"
GRACE, POOL = "the grace itself", f"{OURS} RunnerPool"
SERIAL, GATHERED = "asyncio, one after the other", "asyncio, gather()"


async def start(grace: float, *, service: bool = False) -> quiesce.Process:
    """Start a program, and return when it ignores SIGTERM."""
    return await quiesce.start_process(
        STUBBORN, ready=ready.Line(READY), grace=grace, service=service
    )


async def close_scope(count: int, grace: float) -> float:
    """Close a scope that owns such programs; return the seconds of the close."""
    async with quiesce.Scope("benchmark") as scope:
        processes = [await start(grace) for _ in range(count)]
        begin = wall()
        await scope.aclose(cleanup=grace + 10)
        seconds = wall() - begin
    assert all(process.returncode == -9 for process in processes)
    return seconds


async def drain_pool(count: int, grace: float) -> float:
    """Drain a pool with such programs as runners; return the seconds of the drain."""
    async with quiesce.Scope("benchmark"):

        async def runner(_: int) -> quiesce.Process:
            return await start(grace, service=True)

        pool: quiesce.RunnerPool[int, Any] = quiesce.RunnerPool(runner, grace=grace)
        runners = []
        for key in range(count):
            async with pool.lease(key) as process:
                runners.append(process)
        begin = wall()
        await pool.drain(grace=10)
        seconds = wall() - begin
    assert all(process.returncode == -9 for process in runners)
    return seconds


async def stop_serially(count: int, grace: float) -> float:
    """End the programs one after the other, as a loop over a list of processes does."""
    processes = await _started(count)
    begin = wall()
    for process in processes:
        await _stop(process, grace)
    return wall() - begin


async def stop_gathered(count: int, grace: float) -> float:
    """End the programs at the same time, with `asyncio.gather`."""
    processes = await _started(count)
    begin = wall()
    await asyncio.gather(*(_stop(process, grace) for process in processes))
    return wall() - begin


async def _started(count: int) -> list[asyncio.subprocess.Process]:
    processes = []
    for _ in range(count):
        process = await asyncio.create_subprocess_exec(*STUBBORN, stdin=DEVNULL, stdout=PIPE)
        assert process.stdout is not None
        assert await process.stdout.readline() == b"ready\n"
        processes.append(process)
    return processes


async def _stop(process: asyncio.subprocess.Process, grace: float) -> None:
    process.terminate()
    try:
        await asyncio.wait_for(process.wait(), grace)
    except TimeoutError:
        process.kill()
    assert await process.wait() == -9


def drain_stubborn(backend: str, sizes: ProcessSizes) -> list[Result]:
    """Measure how long it takes to end programs that ignore SIGTERM, in units of their grace."""
    count, grace = sizes.stubborn, sizes.grace_seconds

    def piece(loop: str, way: Way) -> float:
        return run_on(loop, partial(way, count, grace)) / grace

    pieces = {OURS: partial(piece, backend, close_scope), POOL: partial(piece, backend, drain_pool)}
    if has_loop("trio"):
        pieces[OURS_ON_TRIO] = partial(piece, "trio", close_scope)
    peers = {
        SERIAL: partial(piece, "asyncio", stop_serially),
        GATHERED: partial(piece, "asyncio", stop_gathered),
    }
    found = interleave(
        f"{backend}: drain_stubborn",
        pieces | peers,
        sizes.rounds_drain,
        seldom=peers.keys(),
    )
    found = {GRACE: Samples((1.0,) * sizes.rounds_drain)} | found
    about = f"{count} programs that ignore SIGTERM, with a grace of {grace:g} s"
    compared = partial(compare, unit="x grace", limit=1.3, base=GRACE)
    return [
        compared("drain_5_stubborn", f"{about}: the close of their scope", found),
        compared(
            "drain_5_stubborn_pool",
            f"{about}: the drain of their pool",
            {name: found[name] for name in (GRACE, POOL, SERIAL)},
            ours=POOL,
        ),
    ]
