"""Work that does not end when it is cancelled: asked again with restraint, then reported.

A cleanup that takes its time is not such work: it is left alone until the deadline.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import anyio
import pytest
import trio

from quiesce import Scope
from tests.stress import CANCELLED, SCHEDULING, Raising, Stubborn, lasting, timed_close, turns

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


@pytest.mark.parametrize("jobs", [1, 50])
async def test_a_stubborn_job_meets_the_deadline(jobs: int, backend: str) -> None:
    """`aclose(cleanup=0.1)` takes a tenth of a second, however many do not want to end."""
    async with Stubborn() as stubborn:
        scope = await Scope.open("a")
        for number in range(jobs):
            scope.spawn(stubborn.run, name=f"stubborn {number}")
        scope.spawn(anyio.sleep_forever, name="tame")
        await turns()
        report, seconds = await timed_close(scope, 0.1)
        assert seconds == pytest.approx(0.1, abs=SCHEDULING[backend])
        assert len(report.stuck) == jobs
        assert [lost.name for lost in report.cancelled] == ["tame"]
        assert not report.ok


async def test_what_is_stuck_is_reported_with_its_stack() -> None:
    """The report tells where it was started, and in which line it is."""
    async with Stubborn() as stubborn:
        scope = await Scope.open("a")
        scope.spawn(stubborn.run, name="stubborn")
        await turns()
        (stuck,) = (await scope.aclose(cleanup=0.05)).stuck
        assert (stuck.kind, stuck.name, stuck.scope) == ("job", "stubborn", "a")
        assert stuck.where is not None
        assert stuck.where.partition(":")[0] == __file__
        assert any("in Stubborn.run" in frame for frame in stuck.stack)
        assert "Stubborn.run" in str(scope.report)


@pytest.mark.parametrize("how", ["a drain", "a block that ends well", "a block that fails"])
async def test_every_way_to_close_has_a_deadline(how: str, backend: str) -> None:
    """Where work does not end, a drain and the end of a block do."""
    async with Stubborn() as stubborn:
        begun = anyio.current_time()
        if how == "a drain":
            scope = await Scope.open("a")
            scope.spawn(stubborn.run)
            await turns()
            await scope.drain(grace=0.05, cleanup=0.05)
        else:
            async with (
                Raising((ExceptionGroup, KeyError)),
                Scope("a", grace=0.05, cleanup=0.05) as scope,
            ):
                scope.spawn(stubborn.run)
                await turns()
                if how == "a block that fails":
                    raise KeyError
        limit = 0.05 if how == "a block that fails" else 0.1
        assert anyio.current_time() - begun == pytest.approx(limit, abs=SCHEDULING[backend])
        assert scope.report is not None
        assert len(scope.report.stuck) == 1


async def test_a_cancellation_is_swallowed_ten_times() -> None:
    """The eleventh gets through: the job is no more stuck than any other."""
    swallowed = 0

    async def ten_times() -> None:
        nonlocal swallowed
        while True:
            try:
                await anyio.sleep_forever()
            except CANCELLED:
                if swallowed == 10:
                    raise
                swallowed += 1

    scope = await Scope.open("a")
    scope.spawn(ten_times, name="ten times")
    await turns()
    report = await scope.aclose(cleanup=5)
    assert swallowed == 10
    assert [lost.name for lost in report.cancelled] == ["ten times"]
    assert not report.stuck


@pytest.mark.backends("asyncio")
@pytest.mark.parametrize("within", [0.1, 1.0, 10.0, 100.0])
async def test_a_stubborn_job_is_asked_again_with_restraint(within: float) -> None:
    """It is asked soon again, then ever more seldom, four times a second at most."""
    async with Stubborn() as stubborn:
        scope = await Scope.open("a")
        scope.spawn(stubborn.run)
        await turns()
        await scope.aclose(cleanup=within)
        assert 3 <= stubborn.deliveries <= 12 + 4 * within


@pytest.mark.backends("asyncio")
@pytest.mark.parametrize("wrap", [asyncio.ensure_future, asyncio.gather, asyncio.shield])
async def test_a_job_that_swallows_and_waits_for_another_task_is_asked_again(
    wrap: Callable[[Any], Awaitable[object]],
) -> None:
    """What it waits for since then was never cancelled, so that is no excuse."""
    swallowed = 0

    async def ten_times() -> None:
        nonlocal swallowed
        while swallowed < 10 and not release.is_set():
            try:
                await wrap(asyncio.create_task(release.wait()))
            except asyncio.CancelledError:
                swallowed += 1

    release = asyncio.Event()
    scope = await Scope.open("a")
    scope.spawn(ten_times)
    await turns()
    report = await scope.aclose(cleanup=10)
    release.set()
    await turns()
    assert swallowed == 10
    assert report.seconds < 5
    assert not report.stuck


async def closers(scope: Scope) -> None:
    """Start many tasks that call for the close, one turn of the loop after the other."""

    async def closer() -> None:
        await scope.aclose(cleanup=1)

    async with asyncio.TaskGroup() as group:
        for _ in range(200):
            group.create_task(closer())
            await asyncio.sleep(0)


async def children(scope: Scope) -> None:
    """Open many child scopes that end, one turn of the loop after the other."""
    for number in range(200):
        scope.child(f"child {number}").spawn(ending_after, number)
    await turns(1)
    await scope.aclose(cleanup=1)


async def services(scope: Scope) -> None:
    """Start many services that end, one turn of the loop after the other."""
    for number in range(200):
        scope.spawn(ending_after, number, service=True)
    await turns(1)
    await scope.aclose(cleanup=1)


async def ending_after(number: int) -> None:
    """Take a number of turns to end."""
    try:
        await anyio.sleep_forever()
    finally:
        await turns(number)


@pytest.mark.backends("asyncio")
@pytest.mark.parametrize("bustle", [closers, children, services])
async def test_bustle_around_a_stubborn_job_does_not_hasten_it(
    bustle: Callable[[Scope], Awaitable[None]],
) -> None:
    """The rate at which it is asked again is not that at which other things happen."""
    async with Stubborn() as stubborn:
        scope = await Scope.open("a")
        scope.spawn(stubborn.run, service=bustle is services)
        await turns()
        await bustle(scope)
        assert stubborn.deliveries <= 20


@pytest.mark.backends("trio")
@pytest.mark.real_time
async def test_a_job_that_swallows_for_ever_on_trio_is_given_peace() -> None:
    """Trio would deliver at every checkpoint for ever; a job given up as stuck is left alone."""
    swallowed = 0
    release, ended = trio.Event(), trio.Event()

    async def swallow() -> None:
        nonlocal swallowed
        while not release.is_set():
            try:
                await release.wait()
            except trio.Cancelled:
                swallowed += 1
        ended.set()

    scope = await Scope.open("a")
    scope.spawn(swallow, name="swallow")
    await turns()
    report, seconds = await timed_close(scope, 0.05)
    assert seconds < 30
    assert [lost.name for lost in report.stuck] == ["swallow"]
    await turns()
    before = swallowed
    await turns(50)
    assert swallowed == before
    release.set()
    await ended.wait()
    await turns()


async def test_a_stuck_job_of_a_child_scope_is_in_the_parents_report(backend: str) -> None:
    """The deadline is the whole tree's, and so is the report."""
    async with Stubborn() as stubborn:
        scope = await Scope.open("a")
        child = scope.child("b").child("c")
        child.spawn(stubborn.run, name="stubborn")
        await turns()
        report, seconds = await timed_close(scope, 0.1)
        assert seconds == pytest.approx(0.1, abs=SCHEDULING[backend])
        assert [(lost.name, lost.scope) for lost in report.stuck] == [("stubborn", "c")]
        assert child.state == "closed"


