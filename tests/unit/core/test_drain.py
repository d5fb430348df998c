"""`drain()`: refuse new work, wait for what runs, cut the rest at the deadline."""

from __future__ import annotations

import threading

import anyio
import anyio.from_thread
import anyio.lowlevel
import pytest

from quiesce import JobCancelled, Scope
from tests.unit.core.drains import (
    JUST_SHORT_SECONDS,
    LONG_SECONDS,
    SHORT_SECONDS,
    STARTS,
    Start,
    draining,
    outcome_of,
    spawn,
)

any_start = pytest.mark.parametrize("start", STARTS, ids=lambda start: start.__name__)


@pytest.mark.real_time  # threads
@any_start
async def test_nothing_new_starts_while_draining(start: Start) -> None:
    """From the step in which the drain begins, everything that starts something raises."""
    scope = await Scope.open("drain")
    gate = anyio.Event()
    scope.spawn(gate.wait)
    assert await outcome_of(start, scope) == "allowed"
    async with draining(scope):
        assert await outcome_of(start, scope) == "refused"
        gate.set()


@pytest.mark.real_time  # threads
@any_start
async def test_nothing_starts_in_a_closed_scope(start: Start) -> None:
    """After the drain everything that starts something raises, for ever."""
    scope = await Scope.open("drain")
    await scope.drain()
    assert scope.state == "closed"
    assert await outcome_of(start, scope) == "refused"


@any_start
async def test_the_body_may_not_start_anything_during_the_grace(start: Start) -> None:
    """The body of the block is not work: once its scope drains, it starts nothing in it."""
    gate = anyio.Event()
    async with Scope("drain") as scope:
        scope.spawn(gate.wait)
        async with draining(scope):
            assert await outcome_of(start, scope) == "refused"
            gate.set()


@any_start
async def test_a_service_may_not_start_anything_during_the_grace(start: Start) -> None:
    """A service would bring new work in for ever, so the drain stops it from doing so."""
    scope = await Scope.open("drain")
    gate = anyio.Event()
    scope.spawn(gate.wait)

    async def accept() -> str:
        await scope.closing()
        try:
            return await outcome_of(start, scope)
        finally:
            gate.set()

    service = scope.spawn(accept, service=True)
    await anyio.lowlevel.checkpoint()
    assert (await scope.drain(LONG_SECONDS)).ok
    assert await service == "refused"


async def test_work_of_another_scope_may_not_start_anything_in_a_draining_one() -> None:
    """Only the work that is being drained may go on, not work of the scope above it."""
    async with Scope("above") as above:
        below = above.child("below")
        gate = anyio.Event()
        below.spawn(gate.wait)
        async with draining(below):
            assert await above.spawn(outcome_of, spawn, below) == "refused"
            assert await above.spawn(outcome_of, spawn, above) == "allowed"
            gate.set()


async def test_a_drain_with_nothing_to_do_returns_at_once(backend: str) -> None:
    """An idle scope is drained without waiting, and nothing is lost."""
    scope = await Scope.open("drain")
    scope.child("child")
    report = await scope.drain(LONG_SECONDS)
    assert report.ok
    assert report.completed == 0
    assert report.seconds < LONG_SECONDS if backend == "uvloop" else report.seconds == 0
    assert scope.report is report


async def test_a_drain_waits_for_everything_in_flight() -> None:
    """Jobs, plain holds and child scopes are all waited for, then services are stopped."""
    scope = await Scope.open("drain")
    gate = anyio.Event()
    job, below = scope.spawn(gate.wait), scope.child("below").spawn(gate.wait)
    request = scope.hold("request", "one")
    service = scope.spawn(anyio.sleep_forever, service=True)
    async with draining(scope) as drain:
        request.release()
        await anyio.lowlevel.checkpoint()
        assert not drain.done()
        assert not service.done()
        gate.set()
    report = await drain
    assert report.ok
    assert (job.done(), below.done(), service.done()) == (True, True, True)
    assert (report.completed, report.services) == (2, 1)


async def test_a_drain_without_a_deadline_waits_as_long_as_it_takes(
    backend: str, caplog: pytest.LogCaptureFixture
) -> None:
    """`grace=None` waits for hours, and says what for, so that nobody wonders."""
    scope = await Scope.open("drain")
    gate = anyio.Event()
    scope.spawn(gate.wait, name="slow")
    async with draining(scope, None) as drain:
        with anyio.move_on_after(SHORT_SECONDS if backend == "uvloop" else 4 * 3600):
            await anyio.sleep_forever()
        assert not drain.done()
        gate.set()
    assert (await drain).ok
    if backend != "uvloop":
        assert "slow" in caplog.text
        assert len(caplog.records) < 20


