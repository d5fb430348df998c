"""The one who waits for a close is cancelled: the close completes, and only then is it told.

The steps at which that may happen are swept in test_close_sweep.py; here is what it means.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from quiesce import Report, Scope
from tests.stress import CANCELLED, Stubborn, lasting, turns
from tests.sweeping import WakeUps

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    Closer = Callable[[Scope], Coroutine[Any, Any, Report]]

WAKE_UPS_MAX = 250  # a loop that spins has thousands


async def aclose(scope: Scope) -> Report:
    """Close by cancelling."""
    return await scope.aclose(cleanup=60)


async def drain(scope: Scope) -> Report:
    """Close by waiting for ever; cancelled, it turns into a close."""
    return await scope.drain(grace=None, cleanup=60)


either_way = pytest.mark.parametrize("close", [aclose, drain])


class Careful:
    """A job whose cleanup takes long, and tells whether it was let finish."""

    def __init__(self, backend: str) -> None:
        """Take long by the loop's clock: on uvloop that is real time."""
        self.seconds = 0.1 if backend == "uvloop" else 10.0
        self.log: list[str] = []

    async def run(self) -> None:
        """Wait to be cancelled, then clean up."""
        try:
            await anyio.sleep_forever()
        finally:
            self.log.append("cleaning")
            await lasting(self.seconds)
            self.log.append("clean")


@pytest.mark.backends("asyncio", "uvloop")
@pytest.mark.parametrize("times", [1, 2, 10])
@either_way
async def test_a_closer_is_cancelled_again_and_again(
    close: Closer, times: int, backend: str
) -> None:
    """However often its task is cancelled, it ends when the close is complete, and as cancelled."""
    careful = Careful(backend)
    scope = await Scope.open("a")
    job = scope.spawn(careful.run)
    await turns()
    closer = asyncio.ensure_future(close(scope))
    await turns()
    for _ in range(times):
        closer.cancel()
        await turns(2)
        assert "clean" in careful.log or not closer.done()
    wake_ups = WakeUps()
    with wake_ups.counted(backend):
        await asyncio.wait([closer])
    assert closer.cancelled()
    assert scope.state == "closed"
    assert careful.log == ["cleaning", "clean"]
    assert job.done()
    assert wake_ups.count < WAKE_UPS_MAX


@either_way
async def test_a_cancel_scope_does_not_let_up(close: Closer, backend: str) -> None:
    """A cancel scope delivers again and again: the close completes, and nothing spins."""
    careful = Careful(backend)
    scope = await Scope.open("a")
    scope.spawn(careful.run)
    await turns()
    wake_ups = WakeUps()
    with wake_ups.counted(backend), anyio.CancelScope() as impatience:
        impatience.cancel()
        await close(scope)
    assert impatience.cancelled_caught
    assert scope.state == "closed"
    assert careful.log == ["cleaning", "clean"]
    assert wake_ups.count < WAKE_UPS_MAX


@pytest.mark.parametrize("ending", ["well", "by error"])
async def test_a_block_in_a_cancelled_scope_ends_when_all_is_closed(
    ending: str, backend: str
) -> None:
    """The end of a block is such a wait as well, however its body ended."""
    careful = Careful(backend)
    wake_ups = WakeUps()
    with wake_ups.counted(backend), anyio.CancelScope() as impatience:
        async with Scope("a", cleanup=60) as scope:
            scope.spawn(careful.run)
            await turns()
            impatience.cancel()
            if ending == "by error":
                raise KeyError
    assert impatience.cancelled_caught
    assert scope.state == "closed"
    assert careful.log == ["cleaning", "clean"]
    assert wake_ups.count < WAKE_UPS_MAX


@either_way
async def test_a_deadline_around_a_close_is_told_after_it(close: Closer, backend: str) -> None:
    """`fail_after` around a close raises its TimeoutError, when the close is complete."""
    careful = Careful(backend)
    scope = await Scope.open("a")
    scope.spawn(careful.run)
    await turns()
    begun = anyio.current_time()
    with pytest.raises(TimeoutError):
        with anyio.fail_after(0.01):
            await close(scope)
    assert anyio.current_time() - begun > careful.seconds / 2
    assert careful.log == ["cleaning", "clean"]


@pytest.mark.backends("asyncio", "uvloop")
@either_way
async def test_an_asyncio_timeout_around_a_close_is_told_after_it(
    close: Closer, backend: str
) -> None:
    """`asyncio.timeout` and `wait_for` see their own cancellation come out."""
    for wait in (in_timeout, asyncio.wait_for):
        careful = Careful(backend)
        scope = await Scope.open("a")
        scope.spawn(careful.run)
        await turns()
        with pytest.raises(TimeoutError):
            await wait(close(scope), 0.01)
        assert scope.state == "closed"
        assert careful.log == ["cleaning", "clean"]
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def in_timeout(awaitable: Any, seconds: float) -> None:
    """Wait under `asyncio.timeout`, in the same task."""
    async with asyncio.timeout(seconds):
        await awaitable


