"""A scope may be closed from any task: by whom, how often and when is not its caller's worry.

The deadlines here are long and the closes are not: nobody may have had to wait for one.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import anyio
import pytest

import quiesce
from quiesce import Report, Scope
from quiesce.core.graveyard import graveyards
from quiesce.core.job import Outcome
from tests.stress import Resource, Stubborn, lasting, turns

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    Closer = Callable[[Scope], Coroutine[Any, Any, Report]]

PROMPT = 1.0  # far above any scheduling, far below the deadlines


async def aclose(scope: Scope) -> Report:
    """Close by cancelling."""
    return await scope.aclose(cleanup=4)


async def drain(scope: Scope) -> Report:
    """Close by waiting: the work in these tests ends as soon as the closing begins."""
    return await scope.drain(grace=4, cleanup=4)


either_way = pytest.mark.parametrize("close", [aclose, drain])


async def work(scope: Scope) -> None:
    """Work until the scope is being closed."""
    await scope.closing()


def assert_closed(scope: Scope, report: Report) -> None:
    """Check that the close is complete, lost nothing that runs, and met no deadline."""
    assert scope.state == "closed"
    assert not report.stuck
    assert report.seconds < PROMPT
    assert not scope.frontier()
    assert not graveyards


@either_way
async def test_the_opening_task_closes(close: Closer) -> None:
    """The plainest case: who opened it closes it."""
    scope = await Scope.open("a")
    job = scope.spawn(work, scope)
    report = await close(scope)
    assert_closed(scope, report)
    assert job.done()


@either_way
async def test_another_task_closes(close: Closer) -> None:
    """A task that has nothing to do with the scope closes it."""
    reports = []
    async with anyio.create_task_group() as group:
        handed_over: list[Scope] = []
        opened = anyio.Event()

        async def stranger() -> None:
            await opened.wait()
            reports.append(await close(handed_over[0]))

        group.start_soon(stranger)
        scope = await Scope.open("a")
        handed_over.append(scope)
        job = scope.spawn(work, scope)
        opened.set()
    assert_closed(scope, reports[0])
    assert job.done()


@either_way
async def test_another_task_closes_while_the_block_is_in_its_body(close: Closer) -> None:
    """The block of a scope that somebody else closes goes on, and then ends in peace."""
    async with anyio.create_task_group() as group, Scope("a") as scope:
        scope.spawn(work, scope)
        group.start_soon(close, scope)
        await scope.closing()
        await turns()
        assert scope.state == "closed"
    assert scope.report is not None
    assert_closed(scope, scope.report)


@either_way
@pytest.mark.parametrize("service", [False, True])
async def test_a_job_closes_its_own_scope(close: Closer, *, service: bool) -> None:
    """The job gets a report of all the others, goes on, and is joined before anyone else's."""
    log: list[str] = []

    async def closer() -> None:
        report = await close(scope)
        assert not report.stuck
        assert report.completed + len(report.cancelled) == 1
        assert other.done()
        await turns()
        log.append("closer ended")

    scope = await Scope.open("a")
    other = scope.spawn(work, scope)
    job = scope.spawn(closer, service=service)
    await scope.closing()
    report = await close(scope)
    log.append("closed")
    assert_closed(scope, report)
    assert job.outcome == Outcome("completed")
    assert log == ["closer ended", "closed"]


@either_way
async def test_several_jobs_close_their_own_scope_at_once(close: Closer) -> None:
    """None of them waits for another."""
    reports: list[Report] = []

    async def closer() -> None:
        await start.wait()
        reports.append(await close(scope))

    start = anyio.Event()
    scope = await Scope.open("a")
    jobs = [scope.spawn(closer) for _ in range(5)]
    other = scope.spawn(work, scope)
    await turns()
    start.set()
    await scope.closing()
    report = await close(scope)
    assert_closed(scope, report)
    assert other.done()
    assert all(job.done() for job in jobs)
    assert len(reports) == 5
    assert report.completed + len(report.cancelled) == 6


@either_way
async def test_a_job_closes_its_own_scope_twice(close: Closer) -> None:
    """It has been let go by the first close, and the second has nothing to wait for."""
    reports: list[Report] = []

    async def closer() -> None:
        reports.append(await close(scope))
        reports.append(await close(scope))

    scope = await Scope.open("a")
    job = scope.spawn(closer)
    await scope.closing()
    assert_closed(scope, await close(scope))
    assert job.done()
    assert reports[0] is reports[1]


@either_way
@pytest.mark.parametrize("depth", [1, 2, 3])
async def test_a_child_scopes_job_closes_the_parent(close: Closer, depth: int) -> None:
    """Closed from below, and the one below is let go first."""
    reports: list[Report] = []

    async def closer() -> None:
        reports.append(await close(scope))

    scope = inner = await Scope.open("a")
    for level in range(depth):
        inner = inner.child(f"level {level}")
    inner.spawn(work, scope, name="sibling")
    job = inner.spawn(closer)
    await scope.closing()
    report = await close(scope)
    assert_closed(scope, report)
    assert inner.state == "closed"
    assert job.done()
    assert [report.completed + len(report.cancelled), len(reports)] == [2, 1]


