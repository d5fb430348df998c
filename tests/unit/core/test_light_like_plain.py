"""A light scope beside a plain one: whatever is asked of them, they do the same."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from quiesce import JobCancelled, Scope, ScopeClosed, UsageError
from quiesce.core.light_scope import LightScope, Model
from tests.stress import turns

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

on_asyncio = pytest.mark.backends("asyncio", "uvloop")

Child = Callable[..., Scope]


def plain(parent: Scope, name: str, **options: Any) -> Scope:
    """Open a scope of the usual kind."""
    return parent.child(name, **options)


def light(parent: Scope, name: str, **options: Any) -> Scope:
    """Open a light one."""
    return LightScope(Model(parent, **options), name, light.__code__)


@pytest.fixture(params=[plain, light])
def child(request: pytest.FixtureRequest) -> Child:
    """Return the way to open a child, each in turn."""
    way: Child = request.param
    return way


async def fail() -> None:
    """End badly."""
    raise LookupError


async def test_the_frontier_shows_what_it_has(child: Child) -> None:
    """Holds, jobs, services and scopes below it are listed; it makes its parent busy, and idle again."""
    async with Scope("parent") as parent:
        scope = child(parent, "scope")
        assert not parent.holds
        gate = anyio.Event()
        scope.spawn(gate.wait, name="job")
        scope.spawn(anyio.sleep_forever, name="service", service=True)
        below = scope.child("below").hold("thing", "held below")
        with scope.hold("request", "held", peer="x"):
            (entry,) = parent.frontier()
            shown = {(found.kind, found.name, found.service) for found in entry.children}
            assert shown == {
                ("job", "job", False),
                ("job", "service", True),
                ("request", "held", False),
                ("scope", "below", False),
            }
            assert (entry.kind, entry.name, entry.is_scope) == ("scope", "scope", True)
            assert len(parent.frontier()) == 3
        assert "test_light_like_plain.py" in (scope.where or "")
        gate.set()
        below.release()
        await parent.idle()
        assert not scope.frontier()
        await scope.aclose()


async def test_the_report_counts_all_that_has_ended(child: Child) -> None:
    """Its own report has what it has seen, however that has ended, and the parent's has it once."""
    heard: list[str] = []
    parent = await Scope.open("parent")
    scope = child(parent, "scope", on_error=lambda job, error: heard.append(type(error).__name__))
    scope.spawn(anyio.lowlevel.checkpoint)
    scope.spawn(fail)
    scope.spawn(anyio.sleep_forever, key="withdrawn")
    scope.spawn(anyio.sleep_forever, service=True)
    await turns()
    assert scope.cancel("withdrawn")
    await turns()
    scope.spawn(anyio.sleep_forever, name="cut")
    scope.hold("request", "unanswered")
    await turns()
    report = await parent.aclose(cleanup=0.05)
    for seen in (report, scope.report):
        assert seen is not None
        assert (seen.completed, seen.withdrawn, seen.handled, seen.services) == (1, 1, 1, 1)
        assert [item.name for item in seen.cancelled] == ["cut"]
        assert [item.name for item in seen.undelivered] == ["unanswered"]
    assert heard == ["LookupError"]


async def test_failures_are_collected_or_cancel(child: Child) -> None:
    """`on_error` means the same."""
    async with Scope("parent") as parent:
        collects = child(parent, "collects")
        collects.spawn(fail, name="fails")
        await turns()
        assert collects.state == "open"
        assert [item.name for item in (await collects.aclose()).failed] == ["fails"]
        cancels = child(parent, "cancels", on_error="cancel")
        other = cancels.spawn(anyio.sleep_forever)
        cancels.spawn(fail)
        with pytest.raises(JobCancelled):
            await other
        report = await cancels.aclose()
        assert [type(item.error) for item in report.failed] == [LookupError]


