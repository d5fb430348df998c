"""What a failing job does to its scope, and what the end of a block raises."""

from __future__ import annotations

import asyncio
import gc
import logging
from contextlib import suppress
from typing import Any

import anyio
import pytest
import trio

from quiesce import DrainTimeout, Job, Scope, WorkLost
from tests.stress import CANCELLED, Raising, failing, failing_when_cancelled, turns

FIRST, SECOND, LATE, BODY = KeyError("first"), ValueError("second"), OSError("late"), LookupError()


def errors_in(group: BaseException) -> set[BaseException]:
    """Return the errors of an exception group that has no groups in it."""
    assert isinstance(group, BaseExceptionGroup)
    return set(group.exceptions)


# Collecting.


async def test_by_default_the_siblings_of_a_failed_job_go_on() -> None:
    """A failure is kept for the report, and disturbs nobody."""
    log: list[str] = []

    async def sibling() -> None:
        await failed.wait()
        await turns()
        log.append("went on")

    failed = anyio.Event()
    scope = await Scope.open("a")
    scope.spawn(sibling)
    job = scope.spawn(failing, FIRST, name="broken")
    with pytest.raises(KeyError):
        await job
    failed.set()
    await scope.idle()
    assert log == ["went on"]
    report = await scope.aclose()
    assert [(lost.name, lost.error) for lost in report.failed] == [("broken", FIRST)]
    assert report.completed == 1


async def test_every_failure_is_in_the_report_with_its_job() -> None:
    """Failed before the close, during the drain, while being cancelled: all are reported."""

    async def in_the_drain() -> None:
        await scope.closing()
        raise SECOND

    scope = await Scope.open("a")
    scope.spawn(failing, FIRST, name="before")
    scope.spawn(in_the_drain, name="during")
    scope.child("b").spawn(failing_when_cancelled, LATE, name="cancelled")
    scope.spawn(failing, BODY, name="service", service=True)
    await turns()
    report = await scope.drain(grace=0.01)
    assert {lost.name: lost.error for lost in report.failed} == {
        "before": FIRST,
        "during": SECOND,
        "cancelled": LATE,
        "service": BODY,
    }
    assert not report.ok
    with pytest.raises(WorkLost) as caught:
        report.raise_if_lost()
    assert caught.value.__cause__ is not None
    assert errors_in(caught.value.__cause__) == {FIRST, SECOND, LATE, BODY}


async def test_a_block_raises_a_group_of_its_jobs_failures() -> None:
    """The group has the very errors that the jobs raised."""
    async with Raising(ExceptionGroup) as caught, Scope("a") as scope:
        scope.spawn(failing, FIRST)
        scope.child("b").spawn(failing, SECOND)
        scope.spawn(turns)
    assert errors_in(caught.value) == {FIRST, SECOND}
    assert scope.report is not None
    assert scope.report.completed == 1


async def test_a_body_that_fails_alone_is_raised_as_it_is() -> None:
    """No group around one error, and no cause or context that it did not have."""
    error = LookupError("body")
    async with Raising(LookupError) as caught, Scope("a") as scope:
        scope.spawn(anyio.sleep_forever)
        raise error
    assert caught.value is error
    assert error.__cause__ is None
    assert error.__context__ is None
    assert scope.report is not None
    assert len(scope.report.cancelled) == 1


@pytest.mark.parametrize("on_error", ["collect", "cancel"])
async def test_a_body_and_its_jobs_fail(on_error: Any) -> None:
    """The group then has the body's error first, and those of the jobs."""
    async with Raising(ExceptionGroup) as caught, Scope("a", on_error=on_error) as scope:
        scope.spawn(failing_when_cancelled, LATE)
        await turns()
        raise BODY
    assert caught.value.exceptions == (BODY, LATE)