async def test_the_report_a_job_gets_has_what_its_own_child_scope_lost() -> None:
    """A child's job that closes the parent is told of its siblings, too."""
    reports: list[Report] = []

    async def closer() -> None:
        reports.append(await scope.aclose())

    scope = await Scope.open("a")
    child = scope.child("b")
    child.spawn(anyio.sleep_forever, name="sibling")
    child.spawn(closer)
    await scope.closing()
    report = await scope.aclose()
    assert [lost.name for lost in report.cancelled] == ["sibling"]
    assert [lost.name for lost in reports[0].cancelled] == ["sibling"]


@either_way
async def test_a_job_closes_its_own_scope_and_then_the_one_around_it(close: Closer) -> None:
    """The outer close does not wait for a job that waits for it."""

    async def closer() -> None:
        await close(child)
        await close(scope)
        await close(child)

    scope = await Scope.open("a")
    child = scope.child("b")
    job = child.spawn(closer)
    await scope.closing()
    assert_closed(scope, await close(scope))
    assert job.outcome == Outcome("completed")


async def test_jobs_of_parent_and_child_close_both_crosswise() -> None:
    """A job of the parent closes the child while a job of the child closes the parent."""

    async def close_other(other: Scope) -> None:
        await start.wait()
        await aclose(other)

    start = anyio.Event()
    scope = await Scope.open("a")
    child = scope.child("b")
    jobs = [scope.spawn(close_other, child), child.spawn(close_other, scope)]
    await turns()
    start.set()
    await scope.closing()
    assert_closed(scope, await aclose(scope))
    assert all(job.done() for job in jobs)


@either_way
async def test_a_job_closes_from_inside_a_block_of_its_own(close: Closer) -> None:
    """The job is found as work of the scope, whatever it has opened since."""

    async def closer() -> None:
        async with Scope("inner") as inner:
            inner.spawn(work, scope)
            await close(scope)

    scope = await Scope.open("a")
    job = scope.spawn(closer)
    await scope.closing()
    assert_closed(scope, await close(scope))
    assert job.done()


@either_way
async def test_a_job_closes_from_a_detached_block(close: Closer) -> None:
    """Stepping out of every scope does not make a job a stranger to its own."""

    async def closer() -> None:
        with quiesce.detached():
            await close(scope)

    scope = await Scope.open("a")
    job = scope.spawn(closer)
    await scope.closing()
    assert_closed(scope, await close(scope))
    assert job.done()


async def by_gather(closing: Awaitable[Report]) -> None:
    """Close in a task that `gather` makes."""
    await asyncio.gather(closing)


async def by_task(closing: Coroutine[Any, Any, Report]) -> None:
    """Close in a plain task."""
    await asyncio.create_task(closing)


async def by_wait_for(closing: Awaitable[Report]) -> None:
    """Close in the task that `wait_for` makes, on Python 3.11."""
    await asyncio.wait_for(closing, 30)


async def by_group(closing: Awaitable[Report]) -> None:
    """Close in a task of a task group."""

    async def call() -> None:
        await closing

    async with anyio.create_task_group() as group:
        group.start_soon(call)


@pytest.mark.backends("asyncio", "uvloop")
@pytest.mark.parametrize("way", [by_gather, by_task, by_wait_for])
async def test_a_job_closes_its_own_scope_through_a_helper_task(
    way: Callable[[Coroutine[Any, Any, Report]], Awaitable[None]],
) -> None:
    """The job waits for the helper and the helper for the close: the close waits for neither."""
    await close_through(way)


async def test_a_job_closes_its_own_scope_through_a_task_group() -> None:
    """A task group in a job is no detour that hides whose work it is."""
    await close_through(by_group)


async def close_through(way: Callable[[Coroutine[Any, Any, Report]], Awaitable[None]]) -> None:
    """Start a job that closes its own scope by way of another task."""

    async def closer() -> None:
        await way(scope.aclose(cleanup=4))

    scope = await Scope.open("a")
    job = scope.spawn(closer)
    await scope.closing()
    assert_closed(scope, await scope.aclose(cleanup=4))
    assert job.done()


@either_way
async def test_a_context_that_is_being_left_closes_the_scope(close: Closer) -> None:
    """A client whose `__aexit__` closes the scope it is in does not hang it."""

    class Client(Resource):
        async def leaving(self) -> None:
            await close(scope)
            await turns(2)
            log.append("left")

    log: list[str] = []
    scope = await Scope.open("a")
    await scope.enter(Client())
    assert_closed(scope, await close(scope))
    assert log == ["left"]


