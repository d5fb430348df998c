"""A sweep ends the processes that a scenario has left, and asyncio has nothing to complain of."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from quiesce.testing import sweep


async def leave_a_process() -> None:
    """Leave a process if it is cancelled."""
    process = await asyncio.create_subprocess_exec("sleep", "60")
    await asyncio.sleep(0)
    process.kill()
    await process.wait()


@pytest.mark.parametrize("clock", ["real", "mock"])
def test_asyncio_reaps_the_processes_that_were_left(
    clock: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """It would warn of one that somebody else has reaped, and of one that ends after its loop."""
    found = sweep(leave_a_process, backend="asyncio", cancel="native", clock=clock)
    assert any("process" in str(each) for each in found.failures)
    assert caplog.messages == []
