"""Lock discipline: work that comes back to its scope while the scope is being closed.

There is no lock in the core, so nothing can be locked out; and a lock of the user's own, held
by the closer, costs no more than the deadline.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import anyio
import pytest

from quiesce import Scope, ScopeClosed, current_scope
from tests.stress import Resource, turns

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    Act = Callable[[Scope], Awaitable[object]]

PROMPT = 3.0  # far above any scheduling, below the deadlines


async def spawns(scope: Scope) -> None:
    """Try to start another job."""
    scope.spawn(anyio.sleep_forever)


async def holds(scope: Scope) -> None:
    """Try to hold something."""
    scope.hold("request", "late")


async def makes_a_child(scope: Scope) -> None:
    """Try to open a child scope."""
    scope.child("late")


async def opens(_: Scope) -> None:
    """Try to open a scope below the current one."""
    await Scope.open("late")


async def blocks(_: Scope) -> None:
    """Try to open a block below the current scope."""
    async with Scope("late"):
        pass


async def enters(scope: Scope) -> None:
    """Try to enter a context."""
    await scope.enter(Resource())


async def calls_a_thread(scope: Scope) -> None:
    """Try to call a function in a thread."""
    await scope.to_thread(int)


@pytest.mark.parametrize(
    "act", [spawns, holds, makes_a_child, opens, blocks, enters, calls_a_thread]
)
async def test_cleanup_of_cancelled_work_may_start_nothing(act: Act) -> None:
    """Whatever a cancelled job tries to start in its `finally` is refused, and it ends."""
    refused: list[ScopeClosed] = []

    async def job() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                try:
                    await act(scope)
                except ScopeClosed as error:
                    refused.append(error)

    scope = await Scope.open("a")
    scope.spawn(job, name="job")
    await turns()
    report = await scope.aclose(cleanup=4)
    assert len(refused) == 1
    assert report.seconds < PROMPT
    assert [lost.name for lost in report.cancelled] == ["job"]
    assert not scope.frontier()


async def test_work_may_start_nothing_from_the_very_step_in_which_the_close_begins() -> None:
    """A job that runs before the close has got round to cancelling it is refused all the same."""

    async def job() -> None:
        await go.wait()
        with suppress(ScopeClosed):
            scope.spawn(anyio.sleep_forever)

    go = anyio.Event()
    scope = await Scope.open("a")
    scope.spawn(job)
    await turns()
    go.set()
    report = await scope.aclose()
    assert report.completed + len(report.cancelled) == 1  # and not a second one


async def cancels_itself(scope: Scope) -> None:
    """Cancel its own key, which is being cancelled already."""
    scope.cancel("key 0")


async def cancels_all(scope: Scope) -> None:
    """Cancel every job by its key."""
    for number in range(5):
        scope.cancel(f"key {number}")


async def looks(scope: Scope) -> None:
    """Ask what is in flight, in every form."""
    frontier = scope.frontier()
    assert str(frontier)
    assert frontier.to_json()
    assert current_scope() is scope


async def closes(scope: Scope) -> None:
    """Close the scope, as careful code does when it fails."""
    await scope.aclose(cleanup=4)


async def drains(scope: Scope) -> None:
    """Drain the scope."""
    await scope.drain(grace=None)


async def closes_and_looks(scope: Scope) -> None:
    """Close the scope, twice, with a look before and after."""
    await looks(scope)
    report = await scope.aclose()
    scope.frontier()
    assert await scope.aclose() is report


async def releases(scope: Scope) -> None:
    """Release what was held before the close."""
    for entry in list(scope.holds):
        if hasattr(entry, "release"):
            entry.release()


@pytest.mark.parametrize("jobs", [1, 5])
@pytest.mark.parametrize(
    "act", [cancels_itself, cancels_all, looks, closes, drains, closes_and_looks, releases]
)
async def test_cleanup_of_cancelled_work_may_ask_and_close(act: Act, jobs: int) -> None:
    """Jobs that cancel, look or close in their `finally` neither hang nor hold up the close."""
    ended = 0

    async def job() -> None:
        nonlocal ended
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await act(scope)
            ended += 1

    scope = await Scope.open("a")
    for number in range(jobs):
        scope.spawn(job, key=f"key {number}")
    scope.spawn(anyio.sleep_forever)
    held = scope.hold("request", "early")
    scope.spawn(held_until_cancelled, held.release)
    await turns()
    report = await scope.aclose(cleanup=4)
    assert ended == jobs
    assert report.seconds < PROMPT
    assert not report.stuck
    assert not report.undelivered


async def held_until_cancelled(release: Callable[[], None]) -> None:
    """Release a hold when cancelled."""
    try:
        await anyio.sleep_forever()
    finally:
        release()


@pytest.mark.parametrize("act", [closes, drains, looks])
async def test_a_service_that_is_stopped_may_ask_and_close(act: Act) -> None:
    """A service's `finally` is as free as a job's."""

    async def service() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await act(scope)

    scope = await Scope.open("a")
    job = scope.spawn(service, service=True)
    await turns()
    report = await scope.aclose(cleanup=4)
    assert job.done()
    assert report.seconds < PROMPT
    assert not report.stuck


async def test_a_registry_lock_that_nobody_holds_is_taken_and_left() -> None:
    """Jobs that take the same lock in their `finally` take it one after the other."""
    lock = anyio.Lock()
    registry = dict.fromkeys(range(10), "running")

    async def job(number: int) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                async with lock:
                    await turns(2)
                    del registry[number]

    scope = await Scope.open("a")
    for number in range(10):
        scope.spawn(job, number)
    await turns()
    report = await scope.aclose(cleanup=4)
    assert not registry
    assert report.seconds < PROMPT
    assert len(report.cancelled) == 10


async def test_a_registry_lock_that_the_closer_holds_costs_the_deadline_and_no_more() -> None:
    """The closer waits for jobs that wait for its lock: until the deadline, not for ever."""
    lock = anyio.Lock()

    async def job() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            async with lock:
                pass

    scope = await Scope.open("a")
    jobs = [scope.spawn(job) for _ in range(3)]
    await turns()
    begun = anyio.current_time()
    async with lock:
        report = await scope.aclose(cleanup=0.1)
    assert anyio.current_time() - begun < PROMPT
    assert len(report.cancelled) == 3
    assert all(job.done() for job in jobs)
    assert not lock.locked()


async def test_a_shielded_wait_for_the_closers_lock_is_reported_as_stuck() -> None:
    """Where the wait for the lock cannot be cut short, the report says who waits for what."""
    lock = anyio.Lock()
    ended: list[str] = []

    async def job() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                while not ended:
                    with suppress_native():
                        async with lock:
                            ended.append("job")

    scope = await Scope.open("a")
    scope.spawn(job, name="job")
    await turns()
    async with lock:
        report = await scope.aclose(cleanup=0.05)
    assert [lost.name for lost in report.stuck] == ["job"]
    assert "Lock" in str(report)
    await turns()
    assert ended == ["job"]


def suppress_native() -> suppress:
    """Swallow asyncio's cancellation, which gets through anyio's shield."""
    from asyncio import CancelledError  # noqa: PLC0415 - named once

    return suppress(CancelledError)


async def test_the_last_one_out_closes_the_scope_from_its_own_end() -> None:
    """A registry that closes its scope when the last entry is gone, from within a job."""
    registry = set(range(5))
    reports = []

    async def job(number: int) -> None:
        try:
            await turns(number)
        finally:
            registry.remove(number)
            if not registry:
                reports.append(await scope.aclose())

    scope = await Scope.open("a")
    for number in range(5):
        scope.spawn(job, number)
    await scope.closing()
    report = await scope.aclose()
    assert [report.completed, len(reports)] == [5, 1]
    assert report.ok


async def test_a_jobs_done_callback_may_reenter(backend: str) -> None:
    """What is told that a job has ended may look, cancel and try to start."""
    seen: list[str] = []

    def callback() -> None:
        seen.append(str(scope.frontier()))
        scope.cancel("other")
        try:
            scope.spawn(anyio.sleep_forever)
        except ScopeClosed:
            seen.append("refused")

    scope = await Scope.open("a")
    job = scope.spawn(anyio.sleep_forever)
    scope.spawn(anyio.sleep_forever, key="other")
    job.call_when_done(callback)
    await turns()
    report = await scope.aclose(cleanup=4)
    assert seen[1] == "refused"
    assert report.seconds < PROMPT
    assert len(report.cancelled) == 2
