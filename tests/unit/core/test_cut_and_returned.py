"""Work that a close cancels, and that catches its cancellation and returns: nobody knows whether it was done."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import anyio
import pytest

from quiesce import Scope
from tests.loops import let_others_run


async def obedient() -> None:
    """Return when cancelled."""
    with suppress(anyio.get_cancelled_exc_class()):
        await anyio.sleep_forever()


@pytest.mark.parametrize("how", ["drain", "aclose"])
async def test_a_job_that_catches_its_cancellation_is_cancelled(how: str) -> None:
    """Its function returned, but it was cut."""
    scope = await Scope.open("a")
    job = scope.spawn(obedient, name="obedient")
    await let_others_run()
    report = await (scope.drain(0.01) if how == "drain" else scope.aclose())
    assert [entry.name for entry in report.cancelled] == ["obedient"]
    assert report.completed == 0
    assert not report.ok
    assert job.done()


@pytest.mark.backends("asyncio", "uvloop")
async def test_an_adopted_task_that_catches_its_cancellation_is_cancelled() -> None:
    """As a job is."""
    async with Scope("a", adopt=True) as scope:
        task = asyncio.create_task(obedient(), name="obedient")
        await let_others_run()
        report = await scope.aclose()
    assert [entry.name for entry in report.cancelled] == ["obedient"]
    assert task.done()


@pytest.mark.backends("asyncio", "uvloop")
async def test_a_job_that_deals_with_its_cancellation_and_says_so_is_completed() -> None:
    """By `uncancel()`, as asyncio has it: its work is done all the same."""

    async def done_anyway() -> None:
        await obedient()
        task = asyncio.current_task()
        assert task is not None
        task.uncancel()

    scope = await Scope.open("a")
    scope.spawn(done_anyway)
    await let_others_run()
    report = await scope.aclose()
    assert report.ok
    assert report.completed == 1


async def test_a_job_that_a_user_cancels_before_the_close_may_return() -> None:
    """The close has not cut it."""
    scope = await Scope.open("a")
    job = scope.spawn(obedient)
    await let_others_run()
    job.cancel()
    await let_others_run()
    report = await scope.aclose()
    assert report.ok
    assert report.completed == 1
