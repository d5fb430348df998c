"""Scopes in a tree: who is whose child, what a block's end does."""

from __future__ import annotations

from contextlib import suppress

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from quiesce import (
    DrainTimeout,
    Report,
    Scope,
    ScopeClosed,
    current_scope,
    detached,
)
from tests.loops import count_waiters, let_others_run

SHORT_SECONDS = 0.05


async def fail(message: str = "on purpose") -> None:
    """End badly."""
    raise LookupError(message)


async def find() -> Scope | None:
    """Return the current scope."""
    return current_scope()


def report_of(scope: Scope) -> Report:
    """Return the report of a closed scope."""
    assert scope.report is not None
    return scope.report


# The current scope.


async def test_outside_of_every_scope_there_is_none() -> None:
    """Before and after a block there is no current scope."""
    assert current_scope() is None
    async with Scope("tree") as scope:
        assert current_scope() is scope
    assert current_scope() is None


async def test_blocks_nest() -> None:
    """The innermost block is the current scope, and a child of the one around it."""
    async with Scope("outer") as outer:
        async with Scope("inner") as inner:
            assert current_scope() is inner
            assert [entry.name for entry in outer.frontier()] == ["inner"]
        assert current_scope() is outer
        assert outer.frontier().entries == ()


async def test_an_opened_scope_is_a_child_but_not_the_current_one() -> None:
    """`Scope.open` and `child` attach, and leave the current scope as it is."""
    async with Scope("outer") as outer:
        opened, child = await Scope.open("opened"), outer.child("child")
        assert current_scope() is outer
        assert [entry.name for entry in outer.frontier()] == ["opened", "child"]
        await opened.aclose()
        assert [entry.name for entry in outer.frontier()] == ["child"]
    assert (opened.state, child.state) == ("closed", "closed")


async def test_a_job_is_in_the_scope_that_it_was_spawned_in() -> None:
    """Wherever `spawn` is called, the job's current scope is its owner."""
    async with Scope("outer") as outer:
        child = outer.child("child")
        assert await outer.spawn(find) is outer
        assert await child.spawn(find) is child
        with detached():
            assert await child.spawn(find) is child
        async with Scope("inner"):
            assert await outer.spawn(find) is outer


async def test_a_closed_scope_is_nobodys_current_scope() -> None:
    """In the block of a scope that was closed by hand, the current one is the scope around it."""
    async with Scope("outer") as outer, Scope("inner") as inner:
        await inner.aclose()
        assert current_scope() is outer
        async with Scope("next") as following:
            assert [entry.name for entry in outer.frontier()] == ["next"]
            assert following.state == "open"


async def test_detached_code_is_in_no_scope() -> None:
    """What is opened inside `detached()` stands alone, and is not closed with the scope around."""
    async with Scope("outer") as outer:
        with detached():
            assert current_scope() is None
            alone = await Scope.open("alone")
            alone.spawn(anyio.sleep_forever)
        assert current_scope() is outer
        assert outer.frontier().entries == ()
    assert alone.state == "open"
    assert len((await alone.aclose()).cancelled) == 1


async def test_detached_ends_by_an_exception_too() -> None:
    """The current scope is back after the block, however it ended."""
    async with Scope("outer") as outer:
        with pytest.raises(LookupError), detached():
            await fail()
        assert current_scope() is outer


@pytest.mark.real_time
@pytest.mark.parametrize("inner", ["asyncio", "trio"])
async def test_another_event_loop_has_its_own_tree(inner: str) -> None:
    """A loop in a thread, to which the context was carried, opens its scopes apart from ours."""

    async def main() -> str | None:
        async with Scope("there") as there:
            assert current_scope() is there
            await there.spawn(let_others_run)
        found = current_scope()
        return None if found is None else found.name

    async with Scope("here") as here:
        await anyio.to_thread.run_sync(lambda: anyio.run(main, backend=inner))
        assert here.frontier().entries == ()
    assert report_of(here).ok


