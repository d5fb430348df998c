"""The report of a drain shows where a thread of a hop is stuck."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from tests.unit.mesh.meshing import World

if TYPE_CHECKING:
    from quiesce.mesh.runtime.hop import Hop


@pytest.mark.real_time
async def test_a_thread_that_is_stuck_is_shown_with_its_stack() -> None:
    """The stack is that of the thread, down to the function that it runs."""
    stop, begun = threading.Event(), threading.Event()
    started: list[threading.Thread] = []

    def stuck_function() -> None:
        begun.set()
        stop.wait()

    async def handler(_: Hop) -> None:
        started.append(threading.Thread(target=stuck_function))
        started[0].start()
        begun.wait()

    async with World() as world:
        root, node = await world.add("a"), await world.add("b")
        async with root.cascade("c"):
            await world.hand("b", handler)
        report = await node.aclose(0.05)
        stop.set()
        started[0].join()
        (entry,) = report.stuck
        assert "stuck_function" in "".join(entry.stack)


@pytest.mark.real_time
async def test_a_call_that_no_thread_has_begun_is_cancelled_and_the_other_is_stuck() -> None:
    """A pool of one thread has two calls of a hop: the second never runs."""
    stop, begun = threading.Event(), threading.Event()
    ran: list[str] = []

    def stuck_function(name: str) -> None:
        begun.set()
        stop.wait()
        ran.append(name)

    with ThreadPoolExecutor(1) as pool:

        async def handler(_: Hop) -> None:
            for name in ("first", "second"):
                pool.submit(stuck_function, name)
            begun.wait()

        async with World() as world:
            root, node = await world.add("a"), await world.add("b")
            async with root.cascade("c"):
                await world.hand("b", handler)
            report = await node.aclose(0.05)
            stop.set()
        (entry,) = report.stuck
        assert "stuck_function" in "".join(entry.stack)
        assert [one.kind for one in report.cancelled] == ["thread"]
    assert ran == ["first"]


@pytest.mark.backends("asyncio", "uvloop")
@pytest.mark.real_time
async def test_a_call_of_to_thread_has_the_name_of_its_function() -> None:
    """Not that of the method of the context by which asyncio calls the function."""
    stop, begun = threading.Event(), threading.Event()

    def named_function() -> None:
        begun.set()
        stop.wait()

    async def handler(hop: Hop) -> None:
        hop.spawn(asyncio.to_thread, named_function)
        await asyncio.to_thread(begun.wait)

    async with World() as world:
        root, node = await world.add("a"), await world.add("b")
        async with root.cascade("c"):
            await world.hand("b", handler)
        await asyncio.to_thread(begun.wait)
        names = {entry.name for entry in node.frontier().in_flight if entry.kind == "thread"}
        stop.set()
        assert any("named_function" in name for name in names), names
