"""A sweep in time that jumps tells what is gone moments later from what is not."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from typing import TYPE_CHECKING

import anyio
import pytest

from quiesce.testing import sweep
from tests.unit.testing.sweep_scenarios import hold_up

if TYPE_CHECKING:
    from quiesce.testing.clock import Clock


async def pausing(seconds: float) -> None:
    """Take some time."""
    with anyio.move_on_after(seconds):
        await anyio.sleep_forever()


async def leaving(seconds: float) -> None:
    """Leave a task that ends by itself after a while, if this is cancelled."""
    task = asyncio.create_task(pausing(seconds))
    await pausing(seconds)
    await task


@pytest.mark.parametrize(("seconds", "kind"), [(0.01, "late"), (5.0, "leak")])
def test_moments_are_moments_of_the_time_that_jumps(seconds: float, kind: str) -> None:
    """What would go on for seconds was left, although they pass at once."""
    found = sweep(partial(leaving, seconds), clock="mock", cancel="native")
    assert [failure.kinds for failure in found.failures] == [{kind}]


async def held_up() -> None:
    """Leave a task that ends moments later, but the machine does nothing for longer meanwhile."""

    async def blocking() -> None:
        await pausing(0.005)
        hold_up(0.15)
        await pausing(0.005)

    task = asyncio.create_task(blocking())
    await pausing(0.02)
    await task


@pytest.mark.parametrize("clock", ["mock", "real"])
def test_a_machine_that_is_held_up_makes_no_leak_of_what_is_late(clock: Clock) -> None:
    """The moments are those that something has had to end in."""
    found = sweep(held_up, clock=clock, cancel="native")
    assert [failure.kinds for failure in found.failures] == [{"late"}]


def test_a_machine_that_is_held_up_makes_no_thread_late() -> None:
    """A thread that was told to end has its moments to do so, whatever the time is by then."""

    async def telling() -> None:
        loop, told = asyncio.get_running_loop(), threading.Event()
        threading.Thread(target=told.wait).start()

        def tell(turns: int) -> None:
            if turns:
                loop.call_soon(tell, turns - 1)
            else:
                hold_up(0.05)
                told.set()

        try:
            await asyncio.sleep(0)
        finally:
            tell(10)

    assert sweep(telling, cancel="native").ok
