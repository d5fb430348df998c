"""Pools of threads and processes: the calls in them are a hop's work, their workers are not."""

from __future__ import annotations

import gc
import multiprocessing
import os
import threading
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from quiesce.mesh import Settled, Unknown, current_hop
from tests.foreign_private import stop_resource_tracker
from tests.unit.mesh.meshing import World, until
from tests.unit.mesh.routes.test_ways import Gate, cascade_of, is_held_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from quiesce.mesh import Hop

pytestmark = pytest.mark.real_time
SPAWN = multiprocessing.get_context("spawn")


@pytest.fixture
def gate() -> Iterator[Gate]:
    """Make one that is open in the end, whatever happens."""
    made = Gate()
    yield made
    made.event.set()


async def test_a_callback_of_a_call_in_an_executor_holds_the_hop(
    tmp_path: Path, gate: Gate
) -> None:
    """It works for the hop, and the verdict waits for it, although the call has ended."""
    begun = threading.Event()
    with ThreadPoolExecutor(1) as pool:

        def put() -> None:
            future = pool.submit(begun.wait, 30)
            future.add_done_callback(lambda _: gate.wait())
            begun.set()

        async with World(tmp_path) as world:
            await world.add("a"), await world.add("b")
            cascade = await cascade_of(world, put)
            await until(lambda: gate.hops)
            assert gate.hops[0] is not None
            assert isinstance(await cascade.settled(within=0.2), Unknown)
            gate.event.set()
            assert isinstance(await cascade.settled(5), Settled)


async def test_a_callback_of_a_future_that_is_dropped_holds_nothing(tmp_path: Path) -> None:
    """Nothing can call it any more."""
    futures: list[Future[None]] = [Future()]
    await is_held_until(tmp_path, lambda: futures[0].add_done_callback(print), futures.clear)


async def test_the_workers_of_a_cold_pool_of_processes_hold_nothing(tmp_path: Path) -> None:
    """The call is what is followed; the processes that it starts stay for others."""
    with ProcessPoolExecutor(1, mp_context=SPAWN) as pool:
        async with World(tmp_path) as world:
            await world.add("a"), await world.add("b")
            futures: list[Future[int]] = []
            cascade = await cascade_of(world, lambda: futures.append(pool.submit(abs, -1)))
            await until(futures[0].done)
            assert isinstance(await cascade.settled(5), Settled)
    stop_resource_tracker()


async def test_a_call_in_a_pool_of_multiprocessing_holds_the_hop(tmp_path: Path) -> None:
    """With its callbacks, and not the workers, which the handler starts."""
    hops: list[Hop | None] = []
    pools: list[Any] = []
    fifo = tmp_path / "gate"
    os.mkfifo(fifo)

    def put() -> None:
        pools.append(SPAWN.Pool(1))
        pools[0].apply_async(Path.read_text, (fifo,), callback=lambda _: hops.append(current_hop()))

    async with World(tmp_path) as world:
        await world.add("a"), await world.add("b")
        cascade = await cascade_of(world, put)
        assert isinstance(await cascade.settled(within=0), Unknown)
        await anyio.to_thread.run_sync(fifo.write_text, "go on")
        assert isinstance(await cascade.settled(30), Settled)
        assert hops[0] is not None
        pools[0].close()
        pools[0].join()
        pools.clear()
        gc.collect()  # its semaphores, which the tracker knows
    stop_resource_tracker()


@pytest.mark.parametrize("way", ["apply_async", "map_async", "imap", "imap_unordered", "chunks"])
async def test_a_call_in_a_pool_of_threads_works_for_the_hop(
    tmp_path: Path, gate: Gate, way: str
) -> None:
    """Each way of calling; the verdict waits for the calls."""
    from multiprocessing.pool import ThreadPool  # noqa: PLC0415 - which starts nothing

    with ThreadPool(1) as pool:
        args: list[Any] = [] if way == "apply_async" else [[1], *([2] if way == "chunks" else [])]

        def call(_: int = 0) -> None:
            gate.wait()

        def put() -> None:
            getattr(pool, "imap" if way == "chunks" else way)(call, *args)

        await is_held_until(tmp_path, put, gate.event.set)
        assert gate.hops[0] is not None
        pool.close()
        pool.join()  # the end of the block does not wait for the threads


async def test_what_a_pool_has_not_begun_when_it_is_terminated_holds_nothing(
    tmp_path: Path, gate: Gate
) -> None:
    """It is never done."""
    from multiprocessing.pool import ThreadPool  # noqa: PLC0415 - as above

    pool = ThreadPool(1)
    pool.apply_async(gate.wait)

    def end() -> None:
        gate.event.set()
        pool.terminate()

    def put() -> None:
        pool.apply_async(threading.Event().wait, (0,))

    await is_held_until(tmp_path, put, end)
    pool.join()