@on_asyncio
async def test_whatever_is_started_in_it_is_adopted(child: Child) -> None:
    """Tasks that anybody creates are its own; those that are named so are services."""
    async with Scope("parent", adopt=True) as parent:
        scope = child(parent, "scope", adopt=True, services=["loop *"], leftovers="parent")
        gate = asyncio.Event()

        async def work() -> None:
            started = [
                asyncio.create_task(gate.wait(), name="work"),
                asyncio.create_task(asyncio.Event().wait(), name="loop 1"),
            ]
            await started[0]
            started[1].cancel()

        scope.spawn(work)
        await turns()
        found = {entry.name: entry.service for entry in scope.frontier()}
        assert found.pop("loop 1") is True
        assert set(found.values()) == {False}
        assert "work" in found
        assert len(parent.frontier()) == 2
        gate.set()
        await turns()
        report = await scope.aclose()
        assert (report.completed, report.services, report.handed_over) == (2, 1, 0)


@on_asyncio
async def test_failures_of_adopted_tasks_that_nobody_asks_for_are_told(child: Child) -> None:
    """The close reports what the tasks have kept to themselves."""
    async with Scope("parent", adopt=True) as parent:
        scope = child(parent, "scope", adopt=True)
        kept: list[asyncio.Task[None]] = []

        async def work() -> None:
            kept.append(asyncio.create_task(fail(), name="fails"))

        scope.spawn(work)
        await turns()
        report = await scope.aclose()
        assert [item.name for item in report.failed] == ["fails"]


async def test_what_is_left_goes_to_the_parent(child: Child) -> None:
    """With `leftovers="parent"` jobs, holds, services and scopes go on there."""
    async with Scope("parent") as parent:
        scope = child(parent, "scope", leftovers="parent")
        gate = anyio.Event()
        job = scope.spawn(gate.wait, name="job")
        hold = scope.hold("request", "held")
        scope.spawn(anyio.sleep_forever, name="service", service=True)
        below = child(scope, "below")
        inner = below.hold("thing", "inner")
        report = await scope.aclose()
        assert (report.handed_over, scope.state, job.done()) == (4, "closed", False)
        assert {entry.name for entry in parent.frontier()} == {"job", "held", "service", "below"}
        assert below.parent is parent
        gate.set()
        hold.release()
        inner.release()
        await parent.idle()
        assert not parent.holds


async def test_what_has_moved_stays_where_it_is(child: Child) -> None:
    """A scope that nobody has looked at belongs to another parent from then on, whoever looks then."""
    async with Scope("parent") as parent:
        middle = parent.child("middle", leftovers="parent")
        scope = child(middle, "scope")
        await middle.aclose()
        assert scope in parent.children
        hold = scope.hold("request", "late")
        assert [entry.name for entry in parent.frontier()] == ["scope"]
        assert scope.parent is parent
        hold.release()
        assert not parent.holds
        await scope.aclose()
        assert scope not in parent.children


async def test_a_close_cancels_what_runs_and_refuses_the_rest(child: Child) -> None:
    """The closing is the same: one report, nothing new, and those who wait for it are told."""
    async with Scope("parent") as parent:
        scope = child(parent, "scope")
        told: list[str] = []

        async def waits() -> None:
            await scope.closing()
            told.append("closing")

        scope.spawn(anyio.sleep_forever, name="job")
        parent.spawn(waits)
        await turns()
        report = await scope.aclose()
        await turns()
        assert [item.name for item in report.cancelled] == ["job"]
        assert (scope.state, told) == ("closed", ["closing"])
        assert await scope.aclose() is report
        with pytest.raises(ScopeClosed, match="scope 'scope' is closed"):
            scope.spawn(fail)
        assert scope not in parent.children


async def test_work_may_finish_its_sub_work_in_a_drain(child: Child) -> None:
    """In a drain of the parent, work of the scope may start something; nobody else may."""
    async with Scope("parent") as parent:
        scope = child(parent, "scope")
        begun, go = anyio.Event(), anyio.Event()
        done: list[str] = []

        async def sub() -> None:
            done.append("sub")

        async def work() -> None:
            begun.set()
            await go.wait()
            await scope.spawn(sub)
            await child(scope, "below").spawn(sub)

        # Held before anybody has looked at the scope: the drain is the first to do so.
        job = parent.backend.start(scope, work(), "work", work.__code__, 0)
        scope.insert_hold(job, job)  # type: ignore[arg-type]  # a job is Held
        async with anyio.create_task_group() as group:
            await begun.wait()
            group.start_soon(parent.drain)
            await turns()
            assert scope.state == "draining"
            with pytest.raises(ScopeClosed, match="draining"):
                scope.hold("request", "new")
            with pytest.raises(ScopeClosed, match="draining"):
                child(parent, "another")
            go.set()
        assert done == ["sub", "sub"]
        assert scope.state == "closed"


