"""A sweep in time that jumps tells what is gone moments later from what is not."""

from __future__ import annotations

import asyncio
from functools import partial

import anyio
import pytest

from quiesce.testing import sweep


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
