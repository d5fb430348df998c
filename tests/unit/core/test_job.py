"""`Job`: anyone may await it, any number of times."""

from __future__ import annotations

import asyncio
import gc

import anyio
import anyio.lowlevel
import pytest

from quiesce import Job, JobCancelled, Outcome, Scope, UsageError
from tests.loops import let_others_run

on_asyncio = pytest.mark.backends("asyncio", "uvloop")


async def answer() -> int:
    """Return the answer, after a step."""
    await anyio.lowlevel.checkpoint()
    return 42


async def fail() -> None:
    """End badly, after a step."""
    await anyio.lowlevel.checkpoint()
    message = "on purpose"
    raise LookupError(message)


async def test_many_may_await_a_job() -> None:
    """Each waiter gets the value, whether it came before the end or after it."""
    got = []

    async with Scope("job") as scope:
        job = scope.spawn(answer)

        async def wait() -> None:
            got.append(await job)

        for _ in range(10):
            scope.spawn(wait)
        await scope.idle()
        got.append(await job)
        got.append(await job)
    assert got == [42] * 12
    assert await job == 42


async def test_the_outcome_of_a_value() -> None:
    """A job that runs has no outcome; one that completed has its value."""
    async with Scope("job") as scope:
        job = scope.spawn(answer)
        assert (job.outcome, job.done()) == (None, False)
        await job
        assert (job.outcome, job.done()) == (Outcome("completed", 42), True)
        assert job.cancel() is False


async def test_the_outcome_of_a_failure() -> None:
    """A failed job raises its very exception to every waiter, and keeps it."""
    scope = await Scope.open("job")
    job = scope.spawn(fail)
    for _ in range(3):
        with pytest.raises(LookupError, match="on purpose") as caught:
            await job
        assert job.outcome == Outcome("failed", error=caught.value)
    assert job.done()
    assert job.cancel() is False
    report = await scope.aclose()
    assert [item.error for item in report.failed] == [caught.value]


@pytest.mark.parametrize("begun", [True, False], ids=["begun", "not begun"])
async def test_the_outcome_of_a_cancellation(begun: bool) -> None:  # noqa: FBT001 - a parameter
    """Awaiting a cancelled job raises `JobCancelled`, which does not cancel the waiter."""
    async with Scope("job") as scope:
        job = scope.spawn(anyio.sleep_forever, name="sleeper")
        if begun:
            await let_others_run()
        assert job.cancel() is True
        for _ in range(3):
            with pytest.raises(JobCancelled, match=r"job 'sleeper' was cancelled"):
                await job
        assert job.outcome == Outcome("cancelled")
        assert job.done()
        assert job.cancel() is False
        await anyio.lowlevel.checkpoint()


async def test_cancelling_twice_is_harmless() -> None:
    """A second request to stop, before the job has ended, changes nothing."""
    async with Scope("job") as scope:
        job = scope.spawn(anyio.sleep_forever)
        await let_others_run()
        assert job.cancel() is True
        assert job.cancel() is True
        with pytest.raises(JobCancelled):
            await job


async def test_a_job_that_was_asked_to_stop_may_still_complete() -> None:
    """A job that ends its work instead of stopping has completed, and gives its value."""

    async def work() -> str:
        try:
            await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class():
            return "completed"
        return "never"

    async with Scope("job") as scope:
        job = scope.spawn(work)
        await let_others_run()
        job.cancel()
        assert await job == "completed"
        assert job.outcome == Outcome("completed", "completed")
    assert scope.report is not None
    assert (scope.report.completed, scope.report.withdrawn) == (1, 0)


async def test_a_cancelled_waiter_leaves_the_job_alone() -> None:
    """The job of a waiter that was cancelled goes on, for others to await."""
    gate = anyio.Event()

    async def work() -> int:
        await gate.wait()
        return 42

    async with Scope("job") as scope:
        job = scope.spawn(work)
        waiters = [scope.spawn(wait_for, job) for _ in range(3)]
        await let_others_run()
        for waiter in waiters[:2]:
            waiter.cancel()
        with anyio.move_on_after(0):
            await job
        await let_others_run()
        assert not job.done()
        gate.set()
        assert await waiters[2] == 42


async def wait_for(job: Job[int]) -> int:
    """Await a job, in another one."""
    return await job