async def test_a_block_that_was_cancelled_raises_the_cancellation(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Cancellation comes out; the failures are in the report, and in the log."""
    with anyio.CancelScope() as impatience:
        async with Scope("a") as scope:
            scope.spawn(failing, FIRST)
            await turns()
            impatience.cancel()
            await anyio.sleep_forever()
    assert impatience.cancelled_caught
    assert scope.report is not None
    assert [lost.error for lost in scope.report.failed] == [FIRST]
    assert "KeyError: 'first'" in caplog.text


async def test_a_block_that_is_cancelled_while_it_drains_raises_the_cancellation() -> None:
    """The body had ended well, and a job had failed: cancellation comes out all the same."""
    with anyio.move_on_after(0.01) as impatience:
        async with Scope("a") as scope:
            scope.spawn(failing, FIRST)
            scope.spawn(anyio.sleep_forever)
    assert impatience.cancelled_caught
    assert scope.report is not None
    assert [lost.error for lost in scope.report.failed] == [FIRST]


async def test_a_deadline_that_passes_joins_the_failures() -> None:
    """`within` passed with work left: DrainTimeout, with the report, beside the errors."""
    async with Raising(ExceptionGroup) as caught, Scope("a", grace=0.01) as scope:
        scope.spawn(failing, FIRST)
        scope.spawn(anyio.sleep_forever)
    timeout, rest = caught.value.split(DrainTimeout)
    assert timeout is not None
    assert rest is not None
    assert errors_in(rest) == {FIRST}
    (error,) = timeout.exceptions
    assert isinstance(error, DrainTimeout)
    assert error.report is scope.report


async def test_a_failure_that_somebody_has_seen_is_still_raised() -> None:
    """Awaiting a job does not take its failure out of the report."""
    async with Raising(ExceptionGroup) as caught, Scope("a") as scope:
        job = scope.spawn(failing, FIRST)
        with pytest.raises(KeyError):
            await job
    assert errors_in(caught.value) == {FIRST}


@pytest.mark.parametrize("on_error", ["collect", "cancel"])
async def test_no_failure_becomes_never_retrieved(on_error: Any) -> None:
    """Nobody awaits the jobs, all is collected, and the loop has nothing to complain of."""
    scope = await Scope.open("a", on_error=on_error)
    for _ in range(5):
        scope.spawn(failing, KeyError("unseen"))
    scope.spawn(failing_when_cancelled, KeyError("unseen"))
    await turns()
    report = await scope.aclose()
    assert len(report.failed) == 6
    del scope, report
    gc.collect()
    await turns()


class Odd(BaseException):
    """An exception that is no `Exception`, and does not want to end the program."""


@pytest.mark.parametrize("error", [Odd(), GeneratorExit(), BaseExceptionGroup("group", [Odd()])])
async def test_an_exception_that_is_no_exception_is_a_failure_like_any_other(
    error: BaseException,
) -> None:
    """It is in the report, and in the group, which is a BaseExceptionGroup then."""
    async with Raising(BaseExceptionGroup) as caught, Scope("a") as scope:
        scope.spawn(failing, error)
        scope.spawn(turns)
    assert caught.value.exceptions == (error,)
    assert scope.report is not None
    assert scope.report.completed == 1


# Cancelling the others.


async def test_the_first_failure_cancels_the_siblings() -> None:
    """With `on_error="cancel"` a failure closes the scope, and the siblings are cut short."""
    scope = await Scope.open("a", on_error="cancel")
    sibling = scope.spawn(anyio.sleep_forever, name="sibling")
    service = scope.spawn(anyio.sleep_forever, service=True)
    childs = scope.child("b").spawn(anyio.sleep_forever, name="child's")
    await turns()
    scope.spawn(failing, FIRST)
    await scope.closing()
    report = await scope.aclose()
    assert [lost.error for lost in report.failed] == [FIRST]
    assert {lost.name for lost in report.cancelled} == {"sibling", "child's"}
    assert sibling.done()
    assert service.done()
    assert childs.done()


async def test_the_first_failure_interrupts_the_body() -> None:
    """The body of the block is cancelled, and the group has the failure and nothing else."""
    interrupted = []
    async with Raising(ExceptionGroup) as caught, Scope("a", on_error="cancel") as scope:
        scope.spawn(anyio.sleep_forever)
        scope.spawn(failing, FIRST)
        try:
            await anyio.sleep_forever()
        except CANCELLED:
            interrupted.append("body")
            raise
    assert interrupted == ["body"]
    assert errors_in(caught.value) == {FIRST}
    await turns()  # and the cancellation was this block's only


@pytest.mark.parametrize("times", [1, 3])
async def test_the_task_of_an_interrupted_body_is_whole_again(times: int) -> None:
    """After the block the task can be cancelled, time out and open blocks as ever."""
    for _ in range(times):
        async with Raising(ExceptionGroup), Scope("a", on_error="cancel") as scope:
            scope.spawn(failing, FIRST)
            await anyio.sleep_forever()
    with anyio.move_on_after(0.01) as limit:
        await anyio.sleep_forever()
    assert limit.cancelled_caught
    await turns()


async def test_a_body_that_was_about_to_end_is_not_interrupted_afterwards() -> None:
    """A failure after the body's end interrupts nothing: the block is being left already."""
    async with Raising(ExceptionGroup) as caught, Scope("a", on_error="cancel") as scope:
        scope.spawn(failing, FIRST)
    assert errors_in(caught.value) == {FIRST}
    await turns()


async def test_all_jobs_fail_at_once_with_cancel() -> None:
    """Failures that come after the first one are reported as well."""
    async with Raising(ExceptionGroup) as caught, Scope("a", on_error="cancel") as scope:
        scope.spawn(failing, FIRST)
        scope.spawn(failing, SECOND)
        scope.spawn(failing_when_cancelled, LATE)
        await turns()
        await anyio.sleep_forever()
    assert errors_in(caught.value) >= {FIRST, SECOND}
    assert errors_in(caught.value) <= {FIRST, SECOND, LATE}


async def test_a_body_that_answers_the_interruption_with_an_error_of_its_own() -> None:
    """Both errors come out."""
    async with Raising(ExceptionGroup) as caught, Scope("a", on_error="cancel") as scope:
        scope.spawn(failing, FIRST)
        try:
            await anyio.sleep_forever()
        finally:
            raise BODY
    assert errors_in(caught.value) == {FIRST, BODY}
    await turns()


async def test_a_body_that_swallows_the_interruption() -> None:
    """The failure comes out at the end of the block."""
    async with Raising(ExceptionGroup) as caught, Scope("a", on_error="cancel") as scope:
        scope.spawn(failing, FIRST)
        with suppress(*CANCELLED):
            await anyio.sleep_forever()
    assert errors_in(caught.value) == {FIRST}
    await turns()


@pytest.mark.parametrize("ending", ["quietly", "with an error"])
async def test_an_interrupted_body_is_in_a_task_group(ending: str) -> None:
    """A task group in the body passes the interruption on, and its own errors are not lost."""
    async with Raising(ExceptionGroup) as caught, Scope("a", on_error="cancel") as scope:
        scope.spawn(failing, FIRST)
        async with anyio.create_task_group() as group:
            group.start_soon(anyio.sleep_forever)
            if ending == "with an error":
                group.start_soon(failing_when_cancelled, LATE)
            await anyio.sleep_forever()
    assert caught.group_contains(KeyError)
    assert caught.group_contains(OSError) == (ending == "with an error")
    assert not caught.group_contains(CANCELLED)
    await turns()


@pytest.mark.backends("trio")
@pytest.mark.parametrize("ending", ["quietly", "with an error"])
async def test_an_interrupted_body_is_in_a_nursery(ending: str) -> None:
    """Trio's own nursery makes groups of Cancelled, which must not get out of the block."""
    async with Raising(ExceptionGroup) as caught, Scope("a", on_error="cancel") as scope:
        scope.spawn(failing, FIRST)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            if ending == "with an error":
                nursery.start_soon(failing_when_cancelled, LATE)
            await trio.sleep_forever()
    assert caught.group_contains(KeyError)
    assert caught.group_contains(OSError) == (ending == "with an error")
    assert not caught.group_contains(trio.Cancelled)
    await turns()


@pytest.mark.parametrize("turns_between", [-2, -1, 0, 1, 2, 3])
async def test_a_cancellation_from_outside_is_not_taken_for_the_interruption(
    turns_between: int,
) -> None:
    """The body is interrupted and cancelled from outside at about the same time: it is cancelled."""

    async def broken() -> None:
        await fail.wait()
        raise FIRST

    async def late() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await turns(10)
            raise LATE

    async def both() -> None:
        acts = [fail.set, outside.cancel]
        if turns_between < 0:
            acts.reverse()
        acts[0]()
        await turns(abs(turns_between))
        acts[1]()

    fail = anyio.Event()
    outside = anyio.CancelScope()
    async with anyio.create_task_group() as group:
        with outside:
            async with Scope("a", on_error="cancel") as scope:
                scope.spawn(broken)
                scope.spawn(late)
                await turns()
                group.start_soon(both)
                await anyio.sleep_forever()
    assert outside.cancelled_caught
    assert scope.report is not None
    assert LATE in [lost.error for lost in scope.report.failed]


def cancel(task: asyncio.Task[None]) -> None:
    """Cancel a task."""
    task.cancel()


@pytest.mark.backends("asyncio", "uvloop")
async def test_a_task_cancelled_from_outside_is_not_taken_for_interrupted() -> None:
    """The same with a task's own cancellation, in the very step of the failure."""
    log: list[str] = []

    async def block() -> None:
        async with Scope("a", on_error="cancel") as scope:
            job = scope.spawn(failing, FIRST)
            job.call_when_done(lambda: cancel(task))
            await anyio.sleep_forever()
        log.append("went on")

    task = asyncio.ensure_future(block())
    await asyncio.wait([task])
    assert task.cancelled()
    assert log == []


async def test_an_outer_blocks_failure_interrupts_an_inner_block() -> None:
    """The inner block is cancelled like any other code of the outer body."""
    async with Raising(ExceptionGroup) as caught, Scope("outer", on_error="cancel") as outer:
        outer.spawn(failing, FIRST)
        async with Scope("inner", on_error="cancel") as inner:
            inner.spawn(anyio.sleep_forever)
            await anyio.sleep_forever()
    assert errors_in(caught.value) == {FIRST}
    assert inner.state == "closed"
    await turns()


async def test_a_job_that_was_withdrawn_is_no_failure() -> None:
    """A job that is cancelled on request neither fails nor cancels the others."""
    async with Scope("a", on_error="cancel") as scope:
        job = scope.spawn(anyio.sleep_forever)
        await turns()
        job.cancel()
        await scope.idle()
    assert scope.report is not None
    assert scope.report.ok
    assert scope.report.withdrawn == 1


# A function.


async def test_a_function_handles_failures() -> None:
    """It is called with the job and the error, once each, and the failure is handled thereby."""
    calls: list[tuple[str, BaseException]] = []

    def handle(job: Job[Any], error: BaseException) -> None:
        calls.append((job.name, error))

    async with Scope("a", on_error=handle) as scope:
        scope.spawn(failing, FIRST, name="one")
        scope.spawn(failing, SECOND, name="two")
        scope.spawn(failing, LATE, name="three", service=True)
    assert sorted(name for name, _ in calls) == ["one", "three", "two"]
    assert {error for _, error in calls} == {FIRST, SECOND, LATE}
    assert scope.report is not None
    assert scope.report.ok
    assert scope.report.handled == 3


async def test_a_function_that_fails_does_not_lose_the_failure(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What it raises is logged, and the job's failure is reported as if there were no function."""

    def handle(_: Job[Any], __: BaseException) -> None:
        raise SECOND

    async with Raising(ExceptionGroup) as caught, Scope("a", on_error=handle) as scope:
        scope.spawn(failing, FIRST)
    assert errors_in(caught.value) == {FIRST}
    assert any(record.levelno >= logging.ERROR for record in caplog.records)


async def test_a_function_may_start_the_work_again() -> None:
    """A supervisor: what it spawns is in the scope before the failed job has left it."""
    attempts = 0

    async def unsteady() -> None:
        nonlocal attempts
        attempts += 1
        if attempts < 4:
            raise KeyError(attempts)

    def restart(_: Job[Any], __: BaseException) -> None:
        scope.spawn(unsteady)

    async with Scope("a", on_error=restart) as scope:
        scope.spawn(unsteady)
        await scope.idle()
        assert attempts == 4
    assert scope.report is not None
    assert scope.report.ok