# The states, and the wait for the closing.


async def test_the_state_goes_one_way() -> None:
    """New, open, draining, closing, closed: each is seen, none comes back."""
    seen = [Scope("tree").state]
    scope = await Scope.open("tree")

    async def work() -> None:
        seen.append(scope.state)
        await scope.closing()
        seen.append(scope.state)
        try:
            await anyio.sleep_forever()
        finally:
            seen.append(scope.state)

    scope.spawn(work)
    await let_others_run()
    await scope.drain(SHORT_SECONDS)
    seen.append(scope.state)
    assert seen == ["new", "open", "draining", "closing", "closed"]


async def test_closing_waits_for_the_begin_of_the_end() -> None:
    """`closing()` returns once a drain or close has begun, and at once from then on."""
    for end in ("drain", "aclose"):
        scope = await Scope.open("tree")
        waiter = scope.spawn(scope.closing)
        await let_others_run()
        assert not waiter.done()
        if end == "drain":
            assert (await scope.drain()).completed == 1
        else:
            await scope.aclose()
        assert waiter.done()
        await scope.closing()


async def test_closing_is_told_to_child_scopes() -> None:
    """The close of a scope around it is the begin of the end for a child scope, too."""
    scope = await Scope.open("tree")
    below = scope.child("child").child("grandchild")
    waiter = below.spawn(below.closing)
    await let_others_run()
    assert not waiter.done()
    assert (await scope.drain()).completed == 1


async def test_closing_has_begun_for_a_child_of_a_draining_scope() -> None:
    """A child scope that running work opens during the grace knows that it is closing."""
    scope = await Scope.open("tree")
    seen = []

    async def work() -> None:
        await scope.closing()
        child = scope.child("late")
        with anyio.move_on_after(20):
            await child.closing()
            seen.append(child.state)

    scope.spawn(work)
    await scope.drain()
    assert seen == ["draining"]


async def test_a_cancelled_wait_for_the_closing_leaves_nothing() -> None:
    """Who gives up waiting is forgotten."""
    async with Scope("tree") as scope:
        before = count_waiters(scope)
        for _ in range(10):
            with anyio.move_on_after(0):
                await scope.closing()
        await let_others_run()  # the loop keeps the last cancellation for one turn
        assert count_waiters(scope) <= before


# The end of a block.


async def test_the_end_of_a_block_waits_for_its_work() -> None:
    """Without a deadline the block's end waits for jobs, holds and child scopes."""
    log = []

    async def work() -> None:
        await let_others_run()
        log.append("done")

    async with Scope("tree") as scope:
        scope.spawn(work)
        scope.child("child").spawn(work)
    assert log == ["done", "done"]
    assert report_of(scope).completed == 2


async def test_a_deadline_on_the_block_that_is_kept() -> None:
    """Work that ends within the block's deadline is not lost, and nothing is raised."""
    async with Scope("tree", grace=60) as scope:
        scope.spawn(let_others_run)
    assert report_of(scope).ok


async def test_a_deadline_on_the_block_that_passes() -> None:
    """What is left is cancelled, and the block raises a group with a `DrainTimeout`."""
    with pytest.RaisesGroup(pytest.RaisesExc(DrainTimeout, match="sleeper")) as caught:
        async with Scope("tree", grace=SHORT_SECONDS) as scope:
            scope.spawn(anyio.sleep_forever, name="sleeper")
    (error,) = caught.value.exceptions
    assert isinstance(error, DrainTimeout)
    assert error.report is report_of(scope)
    assert [item.name for item in error.report.cancelled] == ["sleeper"]