@pytest.mark.parametrize("within", [None, 100.0])
async def test_a_drain_that_waits_does_not_poll(within: float | None, backend: str) -> None:
    """While the work goes on, nobody looks whether it has ended."""
    seconds = 0.1 if backend == "uvloop" else 9.0  # a wait of ten without a bound says so
    scope = await Scope.open("a")
    scope.spawn(lasting, seconds)
    await turns()
    wake_ups = WakeUps()
    with wake_ups.counted(backend):
        report = await scope.drain(grace=within)
    assert report.completed == 1
    assert report.seconds >= seconds / 2
    assert 0 < wake_ups.count < 20


async def test_a_cancelled_drain_turns_into_a_close() -> None:
    """The work that the drain would have waited for is cancelled, and has its cleanup."""
    scope = await Scope.open("a")
    scope.spawn(anyio.sleep_forever, name="endless")
    with anyio.move_on_after(0.01) as impatience:
        await scope.drain(grace=None)
    assert impatience.cancelled_caught
    assert scope.report is not None
    assert [lost.name for lost in scope.report.cancelled] == ["endless"]


async def test_a_cancelled_drain_leaves_the_others_their_patience() -> None:
    """While somebody else still waits for the drain, the work goes on."""
    reports: list[Report] = []

    async def patient() -> None:
        reports.append(await scope.drain(grace=None))

    async def impatient() -> None:
        with impatience:
            await scope.drain(grace=None)
        left.set()

    impatience = anyio.CancelScope()
    release, left = anyio.Event(), anyio.Event()
    scope = await Scope.open("a")
    job = scope.spawn(release.wait)
    async with anyio.create_task_group() as group:
        group.start_soon(patient)
        group.start_soon(impatient)
        await turns()
        impatience.cancel()
        await turns()
        assert not job.done()
        assert scope.state == "draining"
        release.set()
    assert left.is_set()
    assert reports[0].ok
    assert reports[0].completed == 1


async def test_when_the_last_drainer_leaves_the_patience_ends() -> None:
    """Two wait for a drain and both are cancelled: then it is a close."""

    async def impatient() -> None:
        with anyio.move_on_after(0.01):
            await scope.drain(grace=None)

    scope = await Scope.open("a")
    scope.spawn(anyio.sleep_forever, name="endless")
    async with anyio.create_task_group() as group:
        group.start_soon(impatient)
        group.start_soon(impatient)
    assert scope.report is not None
    assert [lost.name for lost in scope.report.cancelled] == ["endless"]


async def test_a_job_is_cancelled_while_it_closes_its_own_scope(backend: str) -> None:
    """It leaves when all the others have ended, as cancelled, and the close completes."""
    careful = Careful(backend)
    log: list[str] = []

    async def closer() -> None:
        try:
            await scope.aclose(cleanup=60)
        except CANCELLED:
            log.extend(careful.log)
            raise

    scope = await Scope.open("a")
    scope.spawn(careful.run)
    job = scope.spawn(closer, name="closer")
    await scope.closing()
    await turns()
    for _ in range(3):
        job.cancel()
        await turns(1)
    report = await scope.aclose(cleanup=60)
    assert log == ["cleaning", "clean"]
    assert job.outcome is not None
    assert job.outcome.status == "cancelled"
    assert not report.stuck


async def test_a_closer_is_cancelled_while_a_stubborn_job_meets_the_deadline() -> None:
    """Cancelled or not, the closer waits for the deadline, and no longer."""
    async with Stubborn() as stubborn:
        scope = await Scope.open("a")
        scope.spawn(stubborn.run, name="stubborn")
        await turns()
        begun = anyio.current_time()
        with anyio.CancelScope() as impatience:
            impatience.cancel()
            await scope.aclose(cleanup=0.1)
        assert impatience.cancelled_caught
        assert 0.09 < anyio.current_time() - begun < 1
        assert scope.report is not None
        assert [lost.name for lost in scope.report.stuck] == ["stubborn"]


@pytest.mark.backends("asyncio", "uvloop")
async def test_the_closings_own_task_is_cancelled(backend: str) -> None:
    """Whoever cancels every task of the loop hastens a drain, and does not break it."""
    careful = Careful(backend)
    scope = await Scope.open("a")
    job = scope.spawn(careful.run)
    await turns()
    closer = asyncio.ensure_future(drain(scope))
    await turns()
    bystanders = {closer, asyncio.current_task(), job}
    for _ in range(5):
        for task in asyncio.all_tasks() - bystanders:
            task.cancel()
        await turns(2)
    report = await closer
    assert report.seconds < 60
    assert careful.log == ["cleaning", "clean"]
    assert scope.state == "closed"


@pytest.mark.backends("asyncio", "uvloop")
async def test_a_cancelled_closer_is_not_the_last_word() -> None:
    """The next closer gets the report that the cancelled one did not live to see."""
    scope = await Scope.open("a")
    scope.spawn(anyio.sleep_forever, name="endless")
    closer = asyncio.ensure_future(scope.aclose())
    await asyncio.sleep(0)
    closer.cancel()
    await asyncio.wait([closer])
    assert closer.cancelled()
    report = await scope.aclose()
    assert report is scope.report
    assert [lost.name for lost in report.cancelled] == ["endless"]