async def test_what_is_left_at_the_deadline_is_cancelled_joined_and_reported(backend: str) -> None:
    """At the deadline the drain cancels, waits for the cleanup, and names what it cut short."""
    scope = await Scope.open("drain")
    log = []

    async def work() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.lowlevel.checkpoint()
            log.append("cleaned up")

    scope.spawn(work, name="slow")
    scope.spawn(anyio.lowlevel.checkpoint)
    scope.child("child").spawn(work, name="slow below")
    report = await scope.drain(SHORT_SECONDS)
    assert log == ["cleaned up"] * 2
    assert sorted(item.name for item in report.cancelled) == ["slow", "slow below"]
    assert {item.scope for item in report.cancelled} == {"drain", "child"}
    assert report.completed == 1
    assert not report.ok
    late = 5 if backend == "uvloop" else 0.1
    assert JUST_SHORT_SECONDS <= report.seconds < SHORT_SECONDS + late


async def test_a_hold_that_nobody_releases_is_undelivered() -> None:
    """A plain hold cannot be cancelled: after grace and cleanup it is reported."""
    scope = await Scope.open("drain")
    request = scope.hold("request", "lost", peer="somebody")
    report = await scope.drain(SHORT_SECONDS, cleanup=SHORT_SECONDS)
    (item,) = report.undelivered
    assert (item.kind, item.name, item.details) == ("request", "lost", {"peer": "somebody"})
    assert report.seconds >= 2 * JUST_SHORT_SECONDS
    assert not report.ok
    request.release()


async def test_a_hold_released_during_the_cleanup_is_delivered() -> None:
    """The cleanup of cancelled work may still release what it held."""
    scope = await Scope.open("drain")

    async def work() -> None:
        with scope.hold("request", "one"):
            await anyio.sleep_forever()

    scope.spawn(work)
    report = await scope.drain(SHORT_SECONDS)
    assert len(report.cancelled) == 1
    assert not report.undelivered


async def test_work_withdrawn_during_the_grace_is_not_lost() -> None:
    """A job that its owner cancels during the grace was not cut short by the drain."""
    scope = await Scope.open("drain")
    job = scope.spawn(anyio.sleep_forever)
    async with draining(scope) as drain:
        job.cancel()
    report = await drain
    assert report.ok
    assert report.withdrawn == 1


@pytest.mark.parametrize(
    ("first", "second"), [(SHORT_SECONDS, LONG_SECONDS), (LONG_SECONDS, SHORT_SECONDS)]
)
async def test_the_stricter_of_two_deadlines_counts(first: float, second: float) -> None:
    """Whoever drains second can make the deadline sooner, never later, and both get one report."""
    scope = await Scope.open("drain")
    scope.spawn(anyio.sleep_forever)
    async with draining(scope, first) as drain:
        report = await scope.drain(second)
    assert await drain is report
    assert len(report.cancelled) == 1
    assert JUST_SHORT_SECONDS <= report.seconds < LONG_SECONDS / 2


async def test_the_stricter_of_two_cleanups_counts() -> None:
    """A second drain may shorten the time for the cleanup as well."""
    scope = await Scope.open("drain")
    request = scope.hold("request", "never released in time")
    async with draining(scope, SHORT_SECONDS):
        report = await scope.drain(LONG_SECONDS, cleanup=SHORT_SECONDS)
    assert report.seconds < 4
    request.release()


async def test_a_drain_without_grace_cancels_at_once() -> None:
    """`drain(0)` is a close: nothing may start from the same step on, and work is cancelled."""
    scope = await Scope.open("drain")
    scope.spawn(anyio.sleep_forever)
    async with draining(scope, 0) as drain:
        assert await outcome_of(spawn, scope) == "refused"
    assert len((await drain).cancelled) == 1


@pytest.mark.real_time
async def test_a_drain_waits_for_a_thread() -> None:
    """A thread's function is in flight until it has really returned, cancelled caller or not."""
    gate, begun = threading.Event(), anyio.Event()
    scope = await Scope.open("drain")

    def block() -> None:
        anyio.from_thread.run_sync(begun.set)
        gate.wait()

    caller = scope.spawn(scope.to_thread, block)
    await begun.wait()
    caller.cancel()
    with pytest.raises(JobCancelled):
        await caller
    async with draining(scope) as drain:
        assert [entry.kind for entry in scope.frontier()] == ["thread"]
        assert not drain.done()
        gate.set()
    assert (await drain).ok