async def test_a_job_that_the_deadline_cuts_is_lost_also_if_it_returns() -> None:
    """It caught its cancellation, and nobody knows whether its work was done: it counts as cancelled."""

    async def obedient() -> None:
        with suppress(anyio.get_cancelled_exc_class()):
            await anyio.sleep_forever()

    told = pytest.RaisesExc(DrainTimeout, match="WORK LOST: 0 jobs completed, 1 cancelled")
    with pytest.RaisesGroup(told):
        async with Scope("tree", grace=SHORT_SECONDS) as scope:
            scope.spawn(obedient)
    assert [entry.name.rpartition(".")[2] for entry in report_of(scope).cancelled] == ["obedient"]


async def test_a_service_that_returns_when_it_is_cancelled_is_not_lost() -> None:
    """It has no end of its own: being stopped is its ordinary end."""

    async def loop() -> None:
        with suppress(anyio.get_cancelled_exc_class()):
            await anyio.sleep_forever()

    async with Scope("tree") as scope:
        scope.spawn(loop, service=True)
        await let_others_run()
    assert report_of(scope).ok


async def test_a_deadline_on_the_block_and_a_failure() -> None:
    """The group has the failures and the timeout, side by side."""
    with pytest.RaisesGroup(LookupError, DrainTimeout):
        async with Scope("tree", grace=SHORT_SECONDS) as scope:
            scope.spawn(anyio.sleep_forever)
            scope.spawn(fail)


async def test_a_hold_that_is_left_at_the_deadline_is_a_timeout() -> None:
    """A block with a hold that nobody released has lost it, and says so."""
    with pytest.RaisesGroup(DrainTimeout):
        async with Scope("tree", grace=SHORT_SECONDS, cleanup=SHORT_SECONDS) as scope:
            hold = scope.hold("request", "lost")
    assert len(report_of(scope).undelivered) == 1
    hold.release()


async def test_a_body_that_raises_cancels_its_work_at_once() -> None:
    """The body's exception comes out as it was, and the deadline is not waited for."""
    scope = Scope("tree", grace=3600)

    async def block() -> None:
        async with scope:
            scope.spawn(anyio.sleep_forever)
            await fail("the body's")

    with pytest.raises(LookupError, match="the body's"):
        await block()
    assert len(report_of(scope).cancelled) == 1
    assert report_of(scope).seconds < 60


async def test_a_block_that_was_closed_by_hand_is_not_late() -> None:
    """A close that the body asked for, and has the report of, is no timeout of the block."""
    async with Scope("tree") as scope:
        scope.spawn(anyio.sleep_forever)
        report = await scope.aclose()
        assert len(report.cancelled) == 1
        with pytest.raises(ScopeClosed):
            scope.hold("request", "late")
    assert scope.report is report


async def test_the_siblings_of_a_failure_are_not_late() -> None:
    """What `on_error="cancel"` cancels is no timeout: the block raises the failure alone."""
    with pytest.RaisesGroup(LookupError):
        async with Scope("tree", on_error="cancel") as scope:
            scope.spawn(anyio.sleep_forever)
            scope.spawn(fail)
            await anyio.sleep_forever()


# The parent's close.


async def test_child_scopes_are_closed_with_their_parent() -> None:
    """A parent's close ends all below it, and its report has theirs."""
    parent = await Scope.open("parent")
    child = parent.child("child")
    grandchild = child.child("grandchild")
    for scope in (parent, child, grandchild):
        scope.spawn(anyio.sleep_forever, name=scope.name)
    await let_others_run()
    report = await parent.aclose()
    assert {scope.state for scope in (parent, child, grandchild)} == {"closed"}
    assert sorted(item.name for item in report.cancelled) == ["child", "grandchild", "parent"]
    assert [item.name for item in report_of(grandchild).cancelled] == ["grandchild"]


async def test_a_child_that_closed_itself_has_its_own_report() -> None:
    """What a child lost before, and somebody was told, is not told again by the parent."""
    parent = await Scope.open("parent")
    child = parent.child("child")
    child.spawn(anyio.sleep_forever)
    await let_others_run()
    assert len((await child.aclose()).cancelled) == 1
    assert (await parent.aclose()).ok