async def test_a_scope_may_be_opened_by_work_that_is_drained(child: Child) -> None:
    """It drains along with its parent: it is told so, and gets nothing from outside."""
    seen: list[str] = []

    async with Scope("parent") as parent:
        go = anyio.Event()
        opened: list[Scope] = []

        async def work() -> None:
            await go.wait()
            scope = child(parent, "late")
            opened.append(scope)
            await scope.closing()  # it has begun before it was opened
            seen.append(scope.state)
            await scope.spawn(anyio.lowlevel.checkpoint)

        parent.spawn(work)
        async with anyio.create_task_group() as group:
            group.start_soon(parent.drain)
            await turns()
            go.set()
    assert seen == ["draining"]
    assert opened[0].state == "closed"


async def test_a_closed_parent_takes_no_more(child: Child) -> None:
    """Nothing is opened below it, and nothing is left there."""
    parent = await Scope.open("parent")
    await parent.aclose()
    with pytest.raises(ScopeClosed, match="scope 'parent' is closed"):
        child(parent, "late")
    assert not parent.children


@pytest.mark.real_time
async def test_another_thread_cannot_open_it(child: Child) -> None:
    """The error says so, and nothing is changed."""
    async with Scope("parent") as parent:
        errors: list[BaseException] = []

        def elsewhere() -> None:
            try:
                child(parent, "scope")
            except UsageError as error:
                errors.append(error)

        thread = threading.Thread(target=elsewhere)
        thread.start()
        await anyio.to_thread.run_sync(thread.join)
        assert ["from another thread" in str(error) for error in errors] == [True]
        assert not parent.children


async def test_idle_waits_for_all_below(child: Child) -> None:
    """It returns when the last one has ended, and refuses those who would wait for themselves."""
    async with Scope("parent") as parent:
        scope = child(parent, "scope")
        gate = anyio.Event()
        refused: list[bool] = []
        order: list[str] = []

        async def asks() -> None:
            with pytest.raises(UsageError, match="would wait for itself"):
                await scope.idle()
            refused.append(True)
            await gate.wait()
            order.append("work")

        scope.spawn(asks)
        async with anyio.create_task_group() as group:

            async def wait() -> None:
                await scope.idle()
                order.append("idle")

            group.start_soon(wait)
            await turns()
            gate.set()
        assert (refused, order) == ([True], ["work", "idle"])
        await scope.aclose()


async def test_contexts_are_left_when_it_is_closed(child: Child) -> None:
    """`enter()` works in it as anywhere."""
    log: list[str] = []

    @asynccontextmanager
    async def manager() -> AsyncIterator[str]:
        log.append("in")
        yield "value"
        log.append("out")

    async with Scope("parent") as parent:
        scope = child(parent, "scope")
        assert await scope.enter(manager()) == "value"
        await scope.aclose()
        assert log == ["in", "out"]


async def test_a_job_may_close_the_scope_that_it_is_in(child: Child) -> None:
    """It gets the report of all the rest."""
    async with Scope("parent") as parent:
        scope = child(parent, "scope")
        completed: list[int] = []

        async def closes() -> None:
            completed.append((await scope.drain()).completed)

        scope.spawn(anyio.lowlevel.checkpoint)
        scope.spawn(closes)
        await parent.idle()
        await turns()
        assert (completed, scope.state) == ([1], "closed")


async def test_opening_it_once_more_is_refused(child: Child) -> None:
    """A scope has one life."""
    async with Scope("parent") as parent:
        scope = child(parent, "scope")
        with pytest.raises(UsageError, match="opened before"):
            await scope.__aenter__()
        await scope.aclose()