@either_way
async def test_two_closers_at_once_get_the_same_report(close: Closer) -> None:
    """Both wait for one close."""
    reports = []

    async def closer() -> None:
        reports.append(await close(scope))

    scope = await Scope.open("a")
    scope.spawn(work, scope)
    async with anyio.create_task_group() as group:
        group.start_soon(closer)
        group.start_soon(closer)
    assert reports[0] is reports[1]
    assert_closed(scope, reports[0])


@pytest.mark.parametrize("second", ["aclose", "drain"])
@pytest.mark.parametrize("order", ["strict first", "strict last"])
async def test_the_stricter_of_two_deadlines_holds(order: str, second: str) -> None:
    """A second closer may make the close shorter, and never longer; also one that would give it grace."""
    strict, patient = 0.05, 40.0
    limits = [strict, patient] if order == "strict first" else [patient, strict]
    reports: list[Report] = []

    async def closer(within: float, way: str) -> None:
        if way == "drain":
            reports.append(await scope.drain(grace=60, cleanup=within))
        else:
            reports.append(await scope.aclose(cleanup=within))

    scope = await Scope.open("a")
    async with Stubborn() as stubborn:
        scope.spawn(stubborn.run, name="stubborn")
        await turns()
        begun = anyio.current_time()
        async with anyio.create_task_group() as group:
            group.start_soon(closer, limits[0], "aclose")
            await scope.closing()
            group.start_soon(closer, limits[1], second)
        assert strict - 0.001 < anyio.current_time() - begun < strict + PROMPT
        assert [lost.name for lost in reports[0].stuck] == ["stubborn"]
        assert reports[0] is reports[1]


async def test_a_close_ends_the_patience_of_a_drain() -> None:
    """`aclose()` during a drain without a deadline cancels at once, for both."""
    reports: list[Report] = []

    async def drainer() -> None:
        reports.append(await scope.drain(grace=None))

    scope = await Scope.open("a")
    scope.spawn(anyio.sleep_forever, name="endless")
    async with anyio.create_task_group() as group:
        group.start_soon(drainer)
        await scope.closing()
        await turns()
        assert scope.state == "draining"
        report = await scope.aclose()
    assert [lost.name for lost in report.cancelled] == ["endless"]
    assert report is reports[0]


@either_way
async def test_after_a_close_everyone_gets_that_report(close: Closer) -> None:
    """Closing what is closed gives the very report of the close, in whatever way one asks."""
    scope = await Scope.open("a")
    scope.spawn(work, scope)
    report = await close(scope)
    assert await scope.aclose() is report
    assert await scope.drain() is report
    assert await scope.drain(grace=None) is report
    assert scope.report is report


@either_way
async def test_a_closed_scope_inside_its_block_ends_without_a_word(close: Closer) -> None:
    """Who closed the scope has the report; the end of the block has no news."""
    async with Scope("a", grace=4) as scope:
        scope.spawn(anyio.sleep_forever if close is aclose else turns)
        report = await close(scope)
    assert scope.report is report


async def test_a_childs_job_waits_as_long_as_the_parents_close_takes(backend: str) -> None:
    """A closer in a child scope is no straggler while the parent has a slow cleanup."""
    slow = 0.2 if backend == "uvloop" else 20.0
    log: list[str] = []

    async def careful() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            await lasting(slow)
            log.append("clean")

    async def closer() -> None:
        await scope.aclose(cleanup=30)
        log.append("closed")

    scope = await Scope.open("a")
    scope.spawn(careful)
    await turns()
    job = scope.child("b", cleanup=0.01).spawn(closer)
    await scope.closing()
    report = await scope.aclose(cleanup=30)
    assert log == ["clean", "closed"]
    assert job.outcome == Outcome("completed")
    assert not report.stuck


async def test_a_closer_that_lingers_is_joined_by_the_others_deadline() -> None:
    """A job that closed its own scope and goes on for ever meets the deadline of the next closer."""

    async def closer() -> None:
        await child.aclose(cleanup=40)
        await anyio.sleep_forever()

    scope = await Scope.open("a")
    child = scope.child("b")
    job = child.spawn(closer)
    await child.closing()
    await turns()
    begun = anyio.current_time()
    await scope.aclose(cleanup=0.1)
    assert anyio.current_time() - begun < 0.1 + PROMPT
    assert job.done()


async def test_a_slow_closer_is_waited_for() -> None:
    """A job that closed its own scope may still clean up after itself."""
    log: list[str] = []

    async def closer() -> None:
        await scope.aclose()
        await lasting(0.05)
        log.append("tidy")

    scope = await Scope.open("a")
    scope.spawn(closer)
    await scope.closing()
    report = await scope.aclose()
    assert log == ["tidy"]
    assert report.completed == 1
    assert report.ok
