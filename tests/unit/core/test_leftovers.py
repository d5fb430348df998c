"""`leftovers="parent"`: what a close leaves running goes on under the parent scope."""

from __future__ import annotations

from contextlib import suppress

import anyio
import anyio.lowlevel
import pytest

from quiesce import JobCancelled, Report, Scope, ScopeClosed, UsageError, current_scope
from tests.loops import let_others_run

SHORT_SECONDS = 0.05
LONG_SECONDS = 20.0  # nothing waits that long unless it is broken


async def fail() -> None:
    """End badly."""
    raise LookupError


def report_of(scope: Scope) -> Report:
    """Return the report of a closed scope."""
    assert scope.report is not None
    return scope.report


async def test_what_is_left_goes_on_under_the_parent() -> None:
    """With `leftovers="parent"` the close hands jobs, holds and services over, alive."""
    async with Scope("parent") as parent:
        gate = anyio.Event()
        child = parent.child("child", leftovers="parent")
        job = child.spawn(gate.wait, name="job")
        hold = child.hold("request", "hold")
        child.spawn(anyio.sleep_forever, name="service", service=True)
        await let_others_run()
        report = await child.aclose()
        assert child.state == "closed"
        assert (report.handed_over, report.ok, report.services) == (3, True, 0)
        assert not job.done()
        assert not hold.released
        names = {entry.name: entry.service for entry in parent.frontier()}
        assert names == {"job": False, "hold": False, "service": True}
        gate.set()
        hold.release()
        await parent.idle()
    assert (report_of(parent).completed, report_of(parent).services) == (1, 1)
    assert report_of(parent).ok


async def test_a_block_hands_over_at_its_deadline_and_raises_nothing() -> None:
    """Work that goes on under the parent is not lost, so the block does not raise."""
    async with Scope("parent") as parent:
        gate = anyio.Event()
        async with Scope("child", leftovers="parent", grace=SHORT_SECONDS) as child:
            child.spawn(let_others_run)
            child.spawn(gate.wait)
        assert (report_of(child).completed, report_of(child).handed_over) == (1, 1)
        assert len(parent.frontier()) == 1
        gate.set()


async def test_a_drain_hands_over_only_what_is_left() -> None:
    """The grace is waited out first; an idle scope has nothing to hand over."""
    async with Scope("parent") as parent:
        child = parent.child("child", leftovers="parent")
        child.spawn(let_others_run)
        report = await child.drain()
        assert (report.completed, report.handed_over) == (1, 0)


async def test_what_was_handed_over_is_in_one_report() -> None:
    """Work that a child hands up while the parent closes is cut by the parent, and counted there."""
    parent = await Scope.open("parent")
    child = parent.child("child", leftovers="parent")
    child.spawn(anyio.sleep_forever)
    await let_others_run()
    report = await parent.aclose()
    assert len(report.cancelled) == 1
    assert report.handed_over == 0


async def test_work_that_was_handed_over_is_the_parents() -> None:
    """Its current scope is the parent, where it may spawn; its failure is in the parent's report."""
    parent = await Scope.open("parent")
    child = parent.child("child", leftovers="parent")
    gate = anyio.Event()
    seen = []

    async def work() -> None:
        await gate.wait()
        seen.append(current_scope())
        parent.spawn(let_others_run)
        with pytest.raises(ScopeClosed):
            child.spawn(let_others_run)
        await fail()

    child.spawn(work)
    await let_others_run()
    await child.aclose()
    gate.set()
    await parent.idle()
    assert seen == [parent]
    report = await parent.aclose()
    assert (report.completed, len(report.failed)) == (1, 1)


async def test_a_child_scope_that_was_handed_over_goes_on() -> None:
    """A scope below the closed one is open under the parent: its work, and others, may go on."""
    async with Scope("parent") as parent:
        child = parent.child("child", leftovers="parent")
        grandchild = child.child("grandchild")
        gate = anyio.Event()

        async def work() -> None:
            await gate.wait()
            await grandchild.spawn(let_others_run)

        job = grandchild.spawn(work)
        await let_others_run()
        report = await child.aclose()
        assert (report.handed_over, len(report.cancelled)) == (1, 0)
        assert [entry.name for entry in parent.frontier()] == ["grandchild"]
        assert len(parent.frontier()) == 1
        waiter = parent.spawn(parent.idle, service=True)
        await let_others_run()
        assert not waiter.done()
        gate.set()
        await job
        await waiter
        assert grandchild.state == "open"
        await grandchild.spawn(let_others_run)
        await grandchild.aclose()


@pytest.mark.parametrize("depth", [0, 1], ids=["job", "job of a scope"])
@pytest.mark.parametrize("end", ["drain", "aclose"])
@pytest.mark.parametrize("other", ["hold", "job that cleans up"])
async def test_what_is_handed_to_a_closing_parent_has_time_to_clean_up(
    depth: int, end: str, other: str
) -> None:
    """It is cancelled when it arrives, not at the deadline, whatever else the parent waits for."""
    parent = await Scope.open("parent")
    below = parent.child("child", leftovers="parent")
    for _ in range(depth):
        below = below.child("grandchild")

    gate, cleaned = anyio.Event(), anyio.Event()
    in_time: list[bool] = []

    async def work() -> None:
        try:
            await gate.wait()
        finally:
            with anyio.CancelScope(shield=True):
                await let_others_run()
            cleaned.set()

    async def wait_for_it() -> None:
        with anyio.move_on_after(LONG_SECONDS / 2, shield=True):
            await cleaned.wait()
        in_time.append(cleaned.is_set())
        gate.set()  # or a job that was not cancelled would stay for ever

    async def hold() -> None:
        with parent.hold("request", "released when the job has cleaned up"):
            await wait_for_it()

    async def clean_up() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            await wait_for_it()

    job = below.spawn(work)
    await let_others_run()
    grace = SHORT_SECONDS if end == "drain" else 0
    async with anyio.create_task_group() as tasks:
        if other == "hold":
            tasks.start_soon(hold)
        else:
            parent.spawn(clean_up)
        await let_others_run()
        report = await parent.drain(grace, cleanup=LONG_SECONDS)
    with suppress(JobCancelled):
        await job
    assert in_time == [True]
    assert job.name in [item.name for item in report.cancelled]
    assert report.stuck == ()


@pytest.mark.parametrize("end", ["drain", "aclose"])
async def test_a_child_scope_that_is_handed_to_a_closing_parent_ends_with_it(end: str) -> None:
    """The parent's close takes in what its children hand to it, idle scopes too, and ends it."""
    parent = await Scope.open("parent")
    grandchild = parent.child("child", leftovers="parent").child("grandchild")
    with anyio.fail_after(2):
        report = await (parent.drain() if end == "drain" else parent.aclose())
    assert report.ok
    assert grandchild.state == "closed"


async def test_keys_of_work_that_was_handed_over_are_free() -> None:
    """A job's key stays behind in the scope that was closed."""
    async with Scope("parent") as parent:
        child = parent.child("child", leftovers="parent")
        job = child.spawn(anyio.sleep_forever, key="k")
        await let_others_run()
        await child.aclose()
        assert child.cancel("k") is False
        own = parent.spawn(anyio.sleep_forever, key="k")
        job.cancel()
        own.cancel()


async def test_leftovers_need_a_parent() -> None:
    """A scope with nobody above it cannot hand anything over, and says so when it is opened."""
    with pytest.raises(UsageError, match="open it inside another scope"):
        await Scope.open("alone", leftovers="parent")