async def test_a_cancelled_waiter_leaves_nothing_at_the_job() -> None:
    """Someone who asks a long job again and again, with a timeout, does not make it grow."""
    async with Scope("job") as scope:
        job = scope.spawn(anyio.sleep_forever)
        await let_others_run()
        gc.collect()
        before = len(gc.get_objects())
        for _ in range(300):
            with anyio.move_on_after(0):
                await job
        gc.collect()
        assert len(gc.get_objects()) - before < 100
        job.cancel()


async def test_a_job_may_not_await_itself() -> None:
    """That would be a deadlock, so it is an error."""
    scope = await Scope.open("job")
    mine: list[Job[None]] = []

    async def narcissus() -> None:
        await mine[0]

    mine.append(scope.spawn(narcissus, name="narcissus"))
    with pytest.raises(UsageError, match=r"job 'narcissus' awaits itself"):
        await mine[0]
    await scope.aclose()


async def test_a_job_describes_itself() -> None:
    """Kind, name, key, and when it was spawned, on the event loop's clock."""
    async with Scope("job") as scope:
        before = scope.since
        job = scope.spawn(answer, name="one", key="k")
        assert (job.kind, job.name, job.key) == ("job", "one", "k")
        assert before <= job.since
        assert job.since - before < 1
        assert "one" in repr(job)


async def test_an_awaited_failure_is_still_reported() -> None:
    """That somebody saw a failure does not take it out of the report."""
    with pytest.RaisesGroup(LookupError):
        async with Scope("job") as scope:
            with pytest.raises(LookupError):
                await scope.spawn(fail)
    assert scope.report is not None
    assert len(scope.report.failed) == 1


async def test_a_failure_that_nobody_awaits_makes_no_noise() -> None:
    """A job's exception goes to the report; no event loop says that it was never retrieved."""
    scope = await Scope.open("job")
    scope.spawn(fail)
    await scope.idle()
    gc.collect()
    await let_others_run()
    assert len((await scope.aclose()).failed) == 1


async def test_a_job_may_be_awaited_after_its_scope_was_closed() -> None:
    """The outcome stays with the job."""
    scope = await Scope.open("job")
    done, cut = scope.spawn(answer), scope.spawn(anyio.sleep_forever)
    await done
    await scope.aclose()
    assert await done == 42
    with pytest.raises(JobCancelled):
        await cut


@on_asyncio
async def test_on_asyncio_a_job_is_a_task() -> None:
    """`asyncio.wait`, `gather`, `wait_for` and `shield` take jobs as they take tasks."""
    async with Scope("job") as scope:
        jobs = [scope.spawn(answer) for _ in range(4)]
        assert all(isinstance(job, asyncio.Task) for job in jobs)
        done, pending = await asyncio.wait(jobs[:2])  # type: ignore[type-var]  # a Job is a Task only there
        assert (done, pending) == (set(jobs[:2]), set())
        assert await asyncio.gather(*jobs) == [42] * 4
        assert await asyncio.wait_for(scope.spawn(answer), 5) == 42
        assert await asyncio.shield(scope.spawn(answer)) == 42
        assert [await each for each in asyncio.as_completed(jobs)] == [42] * 4


@on_asyncio
async def test_on_asyncio_gather_sees_failure_and_cancellation() -> None:
    """`gather(return_exceptions=True)` gives the exceptions of jobs as of any task."""
    scope = await Scope.open("job")
    jobs = [scope.spawn(answer), scope.spawn(fail), scope.spawn(anyio.sleep_forever)]
    jobs[2].cancel()
    value, failure, cancelled = await asyncio.gather(*jobs, return_exceptions=True)
    assert value == 42
    assert isinstance(failure, LookupError)
    assert isinstance(cancelled, asyncio.CancelledError)
    report = await scope.aclose()
    assert (report.completed, report.withdrawn, len(report.failed)) == (1, 1, 1)


@on_asyncio
async def test_on_asyncio_a_timeout_ends_the_wait_and_not_the_job() -> None:
    """`asyncio.timeout` around an await of a job leaves the job alone."""
    async with Scope("job") as scope:
        job = scope.spawn(anyio.sleep_forever)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await job
        assert not job.done()
        job.cancel()