async def test_a_child_that_was_being_closed_hands_its_stuck_job_to_the_parents_report() -> None:
    """A parent's close that overtakes a child's own names what the child could not end."""
    async with Stubborn() as stubborn:
        scope = await Scope.open("a")
        child = scope.child("b")
        child.spawn(stubborn.run, name="stubborn")
        await turns()
        async with anyio.create_task_group() as group:
            group.start_soon(child.aclose, 60)
            await child.closing()
            report = await scope.aclose(cleanup=0.05)
        assert [(lost.name, lost.scope) for lost in report.stuck] == [("stubborn", "b")]


@pytest.mark.parametrize("ending", ["returns", "raises"])
async def test_a_stuck_job_that_ends_later_disturbs_nobody(
    ending: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Its scope is closed and its report is written: a late failure is a line in the log."""
    async with Stubborn() as stubborn:

        async def late() -> None:
            await stubborn.run()
            if ending == "raises":
                raise KeyError("late")

        scope = await Scope.open("a")
        job = scope.spawn(late, name="late")
        await turns()
        report = await scope.aclose(cleanup=0.05)
        before = str(report)
    assert job.done()
    assert str(report) == before
    assert scope.report is report
    assert ("KeyError('late')" in caplog.text) == (ending == "raises")


async def test_what_is_stuck_does_not_keep_the_rest_from_being_closed() -> None:
    """Work, services, child scopes and holds: one that is stuck leaves the others to be ended."""
    async with Stubborn() as stubborn:
        scope = await Scope.open("a")
        scope.spawn(stubborn.run, name="stubborn")
        scope.hold("request", "unanswered")
        service = scope.spawn(anyio.sleep_forever, service=True)
        child = scope.child("b")
        childs = child.spawn(anyio.sleep_forever, service=True)
        await turns()
        report = await scope.aclose(cleanup=0.05)
        assert [lost.name for lost in report.stuck] == ["stubborn"]
        assert [lost.name for lost in report.undelivered] == ["unanswered"]
        assert service.done()
        assert childs.done()
        assert child.state == "closed"


@pytest.mark.backends("asyncio", "uvloop")
@pytest.mark.parametrize("how", ["from", "while", "in a group"])
async def test_a_cleanup_of_an_error_that_came_of_the_cancellation_is_left_alone(how: str) -> None:
    """Code turns the cancellation into its own error; the cleanup of that is not cancelled again."""
    ended = list[str]()

    class Connection:
        async def __aenter__(self) -> None: ...

        async def __aexit__(self, *_: object) -> None:
            try:
                await lasting(0.2)
                ended.append("clean")
            except asyncio.CancelledError:
                ended.append("interrupted")
                raise

    async def work() -> None:
        async with Connection():
            try:
                await anyio.sleep_forever()
            except asyncio.CancelledError as error:
                if how == "from":
                    raise LookupError from error
                if how == "while":
                    raise LookupError  # noqa: B904 - what is tried
                raise BaseExceptionGroup("both", [error, LookupError()]) from None

    scope = await Scope.open("a")
    scope.spawn(work)
    await turns()
    await scope.aclose(cleanup=5)
    assert ended == ["clean"]
